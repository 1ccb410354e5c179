//! Drafts from what a sequence has in it already.

use crate::{Draft, DraftError, DraftInput, Drafter, SuffixIndex};
use std::collections::HashMap;
use taper_base::SeqId;

/// Lengths of matches from which on the classes begin.
const CLASSES: [usize; 7] = [0, 2, 3, 4, 6, 10, 18];
/// Acceptance of the classes before any was measured: that of copies is high, that of pairs of tokens in
/// prose low. A class that is not worth a try at first is not tried.
const EXPECTED: [f32; 7] = [0.4, 0.25, 0.35, 0.5, 0.7, 0.85, 0.92];

/// Proposes what followed where the end of the sequence stood before, in its prediction, prompt or output
/// (suffix decoding: Oliaro et al. 2024, arXiv 2411.04975; prompt lookup: Saxena 2023). The longer the
/// match, the longer the draft.
#[derive(Debug, Default)]
pub struct SuffixDrafter {
    /// The index of each sequence, and how many of its tokens are in it.
    indexes: HashMap<SeqId, (SuffixIndex, usize)>,
    /// Matches of fewer tokens are not used.
    shortest: usize,
}

impl SuffixDrafter {
    /// Uses matches of `shortest` tokens and more; 0 uses all.
    #[must_use]
    pub fn new(shortest: usize) -> Self {
        Self { indexes: HashMap::new(), shortest }
    }

    fn draft(&mut self, seq: &DraftInput<'_>) -> Draft {
        let begin = || {
            let mut index = SuffixIndex::new(&[seq.prediction]);
            index.extend(&seq.tokens[..seq.prompt_len.min(seq.tokens.len())]);
            if !seq.prediction.is_empty() {
                index.expect(0);
            }
            (index, seq.prompt_len.min(seq.tokens.len()))
        };
        let (index, known) = self.indexes.entry(seq.id).or_insert_with(begin);
        index.extend(seq.tokens.get(*known..).unwrap_or_default());
        *known = seq.tokens.len();
        if seq.most == 0 {
            return Draft::default();
        }
        let Some(found) = index.find().filter(|found| found.len >= self.shortest) else {
            return Draft::default();
        };
        let class = CLASSES.partition_point(|&len| len <= found.len) - 1;
        Draft { tokens: index.following(found.at, seq.most.min(2 * found.len + 1)), class }
    }
}

impl Drafter for SuffixDrafter {
    fn method(&self) -> &'static str {
        "suffix"
    }

    fn propose(&mut self, seqs: &[DraftInput<'_>]) -> Result<Vec<Draft>, DraftError> {
        Ok(seqs.iter().map(|seq| self.draft(seq)).collect())
    }

    fn forget(&mut self, id: SeqId) {
        self.indexes.remove(&id);
    }

    fn expected(&self, class: usize) -> f32 {
        EXPECTED.get(class).copied().unwrap_or(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use taper_base::TokenId;

    fn propose(
        drafter: &mut SuffixDrafter,
        tokens: &[TokenId],
        prompt_len: usize,
        prediction: &[TokenId],
    ) -> Draft {
        let seq = DraftInput { id: SeqId(1), prediction, tokens, prompt_len, most: 8 };
        drafter.propose(&[seq]).unwrap().remove(0)
    }

    #[test]
    fn longer_matches_draft_more_and_are_surer() {
        let text: Vec<_> = (0..40).collect();
        let mut before = Draft::default();
        for (len, class) in [(2, 1), (3, 2), (4, 3), (7, 4), (12, 5), (20, 6)] {
            let tokens = [&text[..], &text[..len]].concat();
            let draft = propose(&mut SuffixDrafter::default(), &tokens, 40, &[]);
            assert_eq!(draft.class, class);
            assert_eq!(draft.tokens, text[len..len + draft.tokens.len()]);
            assert!(draft.tokens.len() >= before.tokens.len());
            before = draft;
        }
        assert_eq!(before.tokens.len(), 8);
    }

    #[test]
    fn a_prediction_is_drafted_from_its_beginning() {
        let mut drafter = SuffixDrafter::default();
        let draft = propose(&mut drafter, &[1, 2, 50], 2, &[50, 51, 52, 53, 54]);
        assert_eq!((draft.class, draft.tokens), (0, vec![51, 52, 53]));
        // What comes later is found behind it.
        let draft = propose(&mut drafter, &[1, 2, 50, 51, 52], 2, &[50, 51, 52, 53, 54]);
        assert_eq!(draft.tokens, [53, 54]);
        drafter.forget(SeqId(1));
        assert!(drafter.indexes.is_empty());
    }

    #[test]
    fn short_matches_can_be_left_out() {
        let tokens = [1, 2, 3, 9, 1, 2];
        assert_eq!(propose(&mut SuffixDrafter::new(3), &tokens, 4, &[]), Draft::default());
        assert!(!propose(&mut SuffixDrafter::new(2), &tokens, 4, &[]).tokens.is_empty());
    }
}
