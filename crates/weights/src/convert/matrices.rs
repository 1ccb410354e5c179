//! Matrices that are quantized one by one, by who knows more of them than their values.

use super::{
    ConvertError,
    plan::{Form, Plan},
    write::Shards,
};
use crate::checkpoint;
use safetensors::Dtype;
use std::collections::{HashMap, HashSet};
use taper_tensor::{AffineFormat, AffineParts, DType};

/// A matrix to quantize.
#[derive(Debug)]
#[non_exhaustive]
pub struct Matrix {
    /// `[rows, cols]`, row-major.
    pub values: Vec<f32>,
    /// Columns.
    pub cols: usize,
    /// What it is to become.
    pub format: AffineFormat,
    /// Type of its scales.
    pub dtype: DType,
}

/// A layer of the destination, such as `model.layers.0.mlp.down_proj`, or the same of all experts.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct QuantizedLayer {
    /// As config.json names it.
    pub layer: String,
    /// Tensors of the source that it is made of.
    pub tensors: Vec<String>,
    /// How many weights it has.
    pub weights: u64,
    /// What it is to become.
    pub format: AffineFormat,
    /// Bits of a scale, and of a bias.
    side: u64,
}

impl QuantizedLayer {
    /// All its bits where codes have so many.
    #[must_use]
    pub fn bits(&self, bits: u8) -> u64 {
        self.weights * u64::from(bits) + self.weights / self.format.group as u64 * 2 * self.side
    }
}

/// The matrices of a conversion that are to be quantized in the affine format, in any order.
#[derive(Debug)]
pub struct Matrices<'a> {
    plan: &'a Plan<'a>,
    /// Where they are written; nowhere, where they are only looked at.
    shards: Option<&'a mut Shards>,
    /// Entry and part of each tensor of the source.
    places: HashMap<&'a str, (usize, usize)>,
    /// Matrices that are written, by entry and number.
    written: HashSet<(usize, usize)>,
}

impl<'a> Matrices<'a> {
    pub(super) fn new(plan: &'a Plan<'a>, shards: Option<&'a mut Shards>) -> Self {
        let mut places = HashMap::new();
        for (e, entry) in plan.entries.iter().enumerate() {
            if matches!(entry.form, Form::Quantize(_)) {
                let parts = entry.sources.iter().enumerate();
                places.extend(parts.map(|(p, part)| (part.name, (e, p))));
            }
        }
        Self { plan, shards, places, written: HashSet::new() }
    }

    /// Layers of the destination that are to be quantized, in order.
    #[must_use]
    pub fn layers(&self) -> Vec<QuantizedLayer> {
        let mut layers = Vec::new();
        for entry in &self.plan.entries {
            let Form::Quantize(format) = entry.form else { continue };
            let layer = entry.name.strip_suffix(".weight").unwrap_or(&entry.name).to_owned();
            let tensors = entry.sources.iter().map(|part| part.name.to_owned()).collect();
            let weights: usize = entry.sources.iter().map(|part| part.source.elements()).sum();
            let dtype = entry.sources.first().map_or(Dtype::F32, |part| part.source.dtype());
            let side = dtype.bitsize() as u64;
            layers.push(QuantizedLayer { layer, tensors, weights: weights as u64, format, side });
        }
        layers
    }

    /// Bits of all tensors of the destination that are not [`Self::layers`], and weights in all.
    #[must_use]
    pub fn others(&self) -> (u64, u64) {
        let others = self.plan.entries.iter().filter(|e| !matches!(e.form, Form::Quantize(_)));
        let bytes: u64 = others.flat_map(|e| &e.outputs).map(|o| o.bytes).sum();
        (8 * bytes, self.plan.parameters())
    }

    /// Tensors of the source that are to be quantized, and how many matrices each holds.
    pub fn names(&self) -> impl Iterator<Item = (&str, usize)> {
        let own = self.places.iter();
        own.map(|(name, (e, _))| {
            let entry = &self.plan.entries[*e];
            (*name, if entry.sources.len() == 1 { entry.count() } else { 1 })
        })
    }

    /// The matrix of this number in a tensor of the source; `None` where that is not to be quantized.
    ///
    /// # Errors
    /// It cannot be read, or holds numbers that are not finite.
    pub fn read(&self, tensor: &str, index: usize) -> Result<Option<Matrix>, ConvertError> {
        let Some(&(e, p)) = self.places.get(tensor) else { return Ok(None) };
        let entry = &self.plan.entries[e];
        let (Form::Quantize(format), part) = (entry.form, entry.sources[p]) else {
            return Ok(None);
        };
        let own = if entry.sources.len() == 1 { entry.count() } else { 1 };
        let (rows, cols) = part.source.matrix();
        let rows = rows / own.max(1);
        if index >= own {
            return Ok(None);
        }
        let dtype = checkpoint::float_type(part.name, part.source.dtype())?;
        let values = part.source.rows(part.name, index * rows, rows)?;
        Ok(Some(Matrix { values, cols, format, dtype }))
    }

    /// Writes a matrix that was read, quantized.
    ///
    /// # Errors
    /// The file cannot be written, or the parts are those of another matrix.
    pub fn write(
        &mut self,
        tensor: &str,
        index: usize,
        parts: &AffineParts,
    ) -> Result<(), ConvertError> {
        let other = || ConvertError::OtherMatrix { name: tensor.to_owned() };
        let &(e, p) = self.places.get(tensor).ok_or_else(other)?;
        let entry = &self.plan.entries[e];
        let (number, count) = (p + index, entry.count());
        let parts = [&parts.codes, &parts.scales, &parts.biases];
        for (output, bytes) in entry.outputs.iter().zip(parts) {
            let own = output.bytes / count.max(1) as u64;
            if number >= count || own != bytes.len() as u64 {
                return Err(other());
            }
            let shards = self.shards.as_mut().ok_or_else(other)?;
            shards.put(entry.shard, output.offset + number as u64 * own, bytes)?;
        }
        self.written.insert((e, number));
        Ok(())
    }

    /// Whether a matrix is not written where others are that go to the same tensor.
    #[must_use]
    pub fn lacks(&self, tensor: &str, index: usize) -> bool {
        let Some(&(e, p)) = self.places.get(tensor) else { return false };
        let begun = || self.written.iter().any(|(entry, _)| *entry == e);
        !self.written.contains(&(e, p + index)) && begun()
    }

    /// Entries all of whose matrices are written.
    pub(super) fn into_done(self) -> HashSet<usize> {
        let all = |e: &usize| {
            (0..self.plan.entries[*e].count()).all(|number| self.written.contains(&(*e, number)))
        };
        self.written.iter().map(|(e, _)| *e).filter(all).collect()
    }
}
