//! Experts: many maps of one shape in one tensor.

use crate::{Checkpoint, WeightsError, checkpoint::expect_shape};
use taper_tensor::{Bytes, DType, DenseWeight, Linear, Weight, pool};

/// Biases of several maps, `[maps, out]`.
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
    ) -> Result<Vec<Linear>, WeightsError> {
        let all = self.matrix(prefix, &[count, outputs], inputs)?;
        let biases = match bias {
            true => Some(self.biases(format!("{prefix}.bias"), count, outputs)?),
            false => None,
        };
        let wrap = |source| WeightsError::Tensor { name: format!("{prefix}.weight"), source };
        let one = |i| {
            let map = Linear::new(all.row_range(i * outputs, outputs).map_err(wrap)?);
            let map = self.shown(map, &format!("{prefix}.weight"), i)?;
            match &biases {
                Some(biases) => biases.of(i, count, (0, 1), map),
                None => Ok(map),
            }
        };
        (0..count).map(one).collect()
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
    ) -> Result<Vec<Linear>, WeightsError> {
        let width = outputs.saturating_mul(parts);
        let maps = match self.has(&format!("{name}_blocks")) {
            true => {
                let weights =
                    self.blocks_of_experts(name, count, (inputs, outputs), (part, parts))?;
                weights.into_iter().map(Linear::new).collect()
            }
            false => {
                let columns = Columns { first: part, step: parts, count: outputs };
                self.turned(name, count, (inputs, width), columns)?
            }
        };
        let biases = self.biases(format!("{name}_bias"), count, width)?;
        let biased = |(i, map)| biases.of(i, count, (part, parts), map);
        maps.into_iter().enumerate().map(biased).collect()
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
    ) -> Result<Vec<Linear>, WeightsError> {
        let first = part.saturating_mul(outputs);
        let columns = Columns { first, step: 1, count: outputs };
        self.turned(name, count, (inputs, outputs.saturating_mul(parts)), columns)
    }

    /// The maps to some of the columns of `name`, `[count, in, width]`.
    fn turned(
        &self,
        name: &str,
        count: usize,
        (inputs, width): (usize, usize),
        own: Columns,
    ) -> Result<Vec<Linear>, WeightsError> {
        let (dtype, shape, bytes) = self.floats(name)?;
        expect_shape(name, shape, &[count, inputs, width])?;
        let wrap = |source| WeightsError::Tensor { name: name.to_owned(), source };
        let one = |i| {
            let matrix = share(bytes.as_slice(), i, count);
            let taken = columns(matrix, dtype.size_in_bytes(), inputs, own);
            let weight = DenseWeight::new((own.count, inputs), dtype, taken).map_err(wrap)?;
            Ok(Linear::new(Weight::Dense(weight)))
        };
        pool::map(count, one).into_iter().collect()
    }

    /// The experts of the maps `name`, `[count, out * parts, in]`: of each expert the rows of `part`, as transformers
    /// stores the gate and up projections of Qwen 3.5.
    ///
    /// # Errors
    /// As [`Self::weight`]; such tensors are never quantized.
    pub fn fused(
        &self,
        name: &str,
        count: usize,
        (inputs, outputs): (usize, usize),
        (part, parts): (usize, usize),
    ) -> Result<Vec<Linear>, WeightsError> {
        let rows = outputs.saturating_mul(parts);
        let (dtype, shape, bytes) = self.floats(name)?;
        expect_shape(name, shape, &[count, rows, inputs])?;
        let wrap = |source| WeightsError::Tensor { name: name.to_owned(), source };
        let all = DenseWeight::new((count.saturating_mul(rows), inputs), dtype, bytes);
        let all = Weight::Dense(all.map_err(wrap)?);
        let one =
            |i| Ok(Linear::new(all.row_range(i * rows + part * outputs, outputs).map_err(wrap)?));
        (0..count).map(one).collect()
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
