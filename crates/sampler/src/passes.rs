//! Passes over the blocks of a row, by vectors. None of them writes down a row of its own: what is kept is told
//! by a token's logit and id, and its share is computed again where it is needed.

use crate::{
    exp::units,
    kept::{Kept, Order},
    scan::CHUNK,
};
use multiversion::multiversion;
use std::ops::Range;
use taper_base::TokenId;

/// Tokens whose shares are computed together.
pub(crate) const BLOCK: usize = 2 * CHUNK;

/// Blocks that a thread looks at, at least.
pub(crate) const LEAST_BLOCKS: usize = 64;

/// Logits by blocks, the last filled up with negative infinity.
#[derive(Debug)]
pub(crate) struct Blocks<'a> {
    whole: &'a [[f32; BLOCK]],
    last: [f32; BLOCK],
}

impl<'a> Blocks<'a> {
    pub(crate) fn new(logits: &'a [f32]) -> Self {
        let (whole, rest) = logits.as_chunks();
        let mut last = [f32::NEG_INFINITY; BLOCK];
        last[..rest.len()].copy_from_slice(rest);
        Self { whole, last }
    }

    #[inline(always)]
    pub(crate) fn get(&self, block: u32) -> &[f32; BLOCK] {
        self.whole.get(block as usize).unwrap_or(&self.last)
    }
}

/// A block in which tokens may be kept, and their mass.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Live {
    pub(crate) block: u32,
    pub(crate) mass: u64,
}

impl Live {
    /// The id of its first token.
    #[inline(always)]
    pub(crate) fn first(self) -> TokenId {
        self.block * BLOCK as u32
    }
}

#[inline(always)]
fn mass_of(shares: &[f32; BLOCK]) -> u64 {
    let mut sum = 0;
    for &share in shares {
        sum += units(share);
    }
    sum
}

/// Finds the masses of blocks.
#[multiversion(targets("x86_64+avx512f+avx512dq+avx512vl", "x86_64+avx2"))]
pub(crate) fn weigh(row: &Blocks<'_>, kept: &Kept, live: &mut [Live]) {
    let mut shares = [0.0; BLOCK];
    for live in live {
        kept.shares(row.get(live.block), live.first(), &mut shares);
        live.mass = mass_of(&shares);
    }
}

/// The sum of every token's share times its distance from the likeliest, in units of masses.
#[multiversion(targets("x86_64+avx512f+avx512dq+avx512vl", "x86_64+avx2"))]
pub(crate) fn moments(row: &Blocks<'_>, kept: &Kept, live: &[Live]) -> u64 {
    let mut sum = 0;
    let mut products = [0.0; BLOCK];
    for live in live {
        let logits = row.get(live.block);
        kept.shares(logits, live.first(), &mut products);
        for (product, &x) in products.iter_mut().zip(logits) {
            let share = *product;
            *product = if share > 0.0 { share * -kept.scale.d(x) } else { 0.0 };
        }
        sum += mass_of(&products);
    }
    sum
}

/// How many [`Buckets`] there are.
pub(crate) const BUCKETS: usize = 1024;

/// Even parts of a range of keys; what lies outside falls in the first and in the last.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Buckets {
    start: f32,
    /// Buckets to a unit of keys.
    per: f32,
}

impl Buckets {
    pub(crate) fn new(keys: Range<f32>) -> Self {
        // Halves first: the difference of two keys might overflow.
        let per = BUCKETS as f32 / 2.0 / (keys.end / 2.0 - keys.start / 2.0);
        Self { start: keys.start, per: if per.is_finite() { per } else { 0.0 } }
    }

    /// Those that part one of these.
    pub(crate) fn within(self, bucket: u32) -> Self {
        // `of` rounds to the nearest.
        let edge = |n: u32| self.start + (n as f32 - 0.5) / self.per;
        Self::new(edge(bucket)..edge(bucket + 1))
    }

    /// Never falls along the keys.
    #[inline(always)]
    pub(crate) fn of(self, key: f32) -> u32 {
        // In [2^23, 2^24) the low bits of a float are the integer.
        const TWO_23: f32 = 8_388_608.0;
        let at = (key - self.start) * self.per;
        let at = if at > 0.0 { at } else { 0.0 };
        let at = if at < (BUCKETS - 1) as f32 { at } else { (BUCKETS - 1) as f32 };
        (at + TWO_23).to_bits() - TWO_23.to_bits()
    }
}

/// The mass in every bucket.
#[multiversion(targets("x86_64+avx512f+avx512dq+avx512vl", "x86_64+avx2"))]
pub(crate) fn histogram<O: Order>(
    row: &Blocks<'_>,
    kept: &Kept,
    (order, buckets): (O, Buckets),
    live: &[Live],
) -> [u64; BUCKETS] {
    let mut sums = [0; BUCKETS];
    let (mut shares, mut at) = ([0.0; BLOCK], [0; BLOCK]);
    for live in live {
        let logits = row.get(live.block);
        kept.shares(logits, live.first(), &mut shares);
        for (at, &x) in at.iter_mut().zip(logits) {
            *at = buckets.of(order.key(x));
        }
        for (&at, &share) in at.iter().zip(&shares) {
            sums[at as usize % BUCKETS] += units(share);
        }
    }
    sums
}

/// A token, where an order may part.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Edge {
    pub(crate) key: f32,
    pub(crate) id: TokenId,
    pub(crate) mass: u64,
}

/// The tokens of a bucket.
#[multiversion(targets("x86_64+avx512f+avx512dq+avx512vl", "x86_64+avx2"))]
pub(crate) fn edges<O: Order>(
    row: &Blocks<'_>,
    kept: &Kept,
    (order, buckets, bucket): (O, Buckets, u32),
    live: &[Live],
) -> Vec<Edge> {
    let mut edges = Vec::new();
    for live in live {
        let chunks = row.get(live.block).as_chunks::<CHUNK>().0;
        for (first, logits) in (live.first()..).step_by(CHUNK).zip(chunks) {
            let mut these = 0u64;
            for (i, &x) in logits.iter().enumerate() {
                these |= u64::from(buckets.of(order.key(x)) == bucket) << i;
            }
            while these != 0 {
                let i = these.trailing_zeros();
                these &= these - 1;
                let (id, logit) = (first + i, logits[i as usize]);
                edges.push(Edge { key: order.key(logit), id, mass: kept.mass(logit, id) });
            }
        }
    }
    edges
}
