//! Experts: many maps of one shape in one tensor.

use crate::{
    Checkpoint, WeightsError, checkpoint::expect_shape, formats::ExpertBlocks, gguf::BlockTensor,
};
use std::sync::Arc;
use taper_tensor::{
    Bytes, DType, DenseWeight, Linear, TensorError, Weight,
    cpu::maps::{Observer, Watch},
    pool,
};

/// Maps of one shape that a checkpoint has in one tensor. Each is made when it is asked for, of the file's own bytes,
/// so that a tensor may be larger than memory.
#[derive(Debug, Clone)]
pub struct ExpertMaps {
    name: Arc<str>,
    count: usize,
    maps: Maps,
    biases: Option<Biases>,
    /// Which of the maps that a row or a tensor interleaves these are.
    part: (usize, usize),
    observer: Option<Arc<dyn Observer>>,
}

#[derive(Debug, Clone)]
enum Maps {
    /// `rows` of every `step` rows, from `first` on.
    Rows { all: Weight, first: usize, step: usize, rows: usize },
    /// As [`Self::Rows`], of ggml's blocks.
    Ggml { all: BlockTensor, first: usize, step: usize, rows: usize, cols: usize },
    /// Some columns of a matrix of so many rows each.
    Columns { dtype: DType, bytes: Bytes, inputs: usize, own: Columns },
    /// As gpt-oss is published.
    Blocks(ExpertBlocks),
}

/// Biases of several maps, `[maps, out]`.
#[derive(Debug, Clone)]
struct Biases {
    name: String,
    dtype: DType,
    bytes: Bytes,
}

impl Biases {
    /// Gives a map its own biases: those at `part` where a row interleaves `parts` maps.
    fn of(
        &self,
        index: usize,
        maps: usize,
        (part, parts): (usize, usize),
        map: Linear,
    ) -> Result<Linear, WeightsError> {
        let row = share(self.bytes.as_slice(), index, maps);
        let element = self.dtype.size_in_bytes();
        let count = row.len() / element / parts.max(1);
        let own = columns(row, element, 1, Columns { first: part, step: parts, count });
        let wrap = |source| WeightsError::Tensor { name: self.name.clone(), source };
        map.with_bias(self.dtype, own).map_err(wrap)
    }
}

impl ExpertMaps {
    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// The map of this number.
    ///
    /// # Errors
    /// There is none, or a matrix is too large.
    pub fn get(&self, index: usize) -> Result<Linear, WeightsError> {
        let wrap = |source| WeightsError::Tensor { name: self.name.to_string(), source };
        if index >= self.count {
            return Err(wrap(TensorError::Index { op: "experts", index, limit: self.count }));
        }
        let weight = match &self.maps {
            Maps::Rows { all, first, step, rows } => {
                all.row_range(index * step + first, *rows).map_err(wrap)?
            }
            Maps::Ggml { all, first, step, rows, cols } => {
                all.rows(index * step + first, *rows, *cols).map_err(wrap)?
            }
            Maps::Columns { dtype, bytes, inputs, own } => {
                let matrix = share(bytes.as_slice(), index, self.count);
                let taken = columns(matrix, dtype.size_in_bytes(), *inputs, *own);
                let weight = DenseWeight::new((own.count, *inputs), *dtype, taken);
                Weight::Dense(weight.map_err(wrap)?)
            }
            Maps::Blocks(blocks) => Weight::Table(blocks.get(index).map_err(wrap)?),
        };
        let map = Linear::new(weight);
        let map = match &self.observer {
            Some(observer) => {
                let (tensor, observer) = (Arc::clone(&self.name), Arc::clone(observer));
                map.watched(Watch { tensor, index, observer }).map_err(wrap)?
            }
            None => map,
        };
        match &self.biases {
            Some(biases) => biases.of(index, self.count, self.part, map),
            None => Ok(map),
        }
    }

    /// All of them, in their order.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub fn all(&self) -> Result<Vec<Linear>, WeightsError> {
        let all = pool::map(self.count, |i| self.get(i)).into_iter().collect();
        // What was made of these is not over their memory.
        match &self.maps {
            Maps::Ggml { all, .. } => all.bytes.release(),
            Maps::Blocks(blocks) => blocks.codes().release(),
            Maps::Rows { .. } | Maps::Columns { .. } => {}
        }
        all
    }

    /// Hints that the map of this number will be asked for and read soon.
    pub fn want(&self, index: usize) {
        let own = |bytes: &Bytes| {
            let each = bytes.len() / self.count.max(1);
            bytes.slice(index * each..(index + 1) * each).iter().for_each(Bytes::want);
        };
        match &self.maps {
            Maps::Rows { all: Weight::Affine(all), .. } => all.stored().iter().for_each(own),
            Maps::Rows { all: Weight::Dense(all), .. } => own(&all.stored()),
            Maps::Rows { .. } => {}
            Maps::Ggml { all, .. } => own(&all.bytes),
            Maps::Columns { bytes, .. } => own(bytes),
            Maps::Blocks(blocks) => own(blocks.codes()),
        }
    }
}

