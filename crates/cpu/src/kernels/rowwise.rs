//! Rows and elements, one after the other.

use super::super::lanes::{Element, Lanes};
use half::f16;

/// Runs the first block for whole vectors, and the second for what is left. A macro and not a
/// function with closures: a closure is not compiled for the level, and its instructions become calls.
macro_rules! by_lanes {
    ($lanes:ident, $n:expr, |$i:ident| $full:block, |$j:ident, $rest:ident| $part:block) => {
        let n = $n;
        let mut at = 0;
        while at + $lanes::LANES <= n {
            let $i = at;
            $full
            at += $lanes::LANES;
        }
        if at < n {
            let ($j, $rest) = (at, n - at);
            $part
        }
    };
}

/// `out[i] = f(x[i])`.
macro_rules! map {
    ($lanes:ident, $x:expr, $n:expr, $out:expr, |$v:ident| $f:expr) => {{
        let (x, out): (*const f32, *mut f32) = ($x, $out);
        by_lanes!(
            $lanes,
            $n,
            |i| {
                let $v = $lanes::load(x.add(i));
                $f.store(out.add(i));
            },
            |i, rest| {
                let $v = $lanes::load_part(x.add(i), rest);
                $f.store_part(out.add(i), rest);
            }
        );
    }};
}

/// `out[i] = f(x[i], y[i])`.
macro_rules! zip {
    ($lanes:ident, $x:expr, $y:expr, $n:expr, $out:expr, |$a:ident, $b:ident| $f:expr) => {{
        let (x, y, out): (*const f32, *const f32, *mut f32) = ($x, $y, $out);
        by_lanes!(
            $lanes,
            $n,
            |i| {
                let ($a, $b) = ($lanes::load(x.add(i)), $lanes::load(y.add(i)));
                $f.store(out.add(i));
            },
            |i, rest| {
                let $a = $lanes::load_part(x.add(i), rest);
                let $b = $lanes::load_part(y.add(i), rest);
                $f.store_part(out.add(i), rest);
            }
        );
    }};
}

#[inline(always)]
pub(super) unsafe fn widen_body<L: Lanes, E: Element>(x: *const E, n: usize, out: *mut f32) {
    // SAFETY: `n` elements of each.
    unsafe {
        by_lanes!(
            L,
            n,
            |i| {
                E::load::<L>(x.add(i)).store(out.add(i));
            },
            |i, rest| {
                E::load_part::<L>(x.add(i), rest).store_part(out.add(i), rest);
            }
        );
    }
}

#[inline(always)]
pub(super) unsafe fn narrow_f16_body<L: Lanes>(x: *const f32, n: usize, out: *mut f16) {
    // SAFETY: `n` elements of each.
    unsafe {
        by_lanes!(L, n, |i| { L::load(x.add(i)).store_f16(out.add(i)) }, |i, rest| {
            for e in i..i + rest {
                *out.add(e) = f16::from_f32(*x.add(e));
            }
        });
    }
}

#[inline(always)]
pub(super) unsafe fn row_max_body<L: Lanes>(x: *const f32, n: usize) -> f32 {
    // SAFETY: `n` readable elements, at least one.
    unsafe {
        let mut best = L::splat(*x);
        let mut tail = *x;
        by_lanes!(L, n, |i| { best = best.max(L::load(x.add(i))) }, |i, rest| {
            for e in i..i + rest {
                tail = tail.max(*x.add(e));
            }
        });
        best.max_lane().max(tail)
    }
}

#[inline(always)]
pub(super) unsafe fn exp_shift_body<L: Lanes>(x: *mut f32, n: usize, shift: f32) -> f32 {
    // SAFETY: `n` writable elements.
    unsafe {
        let shift = L::splat(shift);
        let mut sum = L::splat(0.0);
        let mut tail = 0.0;
        by_lanes!(
            L,
            n,
            |i| {
                let e = L::load(x.add(i)).sub(shift).exp();
                e.store(x.add(i));
                sum = sum.add(e);
            },
            |i, rest| {
                let e = L::load_part(x.add(i), rest).sub(shift).exp();
                e.store_part(x.add(i), rest);
                for t in i..i + rest {
                    tail += *x.add(t);
                }
            }
        );
        sum.sum() + tail
    }
}

#[inline(always)]
pub(super) unsafe fn scale_body<L: Lanes>(x: *mut f32, n: usize, s: f32) {
    // SAFETY: `n` writable elements.
    unsafe { map!(L, x, n, x, |v| v.mul(L::splat(s))) }
}

