//! Grammars under speculation: masks, forced tokens and ends inside drafts.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail the test")]

mod common;
mod drafters;

use common::{Answer, Numbers, collect, config, greedy, settled, submit, tiny};
use drafters::{Oracle, Random};
use std::sync::Arc;
use taper_base::{
    Constraint, ConstraintError, End, GenRequest, Grammar, SamplingParams, SharedGrammar, TokenId,
    TokenMask,
};
use taper_engine::{EngineConfig, Speculation};

const VOCAB: u32 = 320;

/// What may follow depends on all tokens before: nothing is masked at some places, two tokens are forced at
/// others, and after enough of them the output is over.
#[derive(Debug, Clone)]
struct Places {
    state: u32,
    tokens: u32,
    last: u32,
}

impl Grammar for Places {
    fn start(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}

impl Places {
    fn forces(&self) -> Option<TokenId> {
        self.state.is_multiple_of(5).then_some(10 + self.state % 90)
    }

    fn allows(&self, token: TokenId) -> bool {
        match self.forces() {
            Some(forced) => token == forced,
            None => self.state.is_multiple_of(3) || token % 4 != self.state % 4,
        }
    }
}

impl Constraint for Places {
    fn mask(&mut self) -> Result<Option<TokenMask>, ConstraintError> {
        let masks = self.forces().is_some() || !self.state.is_multiple_of(3);
        Ok(masks.then(|| (0..VOCAB).filter(|&token| self.allows(token)).collect()))
    }

    fn accept(&mut self, token: TokenId) -> Result<(), ConstraintError> {
        if !self.allows(token) {
            return Err(ConstraintError::Broken(format!("{token} is not allowed")));
        }
        self.tokens += 1;
        self.state = self.state.wrapping_mul(31).wrapping_add(token + 7) % 1009;
        Ok(())
    }

    fn forced(&mut self) -> Vec<TokenId> {
        let (mut ahead, mut forced) = (self.clone(), Vec::new());
        while let Some(token) = ahead.forces().filter(|_| forced.len() < 3) {
            ahead.accept(token).unwrap();
            forced.push(token);
        }
        forced
    }

    fn end(&mut self) -> End {
        match self.tokens {
            n if n >= self.last => End::Must,
            n if n % 2 == 0 => End::May,
            _ => End::No,
        }
    }

    fn fork(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}

fn answers(requests: &[GenRequest], speculation: Option<Speculation>) -> (Vec<Answer>, u64, u64) {
    let engine = tiny(&EngineConfig { speculation, ..config() });
    let open: Vec<_> = requests.iter().map(|r| submit(&engine, r.clone())).collect();
    let answers = open.into_iter().map(collect).collect();
    settled(&engine);
    let stats = taper_base::Engine::stats(&engine);
    (answers, stats.forced_tokens, stats.masked_tokens)
}

#[test]
fn outputs_of_grammars_are_what_they_are_without_drafts() {
    let mut numbers = Numbers(3);
    let requests: Vec<_> = (0..60u32)
        .map(|i| {
            let grammar = Places { state: i, tokens: 0, last: 20 + numbers.below(60) };
            let len = 1 + numbers.below(40);
            let sampling = SamplingParams {
                temperature: [0.0, 0.6, 1.0][i as usize % 3],
                seed: u64::from(i),
                logprobs: (i % 4 == 0).then_some(1),
                repetition_penalty: if i % 5 == 0 { 1.2 } else { 1.0 },
                ..SamplingParams::default()
            };
            let grammar = Some(SharedGrammar::from(Arc::new(grammar)));
            GenRequest { grammar, sampling, ..greedy(&numbers.prompt(len, VOCAB), 10 + i) }
        })
        .collect();
    let (want, forced, masked) = answers(&requests, None);
    assert!(forced > 50 && masked > 500, "{forced} forced, {masked} masked");
    let texts = requests.iter().zip(&want).map(|(r, a)| [&r.prompt[..], &a.tokens].concat());
    let texts: Arc<[Vec<TokenId>]> = texts.collect();
    let oracle = |wrong| {
        let texts = Arc::clone(&texts);
        Speculation::new(move || Box::new(Oracle { texts: Arc::clone(&texts), wrong }))
    };
    let drafters = [
        Speculation::suffix(),
        Speculation::new(|| Box::new(Random(Numbers(1)))),
        oracle(0),
        oracle(3),
        oracle(5).most(3),
    ];
    for (i, speculation) in drafters.into_iter().enumerate() {
        let (got, got_forced, got_masked) = answers(&requests, Some(speculation.steady()));
        for (at, (got, want)) in got.iter().zip(&want).enumerate() {
            assert!(got.error.is_none(), "drafter {i}, request {at}: {:?}", got.error);
            assert_eq!(got.tokens, want.tokens, "drafter {i}, request {at}");
            assert_eq!(got.logprobs, want.logprobs, "drafter {i}, request {at}");
            assert_eq!(got.finish, want.finish, "drafter {i}, request {at}");
        }
        assert_eq!((got_forced, got_masked), (forced, masked), "drafter {i}");
    }
}
