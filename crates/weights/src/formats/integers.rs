//! Unsigned integers with a scale and a zero point per group: `w = scale * (code - zero)`.

use super::{Asked, to_bytes};
use crate::WeightsError;
use half::{bf16, f16};
use taper_tensor::{
    AffineFormat, AffineWeight, Bytes, DType, DenseWeight, OrderedWeight, TensorError, Weight,
    cpu::unpack_affine, pool,
};

/// Inputs of a multiple that the packed codes of a row must have.
const UNIT: usize = 32;

/// The codes of a matrix and what they stand for.
pub(super) struct Integers {
    pub(super) bits: u8,
    /// A stream of codes a row, the low bits first.
    pub(super) codes: Bytes,
    /// `[rows, groups]`, widened; and their type in the file.
    pub(super) scales: (DType, Vec<f32>),
    /// `[rows, groups]`
    pub(super) zeros: Vec<f32>,
    pub(super) groups: Groups,
}

/// Which inputs share a scale.
pub(super) enum Groups {
    /// So many that follow each other.
    Of(usize),
    /// The group of each input, below the number given.
    Each(Vec<usize>, usize),
}

impl Groups {
    /// Groups of a row of `cols`.
    pub(super) fn count(&self, cols: usize) -> usize {
        match self {
            Self::Of(group) => cols.div_ceil((*group).max(1)),
            Self::Each(_, count) => *count,
        }
    }

    fn of(&self, input: usize) -> usize {
        match self {
            Self::Of(group) => input / (*group).max(1),
            Self::Each(groups, _) => groups.get(input).copied().unwrap_or(0),
        }
    }

    /// Groups of the inputs as a file lists them.
    pub(super) fn listed(list: &[i64], cols: usize, group: usize) -> Option<Self> {
        let count = cols.div_ceil(group.max(1));
        let one = |&g: &i64| usize::try_from(g).ok().filter(|&g| g < count);
        let each: Vec<_> = list.iter().map(one).collect::<Option<_>>()?;
        let in_order = each.iter().enumerate().all(|(i, &g)| g == i / group.max(1));
        (each.len() == cols).then_some(match in_order {
            true => Self::Of(group),
            false => Self::Each(each, count),
        })
    }
}

impl Integers {
    /// As affine weights where groups can be had in that format, their columns sorted by group if need be, and as
    /// `f32` otherwise; exact either way.
    pub(super) fn weight(self, asked: Asked<'_>) -> Result<Weight, WeightsError> {
        let shape @ (rows, cols) = asked.shape()?;
        if cols == 0 || !cols.is_multiple_of(UNIT) {
            return Err(asked.bad("has rows of no multiple of 32 weights"));
        }
        let groups = rows.checked_mul(self.groups.count(cols));
        if groups != Some(self.scales.1.len()) || groups != Some(self.zeros.len()) {
            return Err(asked.bad("has scales of another shape than its groups"));
        }
        let length = AffineFormat { bits: self.bits, group: UNIT }.row_bytes(cols);
        if rows.checked_mul(length) != Some(self.codes.len()) {
            return Err(asked.bad("has codes of another length than its rows"));
        }
        match self.groups {
            Groups::Of(group) if common(group, cols).is_some() => {
                let own = common(group, cols).unwrap_or(UNIT);
                asked.wrap(self.affine(shape, own).map(Weight::Affine))
            }
            Groups::Each(..) => match self.sorted(cols) {
                Some((sorted, order, own)) => {
                    let inner = sorted.affine(shape, own);
                    let ordered = inner.and_then(|inner| OrderedWeight::new(inner, order));
                    asked.wrap(ordered.map(Weight::Ordered))
                }
                None => asked.wrap(self.dense(shape).map(Weight::Dense)),
            },
            Groups::Of(_) => asked.wrap(self.dense(shape).map(Weight::Dense)),
        }
    }

