//! Products of table codes: levels and batches agree.

use super::*;
use crate::{Bytes, DType, E2M1, RowSource, TableFormat, TableScales, TableWeight, e4m3, e8m0};
use std::sync::Arc;

fn noise(n: usize, seed: u64) -> impl Iterator<Item = f32> {
    let mut s = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..n).map(move |_| {
        s ^= s << 13;
        s ^= s >> 7;
        s ^= s << 17;
        (s >> 40) as f32 / (1 << 24) as f32 - 0.5
    })
}

fn bytes(n: usize, seed: u64) -> Vec<u8> {
    // 0x7f and 0xff are no numbers of E4M3.
    noise(n, seed).map(|x| ((x + 0.5) * 255.0) as u8 & 0xf7).collect()
}

fn weight(bits: u8, group: usize, named: bool, (rows, cols): (usize, usize)) -> TableWeight {
    let format = TableFormat { name: "x", bits, group };
    let n = rows * format.groups(cols);
    let scales = match named {
        true => {
            let exponents = bytes(n, 2).into_iter().map(|b| 120 + b % 8).collect();
            let values = std::array::from_fn(|b| e8m0(b as u8));
            TableScales::Named(Bytes::from_vec(exponents), Arc::new(values))
        }
        false => {
            let floats = noise(n, 3).flat_map(f32::to_le_bytes).collect();
            TableScales::Floats(DType::F32, Bytes::from_vec(floats))
        }
    };
    let table = if bits == 4 { E2M1.into() } else { (0..=255).map(e4m3).collect() };
    let codes = Bytes::from_vec(bytes(rows * cols * usize::from(bits) / 8, 1));
    TableWeight::new(format, (rows, cols), codes, table, scales).unwrap()
}

fn products(level: Level, x: &[f32], w: &PackedTable, bias: &[f32], residual: &[f32]) -> Vec<f32> {
    let mut out = vec![f32::NAN; residual.len()];
    let to = Sums { bias: Some(bias), residual: Some(residual), out: SharedOut::new(&mut out) };
    product(level, x, w, to);
    out
}

#[test]
fn all_levels_and_batches_agree_to_the_bit_and_with_f64() {
    for (bits, group, named, rows, cols) in [
        (4, 32, true, 101, 128),
        (4, 16, true, 32, 96),
        (4, 64, false, 17, 80),
        (8, 32, true, 33, 64),
        (8, 48, false, 5, 70),
        (8, 1 << 20, false, 48, 65),
        (8, 1 << 20, false, 16, 301),
        (4, 160, true, 18, 336),
    ] {
        let stored = weight(bits, group, named, (rows, cols));
        let packed = PackedTable::new(&stored).unwrap();
        let m = 77;
        let x: Vec<f32> = noise(m * cols, 5).collect();
        let (bias, residual) = (Vec::from_iter(noise(rows, 6)), Vec::from_iter(noise(m * rows, 7)));
        let want = products(Level::Portable, &x, &packed, &bias, &residual);
        let (mut row, mut read) = (vec![0.0; cols], vec![0.0; cols]);
        for j in 0..rows {
            stored.read_rows(j, &mut row);
            packed.read_row(j, &mut read);
            assert_eq!(row, read, "{bits} bits, row {j}");
            for i in 0..m {
                let x = x[i * cols..].iter().zip(&row);
                let dot: f64 = x.map(|(x, w)| f64::from(*x) * f64::from(*w)).sum();
                let dot = dot + f64::from(bias[j]) + f64::from(residual[i * rows + j]);
                let got = f64::from(want[i * rows + j]);
                assert!((got - dot).abs() < 1e-3 * dot.abs().max(1.0), "{bits} bits: {got} {dot}");
            }
        }
        for level in Level::available() {
            assert_eq!(products(level, &x, &packed, &bias, &residual), want, "{level:?} {bits}");
            for (i, n) in (0..m).map(|i| (i, 1)).chain([(3, 2), (1, 4), (2, 8), (4, 9), (0, 7)]) {
                let (x, r) = (&x[i * cols..][..n * cols], &residual[i * rows..][..n * rows]);
                let got = products(level, x, &packed, &bias, r);
                assert_eq!(got, want[i * rows..][..n * rows], "{level:?}: {n} from {i}");
            }
        }
    }
}

#[test]
fn what_the_kernels_lack_stays_as_it_is() {
    assert!(PackedTable::new(&weight(4, 33, false, (2, 66))).is_none());
    let format = TableFormat { name: "x", bits: 8, group: 32 };
    let make = |table: Arc<[f32]>, code: u8| {
        let scales = TableScales::Floats(DType::F32, Bytes::from_vec(vec![0; 4]));
        let codes = Bytes::from_vec(vec![code; 32]);
        PackedTable::new(&TableWeight::new(format, (1, 32), codes, table, scales).unwrap())
    };
    let numbers: Arc<[f32]> = (0..=255).map(e4m3).collect();
    assert!(make(numbers.clone(), 0x38).is_some());
    assert!(make(numbers.clone(), 0xff).is_none() && make(numbers, 0x7f).is_none(), "no number");
    assert!(make(vec![1.0; 256].into(), 0).is_none(), "another table");
}

#[test]
fn scales_that_would_become_infinite_are_not_packed() {
    let format = TableFormat { name: "x", bits: 8, group: 32 };
    let numbers: Arc<[f32]> = (0..=255).map(e4m3).collect();
    let make = |scales: TableScales| {
        let codes = Bytes::from_vec(vec![0x01; 64]);
        let stored = TableWeight::new(format, (2, 32), codes, numbers.clone(), scales).unwrap();
        PackedTable::new(&stored)
    };
    let floats = |last: f32| {
        let bytes = [1.0, last].into_iter().flat_map(f32::to_le_bytes).collect();
        make(TableScales::Floats(DType::F32, Bytes::from_vec(bytes)))
    };
    let largest = f32::MAX / 256.0;
    let mut row = vec![0.0; 32];
    floats(largest).unwrap().read_row(1, &mut row);
    assert_eq!(row, [largest / 512.0; 32]);
    assert!(floats(largest * 2.0).is_none() && floats(-f32::MAX).is_none());
    // Names that no byte has do not count.
    let values = Arc::new(std::array::from_fn(|b| e8m0(b as u8)));
    let named =
        |last| make(TableScales::Named(Bytes::from_vec(vec![127, last]), Arc::clone(&values)));
    assert!(named(246).is_some() && named(247).is_none());
}

#[test]
fn memory_is_that_of_the_codes() {
    let stored = weight(4, 32, true, (64, 128));
    assert_eq!(PackedTable::new(&stored).unwrap().bytes(), stored.bytes());
}
