//! The softmax of 32 query rows, a row a lane.

use super::{
    dot::bf16s,
    pack::joined,
    unit::{BLOCK, Chunk, SIDE, Sums},
};
use std::{arch::x86_64::*, f32::consts::LOG2_E, ops::Range};

/// A number of each of 32 rows.
pub(super) type Numbers = [__m512; 2];

/// Keys of a step that each of 32 rows sees.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    from: [i32; BLOCK],
    to: [i32; BLOCK],
}

impl Seen {
    /// Takes the ranges of at most 32 rows; the others have no keys.
    pub(super) fn new(rows: impl Iterator<Item = Range<usize>>) -> Self {
        let mut seen = Self { from: [0; BLOCK], to: [0; BLOCK] };
        for ((from, to), row) in seen.from.iter_mut().zip(&mut seen.to).zip(rows) {
            (*from, *to) = (row.start as i32, row.end as i32);
        }
        seen
    }

    /// Blocks of keys that some row sees something of.
    pub(super) fn blocks(&self) -> Range<usize> {
        let live = || self.from.iter().zip(&self.to).filter(|(from, to)| from < to);
        let from = live().map(|(from, _)| *from as usize).min().unwrap_or(0);
        let to = live().map(|(_, to)| *to as usize).max().unwrap_or(0);
        from / BLOCK..to.div_ceil(BLOCK)
    }

    /// Whether all rows see all of a block.
    pub(super) fn all(&self, block: usize) -> bool {
        let (from, to) = ((block * BLOCK) as i32, ((block + 1) * BLOCK) as i32);
        self.from.iter().all(|&f| f <= from) && self.to.iter().all(|&t| t >= to)
    }

