//! Stored weights and cache rows to `f32`.

use super::{Level, kernels};
use half::{bf16, f16};

/// Widens `f16`.
///
/// # Panics
/// When the lengths differ.
pub fn f16_to_f32(x: &[f16], out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "one length");
    // SAFETY: the lengths are equal.
    unsafe { kernels::widen_f16(Level::detect(), x.as_ptr(), x.len(), out.as_mut_ptr()) };
}

/// Rounds to the nearest `f16`, ties to even.
///
/// # Panics
/// When the lengths differ.
pub fn f32_to_f16(x: &[f32], out: &mut [f16]) {
    assert_eq!(x.len(), out.len(), "one length");
    // SAFETY: the lengths are equal.
    unsafe { kernels::narrow_f16(Level::detect(), x.as_ptr(), x.len(), out.as_mut_ptr()) };
}

/// Widens `bf16`.
///
/// # Panics
/// When the lengths differ.
pub fn bf16_to_f32(x: &[bf16], out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "one length");
    for (o, v) in out.iter_mut().zip(x) {
        *o = f32::from_bits(u32::from(v.to_bits()) << 16);
    }
}

/// The integer codes of a row of MLX affine weights, as bytes or as floats.
///
/// Codes are packed little-endian without gaps: code `i` stands at bits `i*bits..(i+1)*bits` of the
/// byte stream. For 2, 4 and 8 bits that is a u32 word of `32 / bits` codes; 3, 5 and 6 bits run
/// across bytes.
///
/// # Panics
/// When `packed` holds fewer than `out.len()` codes, or `bits` is none of 2, 3, 4, 5, 6, 8.
pub fn unpack_affine<T: From<u8>>(packed: &[u8], bits: u8, out: &mut [T]) {
    assert!(packed.len() * 8 >= out.len() * usize::from(bits), "enough codes");
    match bits {
        2 => unpack::<T, 2, 1, 4>(packed, out),
        3 => unpack::<T, 3, 3, 8>(packed, out),
        4 => unpack::<T, 4, 1, 2>(packed, out),
        5 => unpack::<T, 5, 5, 8>(packed, out),
        6 => unpack::<T, 6, 3, 4>(packed, out),
        8 => unpack::<T, 8, 1, 1>(packed, out),
        _ => panic!("{bits} bits is no MLX width"),
    }
}

/// `PACK` bytes hold `CODES` codes exactly.
fn unpack<T: From<u8>, const BITS: usize, const PACK: usize, const CODES: usize>(
    packed: &[u8],
    out: &mut [T],
) {
    let code = |word: u64, i: usize| T::from(((word >> (i * BITS)) & ((1 << BITS) - 1)) as u8);
    let word = |pack: &[u8; PACK]| {
        pack.iter().rev().fold(0u64, |word, &byte| (word << 8) | u64::from(byte))
    };
    let (packs, _) = packed.as_chunks::<PACK>();
    let (groups, rest) = out.as_chunks_mut::<CODES>();
    for (pack, codes) in packs.iter().zip(groups.iter_mut()) {
        let word = word(pack);
        for (i, o) in codes.iter_mut().enumerate() {
            *o = code(word, i);
        }
    }
    if let Some(pack) = packs.get(groups.len()) {
        for (i, o) in rest.iter_mut().enumerate() {
            *o = code(word(pack), i);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::array;

    #[test]
    fn codes_come_back_for_every_width() {
        for bits in [2u8, 3, 4, 5, 6, 8] {
            let n = 64;
            let codes: Vec<u32> = (0..n).map(|i: u32| (i * 37 + 11) % (1 << bits)).collect();
            let mut packed = vec![0u8; n as usize * usize::from(bits) / 8];
            for (i, &c) in codes.iter().enumerate() {
                for b in 0..usize::from(bits) {
                    let at = i * usize::from(bits) + b;
                    packed[at / 8] |= (((c >> b) & 1) as u8) << (at % 8);
                }
            }
            let (mut floats, mut bytes) = (vec![0.0f32; n as usize], vec![0u8; n as usize]);
            unpack_affine(&packed, bits, &mut floats);
            assert!(floats.iter().zip(&codes).all(|(&o, &c)| o == c as f32), "{bits} bits");
            unpack_affine(&packed, bits, &mut bytes);
            assert!(bytes.iter().zip(&codes).all(|(&o, &c)| u32::from(o) == c), "{bits} bits");
        }
    }

    #[test]
    fn halves_widen_exactly() {
        let x: [f32; 37] = array::from_fn(|i| match i {
            0 => -1.5,
            1 => 65504.0,
            2 => 6e-8,
            36 => f32::INFINITY,
            i => i as f32 * 0.37,
        });
        let mut out = [0.0; 37];
        f16_to_f32(&x.map(f16::from_f32), &mut out);
        assert_eq!(out, x.map(|v| f16::from_f32(v).to_f32()));
        bf16_to_f32(&x.map(bf16::from_f32), &mut out);
        assert_eq!(out, x.map(|v| bf16::from_f32(v).to_f32()));
    }

    #[test]
    fn halves_are_rounded_alike_at_every_level() {
        let mut x: Vec<f32> =
            (0..40_000u32).map(|i| f32::from_bits(i.wrapping_mul(107_377))).collect();
        x.extend([65_504.0, 65_519.99, 65_520.0, 1e9, -1e9, f32::INFINITY, -0.0, 6e-8, 2.9e-8]);
        // Ties: halfway between neighbours, above an even and an odd one.
        x.extend([1.0 + 0.000_488_281_25, 1.0 + 3.0 * 0.000_488_281_25, 2.0f32.powi(-25)]);
        let want: Vec<_> = x.iter().map(|&x| f16::from_f32(x)).collect();
        for level in Level::available() {
            let mut out = vec![f16::ZERO; x.len()];
            // SAFETY: the machine has the level; the lengths are equal.
            unsafe { kernels::narrow_f16(level, x.as_ptr(), x.len(), out.as_mut_ptr()) };
            let same =
                |(a, b): (&f16, &f16)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
            let other = out.iter().zip(&want).position(|pair| !same(pair));
            assert_eq!(other.map(|i| x[i]), None, "{level:?}");
        }
    }
}
