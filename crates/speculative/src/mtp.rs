//! Drafts of a model's own head for multi-token prediction.

use crate::{
    Computed, Draft, DraftError, DraftInput, Drafter,
    likeliest::Likeliest,
    model::{failed, full},
};
use std::{collections::HashMap, sync::Arc};
use taper_base::{MAX_DRAFT_TOKENS, Phase, SeqId, TokenId};
use taper_kv_cache::{KvCache, KvScheme, SeqRange};
use taper_models::{Batch, DraftHead};
use taper_tensor::{Tensor, ops};

/// Tokens of a block of the head's cache.
const BLOCK: usize = 32;
/// Rows that may wait for the next draft; more are computed as they come.
const WAITING: usize = 2 * MAX_DRAFT_TOKENS;

/// Proposes what the model's own head for multi-token prediction thinks likeliest (DeepSeek V3, arXiv 2412.19437; Gloeckle
/// et al., arXiv 2404.19737), from the model's hidden states and over a cache of its own.
///
/// The head's row of a token is computed once the token after it is known. A prefix that the model did not compute, as its
/// cache had it, is not there for the head either: it attends to what came after.
#[derive(Debug)]
pub struct MtpDrafter {
    head: Arc<DraftHead>,
    cache: KvCache,
    seqs: HashMap<SeqId, Known>,
}

/// What is known of a sequence.
#[derive(Debug, Default)]
struct Known {
    /// Its tokens before the cache's first row.
    base: usize,
    /// Rows in the cache, those of drafts not counted.
    rows: usize,
    /// Hidden states of the tokens that follow.
    waiting: Vec<f32>,
}

/// Rows of a sequence that are to be computed.
struct Work<'a> {
    id: SeqId,
    base: usize,
    start: usize,
    /// Of each row, the token that follows its own.
    tokens: &'a [TokenId],
    hidden: &'a [f32],
}

impl MtpDrafter {
    /// Drafts with a model's head, whose cache holds `tokens` tokens in the format of `scheme`. Sequences that find no
    /// room begin anew with what comes next.
    #[must_use]
    pub fn new(head: Arc<DraftHead>, scheme: KvScheme, tokens: usize) -> Self {
        let config = head.info().cache(scheme, BLOCK, tokens.div_ceil(BLOCK));
        Self { head, cache: KvCache::new(config), seqs: HashMap::new() }
    }

    fn width(&self) -> usize {
        self.head.info().hidden
    }

    /// Computes rows of some sequences. With `last`, gives the hidden states that the head makes of the last ones, and
    /// what it thinks comes next.
    fn run(
        &mut self,
        works: &[Work<'_>],
        phase: Phase,
        last: bool,
    ) -> Result<(Vec<f32>, Vec<Option<Likeliest>>), DraftError> {
        let (mut tokens, mut positions, mut hidden) = (Vec::new(), Vec::new(), Vec::new());
        let (mut logits_at, mut ranges) = (Vec::new(), Vec::new());
        for work in works {
            let (seq, start, len) = (work.id, work.start, work.tokens.len());
            tokens.extend_from_slice(work.tokens);
            let at = work.base + start;
            positions.extend((at..at + len).filter_map(|at| u32::try_from(at).ok()));
            hidden.extend_from_slice(work.hidden);
            logits_at.extend(u32::try_from(tokens.len().saturating_sub(1)).ok().filter(|_| last));
            ranges.push(SeqRange { seq, start, len });
        }
        let info = self.head.info();
        let (phase, vocab) = (info.phase(phase), info.vocab);
        let hidden = Tensor::from_vec(hidden, &[tokens.len(), info.hidden]).map_err(failed)?;
        let (tokens, positions, logits_at) = (&tokens, &positions, &logits_at);
        let batch = Batch { tokens, positions, logits_at, phase, ..Batch::default() };
        let mut session = self.cache.session(&ranges).map_err(failed)?;
        let [hidden, logits] = self.head.forward(&batch, &hidden, &mut session).map_err(failed)?;
        let chosen = ops::with_host_f32(&logits, |rows| {
            rows.chunks_exact(vocab).map(Likeliest::of).collect::<Vec<_>>()
        });
        let hidden = ops::with_host_f32(&hidden, <[f32]>::to_vec).map_err(failed)?;
        Ok((hidden, chosen.map_err(failed)?))
    }

    /// Takes in a sequence's hidden states; those that cannot wait are to be computed.
    fn take_in(&mut self, seq: &Computed<'_>) {
        let width = self.width();
        let known = self.seqs.entry(seq.id).or_default();
        if known.base + known.rows + known.waiting.len() / width != seq.start {
            self.cache.release(seq.id);
            *known = Known { base: seq.start, ..Known::default() };
        }
        known.waiting.extend_from_slice(seq.hidden);
    }

    /// Makes room for so many rows of a sequence beyond those that are there. Without room the sequence begins anew after
    /// what it has waiting.
    fn has_room(&mut self, id: SeqId, more: usize) -> Result<bool, DraftError> {
        let width = self.width();
        let Some(known) = self.seqs.get_mut(&id) else { return Ok(false) };
        if !full(self.cache.grow(id, known.rows + more))? {
            return Ok(true);
        }
        self.cache.release(id);
        let base = known.base + known.rows + known.waiting.len() / width;
        *known = Known { base, ..Known::default() };
        Ok(false)
    }

    /// Takes the first `count` waiting rows of a sequence, whose place in the cache is then theirs.
    fn take_waiting(&mut self, id: SeqId, count: usize) -> Option<(usize, usize, Vec<f32>)> {
        let width = self.width();
        let known = self.seqs.get_mut(&id)?;
        let rest = known.waiting.split_off(count * width);
        let hidden = std::mem::replace(&mut known.waiting, rest);
        known.rows += count;
        Some((known.base, known.rows - count, hidden))
    }
}

impl Drafter for MtpDrafter {
    fn method(&self) -> &'static str {
        "mtp"
    }

