//! Random tensors and weights.

use half::{bf16, f16};
use taper_tensor::{
    AffineFormat, AffineWeight, Bytes, DType, DenseWeight, Result, TableFormat, TableScales,
    TableWeight, Tensor, Weight,
    cpu::{E2M1, e8m0},
};

/// xorshift64*, with sums of uniforms for a normal distribution.
#[derive(Debug)]
pub(super) struct Rng(u64);

impl Rng {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(super) fn bits(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(super) fn below(&mut self, n: usize) -> usize {
        (self.bits() >> 33) as usize % n
    }

    /// About normal: mean 0, variance 1.
    pub(super) fn normal(&mut self) -> f32 {
        let unit = |bits: u64| (bits >> 40) as f32 / (1u64 << 24) as f32;
        let sum: f32 = (0..12).map(|_| unit(self.bits())).sum();
        sum - 6.0
    }

    pub(super) fn vector(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.normal()).collect()
    }

    /// On the host; a row in eight is a hundred times larger, as activations have outliers.
    pub(super) fn tensor(&mut self, dims: &[usize]) -> Result<Tensor> {
        let cols = dims.last().copied().unwrap_or(1).max(1);
        let mut data = self.vector(dims.iter().product());
        for row in data.chunks_mut(cols) {
            if self.below(8) == 0 {
                row.iter_mut().for_each(|x| *x *= 100.0);
            }
        }
        Tensor::from_vec(data, dims)
    }

    fn floats(&mut self, dtype: DType, n: usize, scale: f32) -> Bytes {
        let data: Vec<f32> = self.vector(n).iter().map(|x| x * scale).collect();
        let bytes: Vec<u8> = match dtype {
            DType::F16 => data.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect(),
            DType::BF16 => data.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes()).collect(),
            _ => data.iter().flat_map(|x| x.to_le_bytes()).collect(),
        };
        Bytes::from_vec(bytes)
    }

    pub(super) fn dense(&mut self, dtype: DType, rows: usize, cols: usize) -> Result<Weight> {
        let data = self.floats(dtype, rows * cols, 0.05);
        Ok(Weight::Dense(DenseWeight::new((rows, cols), dtype, data)?))
    }

    pub(super) fn affine(
        &mut self,
        format: AffineFormat,
        scales: DType,
        rows: usize,
        cols: usize,
    ) -> Result<Weight> {
        let codes = (0..rows * format.row_bytes(cols)).map(|_| self.bits() as u8).collect();
        let groups = rows * (cols / format.group);
        let step = 0.1 / f32::from(1u16 << format.bits);
        let (s, b) = (self.floats(scales, groups, step), self.floats(scales, groups, 0.05));
        let codes = Bytes::from_vec(codes);
        let weight = AffineWeight::new(format, (rows, cols), codes, (scales, s), (scales, b))?;
        Ok(Weight::Affine(weight))
    }

    /// MXFP4, whose scales are from 2^-9 to 2^-2.
    pub(super) fn mxfp4(&mut self, rows: usize, cols: usize) -> Result<Weight> {
        let format = TableFormat { name: "mxfp4", bits: 4, group: 32 };
        let codes = (0..rows * cols / 2).map(|_| self.bits() as u8).collect();
        let scales = (0..rows * format.groups(cols)).map(|_| 118 + self.below(8) as u8).collect();
        let powers = std::array::from_fn(|byte| e8m0(byte as u8)).into();
        let scales = TableScales::Named(Bytes::from_vec(scales), powers);
        let codes = Bytes::from_vec(codes);
        let weight = TableWeight::new(format, (rows, cols), codes, E2M1.into(), scales)?;
        Ok(Weight::Table(weight))
    }
}
