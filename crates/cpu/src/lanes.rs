//! The vector of `f32` that kernels are written against, and the types it can be loaded from.

use half::{bf16, f16};

/// A stored float that widens to `f32` exactly.
pub(super) trait Element: Copy + Default {
    /// # Safety
    /// As [`Lanes::load`].
    unsafe fn load<L: Lanes>(p: *const Self) -> L;

    /// # Safety
    /// As [`Lanes::load_part`].
    #[inline(always)]
    unsafe fn load_part<L: Lanes>(p: *const Self, n: usize) -> L {
        // Wide enough for every level.
        let mut part = [Self::default(); 16];
        // SAFETY: `n` readable elements, fewer than the buffer's.
        unsafe {
            std::ptr::copy_nonoverlapping(p, part.as_mut_ptr(), n);
            Self::load(part.as_ptr())
        }
    }
}

impl Element for f32 {
    #[inline(always)]
    unsafe fn load<L: Lanes>(p: *const Self) -> L {
        // SAFETY: as many elements are readable, as [`Lanes::load`] demands.
        unsafe { L::load(p) }
    }

    #[inline(always)]
    unsafe fn load_part<L: Lanes>(p: *const Self, n: usize) -> L {
        // SAFETY: the caller keeps the contract of `Element::load_part`.
        unsafe { L::load_part(p, n) }
    }
}

impl Element for f16 {
    #[inline(always)]
    unsafe fn load<L: Lanes>(p: *const Self) -> L {
        // SAFETY: as many elements are readable, as [`Lanes::load`] demands.
        unsafe { L::load_f16(p) }
    }
}

impl Element for bf16 {
    #[inline(always)]
    unsafe fn load<L: Lanes>(p: *const Self) -> L {
        // SAFETY: as many elements are readable, as [`Lanes::load`] demands.
        unsafe { L::load_bf16(p) }
    }
}

/// A few `f32` in one register.
///
/// # Safety
/// Every method may use the instructions of its level, so it must run inside a function compiled
/// for that level (the shims of [`super::kernels`]), and pointers must be valid for what they name.
pub(super) trait Lanes: Copy {
    /// How many.
    const LANES: usize;
    /// Enough registers for 4 x 4 accumulators.
    const WIDE: bool;

    /// Hints that a cache line will be read soon. It reads nothing: any address will do.
    #[inline(always)]
    unsafe fn prefetch<T>(_line: *const T) {}
    /// Hints that a line will be read soon that the second-level cache has, or soon will.
    #[inline(always)]
    unsafe fn prefetch_near<T>(_line: *const T) {}
    unsafe fn splat(x: f32) -> Self;
    unsafe fn load(p: *const f32) -> Self;
    /// The first `n < LANES` elements, the rest zero.
    unsafe fn load_part(p: *const f32, n: usize) -> Self;
    /// As many halves, widened.
    unsafe fn load_f16(p: *const f16) -> Self;
    /// As many bfloats, widened.
    unsafe fn load_bf16(p: *const bf16) -> Self;
    /// The first or second of as many pairs of bfloats, widened.
    unsafe fn load_bf16_of_pairs<const SECOND: bool>(p: *const bf16) -> Self;
    unsafe fn store(self, p: *mut f32);
    unsafe fn store_part(self, p: *mut f32, n: usize);
    /// As many halves, rounded to the nearest, ties to even.
    unsafe fn store_f16(self, p: *mut f16);
    unsafe fn add(self, o: Self) -> Self;
    unsafe fn sub(self, o: Self) -> Self;
    unsafe fn mul(self, o: Self) -> Self;
    unsafe fn div(self, o: Self) -> Self;
    /// The larger; `o` if that is not a number.
    unsafe fn max(self, o: Self) -> Self;
    /// The smaller; `o` if that is not a number.
    unsafe fn min(self, o: Self) -> Self;
    /// `self * b + c`, rounded once.
    unsafe fn mul_add(self, b: Self, c: Self) -> Self;
    unsafe fn round(self) -> Self;
    /// `self * 2^n` for integral `n`.
    unsafe fn scale_by_pow2(self, n: Self) -> Self;
    unsafe fn sum(self) -> f32;
    /// Writes the sums of four vectors, each as [`Self::sum`] gives it.
    #[inline(always)]
    unsafe fn sum4(x: [Self; 4], out: *mut f32) {
        for (i, x) in x.into_iter().enumerate() {
            // SAFETY: the caller has room for four.
            unsafe { *out.add(i) = x.sum() };
        }
    }
    /// The lane that [`Self::sum`] takes `i`-th: it adds each to the next, the sums of two to each
    /// other, and so on. By default the upper half of the lanes is added to the lower, again and again.
    #[inline(always)]
    fn summed(i: usize) -> usize {
        if Self::LANES == 1 { i } else { i.reverse_bits() >> (Self::LANES.leading_zeros() + 1) }
    }
    /// `out[j][i] = x[i][j]` of as many rows and columns as there are lanes.
    #[inline(always)]
    unsafe fn turn(x: *const f32, x_stride: usize, out: *mut f32, out_stride: usize) {
        for i in 0..Self::LANES {
            for j in 0..Self::LANES {
                // SAFETY: `x` and `out` have as many rows and columns as there are lanes.
                unsafe { *out.add(j * out_stride + i) = *x.add(i * x_stride + j) };
            }
        }
    }
    unsafe fn max_lane(self) -> f32;

