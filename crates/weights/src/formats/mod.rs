//! Matrices in the forms in which quantized models are published, by the tensors that they consist of.
//!
//! Integers with scales become MLX's affine format, exactly; small floats and other codes stay as they are,
//! beside a table of what they stand for.

mod awq;
mod compressed;
mod experts;
mod fp4;
mod fp8;
mod gptq;
mod integers;
mod names;
mod nf4;
mod shapes;

pub(crate) use experts::ExpertBlocks;
pub(crate) use shapes::{coded_shapes, owner};

use crate::{
    Checkpoint, WeightsError,
    checkpoint::{expect_shape, float_type},
    shard::RawTensor,
};
use safetensors::Dtype;
use taper_tensor::{Bytes, DType, Weight, cpu::read_floats};

/// A matrix that is asked for: its name without `.weight`, and its shape.
#[derive(Debug, Clone, Copy)]
struct Asked<'a> {
    weights: &'a Checkpoint,
    prefix: &'a str,
    /// The dimensions of the rows, which the files may count in several.
    rows: &'a [usize],
    cols: usize,
}

impl Checkpoint {
    /// The matrix `prefix`, where it is stored in a form of this module; `None` where it is floats, or affine
    /// codes.
    pub(crate) fn coded(
        &self,
        prefix: &str,
        rows: &[usize],
        cols: usize,
    ) -> Result<Option<Weight>, WeightsError> {
        let asked = Asked { weights: self, prefix, rows, cols };
        let kind = |part: &str| self.tensors().get(&asked.name(part)).map(|raw| raw.dtype);
        let weight = match (kind("weight"), kind("scales")) {
            (_, Some(Dtype::U8)) => fp4::mlx(asked)?,
            (Some(Dtype::F8_E4M3), _) => fp8::load(asked)?,
            (Some(Dtype::I8), _) => compressed::bytes(asked)?,
            (Some(Dtype::U8), _) if kind("weight_scale_2").is_some() => fp4::model_opt(asked)?,
            (Some(Dtype::U8), _) => nf4::load(asked)?,
            (None, _) if kind("qweight").is_some() => match self.quantization().is_awq() {
                true => awq::load(asked)?,
                false => gptq::load(asked)?,
            },
            (None, _) => match kind("weight_packed") {
                Some(Dtype::U8) => fp4::compressed(asked)?,
                Some(_) => compressed::packed(asked)?,
                None => return Ok(None),
            },
            _ => return Ok(None),
        };
        Ok(Some(weight))
    }

    /// Whether the tensor of floats called `name` is there in a form of this module.
    pub(crate) fn has_coded(&self, name: &str) -> bool {
        let has = |name: String| self.tensors().contains_key(&name);
        let of = |prefix: &str| {
            has(format!("{prefix}.qweight")) || has(format!("{prefix}.weight_packed"))
        };
        name.strip_suffix(".weight").is_some_and(of) || has(format!("{name}_blocks"))
    }
}

impl<'a> Asked<'a> {
    fn name(&self, part: &str) -> String {
        format!("{}.{part}", self.prefix)
    }

    /// All rows, which are checked to be countable.
    fn height(&self) -> Result<usize, WeightsError> {
        let n = self.rows.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
        n.ok_or_else(|| self.bad("has more rows than can be"))
    }

    /// All rows, and columns; neither is 0, as no format can tell what it has then.
    fn shape(&self) -> Result<(usize, usize), WeightsError> {
        match (self.height()?, self.cols) {
            (0, _) | (_, 0) => Err(self.bad("has no rows, or rows of no weights")),
            shape => Ok(shape),
        }
    }

    fn bad(&self, reason: &'static str) -> WeightsError {
        WeightsError::BadQuantization { layer: self.prefix.to_owned(), reason }
    }

    fn tensor(&self, part: &str) -> Result<&'a RawTensor, WeightsError> {
        self.weights.raw(&self.name(part))
    }

    /// A tensor that may be missing.
    fn maybe(&self, part: &str) -> Option<&'a RawTensor> {
        self.weights.raw(&self.name(part)).ok()
    }

    /// Notes that tensors which say nothing more have been read.
    fn skip(&self, parts: &[&str]) {
        for part in parts {
            let _ = self.maybe(part);
        }
    }

    /// The bytes of a tensor of this type and shape.
    fn bytes(
        &self,
        part: &str,
        (dtype, expected): (Dtype, &'static str),
        shape: &[usize],
    ) -> Result<Bytes, WeightsError> {
        let (name, raw) = (self.name(part), self.tensor(part)?);
        expect_shape(&name, &raw.shape, shape)?;
        if raw.dtype != dtype {
            let got = format!("{:?}", raw.dtype);
            return Err(WeightsError::DType { name, expected, got });
        }
        Ok(raw.bytes.clone())
    }

    /// The floats of a tensor with so many, whatever its shape.
    fn floats(&self, part: &str, n: usize) -> Result<Vec<f32>, WeightsError> {
        let raw = self.tensor(part)?;
        let (_, floats) = self.values(part, raw)?;
        match floats.len() == n {
            true => Ok(floats),
            false => {
                let (name, expected, got) = (self.name(part), vec![n], raw.shape.clone());
                Err(WeightsError::Shape { name, expected, got })
            }
        }
    }

    /// All floats of a tensor, and their type in the file.
    fn values(&self, part: &str, raw: &RawTensor) -> Result<(DType, Vec<f32>), WeightsError> {
        let name = self.name(part);
        let dtype = float_type(&name, raw.dtype)?;
        let n = raw.bytes.len() / dtype.size_in_bytes();
        let floats = read_floats("quantization", dtype, raw.bytes.clone(), n);
        floats.map(|floats| (dtype, floats)).map_err(|source| WeightsError::Tensor { name, source })
    }

    /// A single number, such as the scale of a whole tensor.
    fn number(&self, part: &str) -> Result<f32, WeightsError> {
        self.floats(part, 1)?.first().copied().ok_or_else(|| self.bad("has an empty scale"))
    }

    /// Names the tensor of an error.
    fn wrap<T>(&self, result: taper_tensor::Result<T>) -> Result<T, WeightsError> {
        result.map_err(|source| WeightsError::Tensor { name: self.name("weight"), source })
    }
}

/// The bytes of floats.
fn to_bytes(x: &[f32]) -> Bytes {
    Bytes::from_vec(x.iter().flat_map(|x| x.to_le_bytes()).collect())
}

/// `[outer, inner]` as `[inner, outer]`.
fn transposed<T: Copy>(x: &[T], inner: usize) -> Vec<T> {
    let column = |i: usize| x.iter().skip(i).step_by(inner.max(1)).copied();
    (0..inner).flat_map(column).collect()
}
