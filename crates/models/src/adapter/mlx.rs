//! Adapters as mlx-lm writes them: `adapters.safetensors` with `lora_a` and `lora_b` of each module, inputs first.

use super::{AdapterError, Change, Layout, config::Config};
use serde_json::Value;
use std::{collections::BTreeSet, path::Path};
use taper_tensor::{DenseWeight, Weight};
use taper_weights::TensorFile;

pub(super) const FILE: &str = "adapters.safetensors";

/// Reads an adapter's files, for a model of so many layers.
pub(super) fn read(dir: &Path, layers: usize) -> Result<Layout, AdapterError> {
    let config = Config::read(dir)?;
    match config.text("fine_tune_type") {
        None | Some("lora") => {}
        Some(_) => return Err(config.refuse("fine_tune_type", config.value("fine_tune_type"))),
    }
    let own = config.part("lora_parameters")?;
    let (rank, scale) = (own.count("rank")?, own.number("scale")? as f32);
    let keys = match own.value("keys") {
        Value::Null => None,
        Value::Array(keys) => Some(keys),
        _ => return Err(own.wrong("keys", "must be a list of names")),
    };
    // The last so many; of none, or fewer, all.
    let last = match config.value("num_layers") {
        Value::Null => 0,
        last => last.as_i64().ok_or_else(|| config.wrong("num_layers", "must be a number"))?,
    };
    let last = usize::try_from(last).unwrap_or(0);
    let first = if last == 0 { 0 } else { layers.saturating_sub(last) };
    let file = TensorFile::open(&dir.join(FILE))?;
    let mut modules = BTreeSet::new();
    for name in file.names() {
        let module = [".lora_a", ".lora_b"].iter().find_map(|end| name.strip_suffix(end));
        let unknown = || AdapterError::UnknownTensor { name: name.to_owned() };
        modules.insert(module.ok_or_else(unknown)?);
    }
    let change = |module: &str| {
        let targeted = keys.is_none_or(|keys| {
            // Names are a layer's own or the whole model's; only the former are bound to the last layers.
            keys.iter().filter_map(Value::as_str).any(|key| match within_layer(module) {
                Some((layer, rest)) => (rest == key && layer >= first) || module == key,
                None => module == key,
            })
        });
        let late = within_layer(module).is_none_or(|(layer, _)| layer >= first || keys.is_some());
        if !targeted || !late {
            return Err(AdapterError::NotTargeted { module: module.to_owned() });
        }
        let matrix = |side: &str| {
            let name = format!("{module}.lora_{side}");
            match file.shape(&name) {
                Some(_) => transposed(file.matrix(&name)?),
                None => Err(AdapterError::HalfAPair { name }),
            }
        };
        Change::new(module.to_owned(), rank, scale, [matrix("a")?, matrix("b")?])
    };
    let changes = modules.into_iter().map(change).collect::<Result<_, _>>()?;
    Ok(Layout { base: config.text("model").map(str::to_owned), changes })
}

/// The number of a module's layer, and its name there.
fn within_layer(module: &str) -> Option<(usize, &str)> {
    let (_, after) = module.split_once("layers.").or_else(|| module.split_once("h."))?;
    let (number, rest) = after.split_once('.')?;
    Some((number.parse().ok()?, rest))
}

fn transposed(matrix: DenseWeight) -> Result<DenseWeight, AdapterError> {
    match Weight::Dense(matrix).transposed()? {
        Weight::Dense(matrix) => Ok(matrix),
        // What is dense stays so.
        other => Err(taper_tensor::TensorError::Device {
            op: "transposed",
            device: format!("{:?}", other.format()),
        }
        .into()),
    }
}
