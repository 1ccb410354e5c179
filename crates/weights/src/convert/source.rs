//! A tensor of the source: floats, or the blocks of a GGUF file.

use super::ConvertError;
use crate::{WeightsError, checkpoint, gguf::BlockTensor, shard::RawTensor};
use half::f16;
use safetensors::Dtype;
use taper_tensor::{Bytes, DenseWeight, cpu::RowSource};

/// Takes values, and the bytes that they have in their file.
type Each<'a> = dyn FnMut(&[f32], u64) -> Result<(), ConvertError> + 'a;

/// Weights that are widened at a time.
const CHUNK: usize = 1 << 21;

/// Where a tensor of the destination comes from.
#[derive(Debug, Clone, Copy)]
pub(super) enum Source<'a> {
    Floats(&'a RawTensor),
    Blocks(&'a BlockTensor),
}

impl<'a> Source<'a> {
    pub(super) fn shape(self) -> &'a [usize] {
        match self {
            Self::Floats(raw) => &raw.shape,
            Self::Blocks(blocks) => &blocks.shape,
        }
    }

    pub(super) fn bytes(self) -> &'a Bytes {
        match self {
            Self::Floats(raw) => &raw.bytes,
            Self::Blocks(blocks) => &blocks.bytes,
        }
    }

    /// Element type of floats and of scales that are made of it.
    pub(super) fn dtype(self) -> Dtype {
        match self {
            Self::Floats(raw) => raw.dtype,
            Self::Blocks(_) => Dtype::F16,
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

    /// Gives all values to `each`, some rows at a time, with the bytes that these have here.
    pub(super) fn read(self, name: &str, each: &mut Each<'_>) -> Result<(), ConvertError> {
        let (rows, cols) = self.matrix();
        let dense = match self {
            Self::Blocks(_) => None,
            Self::Floats(raw) => {
                let dtype = checkpoint::float_type(name, raw.dtype)?;
                let wrap = |source| WeightsError::Tensor { name: name.to_owned(), source };
                Some(DenseWeight::new((rows, cols), dtype, raw.bytes.clone()).map_err(wrap)?)
            }
        };
        let (step, row) =
            ((CHUNK / cols.max(1)).clamp(1, rows.max(1)), self.bytes().len() / rows.max(1));
        let mut values = vec![0.0; step * cols];
        for first in (0..rows).step_by(step) {
            let count = step.min(rows - first);
            let values = &mut values[..count * cols];
            match (self, &dense) {
                (Self::Blocks(blocks), _) => blocks.read_rows(first, cols, values),
                (_, Some(dense)) => dense.read_rows(first, values),
                _ => {}
            }
            if !values.iter().all(|v| v.is_finite()) {
                return Err(ConvertError::NotFinite { name: name.to_owned() });
            }
            each(values, (count * row) as u64)?;
        }
        Ok(())
    }
}