#[inline(always)]
pub(super) unsafe fn sum_squares_body<L: Lanes>(x: *const f32, n: usize) -> f32 {
    // SAFETY: `n` readable elements.
    unsafe {
        let mut sum = L::splat(0.0);
        let mut tail = 0.0f32;
        by_lanes!(
            L,
            n,
            |i| {
                let v = L::load(x.add(i));
                sum = v.mul_add(v, sum);
            },
            |i, rest| {
                for t in i..i + rest {
                    tail += *x.add(t) * *x.add(t);
                }
            }
        );
        sum.sum() + tail
    }
}

#[inline(always)]
pub(super) unsafe fn scale_mul_body<L: Lanes>(
    x: *const f32,
    w: *const f32,
    n: usize,
    s: f32,
    out: *mut f32,
) {
    // SAFETY: `n` elements of each.
    unsafe { zip!(L, x, w, n, out, |a, b| a.mul(L::splat(s)).mul(b)) }
}

#[inline(always)]
pub(super) unsafe fn blend_body<L: Lanes>(x: *mut f32, a: f32, y: *const f32, b: f32, n: usize) {
    // SAFETY: `n` elements of each.
    unsafe {
        let (a, b) = (L::splat(a), L::splat(b));
        zip!(L, x, y, n, x, |x, y| x.mul(a).add(y.mul(b)));
    }
}

#[inline(always)]
pub(super) unsafe fn add_body<L: Lanes>(x: *const f32, y: *const f32, n: usize, out: *mut f32) {
    // SAFETY: `n` elements of each.
    unsafe { zip!(L, x, y, n, out, |a, b| a.add(b)) }
}

#[inline(always)]
unsafe fn sigmoid<L: Lanes>(x: L) -> L {
    // SAFETY: same level.
    unsafe {
        let one = L::splat(1.0);
        one.div(one.add(L::splat(0.0).sub(x).exp()))
    }
}

#[inline(always)]
pub(super) unsafe fn silu_mul_body<L: Lanes>(
    gate: *const f32,
    up: *const f32,
    n: usize,
    out: *mut f32,
) {
    // SAFETY: `n` elements of each.
    unsafe { zip!(L, gate, up, n, out, |g, u| g.mul(sigmoid(g)).mul(u)) }
}

#[inline(always)]
unsafe fn gelu_tanh<L: Lanes>(x: L) -> L {
    // 0.5 (1 + tanh y) = sigmoid(2 y)
    const TWO_SQRT_2_OVER_PI: f32 = 1.595_769;
    // SAFETY: same level.
    unsafe {
        let cubic = x.mul(x).mul(x).mul_add(L::splat(0.044_715), x);
        x.mul(sigmoid(cubic.mul(L::splat(TWO_SQRT_2_OVER_PI))))
    }
}

#[inline(always)]
pub(super) unsafe fn gelu_tanh_mul_body<L: Lanes>(
    gate: *const f32,
    up: *const f32,
    n: usize,
    out: *mut f32,
) {
    // SAFETY: `n` elements of each.
    unsafe { zip!(L, gate, up, n, out, |g, u| gelu_tanh(g).mul(u)) }
}

#[inline(always)]
pub(super) unsafe fn swiglu_oai_body<L: Lanes>(
    gate: *const f32,
    up: *const f32,
    n: usize,
    out: *mut f32,
) {
    const ALPHA: f32 = 1.702;
    const LIMIT: f32 = 7.0;
    // SAFETY: `n` elements of each.
    unsafe {
        let (least, most, one) = (L::splat(-LIMIT), L::splat(LIMIT), L::splat(1.0));
        // The operand that may be not a number comes second, to stay so.
        zip!(L, gate, up, n, out, |g, u| {
            let (g, u) = (most.min(g), least.max(most.min(u)));
            g.mul(sigmoid(g.mul(L::splat(ALPHA)))).mul(u.add(one))
        });
    }
}

#[inline(always)]
unsafe fn capped<L: Lanes>(x: L, cap: f32) -> L {
    // tanh y = 2 sigmoid(2 y) - 1
    // SAFETY: same level.
    unsafe {
        let t = sigmoid(x.mul(L::splat(2.0 / cap)));
        t.mul_add(L::splat(2.0), L::splat(-1.0)).mul(L::splat(cap))
    }
}

