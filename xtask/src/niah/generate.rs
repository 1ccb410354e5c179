//! Greedy generation of many sequences in packed steps.

use super::arm::Prepared;
use crate::runner::{Piece, Runner, argmax};
use anyhow::Result;
use std::collections::VecDeque;
use taper_base::TokenId;

/// Tokens of a step: prompts are cut to it, and decoding sequences share it.
const STEP_TOKENS: usize = 512;

/// Sequences at a time, if the cache holds them.
const MAX_SEQS: usize = 8;

/// Prompt tokens at a time: long prompts gain nothing from company and cost memory.
const MAX_RESIDENT_TOKENS: usize = 32 << 10;

/// A prompt to go on with.
#[derive(Debug, Clone)]
pub(super) struct Job {
    pub(super) prompt: Vec<TokenId>,
    pub(super) max_tokens: usize,
}

impl Job {
    fn room(&self) -> usize {
        self.prompt.len() + self.max_tokens
    }
}

/// A sequence in progress: the prompt and its output so far.
struct Active {
    job: usize,
    tokens: Vec<TokenId>,
    /// How many of them are the prompt.
    prompt: usize,
    computed: usize,
}

/// Runs all jobs until a stop token or their limit, as an arm of an experiment. `computed` hears of prompt tokens,
/// `answered` of a job's index and its output without the stop token.
pub(super) fn generate(
    load: impl FnOnce(usize) -> Result<Runner>,
    arm: &Prepared<'_>,
    jobs: &[Job],
    stop: &[TokenId],
    computed: impl Fn(usize),
    mut answered: impl FnMut(usize, &[TokenId]) -> Result<()>,
) -> Result<Vec<usize>> {
    let longest = jobs.iter().map(Job::room).max().unwrap_or(1);
    let seqs = (MAX_RESIDENT_TOKENS / longest).clamp(1, MAX_SEQS);
    let mut runner = load(longest * seqs)?;
    let mut arm = arm.begin(&mut runner, longest)?;
    let mut waiting: VecDeque<usize> = (0..jobs.len()).collect();
    let mut active: Vec<Active> = Vec::new();
    loop {
        while active.len() < seqs
            && let Some(job) = waiting.pop_front()
        {
            let tokens = jobs[job].prompt.clone();
            arm.prompt_begins(&mut runner, job as u64, tokens.len())?;
            active.push(Active { job, prompt: tokens.len(), tokens, computed: 0 });
        }
        if active.is_empty() {
            if let Some(pages) = runner.pages() {
                println!("{pages}");
            }
            return Ok(arm.evicted());
        }
        let lens = plan(&active);
        let with_work = || active.iter().zip(&lens).filter(|(_, len)| **len > 0);
        let pieces: Vec<_> = with_work().map(|(a, &len)| a.piece(len)).collect();
        let rows = runner.step(&pieces, true)?;
        let next: Vec<_> = rows.iter().map(|row| argmax(row)).collect();
        let mut next = next.into_iter();
        for (a, &len) in active.iter_mut().zip(&lens).filter(|(_, len)| **len > 0) {
            let Some(token) = next.next() else { break };
            computed(len.min(jobs[a.job].prompt.len().saturating_sub(a.computed)));
            a.computed += len;
            if a.computed == a.prompt {
                arm.prompt_done(&mut runner, a.job as u64, a.prompt, jobs[a.job].max_tokens)?;
            }
            if a.computed == a.tokens.len() {
                a.tokens.push(token);
            }
        }
        let mut left = Vec::new();
        for a in active {
            let (answer, limit) = (&a.tokens[jobs[a.job].prompt.len()..], jobs[a.job].max_tokens);
            let stopped = answer.last().is_some_and(|t| stop.contains(t));
            if stopped || answer.len() == limit {
                answered(a.job, &answer[..answer.len() - usize::from(stopped)])?;
                runner.release(a.job as u64);
            } else {
                left.push(a);
            }
        }
        active = left;
    }
}

impl Active {
    fn piece(&self, len: usize) -> Piece<'_> {
        let (seq, start) = (self.job as u64, self.computed);
        let tokens = &self.tokens[start..start + len];
        if start < self.prompt {
            Piece::prompt(seq, start, tokens)
        } else {
            Piece::answer(seq, start, tokens)
        }
    }
}

/// Tokens of each sequence in the next step: first one for each that decodes, then prompts in order
/// until the step is full.
fn plan(active: &[Active]) -> Vec<usize> {
    let missing = |a: &Active| a.tokens.len() - a.computed;
    let decoding = active.iter().filter(|a| missing(a) == 1).count();
    let mut room = STEP_TOKENS.saturating_sub(decoding);
    let take = |a: &Active| {
        if missing(a) == 1 {
            return 1;
        }
        let len = missing(a).min(room);
        room -= len;
        len
    };
    active.iter().map(take).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_serves_decoding_first_and_then_prompts_in_order() {
        let of =
            |len: usize, computed| Active { job: 0, tokens: vec![0; len], prompt: len, computed };
        assert_eq!(plan(&[of(10, 9), of(700, 0), of(700, 0)]), [1, 511, 0]);
        assert_eq!(plan(&[of(700, 511), of(10, 9), of(700, 0)]), [189, 1, 322]);
        assert_eq!(plan(&[of(1, 0)]), [1]);
    }
}
