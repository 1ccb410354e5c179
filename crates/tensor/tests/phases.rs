//! What a packed map rounds activations to in prefill and in decode.

#![allow(clippy::unwrap_used, reason = "a test")]

use taper_tensor::{
    AffineFormat, AffineWeight, Bytes, DType, Linear, LinearGroup, Phase, Precision, RmsNorm,
    Rounding, Tensor, Weight,
    ops::{self, Activation},
    quantize,
};

const FAST: Precision = Precision::Mixed { decode: Rounding::Int8 };
const CAREFUL: Precision = Precision::Mixed { decode: Rounding::Int16 };

const COLS: usize = 256;
const OUT: usize = 80;

fn noise(n: usize, seed: u64) -> Vec<f32> {
    let mut s = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        s ^= s << 13;
        s ^= s >> 7;
        s ^= s << 17;
        (s >> 40) as f32 / (1 << 24) as f32 - 0.5
    };
    // Sums of noise are nearly Gaussian, as activations are.
    (0..n).map(|_| (0..6).map(|_| next()).sum()).collect()
}

fn linear() -> Linear {
    random((OUT, COLS), 64, 1)
}

/// A map `[out, in]` of four bits in groups of so many inputs.
fn random((rows, cols): (usize, usize), group: usize, seed: u64) -> Linear {
    let format = AffineFormat { bits: 4, group };
    let parts = quantize(&noise(rows * cols, seed), cols, format, DType::F32).unwrap();
    let floats = |bytes| (DType::F32, Bytes::from_vec(bytes));
    let (scales, biases) = (floats(parts.scales), floats(parts.biases));
    let codes = Bytes::from_vec(parts.codes);
    let weight = AffineWeight::new(format, (rows, cols), codes, scales, biases).unwrap();
    Linear::new(Weight::Affine(weight))
}

fn values(x: &Tensor) -> Vec<f32> {
    ops::with_host_f32(x, <[f32]>::to_vec).unwrap()
}

/// Root of the mean square of differences.
fn off(got: &[f32], want: &[f32]) -> f64 {
    let squares = got.iter().zip(want).map(|(g, w)| f64::from(g - w).powi(2));
    (squares.sum::<f64>() / want.len() as f64).sqrt()
}

#[test]
fn prompts_are_nearer_than_answers() {
    let x = Tensor::from_vec(noise(20 * COLS, 2), &[20, COLS]).unwrap();
    let exact = values(&linear().forward(&x, Phase::Decode).unwrap());
    let error = |rounding, phase| {
        off(&values(&linear().pack(rounding).forward(&x, phase).unwrap()), &exact)
    };
    let answers = error(FAST, Phase::Decode);
    assert!(error(FAST, Phase::Prefill) < answers / 2.0);
    assert!(error(CAREFUL, Phase::Decode) < answers / 100.0);
    assert_eq!(error(CAREFUL, Phase::Prefill), error(FAST, Phase::Prefill));
    assert_eq!(error(Precision::Int8, Phase::Prefill), answers);
    let packed = linear().pack(FAST);
    let few = off(&values(&packed.forward_few(&x, Phase::Prefill).unwrap()), &exact);
    assert!(few < answers / 100.0);
    assert_eq!(off(&values(&packed.forward_few(&x, Phase::Decode).unwrap()), &exact), answers);
}

#[test]
fn rows_do_not_depend_on_the_batch() {
    let rows = noise(20 * COLS, 3);
    let x = Tensor::from_vec(rows.clone(), &[20, COLS]).unwrap();
    let phases = [(FAST, Phase::Prefill), (FAST, Phase::Decode), (CAREFUL, Phase::Decode)];
    for (rounding, phase) in phases {
        let linear = linear().pack(rounding);
        let all = values(&linear.forward(&x, phase).unwrap());
        let all_few = values(&linear.forward_few(&x, phase).unwrap());
        for (i, row) in rows.chunks(COLS).enumerate() {
            let row = Tensor::from_vec(row.to_vec(), &[1, COLS]).unwrap();
            let own = i * OUT..(i + 1) * OUT;
            assert_eq!(values(&linear.forward(&row, phase).unwrap()), all[own.clone()]);
            assert_eq!(values(&linear.forward_few(&row, phase).unwrap()), all_few[own]);
        }
    }
}

#[test]
fn a_feed_forward_is_its_maps_one_after_the_other() {
    const INNER: usize = 640;
    let norm = RmsNorm::new(noise(COLS, 5), 1e-6);
    for (group, rounding) in
        [(32, Precision::Int8), (64, FAST), (128, Precision::Int8), (64, Precision::Int16)]
    {
        let maps = [6, 7].map(|seed| random((INNER, COLS), 64, seed));
        let both = LinearGroup::new(maps).unwrap().pack(rounding);
        let down = random((COLS, INNER), group, 8).pack(rounding);
        for (t, phase) in [
            (1, Phase::Decode),
            (7, Phase::Decode),
            (16, Phase::Decode),
            (200, Phase::Decode),
            (9, Phase::Prefill),
        ] {
            let x = Tensor::from_vec(noise(t * COLS, 9), &[t, COLS]).unwrap();
            let inner = both.forward_gated(&x, Some(&norm), Activation::Silu, phase).unwrap();
            let want = values(&down.forward_add(&inner, &x, None, phase).unwrap());
            let residual = Some((&x, None));
            let got = both.forward_down(&down, &x, Some(&norm), Activation::Silu, residual, phase);
            assert_eq!(values(&got.unwrap()), want, "{group}, {rounding:?}: {t} rows, {phase:?}");
        }
    }
}