    fn reads_hidden(&self) -> bool {
        true
    }

    fn observe(&mut self, seqs: &[Computed<'_>]) -> Result<(), DraftError> {
        let width = self.width();
        let mut due = Vec::new();
        for seq in seqs {
            self.take_in(seq);
            let waiting = self.seqs.get(&seq.id).map_or(0, |known| known.waiting.len() / width);
            // The last one is the next draft's.
            if waiting > WAITING && self.has_room(seq.id, waiting - 1)? {
                let rows = self.take_waiting(seq.id, waiting - 1);
                due.extend(rows.map(|(base, start, hidden)| (seq, base, start, hidden)));
            }
        }
        let works = due.iter().filter_map(|(seq, base, start, hidden)| {
            let (first, len) = (base + start + 1, hidden.len() / width);
            let (id, base, start) = (seq.id, *base, *start);
            Some(Work { id, base, start, tokens: seq.tokens.get(first..first + len)?, hidden })
        });
        let works: Vec<_> = works.collect();
        if !works.is_empty() {
            self.run(&works, Phase::Prefill, false)?;
        }
        Ok(())
    }

    fn propose(&mut self, seqs: &[DraftInput<'_>]) -> Result<Vec<Draft>, DraftError> {
        let width = self.width();
        let mut drafts = vec![Draft::default(); seqs.len()];
        let mut open = Vec::new();
        for (i, seq) in seqs.iter().enumerate().filter(|(_, seq)| seq.most > 0) {
            let Some(known) = self.seqs.get(&seq.id) else { continue };
            let waiting = known.waiting.len() / width;
            // All tokens but the newest one were computed.
            let computed = known.base + known.rows + waiting;
            if waiting == 0 || computed + 1 != seq.tokens.len() {
                continue;
            }
            if self.has_room(seq.id, waiting + seq.most)?
                && let Some((base, start, hidden)) = self.take_waiting(seq.id, waiting)
            {
                let tokens = seq.tokens[seq.tokens.len() - waiting..].to_vec();
                open.push((i, base, start, tokens, hidden));
            }
        }
        while !open.is_empty() {
            let works = open.iter().map(|(i, base, start, tokens, hidden)| Work {
                id: seqs[*i].id,
                base: *base,
                start: *start,
                tokens,
                hidden,
            });
            let works: Vec<_> = works.collect();
            let (hidden, chosen) = self.run(&works, Phase::Decode, true)?;
            let mut next = Vec::new();
            let each = open.iter().zip(chosen).zip(hidden.chunks_exact(width));
            for (((i, base, start, tokens, _), choice), hidden) in each {
                let Some(choice) = choice else { continue };
                choice.extend(&mut drafts[*i]);
                if choice.goes_on() && drafts[*i].tokens.len() < seqs[*i].most {
                    let after = start + tokens.len();
                    next.push((*i, *base, after, vec![choice.token], hidden.to_vec()));
                }
            }
            open = next;
        }
        Ok(drafts)
    }

    fn forget(&mut self, id: SeqId) {
        self.cache.release(id);
        self.seqs.remove(&id);
    }

    fn expected(&self, class: usize) -> f32 {
        Likeliest::expected(class)
    }
}
