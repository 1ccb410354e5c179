//! Table codes against their definition, and in other formats.

use super::{lookup::halves_portable, *};
use crate::{RowSource, Weight};

fn noise(n: usize, seed: u64) -> Vec<u8> {
    let mut s = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        s ^= s << 13;
        s ^= s >> 7;
        s ^= s << 17;
        (s >> 40) as u8
    };
    (0..n).map(|_| next()).collect()
}

fn mxfp4(rows: usize, cols: usize) -> TableWeight {
    let format = TableFormat { name: "mxfp4", bits: 4, group: 32 };
    let values = std::array::from_fn(|i| e8m0(i as u8));
    let exponents = noise(rows * cols / 32, 2).into_iter().map(|b| 100 + b % 50).collect();
    let scales = TableScales::Named(Bytes::from_vec(exponents), Arc::new(values));
    let codes = Bytes::from_vec(noise(rows * cols / 2, 1));
    TableWeight::new(format, (rows, cols), codes, E2M1.into(), scales).unwrap()
}

fn rows_of(weight: &dyn RowSource) -> Vec<f32> {
    let mut out = vec![0.0; weight.rows() * weight.cols()];
    weight.read_rows(0, &mut out);
    out
}

#[test]
fn numbers_are_those_of_their_standards() {
    assert_eq!([0x00, 0x01, 0x07, 0x08].map(e4m3), [0.0, 1.0 / 512.0, 7.0 / 512.0, 1.0 / 64.0]);
    assert_eq!([0x38, 0x7e, 0xfe, 0xb9].map(e4m3), [1.0, 448.0, -448.0, -1.125]);
    assert!(e4m3(0x7f).is_nan() && e4m3(0xff).is_nan() && e8m0(255).is_nan());
    assert_eq!([127, 128, 126, 1].map(e8m0), [1.0, 2.0, 0.5, f32::MIN_POSITIVE]);
    assert_eq!([e8m0(0), e8m0(254)], [f32::MIN_POSITIVE / 2.0, 2f32.powi(127)]);
}

#[test]
fn vector_kernels_do_as_the_portable_one() {
    let table: [f32; 16] = std::array::from_fn(|i| i as f32 * 0.37 - 2.0);
    for (cols, group) in [(32, 32), (96, 32), (256, 64), (160, 160), (48, 16), (80, 32), (2, 64)] {
        let codes = noise(cols / 2, 3);
        let scales: Vec<f32> = (0..cols.div_ceil(group)).map(|g| 0.1 + g as f32).collect();
        let (mut got, mut want) = (vec![0.0; cols], vec![0.0; cols]);
        lookup::row(&codes, &table, (&scales, group), &mut got);
        halves_portable(&codes, &table, (&scales, group), &mut want);
        assert_eq!(got, want, "{cols} in groups of {group}");
    }
}

#[test]
fn mxfp4_is_known_by_its_table_and_its_scales() {
    let weight = mxfp4(5, 96);
    let [codes, scales] = weight.mxfp4().unwrap();
    assert_eq!((codes.len(), scales.len()), (5 * 48, 5 * 3));
    let with = |group, table: [f32; 16], byte, power: fn(u8) -> f32| {
        let format = TableFormat { group, ..weight.format() };
        let values = std::array::from_fn(|i| power(i as u8));
        let bytes = Bytes::from_vec(vec![byte; 5 * format.groups(96)]);
        let scales = TableScales::Named(bytes, Arc::new(values));
        TableWeight::new(format, (5, 96), codes.clone(), table.into(), scales).unwrap().mxfp4()
    };
    assert!(with(32, E2M1, 240, e8m0).is_some());
    assert!(with(32, E2M1, 241, e8m0).is_none(), "too large a scale");
    assert!(with(16, E2M1, 127, e8m0).is_none(), "groups of NVFP4");
    assert!(with(32, E2M1, 127, e4m3).is_none(), "scales of NVFP4");
    assert!(with(32, E2M1.map(|x| 2.0 * x), 127, e8m0).is_none(), "another table");
}

