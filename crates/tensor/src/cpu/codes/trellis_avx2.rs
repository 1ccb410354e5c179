//! A step of the encoder of trellis codes with AVX2. Costs are those of the portable code, bit for bit.

use super::trellis::{Choice, LANES, Lane, MARK, Trellis};
use std::arch::x86_64::*;

/// Lanes of a register.
const HALF: usize = LANES / 2;
type Halves = [__m256; 2];

/// As the portable step of [`Trellis::encode`].
///
/// # Safety
/// The machine has AVX2.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn step(trellis: &Trellis, x: &Lane, cost: &mut [Lane], choices: &mut [Choice]) {
    let (memories, branches) = (cost.len(), 1 << trellis.bits);
    let mut before = [[_mm256_setzero_ps(); 2]; LANES];
    for (before, cost) in before.iter_mut().zip(&*cost) {
        *before = load(cost);
    }
    let (x, rest) = (load(x), _mm256_castsi256_ps(_mm256_set1_epi32(!MARK as i32)));
    for (memory, (cost, choice)) in cost.iter_mut().zip(choices).enumerate() {
        let mut next = [_mm256_set1_ps(f32::INFINITY); 2];
        let levels = &trellis.levels[memory * branches..][..branches];
        for (low, &level) in levels.iter().enumerate() {
            let before = &before[(memory * branches + low) % memories];
            let level = _mm256_set1_ps(level);
            let branch = _mm256_castsi256_ps(_mm256_set1_epi32(low as i32));
            for half in 0..2 {
                let miss = _mm256_sub_ps(x[half], level);
                let c = _mm256_add_ps(before[half], _mm256_mul_ps(miss, miss));
                let c = _mm256_or_ps(_mm256_and_ps(c, rest), branch);
                next[half] = _mm256_min_ps(c, next[half]);
            }
        }
        for (half, next) in next.into_iter().enumerate() {
            // SAFETY: eight lanes of sixteen.
            unsafe {
                _mm256_storeu_ps(cost.as_mut_ptr().add(half * HALF), next);
                _mm256_storeu_ps(choice.as_mut_ptr().add(half * HALF).cast(), next);
            }
        }
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn load(x: &Lane) -> Halves {
    // SAFETY: sixteen lanes.
    unsafe { [_mm256_loadu_ps(x.as_ptr()), _mm256_loadu_ps(x.as_ptr().add(HALF))] }
}
