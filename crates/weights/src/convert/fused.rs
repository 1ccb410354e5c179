//! Experts that are all in one tensor, as transformers writes Qwen 3.5, taken apart.

use super::ConvertError;
use crate::{Checkpoint, shard::RawTensor};
use serde_json::Value;
use std::collections::BTreeMap;

/// A tensor's end, and the maps that it has of every expert, one after the other.
const FUSED: [(&str, &[&str]); 2] =
    [(".experts.gate_up_proj", &["gate_proj", "up_proj"]), (".experts.down_proj", &["down_proj"])];

/// Every expert's maps, by the names that they have in checkpoints with a tensor each.
#[derive(Debug, Default)]
pub(super) struct Fused(pub(super) BTreeMap<String, RawTensor>);

impl Fused {
    /// Takes experts apart in the families that have rows of gates before rows of others.
    pub(super) fn of(weights: &Checkpoint) -> Result<Self, ConvertError> {
        let config = weights.config();
        let kinds = [config.get("model_type"), config.pointer("/text_config/model_type")];
        let mut kinds = kinds.into_iter().flatten().filter_map(Value::as_str);
        let mut all = BTreeMap::new();
        if kinds.any(|kind| kind.starts_with("qwen3_5_moe")) {
            for (name, raw) in weights.tensors() {
                take_apart(name, raw, &mut all)?;
            }
        }
        Ok(Self(all))
    }

    /// Whether a tensor is one that was taken apart.
    pub(super) fn owns(&self, name: &str) -> bool {
        !self.0.is_empty() && FUSED.iter().any(|(end, _)| name.ends_with(end))
    }
}

fn take_apart(
    name: &str,
    raw: &RawTensor,
    all: &mut BTreeMap<String, RawTensor>,
) -> Result<(), ConvertError> {
    let found = FUSED.iter().find_map(|(end, maps)| Some((name.strip_suffix(end)?, *maps)));
    let Some((before, maps)) = found else { return Ok(()) };
    let odd = || ConvertError::Layout { what: "experts of an unknown shape" };
    let [experts, rows, cols] = raw.shape[..] else { return Err(odd()) };
    if !rows.is_multiple_of(maps.len()) {
        return Err(odd());
    }
    let matrices = (0..experts).flat_map(|expert| maps.iter().map(move |map| (expert, map)));
    let each = raw.bytes.len() / (experts * maps.len()).max(1);
    for (i, (expert, map)) in matrices.enumerate() {
        let slice = raw.bytes.slice(i * each..(i + 1) * each);
        let bytes = slice.ok_or_else(odd)?;
        let shape = vec![rows / maps.len(), cols];
        let name = format!("{before}.experts.{expert}.{map}.weight");
        all.insert(name, RawTensor { dtype: raw.dtype, shape, bytes });
    }
    Ok(())
}