impl Checkpoint {
    /// The `count` maps of `prefix.weight`, `[count, out, in]`, with `prefix.bias`, `[count, out]`, when `bias`
    /// says that they have such: MLX's layout.
    ///
    /// # Errors
    /// As [`Self::weight`].
    pub fn stacked(
        &self,
        prefix: &str,
        count: usize,
        (inputs, outputs): (usize, usize),
        bias: bool,
    ) -> Result<ExpertMaps, WeightsError> {
        let name = format!("{prefix}.weight");
        let maps = match self.blocks().get(&name).filter(|blocks| blocks.is_as_in_file()) {
            Some(blocks) => {
                self.use_tensor(&name);
                expect_shape(&name, &blocks.shape, &[count, outputs, inputs])?;
                let all = blocks.clone();
                Maps::Ggml { all, first: 0, step: outputs, rows: outputs, cols: inputs }
            }
            None => {
                let all = self.matrix(prefix, &[count, outputs], inputs)?;
                Maps::Rows { all, first: 0, step: outputs, rows: outputs }
            }
        };
        let biases = match bias {
            true => Some(self.biases(format!("{prefix}.bias"), count, outputs)?),
            false => None,
        };
        let observer = self.observer().cloned();
        Ok(ExpertMaps { name: name.into(), count, maps, biases, part: (0, 1), observer })
    }

    /// Loads the experts of the maps `name`, `[count, in, out * parts]`, with biases `name_bias`,
    /// `[count, out * parts]`. Output columns interleave `parts` maps; this takes those at `part`,
    /// as transformers stores the gate and up projections of gpt-oss. Or of `name_blocks` and `name_scales`,
    /// MXFP4, as it is published.
    ///
    /// # Errors
    /// As [`Self::weight`].
    pub fn transposed(
        &self,
        name: &str,
        count: usize,
        (inputs, outputs): (usize, usize),
        (part, parts): (usize, usize),
    ) -> Result<ExpertMaps, WeightsError> {
        let width = outputs.saturating_mul(parts);
        let maps = match self.has(&format!("{name}_blocks")) {
            true => {
                let shape = (inputs, outputs);
                Maps::Blocks(self.blocks_of_experts(name, count, shape, (part, parts))?)
            }
            false => {
                let columns = Columns { first: part, step: parts, count: outputs };
                self.turned(name, count, (inputs, width), columns)?
            }
        };
        let biases = Some(self.biases(format!("{name}_bias"), count, width)?);
        let part = (part, parts);
        Ok(ExpertMaps { name: name.into(), count, maps, biases, part, observer: None })
    }

    /// The experts of the maps `name`, `[count, in, out * parts]`, without biases: of each expert the columns of
    /// `part`, side by side, as Llama 4 has gate and up projections.
    ///
    /// # Errors
    /// As [`Self::weight`]; such tensors are never quantized.
    pub fn transposed_halves(
        &self,
        name: &str,
        count: usize,
        (inputs, outputs): (usize, usize),
        (part, parts): (usize, usize),
    ) -> Result<ExpertMaps, WeightsError> {
        let first = part.saturating_mul(outputs);
        let columns = Columns { first, step: 1, count: outputs };
        let maps = self.turned(name, count, (inputs, outputs.saturating_mul(parts)), columns)?;
        Ok(ExpertMaps::plain(name, count, maps))
    }

    /// The maps to some of the columns of `name`, `[count, in, width]`.
    fn turned(
        &self,
        name: &str,
        count: usize,
        (inputs, width): (usize, usize),
        own: Columns,
    ) -> Result<Maps, WeightsError> {
        let (dtype, shape, bytes) = self.floats(name)?;
        expect_shape(name, shape, &[count, inputs, width])?;
        Ok(Maps::Columns { dtype, bytes, inputs, own })
    }

