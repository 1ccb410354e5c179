//! Passes over the blocks of a row, by vectors. None of them writes down a row of its own: what is kept is told
//! by a token's logit and id, and its share is computed again where it is needed.

use crate::{exp::units, kept::Kept, scan::CHUNK};
use multiversion::multiversion;
use taper_base::TokenId;

/// Tokens whose shares are computed together.
pub(crate) const BLOCK: usize = 2 * CHUNK;

/// Blocks that a thread looks at, at least.
pub(crate) const LEAST_BLOCKS: usize = 64;

/// Logits by blocks, the last filled up with negative infinity.
#[derive(Debug, Clone, Copy)]
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

/// Finds the masses of blocks, and, where asked for, the sum of every token's share times its distance from the
/// likeliest, in units of masses.
#[multiversion(targets("x86_64+avx512f+avx512dq+avx512vl", "x86_64+avx2+fma"))]
pub(crate) fn weigh<const MOMENTS: bool>(row: &Blocks<'_>, kept: &Kept, live: &mut [Live]) -> u64 {
    let mut moments = 0;
    let mut shares = [0.0; BLOCK];
    for live in live {
        let logits = row.get(live.block);
        kept.shares(logits, live.first(), &mut shares);
        live.mass = mass_of(&shares);
        if MOMENTS {
            for (share, &x) in shares.iter_mut().zip(logits) {
                *share = if *share > 0.0 { *share * -kept.scale.d(x) } else { 0.0 };
            }
            moments += mass_of(&shares);
        }
    }
    moments
}
