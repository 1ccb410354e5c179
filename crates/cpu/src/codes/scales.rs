//! Scales and centres of coded rows, as they are stored.

use super::{CodeLevel, DenseRows, dot_rows};
use crate::Floats;
use half::f16;
use std::{ops::RangeInclusive, sync::LazyLock};

/// Makes `name(level, args...)` that runs `body`, compiled for the level.
macro_rules! compiled {
    ($(#[$doc:meta])* $vis:vis $name:ident = $body:ident ($($arg:ident : $ty:ty),*) $(-> $out:ty)?) => {
        $(#[$doc])*
        $vis fn $name(level: CodeLevel, $($arg: $ty),*) $(-> $out)? {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c")]
            unsafe fn avx512($($arg: $ty),*) $(-> $out)? {
                $body($($arg),*)
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            unsafe fn avx2($($arg: $ty),*) $(-> $out)? {
                $body($($arg),*)
            }
            match level {
                #[cfg(target_arch = "x86_64")]
                // SAFETY: the machine has the level.
                CodeLevel::Vbmi(_) => unsafe { avx512($($arg),*) },
                #[cfg(target_arch = "x86_64")]
                // SAFETY: the machine has the level.
                CodeLevel::Avx2(_) => unsafe { avx2($($arg),*) },
                _ => $body($($arg),*),
            }
        }
    };
}
pub(super) use compiled;

/// Steps of [`power`] that double.
pub const OCTAVE: i32 = 24;

/// Steps of the smallest and the largest power: octaves of normal numbers.
const STEPS: RangeInclusive<i32> = -126 * OCTAVE..=128 * OCTAVE - 1;

/// Powers of all steps: a root of the octave times a power of two, which is exact.
static POWERS: LazyLock<Vec<f32>> = LazyLock::new(|| {
    let power = |step: i32| {
        let root = (f64::from(step.rem_euclid(OCTAVE)) / f64::from(OCTAVE)).exp2() as f32;
        root * f32::from_bits(((step.div_euclid(OCTAVE) + 127) as u32) << 23)
    };
    STEPS.map(power).collect()
});

/// `2^(step / 24)`, of the nearest step of a normal number.
#[must_use]
pub fn power(step: i32) -> f32 {
    POWERS[(step.clamp(*STEPS.start(), *STEPS.end()) - STEPS.start()) as usize]
}

/// `out[i] = factor * power(base + codes[i])`, and 0 of code 0.
///
/// # Panics
/// When the lengths differ.
pub fn powers(level: CodeLevel, codes: &[u8], base: i32, factor: f32, out: &mut [f32]) {
    assert_eq!(codes.len(), out.len(), "a code an element");
    let done = match level {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the machine has the level, the length is checked, and the roots are step 0 and more.
        CodeLevel::Vbmi(_) => unsafe {
            let roots = &POWERS[-STEPS.start() as usize..];
            super::vbmi_rows::powers(codes, roots, (base, STEPS), factor, out)
        },
        _ => 0,
    };
    // Where no code leads beyond the steps, there is nothing to clamp.
    let first = usize::try_from(base - STEPS.start()).ok();
    let within = first.and_then(|first| POWERS.get(first..)?.first_chunk::<256>());
    for (o, &c) in out.iter_mut().zip(codes).skip(done) {
        *o = match (c, within) {
            (0, _) => 0.0,
            (_, Some(powers)) => powers[usize::from(c)] * factor,
            (_, None) => power(base + i32::from(c)) * factor,
        };
    }
}

compiled! {
    /// `codes[i]` is how many thresholds lie below `x[i]`: the code of its interval.
    pub intervals = intervals_body(x: &[f32], thresholds: &[f32], codes: &mut [u8])
}

/// Added to a float, it leaves the rounded integer in the lowest bits: 1.5 * 2^23.
pub(super) const ROUND: f32 = 12_582_912.0;

/// The scale of int8 codes up to 127 by the largest magnitude, and what to multiply with.
pub(super) fn int8_scale(max: f32) -> (f32, f32) {
    if max > 0.0 { (max / 127.0, 127.0 / max) } else { (0.0, 0.0) }
}

/// Rounds a row to int8: `x = scale * code`, with `code` in -127..=127. Returns the scale and the sum
/// of the codes; those beyond the row stay as they are.
pub(super) fn round_row(level: CodeLevel, x: &[f32], codes: &mut [i8]) -> (f32, i32) {
    match level {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the machine has the level, and vectors are whole.
        CodeLevel::Vbmi(_) if x.len().is_multiple_of(16) && codes.len() >= x.len() => unsafe {
            super::vbmi_rows::round_row(x, codes)
        },
        _ => round_plainly(level, x, codes),
    }
}

compiled! {
    round_plainly = round_body(x: &[f32], codes: &mut [i8]) -> (f32, i32)
}

#[inline(always)]
fn round_body(x: &[f32], codes: &mut [i8]) -> (f32, i32) {
    let (scale, inverse) = int8_scale(largest(x.iter().map(|x| x.abs())));
    let mut sum = 0;
    for (code, x) in codes.iter_mut().zip(x) {
        *code = (x * inverse + ROUND).to_bits() as i8;
        sum += i32::from(*code);
    }
    (scale, sum)
}

/// The largest of some numbers, or 0: side by side, which makes no difference.
#[inline(always)]
pub(super) fn largest(mut x: impl ExactSizeIterator<Item = f32>) -> f32 {
    const LANES: usize = 8;
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let mut most = [0.0; LANES];
    while x.len() >= LANES {
        for most in &mut most {
            *most = larger(*most, x.next().unwrap_or(0.0));
        }
    }
    x.chain(most).fold(0.0, larger)
}

/// Multiplies rows of a power of two elements with Sylvester's Hadamard matrix of their length, in
/// natural order, and their elements with factors before and after.
///
/// # Panics
/// When `len` is not a power of two, or there are not as many factors as elements.
pub fn sylvester(level: CodeLevel, x: &mut [f32], len: usize, before: &[f32], after: &[f32]) {
    assert!(len.is_power_of_two(), "a power of two");
    assert!(before.len() == x.len() && after.len() == x.len(), "factors");
    match level {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the machine has the level, and there are as many factors.
        CodeLevel::Vbmi(_) if len >= 16 => unsafe {
            super::vbmi_rows::sylvester(x, len, before, after);
        },
        _ => turn_plainly(level, x, len, before, after),
    }
}

compiled! {
    turn_plainly = turn_body(x: &mut [f32], len: usize, before: &[f32], after: &[f32])
}

#[inline(always)]
fn turn_body(x: &mut [f32], len: usize, before: &[f32], after: &[f32]) {
    multiply(x, before);
    butterflies(x, 1, len);
    multiply(x, after);
}

#[inline(always)]
pub(super) fn multiply(x: &mut [f32], factors: &[f32]) {
    x.iter_mut().zip(factors).for_each(|(x, f)| *x *= f);
}

/// The butterflies of a Hadamard product from distance `half` on.
#[inline(always)]
pub(super) fn butterflies(x: &mut [f32], mut half: usize, len: usize) {
    while half < len {
        for pair in x.chunks_exact_mut(2 * half) {
            let (a, b) = pair.split_at_mut(half);
            for (a, b) in a.iter_mut().zip(b) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
        half *= 2;
    }
}

/// `out[i] = factor * half_i` of little-endian halves.
///
/// # Panics
/// When there are too few bytes.
pub fn halves(level: CodeLevel, bytes: &[u8], factor: f32, out: &mut [f32]) {
    assert!(bytes.len() >= 2 * out.len(), "two bytes an element");
    let done = match level {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the machine has the level and the length is checked.
        CodeLevel::Vbmi(_) => unsafe { super::vbmi_rows::halves(bytes, factor, out) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the machine has the level and the length is checked.
        CodeLevel::Avx2(_) => unsafe { super::avx2::halves(bytes, factor, out) },
        _ => 0,
    };
    for (x, out) in bytes.as_chunks::<2>().0[done..].iter().zip(&mut out[done..]) {
        *out = f16::from_le_bytes(*x).to_f32() * factor;
    }
}

/// `out[i] = factor * (code_i - 63)` of seven-bit codes, lowest bits first.
///
/// # Panics
/// When there are too few bytes.
pub fn unpack_centre(level: CodeLevel, bytes: &[u8], factor: f32, out: &mut [f32]) {
    assert!(bytes.len() >= (out.len() * 7).div_ceil(8), "seven bits an element");
    let done = match level {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the machine has the level and the length is checked.
        CodeLevel::Vbmi(_) => unsafe { super::vbmi_rows::unpack_centre(bytes, factor, out) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the machine has the level and the length is checked.
        CodeLevel::Avx2(_) => unsafe { super::avx2::unpack_centre(bytes, factor, out) },
        _ => 0,
    };
    let rest = bytes[done / 8 * 7..].chunks(7).zip(out[done..].chunks_mut(8));
    for (bytes, out) in rest {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        let word = u64::from_le_bytes(word);
        for (i, o) in out.iter_mut().enumerate() {
            *o = ((word >> (7 * i) & 127) as i32 - 63) as f32 * factor;
        }
    }
}

/// `offsets[i] = q_i . c` of a centre `c` as [`unpack_centre`] reads it. `centre` is room for it, a row
/// of `q`.
///
/// # Panics
/// When there are too few bytes, or `q` has not a row for each offset.
pub fn centre_dots(
    level: CodeLevel,
    bytes: &[u8],
    factor: f32,
    q: &[f32],
    centre: &mut [f32],
    offsets: &mut [f32],
) {
    let d = centre.len();
    assert!(bytes.len() >= (7 * d).div_ceil(8) && q.len() == offsets.len() * d, "lengths");
    match level {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the machine has the level, lengths are checked, and vectors are whole.
        CodeLevel::Vbmi(_) if d.is_multiple_of(64) => unsafe {
            super::vbmi_rows::centre_dots(bytes, factor, q, d, offsets);
        },
        _ => {
            unpack_centre(level, bytes, factor, centre);
            dot_rows(q, DenseRows::last(Floats::F32(centre)), d, (offsets, 1));
        }
    }
}

#[inline(always)]
fn intervals_body(x: &[f32], thresholds: &[f32], codes: &mut [u8]) {
    const LANES: usize = 16;
    for (x, codes) in x.chunks(LANES).zip(codes.chunks_mut(LANES)) {
        let (mut at, mut below) = ([0.0; LANES], [0u32; LANES]);
        at[..x.len()].copy_from_slice(x);
        for &t in thresholds {
            for l in 0..LANES {
                below[l] += u32::from(at[l] > t);
            }
        }
        for (code, below) in codes.iter_mut().zip(below) {
            *code = below as u8;
        }
    }
}