    /// With columns in the order of their groups, the input of each, and the group of the affine format; `None`
    /// where groups differ in size or have none there.
    fn sorted(&self, cols: usize) -> Option<(Self, Vec<u32>, usize)> {
        let Groups::Each(groups, count) = &self.groups else { return None };
        let size = cols / (*count).max(1);
        let mut order: Vec<usize> = (0..cols).collect();
        order.sort_by_key(|&input| groups[input]);
        let even = order.iter().enumerate().all(|(i, &input)| groups[input] == i / size.max(1));
        let own = common(size, cols).filter(|_| even && size * count == cols)?;
        let row = self.codes.len() / (self.scales.1.len() / count).max(1);
        let mut out = vec![0; self.codes.len()];
        let mut all: Vec<_> = out.chunks_exact_mut(row).collect();
        pool::for_each(&mut all, |r, out| {
            let mut codes = vec![0u8; cols];
            unpack_affine(&self.codes.as_slice()[r * row..][..row], self.bits, &mut codes);
            let sorted: Vec<u8> = order.iter().map(|&input| codes[input]).collect();
            pack(&sorted, self.bits, out);
        });
        let (codes, groups) = (Bytes::from_vec(out), Groups::Of(size));
        let order = order.into_iter().map(|input| input as u32).collect();
        let (scales, zeros) = (self.scales.clone(), self.zeros.clone());
        Some((Self { bits: self.bits, codes, scales, zeros, groups }, order, own))
    }

    fn affine(self, (rows, cols): (usize, usize), own: usize) -> Result<AffineWeight, TensorError> {
        let (per_row, format) =
            (self.groups.count(cols), AffineFormat { bits: self.bits, group: own });
        // A larger group is several of the same scale.
        let spread = |x: Vec<f32>| -> Vec<f32> {
            if per_row * own == cols {
                return x;
            }
            let row = |row: &[f32]| -> Vec<f32> {
                (0..cols / own).map(|g| row[self.groups.of(g * own)]).collect()
            };
            x.chunks_exact(per_row).flat_map(row).collect()
        };
        let biases = self.scales.1.iter().zip(&self.zeros).map(|(s, z)| -z * s).collect();
        let (dtype, scales) = (self.scales.0, spread(self.scales.1.clone()));
        let biases = spread(biases);
        // In the file's type, where that has the products too.
        let (scales, biases) = match (narrowed(dtype, &scales), narrowed(dtype, &biases)) {
            (Some(scales), Some(biases)) => ((dtype, scales), (dtype, biases)),
            _ => ((DType::F32, to_bytes(&scales)), (DType::F32, to_bytes(&biases))),
        };
        AffineWeight::new(format, (rows, cols), self.codes, scales, biases)
    }

    fn dense(self, (rows, cols): (usize, usize)) -> Result<DenseWeight, TensorError> {
        let (per_row, row) = (self.groups.count(cols), self.codes.len() / rows.max(1));
        let mut out = vec![0.0f32; rows * cols];
        let mut all: Vec<_> = out.chunks_exact_mut(cols).collect();
        pool::for_each(&mut all, |r, out| {
            unpack_affine(&self.codes.as_slice()[r * row..][..row], self.bits, out);
            let (scales, zeros) = (&self.scales.1[r * per_row..], &self.zeros[r * per_row..]);
            for (i, w) in out.iter_mut().enumerate() {
                let g = self.groups.of(i);
                *w = (*w - zeros[g]) * scales[g];
            }
        });
        DenseWeight::new((rows, cols), DType::F32, to_bytes(&out))
    }
}

/// Codes as a stream of bits, the low ones first.
fn pack(codes: &[u8], bits: u8, out: &mut [u8]) {
    let bits = usize::from(bits);
    for (eight, out) in codes.chunks_exact(8).zip(out.chunks_exact_mut(bits)) {
        let word = eight.iter().rev().fold(0u64, |word, &code| word << bits | u64::from(code));
        out.copy_from_slice(&word.to_le_bytes()[..bits]);
    }
}

/// The largest group of the affine format that divides both.
fn common(group: usize, cols: usize) -> Option<usize> {
    // A group that is longer than a row is the row.
    let group = group.min(cols);
    let fits = |own: &usize| group.is_multiple_of(*own) && cols.is_multiple_of(*own);
    AffineFormat::GROUPS.into_iter().rev().find(fits)
}

/// The bytes of floats in a type that loses nothing.
fn narrowed(dtype: DType, x: &[f32]) -> Option<Bytes> {
    let mut out = Vec::with_capacity(x.len() * dtype.size_in_bytes());
    for &x in x {
        let (narrow, bytes) = match dtype {
            DType::F32 => (x, x.to_le_bytes().to_vec()),
            DType::F16 => {
                let half = f16::from_f32(x);
                (half.to_f32(), half.to_le_bytes().to_vec())
            }
            DType::BF16 => {
                let half = bf16::from_f32(x);
                (half.to_f32(), half.to_le_bytes().to_vec())
            }
        };
        if narrow != x {
            return None;
        }
        out.extend(bytes);
    }
    Some(Bytes::from_vec(out))
}
