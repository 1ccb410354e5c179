//! Which tokens can be drawn, and the draw.

use crate::{
    kept::{Cut, Distance, Kept, Order, Scale},
    passes::{BLOCK, Blocks, LEAST_BLOCKS, Live, weigh},
    prefix::Prefix,
    scan::{CHUNK, Scanned, key, logit},
    threads::by_parts,
};
use taper_base::{SamplingParams, Threads, TokenId};

/// From this scaled distance on there is no mass.
const MASSLESS: f32 = -28.5;

/// What filters leave.
pub(crate) struct Candidates<'a, T> {
    threads: &'a T,
    pub(crate) row: &'a Scanned<'a>,
    blocks: Blocks<'a>,
    pub(crate) kept: Kept,
    /// By ascending block.
    live: Vec<Live>,
}

/// A share in units of 2^-32, rounded up.
pub(crate) fn share(p: f32) -> u64 {
    (f64::from(p) * (1u64 << 32) as f64).ceil() as u64
}

/// Mass that a filter with parameter `p` must reach: in whole numbers, so that a device without
/// doubles finds the same.
fn target(p: f32, total: u64) -> u64 {
    let target = (u128::from(share(p)) * u128::from(total)).div_ceil(1 << 32);
    (target as u64).clamp(1, total.max(1))
}

/// What logits are multiplied by. A temperature so low that its inverse overflows must still give 0 for
/// the best token.
pub(crate) fn inverse(temperature: f32) -> f32 {
    (1.0 / temperature).min(f32::MAX)
}

/// The mass of a row.
pub(crate) fn total_mass(row: &Scanned<'_>, inv_t: f32, threads: &impl Threads) -> u64 {
    let scale = Scale { max: row.max, inv_t };
    let mut all = Candidates::down_to(row, scale, floor(scale, MASSLESS), threads);
    all.weigh();
    all.total()
}

/// The least logit, and all that equal it, whose scaled distance is at least `least`, which is at most 0.
fn floor(scale: Scale, least: f32) -> Cut {
    let (mut below, mut from) = (key(f32::NEG_INFINITY), key(scale.max));
    while from - below > 1 {
        let middle = below + (from - below) / 2;
        match scale.d(logit(middle)) >= least {
            true => from = middle,
            false => below = middle,
        }
    }
    Cut::all(logit(from))
}

impl<'a, T: Threads> Candidates<'a, T> {
    /// What `min_p` and `top_k` leave.
    pub(crate) fn select(row: &'a Scanned<'a>, params: &SamplingParams, threads: &'a T) -> Self {
        let scale = Scale { max: row.max, inv_t: inverse(params.temperature) };
        // `min_p * p_best <= p`, in logarithms.
        let mut cut = floor(scale, params.min_p.ln().max(MASSLESS));
        // Both keep a prefix of the same order, so it does not matter which comes first.
        if let Some(kth) = row.kth(params.top_k as usize) {
            cut = cut.nearer(kth);
        }
        Self::down_to(row, scale, cut, threads)
    }

    /// Draws one of what `top_p` and `typical_p` leave of these.
    pub(crate) fn choose(mut self, params: &SamplingParams, bits: u64) -> TokenId {
        match self.prefix(params) {
            Some(prefix) => self.draw_prefix(prefix, bits),
            None => self.draw(bits),
        }
    }

    /// Weighs what is left before the last filter, and says what that leaves of it, where there is one.
    fn prefix(&mut self, params: &SamplingParams) -> Option<Prefix> {
        let (is_nucleus, is_typical) = (params.top_p < 1.0, params.typical_p < 1.0);
        if is_nucleus || !is_typical {
            self.weigh();
            let target = target(params.top_p, self.total());
            if !is_typical {
                return is_nucleus.then_some(Prefix { order: Order::Likelihood, target });
            }
            self.keep_nucleus(target);
        }
        let moments = self.weigh_by(weigh::<true>);
        let total = self.total();
        let distance = Distance { scale: self.kept.scale, mean: mean(moments, total) };
        Some(Prefix { order: Order::Typical(distance), target: target(params.typical_p, total) })
    }

    /// The tokens down to a cut.
    fn down_to(row: &'a Scanned<'a>, scale: Scale, cut: Cut, threads: &'a T) -> Self {
        let blocks = row.chunk_max.chunks(BLOCK / CHUNK).zip(0..);
        let live = blocks.map(|(_, block)| Live { block, mass: 0 }).collect();
        let kept = Kept { scale, cut, near: None };
        Self { threads, row, blocks: Blocks::new(row.logits), kept, live }
    }

    /// The candidates down to a nearer cut.
    pub(crate) fn part(&self, cut: Cut) -> Self {
        let mut part = Self { live: self.live.clone(), ..*self };
        part.kept.cut = cut;
        part.weigh();
        part
    }

    /// Finds the mass of every block, and lets those go that are not reached.
    pub(crate) fn weigh(&mut self) {
        self.weigh_by(weigh::<false>);
    }

    fn weigh_by(&mut self, pass: impl Fn(&Blocks<'_>, &Kept, &mut [Live]) -> u64 + Sync) -> u64 {
        let Self { threads, row, blocks, kept, live } = self;
        let maxima = |live: &Live| row.chunk_max.chunks(BLOCK / CHUNK).nth(live.block as usize);
        live.retain(|live| maxima(live).is_some_and(|m| m.iter().any(|m| *m >= kept.cut.logit)));
        by_parts(*threads, live, LEAST_BLOCKS, |_, live| pass(blocks, kept, live)).iter().sum()
    }

    pub(crate) fn total(&self) -> u64 {
        self.live.iter().map(|live| live.mass).sum()
    }

    /// The candidate in whose mass the fraction `bits / 2^64` of the total falls, by ascending id.
    pub(crate) fn draw(&self, bits: u64) -> TokenId {
        let mut left = ((u128::from(bits) * u128::from(self.total())) >> 64) as u64;
        for live in &self.live {
            if left >= live.mass {
                left -= live.mass;
                continue;
            }
            for (id, mass) in self.masses(*live) {
                if left < mass {
                    return id;
                }
                left -= mass;
            }
        }
        self.row.argmax()
    }

    /// The tokens of a block and their masses.
    fn masses(&self, live: Live) -> impl Iterator<Item = (TokenId, u64)> {
        let tokens = (live.first()..).zip(self.blocks.get(live.block));
        tokens.map(|(id, &logit)| (id, self.kept.mass(logit, id)))
    }
}

/// The mean distance from the likeliest token in nats, rounded down to a multiple of 2^-24 and then to
/// a float: in whole numbers, as [`target`].
///
/// Locally typical sampling, as `TypicalLogitsWarper` of Hugging Face transformers, keeps tokens by how far
/// their surprise is from the entropy. A surprise is the token's distance from the likeliest one and what that
/// one's is, and the entropy is the mean surprise. So the distance from the entropy is that of two distances,
/// and needs no logarithm.
fn mean(moments: u64, total: u64) -> f32 {
    let steps = (u128::from(moments) << 24) / u128::from(total.max(1));
    steps as f32 / (1 << 24) as f32
}

#[cfg(test)]
mod tests;
