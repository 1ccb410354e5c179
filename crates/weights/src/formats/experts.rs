//! Experts as gpt-oss is published: MXFP4, with the rows of gate and up taking turns.
//!
//! ```text
//! NAME_blocks  u8 [experts, out * parts, in / 32, 16]   the low half of a byte first
//! NAME_scales  u8 [experts, out * parts, in / 32]       exponents of two, with 127 added
//! ```

use super::{Asked, fp4};
use crate::{Checkpoint, WeightsError};
use safetensors::Dtype;
use taper_tensor::{Bytes, TableScales, TableWeight, Weight, cpu::E2M1, pool};

const BYTES: (Dtype, &str) = (Dtype::U8, "U8");

impl Checkpoint {
    /// The weights of `count` maps in one tensor, which are those at `part` of rows that interleave `parts` maps.
    pub(crate) fn blocks_of_experts(
        &self,
        name: &str,
        count: usize,
        (inputs, outputs): (usize, usize),
        (part, parts): (usize, usize),
    ) -> Result<Vec<Weight>, WeightsError> {
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
        let values = fp4::powers();
        let one = |i: usize| {
            let own = |bytes: &Bytes, row: usize| {
                let all = bytes.as_slice().chunks_exact(row).skip(i * height).take(height);
                let own = all.skip(part).step_by(parts).flatten().copied().collect();
                Bytes::from_vec(own)
            };
            let (codes, scales) = (own(&codes, groups * 16), own(&scales, groups));
            let scales = TableScales::Named(scales, values.clone());
            let shape = (outputs, inputs);
            asked.wrap(TableWeight::new(fp4::MXFP4, shape, codes, E2M1.into(), scales))
        };
        let all: Result<_, _> =
            pool::map(count, |i| one(i).map(Weight::Table)).into_iter().collect();
        codes.release();
        all
    }
}
