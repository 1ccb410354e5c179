//! Images of matrices give the bits of what they were made of.

use super::*;
use crate::{
    AffineWeight, DenseWeight, OrderedWeight, Phase, Rounding, TableFormat, TableScales,
    TableWeight,
    formats::{E2M1, e4m3, e8m0},
    maps::{Input, Map, apply},
};
use half::{bf16, f16};

const ROWS: usize = 70;
const COLS: usize = 96;

fn bytes(n: usize, of: impl Fn(usize) -> u8) -> Bytes {
    Bytes::from_vec((0..n).map(of).collect())
}

fn affine(bits: u8, dtype: DType) -> AffineWeight {
    let format = AffineFormat { bits, group: 32 };
    let codes = bytes(ROWS * format.row_bytes(COLS), |i| (i * 37 % 251) as u8);
    let side = |x: f32| {
        let one = |i: usize| x * (1.0 + (i % 7) as f32);
        let all = (0..ROWS * 3).map(one).flat_map(|x| match dtype {
            DType::F32 => x.to_le_bytes().to_vec(),
            DType::F16 => f16::from_f32(x).to_le_bytes().to_vec(),
            DType::BF16 => bf16::from_f32(x).to_le_bytes().to_vec(),
        });
        (dtype, Bytes::from_vec(all.collect()))
    };
    AffineWeight::new(format, (ROWS, COLS), codes, side(0.01), side(-0.05)).unwrap()
}

fn dense(dtype: DType) -> DenseWeight {
    let values = (0..ROWS * COLS).map(|i| (i as f32 * 0.37).sin());
    let all = values.flat_map(|x| match dtype {
        DType::F32 => x.to_le_bytes().to_vec(),
        DType::F16 => f16::from_f32(x).to_le_bytes().to_vec(),
        DType::BF16 => bf16::from_f32(x).to_le_bytes().to_vec(),
    });
    DenseWeight::new((ROWS, COLS), dtype, Bytes::from_vec(all.collect())).unwrap()
}

fn tables() -> [TableWeight; 2] {
    let format = TableFormat { name: "mxfp4", bits: 4, group: 32 };
    let names = std::array::from_fn(|i| e8m0(i as u8)).into();
    let scales = TableScales::Named(bytes(ROWS * 3, |i| 120 + (i % 9) as u8), names);
    let codes = bytes(ROWS * COLS / 2, |i| (i * 11 % 256) as u8);
    let half = TableWeight::new(format, (ROWS, COLS), codes, E2M1.into(), scales).unwrap();
    let format = TableFormat { name: "fp8", bits: 8, group: 48 };
    let table: Vec<_> = (0..=255).map(e4m3).collect();
    let scales = (0..ROWS * 2).flat_map(|i| (0.5 + i as f32).to_le_bytes()).collect();
    let scales = TableScales::Floats(DType::F32, Bytes::from_vec(scales));
    let codes = bytes(ROWS * COLS, |i| (i * 11 % 120) as u8);
    let whole = TableWeight::new(format, (ROWS, COLS), codes, table.into(), scales).unwrap();
    [half, whole]
}

fn all() -> Vec<Weight> {
    let order = (0..COLS as u32).map(|i| i * 5 % COLS as u32).collect();
    let mut all: Vec<_> = [(4, DType::F16), (8, DType::BF16), (3, DType::F32), (6, DType::F16)]
        .map(|(bits, dtype)| Weight::Affine(affine(bits, dtype)))
        .into();
    all.extend([DType::F32, DType::F16, DType::BF16].map(|dtype| Weight::Dense(dense(dtype))));
    all.extend(tables().map(Weight::Table));
    all.push(Weight::Ordered(OrderedWeight::new(affine(4, DType::BF16), order).unwrap()));
    all
}

fn image(matrix: &Matrix) -> Bytes {
    let mut out = AlignedBytes::zeroed(matrix.layout().unwrap().bytes().unwrap());
    out.as_mut_slice().fill(0xa5);
    matrix.write_image(out.as_mut_slice()).unwrap();
    let range = 0..out.len();
    Bytes::new(Arc::new(out), range).unwrap()
}

#[test]
fn matrices_of_images_give_the_bits_of_those_they_were_made_of() {
    for weight in all() {
        for decode in [Rounding::Int8, Rounding::Int16] {
            let precision = Precision::Mixed { decode };
            let resident = Matrix::Stored(weight.clone()).pack(precision);
            let packed = Matrix::Stored(weight.clone()).for_image(precision);
            let layout = packed.layout().unwrap();
            let text = layout.to_string();
            assert_eq!(text.parse::<MatrixLayout>().unwrap(), layout, "{text}");
            let read = Matrix::from_image(layout, precision, &image(&packed)).unwrap();
            assert_eq!((read.rows(), read.cols()), (ROWS, COLS));
            for (rows, phase) in [(1, Phase::Decode), (5, Phase::Decode), (33, Phase::Prefill)] {
                let x: Vec<f32> = (0..rows * COLS).map(|i| (i as f32 * 0.3).sin()).collect();
                let of = |matrix| {
                    let map = Map { matrix, bias: None, residual: None };
                    let [out] = apply([map], &mut Input::new(&x, phase));
                    out
                };
                assert_eq!(of(&resident), of(&read), "{text}: {rows} rows");
            }
        }
    }
}

#[test]
fn images_that_are_none_are_refused() {
    let stored = Matrix::Stored(Weight::Dense(dense(DType::F16)));
    assert!(stored.layout().is_none() && stored.write_image(&mut []).is_err());
    let packed = stored.for_image(Precision::Int8);
    let (layout, whole) = (packed.layout().unwrap(), image(&packed));
    let cut = whole.slice(0..whole.len() - 1).unwrap();
    assert!(Matrix::from_image(layout, Precision::Int8, &cut).is_err());
    assert!(packed.write_image(&mut [0; 3]).is_err());
    let order = (0..COLS as u32).collect();
    let ordered = OrderedWeight::new(affine(4, DType::BF16), order).unwrap();
    let packed = Matrix::Stored(Weight::Ordered(ordered)).for_image(Precision::Int8);
    let mut bad = AlignedBytes::zeroed(image(&packed).len());
    bad.as_mut_slice().fill(0xff);
    let bad = Bytes::new(Arc::new(bad), 0..image(&packed).len()).unwrap();
    let read = Matrix::from_image(packed.layout().unwrap(), Precision::Int8, &bad);
    assert!(matches!(read, Err(TensorError::Index { .. })));
}

#[test]
fn layouts_that_no_matrix_has_are_refused() {
    for text in [
        "",
        "affine",
        "affine 1 2 3 4",
        "affine 1 64 64 5 f16",
        "dense 1 2 f64",
        "dense -1 2 f16",
        "table 1 2 3 4 x",
        "affine 1 64 64 4 f16 x",
    ] {
        assert!(matches!(text.parse::<MatrixLayout>(), Err(TensorError::Layout { .. })), "{text}");
    }
    for text in [
        "affine 0 64 64 4 f16",
        "affine 4 64 0 4 f16",
        "affine 4 64 48 4 f16",
        "affine 4 12 12 4 f16",
        "dense 18446744073709551615 2 f16",
        "dense 4294967296 4294967296 f16",
        "table 4 32 0 4 f32",
        "table 4 32 64 4 f32",
        "table 4 33 3 4 f32",
    ] {
        assert!(text.parse::<MatrixLayout>().unwrap().bytes().is_err(), "{text}");
    }
}
