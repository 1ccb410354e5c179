//! What a model that drafts thinks likeliest, and what its probability says of the draft.

use crate::Draft;
use taper_base::TokenId;

/// A draft ends behind a token that its model thinks less likely than this.
const UNSURE: f32 = 0.3;
/// Probabilities of a draft's first token from which on the classes begin.
const CLASSES: [f32; 5] = [0.0, 0.3, 0.5, 0.7, 0.9];

/// A token and its probability.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Likeliest {
    pub(crate) token: TokenId,
    probability: f32,
}

impl Likeliest {
    /// The largest logit of a row, where all are numbers.
    pub(crate) fn of(row: &[f32]) -> Option<Self> {
        let best = row.iter().copied().enumerate().max_by(|a, b| a.1.total_cmp(&b.1));
        let (at, logit) = best.filter(|(_, logit)| logit.is_finite())?;
        let mass: f32 = row.iter().map(|x| (x - logit).exp()).sum();
        let probability = Some(1.0 / mass).filter(|p| p.is_finite())?;
        Some(Self { token: u32::try_from(at).ok()?, probability })
    }

    /// Puts it behind a draft, whose class is the first token's.
    pub(crate) fn extend(self, draft: &mut Draft) {
        if draft.tokens.is_empty() {
            draft.class = CLASSES.partition_point(|&from| from <= self.probability) - 1;
        }
        draft.tokens.push(self.token);
    }

    /// Whether what comes after it is worth a draft.
    pub(crate) fn goes_on(self) -> bool {
        self.probability >= UNSURE
    }

    /// How many drafts of a class are accepted, before any was.
    pub(crate) fn expected(class: usize) -> f32 {
        CLASSES.get(class).map_or(0.0, |from| from.midpoint(1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_token_says_how_sure_a_draft_is() {
        let mut draft = Draft::default();
        let sure = Likeliest::of(&[0.0, 9.0, 0.0]).unwrap();
        assert!(sure.token == 1 && sure.goes_on());
        sure.extend(&mut draft);
        let unsure = Likeliest::of(&[1.0; 8]).unwrap();
        assert!(!unsure.goes_on());
        unsure.extend(&mut draft);
        assert_eq!((draft.tokens.len(), draft.class), (2, CLASSES.len() - 1));
        assert_eq!(Likeliest::of(&[f32::NAN, 0.0]), None);
        assert_eq!(Likeliest::of(&[]), None);
    }
}
