//! What formats are called in listings.

use crate::{Checkpoint, shard::RawTensor};
use safetensors::Dtype;
use std::collections::BTreeMap;

/// Ends of the names of tensors that say what the codes of another one stand for.
const SIDES: [&str; 20] = [
    ".scales",
    ".biases",
    ".qzeros",
    ".g_idx",
    ".global_scale",
    ".weight_scale",
    ".weight_scale_inv",
    ".weight_scale_2",
    ".weight_shape",
    ".weight_zero_point",
    ".weight_g_idx",
    ".weight_global_scale",
    ".input_scale",
    ".input_global_scale",
    ".activation_scale",
    ".absmax",
    ".quant_map",
    ".nested_absmax",
    ".nested_quant_map",
    "_scales",
];

impl Checkpoint {
    /// How many tensors there are of each format, by its name: `{"BF16": 33, "mxfp4": 48}`. Scales and the
    /// like belong to a tensor that is counted.
    #[must_use]
    pub fn format_counts(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for (name, raw) in self.tensors() {
            let side = SIDES.iter().any(|s| name.ends_with(s)) || name.contains(".quant_state.");
            if !side {
                *counts.entry(self.format_of(name, raw)).or_default() += 1;
            }
        }
        for blocks in self.blocks().values() {
            *counts.entry(format!("{:?}", blocks.kind)).or_default() += 1;
        }
        counts
    }

    fn format_of(&self, name: &str, raw: &RawTensor) -> String {
        let (prefix, part) = name.rsplit_once('.').unwrap_or((name, ""));
        let has = |part: &str| self.tensors().contains_key(&format!("{prefix}.{part}"));
        let quantization = self.quantization();
        let scales = self.tensors().get(&format!("{prefix}.scales"));
        match (part, raw.dtype) {
            ("qweight", _) => quantization.describe(),
            ("weight_packed", Dtype::U8) if has("weight_global_scale") => "nvfp4".to_owned(),
            ("weight_packed", Dtype::U8) => "mxfp4".to_owned(),
            ("weight_packed", _) => quantization.describe(),
            ("weight", Dtype::F8_E4M3) => "fp8".to_owned(),
            ("weight", Dtype::I8) => "int8".to_owned(),
            ("weight", Dtype::U8) if has("weight_scale_2") => "nvfp4".to_owned(),
            ("weight", Dtype::U8) if has("weight.quant_state.bitsandbytes__nf4") => {
                "nf4".to_owned()
            }
            ("weight", Dtype::U8) if has("weight.quant_state.bitsandbytes__fp4") => {
                "fp4".to_owned()
            }
            ("weight", Dtype::U32) if scales.is_some_and(|s| s.dtype == Dtype::U8) => {
                let last = |raw: &RawTensor| raw.shape.last().copied().unwrap_or(0);
                let words = scales.and_then(|s| last(raw).checked_div(last(s)));
                match words {
                    Some(2) => "nvfp4".to_owned(),
                    Some(4) => "mxfp4".to_owned(),
                    _ => "mxfp8".to_owned(),
                }
            }
            ("weight", Dtype::U32) if scales.is_some() => match quantization.format(prefix) {
                Some(affine) => format!("{}-bit, group {}", affine.bits, affine.group),
                None => "U32".to_owned(),
            },
            _ if name.ends_with("_blocks") && raw.dtype == Dtype::U8 => "mxfp4".to_owned(),
            (_, dtype) => format!("{dtype:?}"),
        }
    }
}
