//! Experts as gpt-oss is published: MXFP4, with the rows of gate and up taking turns.
//!
//! ```text
//! NAME_blocks  u8 [experts, out * parts, in / 32, 16]   the low half of a byte first
//! NAME_scales  u8 [experts, out * parts, in / 32]       exponents of two, with 127 added
//! ```

use super::{Asked, fp4};
use crate::{Checkpoint, WeightsError};
use safetensors::Dtype;
use std::sync::Arc;
use taper_tensor::{Bytes, TableScales, TableWeight, TensorError, cpu::E2M1};

const BYTES: (Dtype, &str) = (Dtype::U8, "U8");

/// Maps in one tensor, which are those at `part` of rows that interleave `parts` maps.
#[derive(Debug, Clone)]
pub(crate) struct ExpertBlocks {
    codes: Bytes,
    scales: Bytes,
    values: Arc<[f32; 256]>,
    /// Outputs and inputs of a map.
    shape: (usize, usize),
    part: (usize, usize),
}

impl ExpertBlocks {
    /// The map of this number.
    pub(crate) fn get(&self, index: usize) -> Result<TableWeight, TensorError> {
        let ((outputs, inputs), (part, parts)) = (self.shape, self.part);
        let (groups, height) = (inputs / fp4::MXFP4.group, outputs * parts);
        let own = |bytes: &Bytes, row: usize| {
            let all = bytes.as_slice().chunks_exact(row).skip(index * height).take(height);
            Bytes::from_vec(all.skip(part).step_by(parts).flatten().copied().collect())
        };
        let (codes, scales) = (own(&self.codes, groups * 16), own(&self.scales, groups));
        let scales = TableScales::Named(scales, self.values.clone());
        TableWeight::new(fp4::MXFP4, self.shape, codes, E2M1.into(), scales)
    }

    /// Codes of all maps.
    pub(crate) fn codes(&self) -> &Bytes {
        &self.codes
    }
}

impl Checkpoint {
    /// The weights of `count` maps in one tensor, which are those at `part` of rows that interleave `parts` maps.
    pub(crate) fn blocks_of_experts(
        &self,
        name: &str,
        count: usize,
        (inputs, outputs): (usize, usize),
        (part, parts): (usize, usize),
    ) -> Result<ExpertBlocks, WeightsError> {
        let groups = inputs / fp4::MXFP4.group;
        let height = outputs.saturating_mul(parts);
        let asked = Asked { weights: self, prefix: name, rows: &[count, height], cols: inputs };
        asked.shape()?;
        if groups * fp4::MXFP4.group != inputs {
            return Err(asked.bad("has rows of no multiple of 32 weights"));
        }
        let named = |suffix, shape: &[usize]| {
            let name = format!("{name}_{suffix}");
            let raw = self.raw(&name)?;
            crate::checkpoint::expect_shape(&name, &raw.shape, shape)?;
            match raw.dtype == Dtype::U8 {
                true => Ok(raw.bytes.clone()),
                false => {
                    let (expected, got) = (BYTES.1, format!("{:?}", raw.dtype));
                    Err(WeightsError::DType { name, expected, got })
                }
            }
        };
        let codes = named("blocks", &[count, height, groups, 16])?;
        let scales = named("scales", &[count, height, groups])?;
        let (values, shape, part) = (fp4::powers(), (outputs, inputs), (part, parts));
        Ok(ExpertBlocks { codes, scales, values, shape, part })
    }
}