#[inline(always)]
pub(super) unsafe fn soft_cap_body<L: Lanes>(x: *mut f32, n: usize, cap: f32) {
    // SAFETY: `n` writable elements.
    unsafe { map!(L, x, n, x, |v| capped(v, cap)) }
}

#[inline(always)]
pub(super) unsafe fn rotate_body<L: Lanes>(
    x: *mut f32,
    n: usize,
    cos: *const f32,
    sin: *const f32,
) {
    // SAFETY: 2 n elements of `x`, n of the others.
    unsafe {
        let y = x.add(n);
        by_lanes!(
            L,
            n,
            |i| {
                let (a, b) = (L::load(x.add(i)), L::load(y.add(i)));
                let (c, s) = (L::load(cos.add(i)), L::load(sin.add(i)));
                a.mul(c).sub(b.mul(s)).store(x.add(i));
                b.mul(c).add(a.mul(s)).store(y.add(i));
            },
            |i, rest| {
                let (a, b) = (L::load_part(x.add(i), rest), L::load_part(y.add(i), rest));
                let (c, s) = (L::load_part(cos.add(i), rest), L::load_part(sin.add(i), rest));
                a.mul(c).sub(b.mul(s)).store_part(x.add(i), rest);
                b.mul(c).add(a.mul(s)).store_part(y.add(i), rest);
            }
        );
    }
}

#[inline(always)]
pub(super) unsafe fn gather_body<L: Lanes>(
    x: *const f32,
    stride: usize,
    size: usize,
    n: usize,
    out: *mut f32,
) {
    for piece in 0..n {
        for i in (0..size).step_by(L::LANES) {
            // SAFETY: the caller's shapes; sizes are multiples of a vector.
            unsafe { L::load(x.add(piece * stride + i)).store(out.add(piece * size + i)) };
        }
    }
}

/// Plain Rust that the compiler vectorises for each level: nothing here is rounded differently.
#[inline(always)]
pub(super) unsafe fn round_row_body<L: Lanes>(
    x: *const f32,
    n: usize,
    group: usize,
    codes: *mut i8,
    scales: *mut f32,
    sums: *mut f32,
) {
    for g in 0..n / group {
        // SAFETY: the caller's shapes; codes of a group are written before they are lent.
        unsafe {
            let x = std::slice::from_raw_parts(x.add(g * group), group);
            let (scale, sum) = round_group(x, codes.add(g * group));
            *scales.add(g) = scale;
            *sums.add(g) = sum;
        }
    }
}

/// As [`round_row_body`], plain Rust.
#[inline(always)]
pub(super) unsafe fn round_rest_body<L: Lanes>(
    x: *const f32,
    n: usize,
    group: usize,
    codes: *const i8,
    scales: *const f32,
    rest: *mut f32,
) {
    for g in 0..n / group {
        // SAFETY: `x`, `codes` and `rest` have `n` elements, and `scales` one a group.
        unsafe {
            let scale = *scales.add(g);
            for i in g * group..(g + 1) * group {
                let rounded = f32::from(*codes.add(i)) * scale;
                *rest.add(i) = *x.add(i) - rounded;
            }
        }
    }
}

/// Scale, and scale times the sum of the codes.
#[inline(always)]
unsafe fn round_group(x: &[f32], codes: *mut i8) -> (f32, f32) {
    // As bits, so that the maximum vectorises and what is not a number counts as the largest.
    let mut bits = 0;
    for v in x {
        bits = bits.max(v.to_bits() & 0x7fff_ffff);
    }
    let largest = f32::from_bits(bits);
    let (scale, inverse) = (largest / 127.0, 127.0 / largest);
    if largest == 0.0 || !inverse.is_normal() || !largest.is_finite() {
        // Nothing, too small to matter, or not finite.
        // SAFETY: as many codes as elements.
        unsafe { codes.write_bytes(0, x.len()) };
        let scale = if largest.is_finite() { 0.0 } else { f32::NAN };
        return (scale, scale);
    }
    let mut sum = 0;
    for (i, v) in x.iter().enumerate() {
        // Adding and taking away 1.5 * 2^23 rounds to the nearest integer, ties to even.
        let shifted = v * inverse + 12_582_912.0;
        let rounded = shifted.to_bits() as i32 - 12_582_912.0f32.to_bits() as i32;
        sum += rounded;
        // SAFETY: as many codes as elements.
        unsafe { *codes.add(i) = rounded as i8 };
    }
    (scale, scale * sum as f32)
}
