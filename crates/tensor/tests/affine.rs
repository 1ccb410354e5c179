//! Quantizing and dequantizing against vectors that MLX made: `tests/fixtures/make_affine.py`.

#![allow(clippy::unwrap_used, reason = "a test")]

use half::{bf16, f16};
use safetensors::SafeTensors;
use std::{fs, path::PathBuf};
use taper_tensor::{
    AffineFormat, AffineParts, AffineWeight, Bytes, DType, TensorError, quantize, quantize_row,
};

struct Fixture(SafeTensors<'static>);

impl Fixture {
    fn open() -> Self {
        let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
        let file = fs::read(root.join("tests/fixtures/affine.safetensors")).unwrap();
        Self(SafeTensors::deserialize(file.leak()).unwrap())
    }

    fn bytes(&self, name: &str) -> &[u8] {
        self.0.tensor(name).unwrap().data()
    }

    /// Widened to `f32`.
    fn floats(&self, name: &str, dtype: DType) -> Vec<f32> {
        let chunks = self.bytes(name).chunks_exact(dtype.size_in_bytes());
        let half = |c: &[u8]| u16::from_le_bytes([c[0], c[1]]);
        match dtype {
            DType::F16 => chunks.map(|c| f16::from_bits(half(c)).to_f32()).collect(),
            DType::BF16 => chunks.map(|c| bf16::from_bits(half(c)).to_f32()).collect(),
            DType::F32 => chunks.map(|c| f32::from_le_bytes([c[0], c[1], c[2], c[3]])).collect(),
        }
    }
}

const ROWS: usize = 7;
const COLS: usize = 256;

/// Every dtype, width and group size of the fixture.
fn cases() -> impl Iterator<Item = (&'static str, DType, AffineFormat)> {
    let dtypes = [("f32", DType::F32), ("f16", DType::F16), ("bf16", DType::BF16)];
    dtypes.into_iter().flat_map(|(name, dtype)| {
        AffineFormat::BITS.into_iter().flat_map(move |bits| {
            let groups = AffineFormat::GROUPS.into_iter();
            groups.map(move |group| (name, dtype, AffineFormat { bits, group }))
        })
    })
}

#[test]
fn codes_scales_and_biases_equal_mlx_bit_for_bit() {
    let fixture = Fixture::open();
    let mut count = 0;
    for (name, dtype, format) in cases() {
        let key = format!("{name}.b{}.g{}", format.bits, format.group);
        let values = fixture.floats(&format!("{name}.input"), dtype);
        let parts = quantize(&values, COLS, format, dtype).unwrap();
        assert!(parts.codes == fixture.bytes(&format!("{key}.weight")), "codes of {key}");
        assert!(parts.scales == fixture.bytes(&format!("{key}.scales")), "scales of {key}");
        assert!(parts.biases == fixture.bytes(&format!("{key}.biases")), "biases of {key}");
        count += 1;
    }
    assert_eq!(count, 54);
}

#[test]
fn dequantized_equals_mlx_bit_for_bit() {
    let fixture = Fixture::open();
    for (name, dtype, format) in cases() {
        let key = format!("{name}.b{}.g{}", format.bits, format.group);
        let part = |what: &str| Bytes::from_vec(fixture.bytes(&format!("{key}.{what}")).to_vec());
        let (scales, biases) = ((dtype, part("scales")), (dtype, part("biases")));
        let weight = AffineWeight::new(format, (ROWS, COLS), part("weight"), scales, biases);
        let ours = weight.unwrap().dequantize_as_mlx();
        let theirs = fixture.floats(&format!("{key}.dequant"), dtype);
        let same = ours.iter().map(|x| x.to_bits()).eq(theirs.iter().map(|x| x.to_bits()));
        assert!(same, "{key}");
    }
}

#[test]
fn rows_one_by_one_are_the_matrix() {
    let values: Vec<f32> = (0..4 * 128).map(|i| (i as f32 * 0.7).sin()).collect();
    let format = AffineFormat { bits: 5, group: 32 };
    let AffineParts { codes, scales, biases } = quantize(&values, 128, format, DType::F16).unwrap();
    for (i, row) in values.chunks(128).enumerate() {
        let (mut c, mut s, mut b) = ([0; 80], [0; 8], [0; 8]);
        quantize_row(row, format, DType::F16, (&mut c, &mut s, &mut b)).unwrap();
        assert_eq!(c, codes[i * 80..][..80]);
        assert_eq!(s, scales[i * 8..][..8]);
        assert_eq!(b, biases[i * 8..][..8]);
    }
}

#[test]
fn what_cannot_be_quantized_is_an_error() {
    let format = AffineFormat { bits: 4, group: 64 };
    let values = [0.5; 192];
    let error = |cols, format, dtype| quantize(&values, cols, format, dtype).unwrap_err();
    let bits = AffineFormat { bits: 7, group: 64 };
    assert!(matches!(error(64, bits, DType::F32), TensorError::UnsupportedAffine { .. }));
    assert!(matches!(error(96, format, DType::F32), TensorError::UnsupportedAffine { .. }));
    assert!(matches!(error(0, format, DType::F32), TensorError::UnsupportedAffine { .. }));
    assert!(matches!(error(128, format, DType::F32), TensorError::Bytes { .. }));
    let short = quantize_row(&values, format, DType::F32, (&mut [0; 95], &mut [0; 12], &mut []));
    assert!(matches!(short, Err(TensorError::Bytes { expected: 96, got: 95, .. })));
}

#[test]
fn values_that_are_not_finite_do_not_panic() {
    let format = AffineFormat { bits: 3, group: 32 };
    for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX] {
        let mut values = [0.25; 64];
        (values[3], values[40], values[41]) = (odd, odd, f32::MIN);
        quantize(&values, 64, format, DType::BF16).unwrap();
    }
}