#[test]
fn plain_forms_have_the_same_weights() {
    let weight = mxfp4(5, 96);
    let want = rows_of(&weight);
    let Weight::Affine(affine) = weight.to_plain(true).unwrap() else { panic!("integers") };
    assert_eq!((affine.format().bits, affine.scale_type()), (5, DType::BF16));
    assert_eq!(rows_of(&affine), want);

    let uneven = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
    let format = TableFormat { name: "iq4_xs", bits: 4, group: 32 };
    let table: Arc<[f32]> = uneven.map(|t: i16| f32::from(t)).into();
    // A half of eleven bits times a scale of six.
    let scales = noise(5 * 3, 6).into_iter().map(|s| 1.9990234 * (f32::from(s % 64) - 32.0));
    let scales = Bytes::from_vec(scales.flat_map(f32::to_le_bytes).collect());
    let scales = TableScales::Floats(DType::F32, scales);
    let codes = Bytes::from_vec(noise(5 * 48, 5));
    let weight = TableWeight::new(format, (5, 96), codes, table, scales).unwrap();
    for exact in [true, false] {
        let Weight::Affine(affine) = weight.to_plain(exact).unwrap() else { panic!("integers") };
        assert_eq!((affine.format().bits, affine.scale_type()), (8, DType::F32));
        assert_eq!(rows_of(&affine), rows_of(&weight));
    }

    let format = TableFormat { name: "fp8", bits: 8, group: 40 };
    let table: Arc<[f32]> = (0..=255).map(|b| e4m3(b & 0xf7)).collect();
    let scales = [0.3f32, 0.7, 1.1, 0.2].iter().flat_map(|s| s.to_le_bytes()).collect();
    let scales = TableScales::Floats(DType::F32, Bytes::from_vec(scales));
    let codes = Bytes::from_vec(noise(2 * 64, 4));
    let weight = TableWeight::new(format, (2, 64), codes, table, scales).unwrap();
    let Weight::Dense(dense) = weight.to_plain(true).unwrap() else { panic!("floats") };
    assert_eq!(rows_of(&dense), rows_of(&weight));
    let Weight::Dense(dense) = weight.to_plain(false).unwrap() else { panic!("floats") };
    assert_eq!(dense.dtype(), DType::BF16);
    let near = |(a, b): (f32, f32)| (a - b).abs() <= b.abs() / 256.0;
    assert!(rows_of(&dense).into_iter().zip(rows_of(&weight)).all(near));
}

#[test]
fn parts_of_a_matrix_are_its_rows() {
    let weight = mxfp4(6, 64);
    let part = weight.row_range(2, 3).unwrap();
    assert_eq!(rows_of(&part), rows_of(&weight)[2 * 64..5 * 64]);
    let taken = weight.take_rows(&[5, 0, 2]).unwrap();
    let all = rows_of(&weight);
    let want = [&all[5 * 64..], &all[..64], &all[2 * 64..3 * 64]].concat();
    assert_eq!(rows_of(&taken), want);
    assert!(weight.take_rows(&[6]).is_none());
    for (first, rows) in [(4, 3), (usize::MAX, 1), (1, usize::MAX), (1 << 63, 1 << 63)] {
        assert!(weight.row_range(first, rows).is_none(), "{rows} from {first}");
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let none = || Bytes::from_vec(Vec::new());
    let make = |bits, group, shape| {
        let format = TableFormat { name: "x", bits, group };
        let table: Arc<[f32]> = vec![0.0; 1usize << bits.min(8)].into();
        let scales = TableScales::Floats(DType::F32, none());
        TableWeight::new(format, shape, none(), table, scales)
    };
    for (bits, group, shape) in
        [(3, 32, (1, 32)), (4, 0, (1, 32)), (4, 32, (1, 31)), (8, 32, (1, 0))]
    {
        let error = make(bits, group, shape);
        assert!(matches!(error, Err(TensorError::UnsupportedTable { .. })), "{error:?}");
    }
    for shape in [(1 << 32, 1 << 32), (1 << 58, 64), (2, 1 << 63)] {
        let error = make(8, 32, shape);
        assert!(matches!(error, Err(TensorError::TooLarge { .. })), "{error:?}");
    }
    assert!(matches!(make(4, 32, (2, 64)), Err(TensorError::Bytes { .. })));
}
