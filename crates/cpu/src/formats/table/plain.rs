//! Table codes in formats that every kernel reads.

use super::{E2M1, Scales, TableFormat, TableWeight, e8m0};
use crate::{AffineFormat, AffineWeight, Bytes, DType, Result, Weight, formats::ordered, pool};
use half::bf16;

impl TableWeight {
    /// The weights as integers with a scale and a bias, where that is exact: the table's entries are whole, as
    /// those of IQ4_NL are, or multiples of a half, as those of MXFP4 are, and groups are of a length that
    /// [`AffineFormat`] has. Otherwise as floats: `f32` if they are to be `exact`, or rounded to `bf16`.
    ///
    /// # Errors
    /// The matrix is too large.
    pub fn to_plain(&self, exact: bool) -> Result<Weight> {
        match self.integers() {
            Some(integers) => self.to_affine(&integers).map(Weight::Affine),
            None => ordered::dense(self, exact).map(Weight::Dense),
        }
    }

    /// Codes and scales of a matrix in MXFP4 as they are stored: the table is E2M1, and a byte is a power of two of
    /// 32 weights. `None` of another format, and where a scale is above 2^113, which kernels cannot multiply with.
    #[must_use]
    pub fn mxfp4(&self) -> Option<[Bytes; 2]> {
        const LARGEST: u8 = 240;
        let bits = |table: &[f32]| table.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        let TableFormat { bits: 4, group: 32, .. } = self.format else { return None };
        let Scales::Named(bytes, values) = &self.scales else { return None };
        let powers = (0..=LARGEST).all(|byte| values[usize::from(byte)] == e8m0(byte));
        let fits = bytes.as_slice().iter().all(|byte| *byte <= LARGEST);
        let whole = self.cols.is_multiple_of(32) && bits(&self.table) == bits(&E2M1);
        (powers && fits && whole).then(|| [self.codes.clone(), bytes.clone()])
    }

    fn integers(&self) -> Option<Integers> {
        let table = <&[f32; 16]>::try_from(&*self.table).ok()?;
        let group = self.format.group;
        if !AffineFormat::GROUPS.contains(&group) || !self.cols.is_multiple_of(group) {
            return None;
        }
        [1.0, 0.5].into_iter().find_map(|unit| Integers::of(table, unit))
    }

    fn to_affine(&self, integers: &Integers) -> Result<AffineWeight> {
        let Integers { codes, low, unit } = integers;
        let bits = if codes.iter().all(|&c| c < 32) { 5 } else { 8 };
        let format = AffineFormat { bits, group: self.format.group };
        let (row_in, row_out) = (self.format.row_bytes(self.cols), format.row_bytes(self.cols));
        let mut out = vec![0; self.rows * row_out];
        let mut rows: Vec<_> = out.chunks_exact_mut(row_out.max(1)).collect();
        pool::for_each(&mut rows, |r, out| {
            let row = &self.codes.as_slice()[r * row_in..][..row_in];
            pack(row, codes, usize::from(bits), out);
        });
        let mut scales = vec![0.0; self.rows * self.format.groups(self.cols)];
        self.scales.read(0, &mut scales);
        scales.iter_mut().for_each(|s| *s *= unit);
        let biases: Vec<f32> = scales.iter().map(|s| low * s).collect();
        let exact = |x: &f32| bf16::from_f32(*x).to_f32() == *x;
        let narrow = scales.iter().chain(&biases).all(exact);
        let side = |x: &[f32]| match narrow {
            true => (DType::BF16, Bytes::from_vec(to_bf16(x))),
            false => {
                (DType::F32, Bytes::from_vec(x.iter().flat_map(|x| x.to_le_bytes()).collect()))
            }
        };
        let (scales, biases) = (side(&scales), side(&biases));
        AffineWeight::new(format, (self.rows, self.cols), Bytes::from_vec(out), scales, biases)
    }
}

/// The entries of a table as `unit * (code + low)`.
struct Integers {
    codes: [u8; 16],
    low: f32,
    unit: f32,
}

impl Integers {
    /// `None` where an entry is no multiple of the unit, or they lie too far apart for a byte.
    fn of(table: &[f32; 16], unit: f32) -> Option<Self> {
        let units = table.map(|t| t / unit);
        let low = units.iter().copied().fold(f32::INFINITY, f32::min);
        let whole = units.iter().all(|t| t.fract() == 0.0 && t - low <= 255.0);
        whole.then(|| Self { codes: units.map(|t| (t - low) as u8), low, unit })
    }
}

fn to_bf16(x: &[f32]) -> Vec<u8> {
    x.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes()).collect()
}

/// What halves of bytes stand for, as a stream of so many bits each, the low ones first.
fn pack(row: &[u8], codes: &[u8; 16], bits: usize, out: &mut [u8]) {
    // Four bytes are eight codes, as many bytes as a code has bits.
    for (four, out) in row.chunks_exact(4).zip(out.chunks_exact_mut(bits)) {
        let all = u32::from_le_bytes([four[0], four[1], four[2], four[3]]);
        let word = (0..8)
            .rev()
            .fold(0u64, |word, i| word << bits | u64::from(codes[(all >> (4 * i) & 15) as usize]));
        out.copy_from_slice(&word.to_le_bytes()[..bits]);
    }
}
