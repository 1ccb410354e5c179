//! Which tokens are kept, and the orders in which they are.
//!
//! A *share* is a token's probability over the likeliest one's, and 0 where the token is not kept.

use crate::{
    exp::{exp, units},
    passes::BLOCK,
    scan::by_rank,
};
use std::{cmp::Ordering, ops::Range};
use taper_base::TokenId;

/// The last token that is kept, by likelihood.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Cut {
    pub(crate) logit: f32,
    pub(crate) id: TokenId,
}

impl Cut {
    pub(crate) fn keeps(self, logit: f32, id: TokenId) -> bool {
        by_rank((logit, id), (self.logit, self.id)) != Ordering::Greater
    }

    /// That of two which keeps less.
    pub(crate) fn nearer(self, other: Self) -> Self {
        if self.keeps(other.logit, other.id) { other } else { self }
    }
}

/// The scaled distance of logits from the best.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scale {
    pub(crate) max: f32,
    pub(crate) inv_t: f32,
}

impl Scale {
    #[inline(always)]
    pub(crate) fn d(self, logit: f32) -> f32 {
        (logit - self.max) * self.inv_t
    }

    #[inline(always)]
    pub(crate) fn share(self, logit: f32) -> f32 {
        exp(self.d(logit))
    }
}

/// An order of tokens, equals by ascending id.
pub(crate) trait Order: Copy + Sync {
    /// A number for a logit that does not fall along the order.
    fn key(self, logit: f32) -> f32;
    /// The keys of all that can be drawn.
    fn keys(self) -> Range<f32>;
    /// Drops the tokens after one with this key.
    fn keep(self, kept: &mut Kept, key: f32, id: TokenId);
}

/// The likeliest first.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ByLikelihood {
    pub(crate) max: f32,
    pub(crate) last: f32,
}

impl Order for ByLikelihood {
    #[inline(always)]
    fn key(self, logit: f32) -> f32 {
        -logit
    }
    fn keys(self) -> Range<f32> {
        -self.max..-self.last
    }
    fn keep(self, kept: &mut Kept, key: f32, id: TokenId) {
        kept.cut = kept.cut.nearer(Cut { logit: -key, id });
    }
}

/// Those first whose distance from the best is nearest the mean of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ByDistance {
    pub(crate) scale: Scale,
    pub(crate) mean: f32,
    pub(crate) last: f32,
}

impl Order for ByDistance {
    #[inline(always)]
    fn key(self, logit: f32) -> f32 {
        (-self.scale.d(logit) - self.mean).abs()
    }
    fn keys(self) -> Range<f32> {
        0.0..self.last
    }
    fn keep(self, kept: &mut Kept, key: f32, id: TokenId) {
        kept.near = Some(Near { order: self, key, id });
    }
}

/// The last token that is kept, by distance.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Near {
    order: ByDistance,
    key: f32,
    id: TokenId,
}

/// Which tokens are kept.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kept {
    pub(crate) scale: Scale,
    pub(crate) cut: Cut,
    pub(crate) near: Option<Near>,
}

impl Kept {
    /// The mass of a token.
    pub(crate) fn mass(&self, logit: f32, id: TokenId) -> u64 {
        let near = |near: Near| match near.order.key(logit).partial_cmp(&near.key) {
            Some(Ordering::Less) => true,
            Some(Ordering::Equal) => id <= near.id,
            _ => false,
        };
        match self.cut.keeps(logit, id) && self.near.is_none_or(near) {
            true => units(self.scale.share(logit)),
            false => 0,
        }
    }

    /// The shares of a block whose first token is `first`.
    #[inline(always)]
    pub(crate) fn shares(&self, logits: &[f32; BLOCK], first: TokenId, shares: &mut [f32; BLOCK]) {
        let least = if first <= self.cut.id { self.cut.logit } else { self.cut.logit.next_up() };
        for (share, &x) in shares.iter_mut().zip(logits) {
            let all = self.scale.share(x);
            *share = if x >= least { all } else { 0.0 };
        }
        for i in equals(first, self.cut.id) {
            shares[i] = if logits[i] == self.cut.logit { 0.0 } else { shares[i] };
        }
        let Some(near) = self.near else { return };
        let end = if first <= near.id { near.key.next_up() } else { near.key };
        for (share, &x) in shares.iter_mut().zip(logits) {
            *share = if near.order.key(x) < end { *share } else { 0.0 };
        }
        for i in equals(first, near.id) {
            shares[i] = if near.order.key(logits[i]) == near.key { 0.0 } else { shares[i] };
        }
    }
}

/// Where in the block from `first` on the equals of its token `last` are that come after it.
#[inline(always)]
fn equals(first: TokenId, last: TokenId) -> Range<usize> {
    match last.checked_sub(first) {
        Some(at) if (at as usize) < BLOCK => at as usize + 1..BLOCK,
        _ => 0..0,
    }
}