    /// The experts of the maps `name`, `[count, out * parts, in]`: of each expert the rows of `part`, as transformers
    /// stores the gate and up projections of Qwen 3.5.
    ///
    /// # Errors
    /// As [`Self::weight`]; of quantized tensors only those of GGUF files are so.
    pub fn fused(
        &self,
        name: &str,
        count: usize,
        (inputs, outputs): (usize, usize),
        (part, parts): (usize, usize),
    ) -> Result<ExpertMaps, WeightsError> {
        let step = outputs.saturating_mul(parts);
        let first = part.saturating_mul(outputs);
        if let Some(blocks) = self.blocks().get(name).filter(|blocks| blocks.is_as_in_file()) {
            self.use_tensor(name);
            expect_shape(name, &blocks.shape, &[count, step, inputs])?;
            let all = blocks.clone();
            let maps = Maps::Ggml { all, first, step, rows: outputs, cols: inputs };
            return Ok(ExpertMaps::plain(name, count, maps));
        }
        let (dtype, shape, bytes) = self.floats(name)?;
        expect_shape(name, shape, &[count, step, inputs])?;
        let wrap = |source| WeightsError::Tensor { name: name.to_owned(), source };
        let all = DenseWeight::new((count.saturating_mul(step), inputs), dtype, bytes);
        let all = Weight::Dense(all.map_err(wrap)?);
        let maps = Maps::Rows { all, first, step, rows: outputs };
        Ok(ExpertMaps::plain(name, count, maps))
    }

    /// The map `prefix.weight`, `[in, out]`, with `prefix.bias` when `bias` says that there is one: GPT-2's layout.
    ///
    /// # Errors
    /// As [`Self::weight`]; such tensors are never quantized.
    pub fn linear_of_inputs(
        &self,
        prefix: &str,
        inputs: usize,
        outputs: usize,
        bias: bool,
    ) -> Result<Linear, WeightsError> {
        let name = format!("{prefix}.weight");
        let (dtype, shape, bytes) = self.floats(&name)?;
        expect_shape(&name, shape, &[inputs, outputs])?;
        let all = Columns { first: 0, step: 1, count: outputs };
        let own = columns(bytes.as_slice(), dtype.size_in_bytes(), inputs, all);
        let weight = DenseWeight::new((outputs, inputs), dtype, own);
        let weight = weight.map_err(|source| WeightsError::Tensor { name, source })?;
        let linear = Linear::new(Weight::Dense(weight));
        if !bias {
            return Ok(linear);
        }
        let name = format!("{prefix}.bias");
        let (dtype, shape, bytes) = self.floats(&name)?;
        expect_shape(&name, shape, &[outputs])?;
        linear.with_bias(dtype, bytes).map_err(|source| WeightsError::Tensor { name, source })
    }

    fn biases(&self, name: String, count: usize, outputs: usize) -> Result<Biases, WeightsError> {
        let (dtype, shape, bytes) = self.floats(&name)?;
        expect_shape(&name, shape, &[count, outputs])?;
        Ok(Biases { name, dtype, bytes })
    }
}

impl ExpertMaps {
    /// Maps without biases.
    fn plain(name: &str, count: usize, maps: Maps) -> Self {
        Self { name: name.into(), count, maps, biases: None, part: (0, 1), observer: None }
    }
}

/// What one of `count` has of a tensor.
fn share(bytes: &[u8], index: usize, count: usize) -> &[u8] {
    let each = bytes.len() / count.max(1);
    &bytes[index * each..][..each]
}

/// Some columns of a matrix: so many, from the first on, each `step` after the one before.
#[derive(Debug, Clone, Copy)]
struct Columns {
    first: usize,
    step: usize,
    count: usize,
}

/// Columns of a matrix of so many rows, as a row each.
fn columns(matrix: &[u8], element: usize, rows: usize, own: Columns) -> Bytes {
    let width = matrix.len() / (rows * element).max(1);
    let mut out = vec![0; rows * own.count * element];
    for (r, row) in matrix.chunks_exact((width * element).max(1)).enumerate() {
        let taken = row.chunks_exact(element).skip(own.first).step_by(own.step.max(1));
        for (to, from) in out.chunks_exact_mut(rows * element).zip(taken) {
            to[r * element..][..element].copy_from_slice(from);
        }
    }
    Bytes::from_vec(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_become_rows_part_by_part() {
        let matrix = [10, 11, 20, 21, 30, 31, 40, 41, 50, 51, 60, 61, 70, 71, 80, 81];
        let of = |first, step, count| {
            columns(&matrix, 2, 2, Columns { first, step, count }).as_slice().to_vec()
        };
        assert_eq!(of(0, 2, 2), [10, 11, 50, 51, 30, 31, 70, 71]);
        assert_eq!(of(1, 2, 2), [20, 21, 60, 61, 40, 41, 80, 81]);
        assert_eq!(of(2, 1, 2), [30, 31, 70, 71, 40, 41, 80, 81]);
        let all = Columns { first: 0, step: 1, count: 16 };
        assert_eq!(columns(&matrix, 1, 1, all).as_slice(), matrix);
    }
}