    /// Scores of keys that a row does not see become minus infinity.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
    pub(super) fn hide(&self, block: usize, scores: &mut Sums) {
        for half in 0..2 {
            // SAFETY: sixteen lanes of each.
            let (from, to) = unsafe {
                let at = half * SIDE;
                (
                    _mm512_loadu_si512(self.from[at..].as_ptr().cast()),
                    _mm512_loadu_si512(self.to[at..].as_ptr().cast()),
                )
            };
            for (line, scores) in scores.0.iter_mut().enumerate() {
                let key = _mm512_set1_epi32((block * BLOCK + line) as i32);
                let seen = _mm512_cmple_epi32_mask(from, key) & _mm512_cmplt_epi32_mask(key, to);
                let never = _mm512_set1_ps(f32::NEG_INFINITY);
                // SAFETY: a half of a line.
                unsafe {
                    let at = scores.as_mut_ptr().add(half * SIDE);
                    _mm512_storeu_ps(at, _mm512_mask_loadu_ps(never, seen, at));
                }
            }
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
pub(super) fn load(from: &[f32; BLOCK]) -> Numbers {
    let from = from.as_ptr();
    // SAFETY: 32 numbers.
    unsafe { [_mm512_loadu_ps(from), _mm512_loadu_ps(from.add(SIDE))] }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
pub(super) fn store(x: Numbers, to: &mut [f32; BLOCK]) {
    // SAFETY: 32 numbers.
    unsafe {
        _mm512_storeu_ps(to.as_mut_ptr(), x[0]);
        _mm512_storeu_ps(to.as_mut_ptr().add(SIDE), x[1]);
    }
}

/// The largest of a row's scores and `max`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
pub(super) fn largest(scores: &Sums, max: Numbers) -> Numbers {
    let [mut a, mut b] = max;
    for line in &scores.0 {
        let [x, y] = load(line);
        (a, b) = (_mm512_max_ps(a, x), _mm512_max_ps(b, y));
    }
    [a, b]
}

/// What weights are relative to, as a power of two, and by how much those relative to `old` shrink.
pub(super) struct Shift {
    by: Numbers,
    shrink: Numbers,
}

impl Shift {
    /// Rows that have attended to no keys yet stay as they are.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
    pub(super) fn new(old: Numbers, new: Numbers) -> Self {
        let mut shift = Self { by: new, shrink: new };
        for half in 0..2 {
            let none = _mm512_set1_ps(f32::NEG_INFINITY);
            let nothing = _mm512_cmp_ps_mask::<_CMP_EQ_OQ>(new[half], none);
            let base = _mm512_maskz_mov_ps(!nothing, new[half]);
            let log2_e = _mm512_set1_ps(LOG2_E);
            shift.by[half] = _mm512_mul_ps(base, log2_e);
            shift.shrink[half] = exp2(_mm512_mul_ps(_mm512_sub_ps(old[half], base), log2_e));
        }
        shift
    }

    /// Whether some row's weights shrink.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
    pub(super) fn shrinks(&self) -> bool {
        let one = _mm512_set1_ps(1.0);
        let changed = _mm512_cmp_ps_mask::<_CMP_NEQ_UQ>(self.shrink[0], one)
            | _mm512_cmp_ps_mask::<_CMP_NEQ_UQ>(self.shrink[1], one);
        changed != 0
    }

    /// A row's number, at the new maximum.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
    pub(super) fn shrunk(&self, [a, b]: Numbers) -> Numbers {
        [_mm512_mul_ps(a, self.shrink[0]), _mm512_mul_ps(b, self.shrink[1])]
    }

    /// Brings sums there.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
    pub(super) fn scale(&self, sums: &mut Sums) {
        for line in &mut sums.0 {
            store(self.shrunk(load(line)), line);
        }
    }

    /// Weights of a block of keys, as a right operand, and the sums of these and of `sum`.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
    pub(super) fn weights(&self, scores: &Sums, sum: Numbers, out: &mut Chunk) -> Numbers {
        let [mut a, mut b] = sum;
        let pairs = pairs();
        let ones = bf16s(_mm512_set1_epi32(0x3f80_3f80));
        let [first, second] = out;
        let lines = scores.0.as_chunks::<2>().0.iter();
        for ((line, first), second) in lines.zip(&mut first.0).zip(&mut second.0) {
            let [x, y] = [load(&line[0]), load(&line[1])];
            // SAFETY: sixteen pairs.
            unsafe {
                let p =
                    _mm512_permutexvar_epi16(pairs, joined(self.weight(x, 0), self.weight(y, 0)));
                let r =
                    _mm512_permutexvar_epi16(pairs, joined(self.weight(x, 1), self.weight(y, 1)));
                _mm512_storeu_si512(first.as_mut_ptr().cast(), p);
                _mm512_storeu_si512(second.as_mut_ptr().cast(), r);
                a = _mm512_dpbf16_ps(a, bf16s(p), ones);
                b = _mm512_dpbf16_ps(b, bf16s(r), ones);
            }
        }
        [a, b]
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
    fn weight(&self, x: Numbers, half: usize) -> __m512 {
        exp2(_mm512_fmsub_ps(x[half], _mm512_set1_ps(LOG2_E), self.by[half]))
    }
}

/// Words of two vectors of sixteen, interleaved.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
fn pairs() -> __m512i {
    // The word from the second vector above that from the first.
    let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    _mm512_or_si512(
        lanes,
        _mm512_slli_epi32::<16>(_mm512_add_epi32(lanes, _mm512_set1_epi32(SIDE as i32))),
    )
}

/// `2^x` to 3e-6 of it, exact at integers; 0 at minus infinity.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
fn exp2(x: __m512) -> __m512 {
    // What x is above its floor; `_mm512_scalef_ps` takes the floor.
    let f = _mm512_reduce_ps::<{ _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC }>(x);
    let mut p = _mm512_set1_ps(0.013_426_69);
    for c in [0.052_242_47, 0.241_280_21, 0.693_044_84, 1.0] {
        p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(c));
    }
    _mm512_scalef_ps(p, x)
}
