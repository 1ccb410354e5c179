//! Products with a matrix for each head.

use super::{CHUNK, Gpu, GpuWeight, Launch, Operand, count, params};
use crate::{Linear, Result, TensorError, tensor::GpuTensor};

params!(
    /// Parameters of `head_maps_*`.
    HeadMapsParams {
        tokens: u32,
        heads: u32,
        rows: u32,
        cols: u32,
        inputs: u32,
        stride: u32,
        lanes: u32,
        group_shift: u32,
        scale_type: u32,
        packed: u32,
    }
);

/// Rows that a thread computes, and simdgroups of a threadgroup.
const ROWS: usize = 2;
const SIMDGROUPS: usize = 4;
const LANES: usize = 32;
/// Tokens that a threadgroup takes where there are several.
const TOKENS: u32 = 4;

/// The matrices of all heads on a GPU, one below the other.
#[derive(Debug, Clone)]
pub(crate) struct StackedHeads {
    weight: GpuWeight,
    heads: usize,
}

impl StackedHeads {
    /// Copies maps of one shape to a GPU. `exact` is that of [`Linear::on`].
    ///
    /// # Errors
    /// Their formats differ, one has a bias, or there is no room.
    pub(crate) fn new(gpu: &Gpu, maps: &[Linear], exact: bool) -> Result<Self> {
        let weights: Vec<_> = maps.iter().filter_map(Linear::plain).collect();
        let whole = weights.len() == maps.len();
        let stacked = if whole { GpuWeight::stack(gpu, &weights, exact)? } else { None };
        let expected = "matrices of one format, without biases";
        let weight =
            stacked.ok_or_else(|| TensorError::shape("head maps", expected, &[maps.len()]))?;
        Ok(Self { weight, heads: maps.len() })
    }

    pub(crate) fn gpu(&self) -> &Gpu {
        self.weight.gpu()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.weight.bytes()
    }

    /// For each head of each row what its map makes of its first elements, after its other ones.
    ///
    /// # Shapes
    /// `x [t, heads * (inputs + rest)]` -> `[t, heads * (rest + rows)]`.
    ///
    /// # Errors
    /// Heads do not begin at multiples of four elements.
    pub(crate) fn forward(&self, x: &GpuTensor) -> Result<GpuTensor> {
        let (tokens, stride) = (x.dims[0], x.dims[1] / self.heads);
        let (rows, inputs) = (self.weight.rows() / self.heads, self.weight.cols());
        if !stride.is_multiple_of(4) || !inputs.is_multiple_of(4) || !x.offset.is_multiple_of(16) {
            let expected = "heads of a multiple of 4";
            return Err(TensorError::shape("head maps", expected, &[stride, inputs]));
        }
        let out = GpuTensor::new(x.gpu(), &[tokens, self.heads * (stride - inputs + rows)])?;
        let lanes = (self.weight.cols / CHUNK).next_power_of_two().min(LANES);
        let many = if tokens > 1 { TOKENS } else { 1 };
        let params = HeadMapsParams {
            tokens: count("head maps", tokens)?,
            heads: count("head maps", self.heads)?,
            rows: count("head maps", rows)?,
            cols: count("head maps", self.weight.cols)?,
            inputs: count("head maps", inputs)?,
            stride: count("head maps", stride)?,
            lanes: lanes as u32,
            group_shift: self.weight.group_shift(),
            scale_type: self.weight.scale_type,
            packed: u32::from(self.weight.packed),
        };
        let [data, scales] = self.weight.operands();
        let block = SIMDGROUPS * ROWS * LANES / lanes;
        let launch = Launch {
            family: "head_maps",
            kernel: &format!("head_maps_{}_m{many}", self.weight.kernel().0),
            grid: [
                count("head maps", rows.div_ceil(block))?,
                params.heads,
                params.tokens.div_ceil(many),
            ],
            threads: (SIMDGROUPS * LANES) as u32,
            operands: &[data, scales, x.input(), Operand::Out(&out.buffer, 0)],
            params: bytemuck::bytes_of(&params),
        };
        x.gpu().launch_work(&launch, tokens * self.weight.rows() * self.weight.cols)?;
        Ok(out)
    }
}
