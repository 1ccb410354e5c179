//! States after tokens that may be taken back: drafts that are being verified.
//!
//! Keys and values of rejected tokens are overwritten by those of later ones; a state has taken them in. So a step
//! leaves a copy of the state after each token that may become the last, in slots that are kept for this alone, and
//! the sequence goes on from the copy after the last token that stays.

use super::{Slot, States};
use crate::KvCacheError;
use taper_base::SeqId;
use taper_tensor::RecurrentCut;

/// What a sequence that may be taken back has.
#[derive(Debug, Default)]
pub(super) struct Drafted {
    /// Tokens that stay in any case.
    from: usize,
    /// States after so many tokens, but for that of the step's last token.
    kept: Vec<(usize, Slot)>,
}

impl States {
    /// Tokens that a step may compute beyond those that stay, of all sequences together.
    pub(crate) fn draft_room(&self) -> usize {
        self.spare.len()
    }

    /// Says that the next step may compute tokens of a sequence beyond its first `from`, which [`Self::rewind`] takes
    /// back.
    pub(crate) fn may_rewind(&mut self, seq: SeqId, from: usize) {
        self.drop_drafted(seq);
        self.drafted.insert(seq, Drafted { from, kept: Vec::new() });
    }

    /// Copies to be made on the way from `start` tokens to `end`, as far as there are slots.
    pub(super) fn draft_cuts(&mut self, seq: SeqId, start: usize, end: usize) -> Vec<RecurrentCut> {
        let Some(drafted) = self.drafted.get_mut(&seq) else { return Vec::new() };
        let mut cuts = Vec::new();
        for tokens in drafted.from.max(start)..end {
            let Some(slot) = self.spare.pop() else { break };
            drafted.kept.push((tokens, slot));
            cuts.push(RecurrentCut { rows: tokens - start, slot });
        }
        cuts
    }

    /// Takes a sequence back to its state after so many tokens.
    ///
    /// # Errors
    /// [`KvCacheError::StateAt`]: there is no such state.
    pub(crate) fn rewind(&mut self, seq: SeqId, tokens: usize) -> Result<(), KvCacheError> {
        let mut kept = self.drafted.remove(&seq).unwrap_or_default().kept;
        let found = kept.iter().position(|&(after, _)| after == tokens);
        let mut result = Ok(());
        if let Some(held) = self.held.get_mut(&seq).filter(|held| held.tokens > tokens) {
            match found {
                Some(at) => {
                    std::mem::swap(&mut held.slot, &mut kept[at].1);
                    held.tokens = tokens;
                }
                None => result = Err(KvCacheError::StateAt { seq, at: held.tokens, start: tokens }),
            }
        }
        self.spare.extend(kept.into_iter().map(|(_, slot)| slot));
        for late in self.pending.extract_if(.., |own| own.seq == seq && own.tokens > tokens) {
            self.free.push(late.slot);
        }
        result
    }

    /// Gives back what a sequence that may be taken back has.
    pub(super) fn drop_drafted(&mut self, seq: SeqId) {
        let kept = self.drafted.remove(&seq).unwrap_or_default().kept;
        self.spare.extend(kept.into_iter().map(|(_, slot)| slot));
    }
}
