//! A checkpoint's tensors as candle's, widened to `f32`.

use crate::VisionError;
use candle_core::{Device, Tensor};
use taper_tensor::cpu::RowSource;
use taper_weights::{Checkpoint, WeightsError};

type Result<T> = std::result::Result<T, VisionError>;

/// Tensors below one name.
#[derive(Debug, Clone)]
pub(crate) struct Weights<'a> {
    checkpoint: &'a Checkpoint,
    prefix: String,
    device: &'a Device,
}

impl<'a> Weights<'a> {
    pub(crate) fn new(checkpoint: &'a Checkpoint, device: &'a Device) -> Self {
        Self { checkpoint, prefix: String::new(), device }
    }

    pub(crate) fn device(&self) -> &'a Device {
        self.device
    }

    /// The tensors below a name in this one.
    pub(crate) fn at(&self, name: impl std::fmt::Display) -> Self {
        Self { prefix: self.name(&name.to_string()), ..self.clone() }
    }

    /// The tensors below the first of some names that holds the tensor or matrix `within`.
    pub(crate) fn first(&self, names: &[&str], within: &str) -> Option<Self> {
        let mut views =
            names.iter().map(|name| if name.is_empty() { self.clone() } else { self.at(name) });
        views.find(|view| view.has(within) || view.has(&format!("{within}.weight")))
    }

    pub(crate) fn name(&self, name: &str) -> String {
        if self.prefix.is_empty() { name.to_owned() } else { format!("{}.{name}", self.prefix) }
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.checkpoint.has(&self.name(name))
    }

    /// Floats in the shape that the file has.
    pub(crate) fn stored(&self, name: &str) -> Result<Tensor> {
        let name = self.name(name);
        let (_, shape, _) = self.checkpoint.floats(&name)?;
        let values = self.checkpoint.array(&name, shape)?;
        Ok(Tensor::from_vec(values, shape, self.device)?)
    }

    /// Floats of one shape.
    pub(crate) fn tensor(&self, name: &str, shape: &[usize]) -> Result<Tensor> {
        let values = self.checkpoint.array(&self.name(name), shape)?;
        Ok(Tensor::from_vec(values, shape, self.device)?)
    }

    /// The matrix `name.weight`, of floats or quantized.
    pub(crate) fn matrix(&self, name: &str, rows: usize, cols: usize) -> Result<Tensor> {
        let weight = self.checkpoint.weight(&self.name(name), rows, cols)?;
        let mut values = vec![0.0; rows * cols];
        weight.read_rows(0, &mut values);
        Ok(Tensor::from_vec(values, (rows, cols), self.device)?)
    }

    /// An error that tells of a tensor's shape.
    pub(crate) fn misshapen<T>(&self, name: &str, expected: &[usize], got: &[usize]) -> Result<T> {
        let (expected, got) = (expected.to_vec(), got.to_vec());
        Err(WeightsError::Shape { name: self.name(name), expected, got }.into())
    }
}
