//! A tensor of the source: floats, codes, or the blocks of a GGUF file.

use super::ConvertError;
use crate::{Checkpoint, WeightsError, checkpoint, formats, gguf::BlockTensor, shard::RawTensor};
use half::f16;
use safetensors::Dtype;
use std::collections::BTreeMap;
use taper_tensor::{DType, DenseWeight, Weight, cpu::RowSource};

/// Takes values, and the bytes that they have in their file.
type Each<'a> = dyn FnMut(&[f32], u64) -> Result<(), ConvertError> + 'a;

/// Weights that are widened at a time.
const CHUNK: usize = 1 << 21;

/// Where a tensor of the destination comes from.
#[derive(Debug, Clone, Copy)]
pub(super) enum Source<'a> {
    Floats(&'a RawTensor),
    Blocks(&'a BlockTensor),
    Coded(&'a CodedMatrix, &'a Checkpoint),
}

/// A matrix that the source has in codes other than those of GGUF.
#[derive(Debug)]
pub(super) struct CodedMatrix {
    prefix: String,
    shape: Vec<usize>,
    /// Of all tensors that it consists of.
    bytes: u64,
    /// What its floats are, and scales that are made of them.
    pub(super) dtype: DType,
}

/// All matrices in codes, by the names that floats would have.
#[derive(Debug)]
pub(super) struct Coded {
    shapes: BTreeMap<String, Vec<usize>>,
    pub(super) all: BTreeMap<String, CodedMatrix>,
}

impl Coded {
    pub(super) fn of(weights: &Checkpoint) -> Result<Self, ConvertError> {
        let shapes = formats::coded_shapes(weights)?;
        let config = weights.config();
        let said = ["/torch_dtype", "/dtype", "/text_config/torch_dtype", "/text_config/dtype"];
        let said = said.iter().find_map(|place| config.pointer(place)?.as_str());
        let dtype = if said == Some("bfloat16") { DType::BF16 } else { DType::F16 };
        let mut all = BTreeMap::new();
        for (name, shape) in &shapes {
            let prefix = name.strip_suffix(".weight").unwrap_or(name).to_owned();
            all.insert(name.clone(), CodedMatrix { prefix, shape: shape.clone(), bytes: 0, dtype });
        }
        for (name, raw) in weights.tensors() {
            let owner = formats::owner(&shapes, name).map(|prefix| format!("{prefix}.weight"));
            if let Some(own) = owner.and_then(|name| all.get_mut(&name)) {
                own.bytes += raw.bytes.len() as u64;
            }
        }
        Ok(Self { shapes, all })
    }

    /// Whether a tensor is a part of a matrix in codes.
    pub(super) fn owns(&self, name: &str) -> bool {
        formats::owner(&self.shapes, name).is_some()
    }
}

/// A tensor whose rows can be read.
pub(super) enum Opened<'a> {
    Blocks(&'a BlockTensor, usize),
    Weight(Weight),
}

impl Opened<'_> {
    /// The rows from one on that fill `out`.
    fn read_rows(&self, first: usize, out: &mut [f32]) {
        match self {
            Self::Blocks(blocks, cols) => blocks.read_rows(first, *cols, out),
            Self::Weight(weight) => weight.read_rows(first, out),
        }
    }
}

impl<'a> Source<'a> {
    pub(super) fn shape(self) -> &'a [usize] {
        match self {
            Self::Floats(raw) => &raw.shape,
            Self::Blocks(blocks) => &blocks.shape,
            Self::Coded(coded, _) => &coded.shape,
        }
    }

    /// Bytes in the source.
    pub(super) fn size(self) -> u64 {
        match self {
            Self::Floats(raw) => raw.bytes.len() as u64,
            Self::Blocks(blocks) => blocks.bytes.len() as u64,
            Self::Coded(coded, _) => coded.bytes,
        }
    }

    /// Element type of floats and of scales that are made of it.
    pub(super) fn dtype(self) -> Dtype {
        match self {
            Self::Floats(raw) => raw.dtype,
            Self::Blocks(_) | Self::Coded(CodedMatrix { dtype: DType::F16, .. }, _) => Dtype::F16,
            Self::Coded(CodedMatrix { dtype: DType::BF16, .. }, _) => Dtype::BF16,
            Self::Coded(CodedMatrix { dtype: DType::F32, .. }, _) => Dtype::F32,
        }
    }

    pub(super) fn elements(self) -> usize {
        self.shape().iter().product()
    }

    /// Rows and columns; dimensions before the last are one.
    pub(super) fn matrix(self) -> (usize, usize) {
        let cols = self.shape().last().copied().unwrap_or(1);
        (self.elements().checked_div(cols).unwrap_or(0), cols)
    }

    /// Whether f16 holds all of these f32 values.
    pub(super) fn narrows(self) -> bool {
        let Self::Floats(RawTensor { dtype: Dtype::F32, bytes, .. }) = self else { return false };
        let fits = |b: &[u8; 4]| {
            let value = f32::from_le_bytes(*b);
            f16::from_f32(value).to_f32() == value
        };
        bytes.as_slice().as_chunks().0.iter().all(fits)
    }

    /// The tensor with all its rows.
    pub(super) fn open(self, name: &str) -> Result<Opened<'a>, ConvertError> {
        let (rows, cols) = self.matrix();
        let wrap = |source| WeightsError::Tensor { name: name.to_owned(), source };
        Ok(match self {
            Self::Blocks(blocks) => Opened::Blocks(blocks, cols),
            Self::Coded(coded, weights) => {
                let high = coded.shape.len().saturating_sub(1);
                Opened::Weight(weights.matrix(&coded.prefix, &coded.shape[..high], cols)?)
            }
            Self::Floats(raw) => {
                let dtype = checkpoint::float_type(name, raw.dtype)?;
                let dense = DenseWeight::new((rows, cols), dtype, raw.bytes.clone());
                Opened::Weight(Weight::Dense(dense.map_err(wrap)?))
            }
        })
    }

    /// Some of the rows.
    pub(super) fn rows(
        self,
        name: &str,
        first: usize,
        count: usize,
    ) -> Result<Vec<f32>, ConvertError> {
        let mut values = vec![0.0; count * self.matrix().1];
        self.open(name)?.read_rows(first, &mut values);
        finite(name, &values)?;
        Ok(values)
    }

    /// Gives all values to `each`, a multiple of so many rows at a time, with the bytes that these have here.
    pub(super) fn read(
        self,
        name: &str,
        multiple: usize,
        each: &mut Each<'_>,
    ) -> Result<(), ConvertError> {
        let (rows, cols) = self.matrix();
        let opened = self.open(name)?;
        let step = (CHUNK / cols.max(1)).max(1).next_multiple_of(multiple).min(rows.max(1));
        let mut values = vec![0.0; step * cols];
        for first in (0..rows).step_by(step) {
            let count = step.min(rows - first);
            let values = &mut values[..count * cols];
            opened.read_rows(first, values);
            finite(name, values)?;
            let upto = |row: usize| self.size() * row as u64 / rows as u64;
            each(values, upto(first + count) - upto(first))?;
        }
        Ok(())
    }
}

fn finite(name: &str, values: &[f32]) -> Result<(), ConvertError> {
    match values.iter().all(|v| v.is_finite()) {
        true => Ok(()),
        false => Err(ConvertError::NotFinite { name: name.to_owned() }),
    }
}
