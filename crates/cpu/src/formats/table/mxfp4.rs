//! Quantizing to MXFP4 as `mx.quantize` does on the CPU, bit for bit.

use super::E2M1;
use crate::pool;

/// Weights of a scale.
const GROUP: usize = 32;
/// Groups of a task.
const TASK: usize = 256;

/// Codes of four bits, the low half of a byte first, and the exponent of each group of 32, as MLX and the OCP's
/// specification have it: the least power of two with which no weight is beyond the largest code.
///
/// # Shapes
/// `values [n]` -> codes `[n / 2]` and scales `[n / 32]`; what is beyond whole groups is ignored.
#[must_use]
pub fn quantize_mxfp4(values: &[f32]) -> (Vec<u8>, Vec<u8>) {
    let groups = values.len() / GROUP;
    let (mut codes, mut scales) = (vec![0; groups * GROUP / 2], vec![0; groups]);
    let out = codes.chunks_mut(TASK * GROUP / 2).zip(scales.chunks_mut(TASK));
    let mut tasks: Vec<_> = values.chunks(TASK * GROUP).zip(out).collect();
    pool::for_each(&mut tasks, |_, (values, (codes, scales))| {
        let out = codes.chunks_exact_mut(GROUP / 2).zip(scales.iter_mut());
        for (values, (codes, scale)) in values.chunks_exact(GROUP).zip(out) {
            *scale = exponent(values);
            let factor = super::e8m0(*scale);
            for (pair, byte) in values.as_chunks::<2>().0.iter().zip(codes) {
                let [low, high] = pair.map(|v| code(v / factor));
                *byte = low | high << 4;
            }
        }
    });
    (codes, scales)
}

fn exponent(values: &[f32]) -> u8 {
    let largest = values.iter().fold(0.0f32, |most, v| most.max(v.abs()));
    if largest == 0.0 {
        return 127;
    }
    let power = (largest / 6.0).log2().ceil().clamp(-127.0, 127.0);
    (power + 127.0) as u8
}

/// The nearest entry; the one nearer to zero where two are. Nothing is rounded to a negative zero.
fn code(value: f32) -> u8 {
    let halfway = |(low, high): (&f32, &f32)| f32::midpoint(*low, *high);
    let bounds = E2M1[..7].iter().zip(&E2M1[1..8]).map(halfway);
    let code = bounds.filter(|bound| value.abs() > *bound).count() as u8;
    if code > 0 && value < 0.0 { code | 8 } else { code }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_the_nearest_below_the_largest() {
        let mut values = [0.0f32; 64];
        let sixteen = [
            0.0, 0.25, 0.3, -0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 5.1, 6.0, -6.0, -0.3, -5.0, 4.9,
        ];
        values[32..48].copy_from_slice(&sixteen);
        let (codes, scales) = quantize_mxfp4(&values);
        assert_eq!((&codes[..16], &*scales), (&[0; 16][..], &[127, 127][..]));
        let code = |i: usize| codes[16 + i / 2] >> (4 * (i % 2)) & 15;
        let found: Vec<u8> = (0..16).map(code).collect();
        assert_eq!(found, [0, 0, 1, 0, 1, 2, 3, 4, 5, 6, 7, 7, 15, 9, 14, 6]);
        // Beyond the largest code the next power of two is taken.
        assert_eq!(quantize_mxfp4(&[6.1; 32]).1, [128]);
        assert_eq!(quantize_mxfp4(&[3.0; 32]).1, [126]);
        assert_eq!(quantize_mxfp4(&[f32::INFINITY; 32]).1, [254]);
    }
}