    /// `e^self` to 2 ulp; the Cephes polynomial on [-ln 2 / 2, ln 2 / 2].
    #[inline(always)]
    unsafe fn exp(self) -> Self {
        // SAFETY: the caller is compiled for the level; only registers are read.
        unsafe {
            let x = self.max(Self::splat(-104.0)).min(Self::splat(88.72));
            let n = x.mul(Self::splat(std::f32::consts::LOG2_E)).round();
            let r = n.mul_add(Self::splat(-0.693_359_4), x);
            let r = n.mul_add(Self::splat(2.121_944_4e-4), r);
            let mut p = Self::splat(1.987_569_1e-4);
            for c in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
                p = p.mul_add(r, Self::splat(c));
            }
            let y = p.mul_add(r.mul(r), r).add(Self::splat(1.0));
            y.scale_by_pow2(n)
        }
    }
}

/// One lane in plain Rust: the fallback, and the definition.
#[derive(Clone, Copy)]
pub(super) struct Portable(f32);

impl Lanes for Portable {
    const LANES: usize = 1;
    const WIDE: bool = false;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        Self(x)
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: the caller passes a readable element.
        Self(unsafe { *p })
    }
    #[inline(always)]
    unsafe fn load_part(_: *const f32, _: usize) -> Self {
        Self(0.0)
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const f16) -> Self {
        // SAFETY: the caller passes a readable element.
        Self(unsafe { *p }.to_f32())
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const bf16) -> Self {
        // SAFETY: the caller passes a readable element.
        Self(unsafe { *p }.to_f32())
    }
    #[inline(always)]
    unsafe fn load_bf16_of_pairs<const SECOND: bool>(p: *const bf16) -> Self {
        // SAFETY: the caller passes a readable pair.
        Self(unsafe { *p.add(usize::from(SECOND)) }.to_f32())
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: the caller passes a writable element.
        unsafe { *p = self.0 }
    }
    #[inline(always)]
    unsafe fn store_part(self, _: *mut f32, _: usize) {}
    #[inline(always)]
    unsafe fn store_f16(self, p: *mut f16) {
        // SAFETY: the caller passes a writable element.
        unsafe { *p = f16::from_f32(self.0) }
    }
    #[inline(always)]
    unsafe fn add(self, o: Self) -> Self {
        Self(self.0 + o.0)
    }
    #[inline(always)]
    unsafe fn sub(self, o: Self) -> Self {
        Self(self.0 - o.0)
    }
    #[inline(always)]
    unsafe fn mul(self, o: Self) -> Self {
        Self(self.0 * o.0)
    }
    #[inline(always)]
    unsafe fn div(self, o: Self) -> Self {
        Self(self.0 / o.0)
    }
    #[inline(always)]
    unsafe fn max(self, o: Self) -> Self {
        Self(if self.0 > o.0 { self.0 } else { o.0 })
    }
    #[inline(always)]
    unsafe fn min(self, o: Self) -> Self {
        Self(if self.0 < o.0 { self.0 } else { o.0 })
    }
    // Without FMA hardware `mul_add` is a library call; two roundings are the lesser evil.
    #[inline(always)]
    unsafe fn mul_add(self, b: Self, c: Self) -> Self {
        Self(self.0 * b.0 + c.0)
    }
    #[inline(always)]
    unsafe fn round(self) -> Self {
        Self(self.0.round_ties_even())
    }
    #[inline(always)]
    unsafe fn scale_by_pow2(self, n: Self) -> Self {
        // Two steps, so that results below the smallest normal number underflow gradually.
        let half = (n.0 * 0.5).floor();
        Self(self.0 * half.exp2() * (n.0 - half).exp2())
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        self.0
    }
    #[inline(always)]
    unsafe fn max_lane(self) -> f32 {
        self.0
    }
}
