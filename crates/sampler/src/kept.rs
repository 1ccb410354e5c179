//! Which tokens are kept, and the orders in which they are.
//!
//! A *share* is a token's probability over the likeliest one's, and 0 where the token is not kept.

use crate::{
    exp::{exp, units},
    passes::BLOCK,
};
use taper_base::TokenId;

/// Tokens are kept down to this logit, and of its equals those whose id is less than `end`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Cut {
    pub(crate) logit: f32,
    pub(crate) end: TokenId,
}

impl Cut {
    /// Keeps all down to a logit.
    pub(crate) fn all(logit: f32) -> Self {
        Self { logit, end: TokenId::MAX }
    }

    pub(crate) fn keeps(self, logit: f32, id: TokenId) -> bool {
        logit > self.logit || (logit == self.logit && id < self.end)
    }

    /// The cut of two that keeps less.
    pub(crate) fn nearer(self, other: Self) -> Self {
        let less = other.logit > self.logit || (other.logit == self.logit && other.end < self.end);
        if less { other } else { self }
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

    pub(crate) fn mass(self, logit: f32) -> u64 {
        units(self.share(logit))
    }
}

/// The scaled distance of logits from the best, and the mean of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Distance {
    pub(crate) scale: Scale,
    pub(crate) mean: f32,
}

impl Distance {
    /// How far a logit is from the mean.
    #[inline(always)]
    fn of(self, logit: f32) -> f32 {
        (-self.scale.d(logit) - self.mean).abs()
    }
}

/// An order of tokens, equals by ascending id.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Order {
    /// The likeliest first.
    Likelihood,
    /// Tokens first whose distance from the best is nearest the mean (typical sampling).
    Typical(Distance),
}

/// Tokens are kept up to this far from the mean, and of its equals those whose id is less than `end`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Near {
    distance: Distance,
    far: f32,
    end: TokenId,
}

impl Near {
    fn keeps(self, logit: f32, id: TokenId) -> bool {
        let far = self.distance.of(logit);
        far < self.far || (far == self.far && id < self.end)
    }
}

/// Which tokens are kept.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kept {
    pub(crate) scale: Scale,
    pub(crate) cut: Cut,
    pub(crate) near: Option<Near>,
}

impl Kept {
    /// Drops a token and all that come after it in an order.
    pub(crate) fn drop_from(&mut self, order: Order, logit: f32, id: TokenId) {
        match order {
            Order::Likelihood => self.cut = Cut { logit, end: id },
            Order::Typical(distance) => {
                self.near = Some(Near { distance, far: distance.of(logit), end: id });
            }
        }
    }

    /// The mass of a token.
    pub(crate) fn mass(&self, logit: f32, id: TokenId) -> u64 {
        match self.cut.keeps(logit, id) && self.near.is_none_or(|near| near.keeps(logit, id)) {
            true => self.scale.mass(logit),
            false => 0,
        }
    }

    /// The shares of a block whose first token is `first`.
    #[inline(always)]
    pub(crate) fn shares(&self, logits: &[f32; BLOCK], first: TokenId, shares: &mut [f32; BLOCK]) {
        let Self { scale, cut, near } = *self;
        let least = if first < cut.end { cut.logit } else { cut.logit.next_up() };
        let Some(near) = near else {
            for (share, &x) in shares.iter_mut().zip(logits) {
                let all = scale.share(x);
                *share = if x >= least { all } else { 0.0 };
            }
            return drop_equals(shares, first, cut.end, |i| logits[i] == cut.logit);
        };
        let most = if first < near.end { near.far.next_up() } else { near.far };
        for (share, &x) in shares.iter_mut().zip(logits) {
            let (all, far) = (scale.share(x), near.distance.of(x));
            *share = if x >= least && far < most { all } else { 0.0 };
        }
        drop_equals(shares, first, cut.end, |i| logits[i] == cut.logit);
        drop_equals(shares, first, near.end, |i| near.distance.of(logits[i]) == near.far);
    }
}

/// Drops the equals of a bound in the block from `first` on, if the bound's end is within it.
#[inline(always)]
fn drop_equals(
    shares: &mut [f32; BLOCK],
    first: TokenId,
    end: TokenId,
    is_equal: impl Fn(usize) -> bool,
) {
    let Some(at) = end.checked_sub(first) else { return };
    for (i, share) in shares.iter_mut().enumerate().skip(at as usize) {
        *share = if is_equal(i) { 0.0 } else { *share };
    }
}
