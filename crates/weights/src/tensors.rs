//! One safetensors file by itself, such as an adapter's.

use crate::{
    WeightsError,
    checkpoint::{float_type, read_object},
    shard::{self, RawTensor},
};
use serde_json::{Map, Value};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};
use taper_tensor::{DenseWeight, cpu::RowSource};

/// The tensors of a safetensors file, which is mapped.
#[derive(Debug)]
pub struct TensorFile {
    path: PathBuf,
    tensors: BTreeMap<String, RawTensor>,
}

impl TensorFile {
    /// Maps a file and reads its header.
    ///
    /// # Errors
    /// It cannot be read, or is damaged or truncated.
    pub fn open(path: &Path) -> Result<Self, WeightsError> {
        let tensors = shard::open(path)?.into_iter().collect();
        Ok(Self { path: path.to_owned(), tensors })
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Names of its tensors, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Dimensions of a tensor.
    #[must_use]
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.tensors.get(name).map(|raw| raw.shape.as_slice())
    }

    /// A matrix of floats.
    ///
    /// # Errors
    /// It is missing, no matrix, or its type is none of F32, F16, BF16.
    pub fn matrix(&self, name: &str) -> Result<DenseWeight, WeightsError> {
        let missing = || WeightsError::MissingTensor { name: name.to_owned() };
        let raw = self.tensors.get(name).ok_or_else(missing)?;
        let &[rows, cols] = raw.shape.as_slice() else {
            return Err(WeightsError::NoMatrix { name: name.to_owned(), got: raw.shape.clone() });
        };
        let weight =
            DenseWeight::new((rows, cols), float_type(name, raw.dtype)?, raw.bytes.clone());
        weight.map_err(|source| WeightsError::Tensor { name: name.to_owned(), source })
    }

    /// A vector of floats.
    ///
    /// # Errors
    /// It is missing, no vector, or its type is none of F32, F16, BF16.
    pub fn vector(&self, name: &str) -> Result<Vec<f32>, WeightsError> {
        let missing = || WeightsError::MissingTensor { name: name.to_owned() };
        let raw = self.tensors.get(name).ok_or_else(missing)?;
        let &[n] = raw.shape.as_slice() else {
            let got = raw.shape.clone();
            return Err(WeightsError::Shape { name: name.to_owned(), expected: vec![0], got });
        };
        let row = DenseWeight::new((1, n), float_type(name, raw.dtype)?, raw.bytes.clone());
        let row = row.map_err(|source| WeightsError::Tensor { name: name.to_owned(), source })?;
        let mut out = vec![0.0; n];
        row.read_rows(0, &mut out);
        Ok(out)
    }
}

/// Reads a file that holds a JSON object.
///
/// # Errors
/// It cannot be read, or is something else.
pub fn read_json(path: &Path) -> Result<Map<String, Value>, WeightsError> {
    read_object(path)
}
