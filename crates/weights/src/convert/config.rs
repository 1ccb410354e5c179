//! What the files beside the weights say: config.json, and the index.

use super::{ConvertError, ConvertOptions, TargetFormat, plan::Plan, staging::write_error};
use crate::checkpoint;
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::{collections::BTreeMap, fs, path::Path};
use taper_tensor::{AffineFormat, DType};

/// The fields that mlx-lm adds, drops and sorts.
pub(super) fn complete(
    config: &mut Map<String, Value>,
    src: &Path,
    plan: &Plan<'_>,
    options: &ConvertOptions,
) {
    let section = |f: AffineFormat| {
        Map::from_iter([
            ("group_size".to_owned(), json!(f.group)),
            ("bits".to_owned(), json!(f.bits)),
            ("mode".to_owned(), json!("affine")),
        ])
    };
    // What the source was quantized with.
    config.shift_remove("quantization");
    config.shift_remove("quantization_config");
    if let Some(Value::Object(text)) = config.get_mut("text_config") {
        text.shift_remove("quantization_config");
    }
    let default = match options.target {
        TargetFormat::Mxfp4 => Some(Map::from_iter([
            ("group_size".to_owned(), json!(32)),
            ("bits".to_owned(), json!(4)),
            ("mode".to_owned(), json!("mxfp4")),
        ])),
        _ => plan.format.map(section),
    };
    if let Some(mut quantization) = default {
        let own = plan.own_formats.iter().map(|(layer, f)| (layer.clone(), section(*f).into()));
        quantization.extend(own);
        // The second name is the one that the Hub's model tree reads.
        config.insert("quantization_config".to_owned(), quantization.clone().into());
        config.insert("quantization".to_owned(), quantization.into());
    }
    if let TargetFormat::Dense(dtype) = options.target {
        let name = match dtype {
            DType::F32 => "float32",
            DType::F16 => "float16",
            DType::BF16 => "bfloat16",
        };
        // The older name of the field is read everywhere; the newer one may be there already.
        if config.contains_key("dtype") {
            config.insert("dtype".to_owned(), name.into());
        }
        config.insert("torch_dtype".to_owned(), name.into());
    }
    // Where the field is missing, readers differ in whether a head in the files is used.
    if plan.entries.iter().any(|e| e.name == "lm_head.weight") {
        config.entry("tie_word_embeddings").or_insert(json!(false));
    }
    let generation = checkpoint::read_object(&src.join("generation_config.json")).ok();
    if let Some(eos) = generation.and_then(|mut g| g.remove("eos_token_id")).filter(is_given) {
        config.insert("eos_token_id".to_owned(), eos);
    }
    config.shift_remove("_name_or_path");
    config.sort_keys();
}

/// Neither null nor empty nor 0, as Python's `if` has it.
fn is_given(value: &Value) -> bool {
    match value {
        Value::Number(n) => n.as_u64() != Some(0),
        Value::Array(a) => !a.is_empty(),
        _ => false,
    }
}

pub(super) fn index(plan: &Plan<'_>, files: &[String]) -> Map<String, Value> {
    let mut places = BTreeMap::new();
    for (file, entries) in files.iter().zip(&plan.shards) {
        let outputs = plan.entries[entries.clone()].iter().flat_map(|e| &e.outputs);
        places.extend(outputs.map(|o| (o.name.as_str(), file)));
    }
    let totals = json!({"total_size": plan.output_bytes(), "total_parameters": plan.parameters()});
    Map::from_iter([("metadata".to_owned(), totals), ("weight_map".to_owned(), json!(places))])
}

pub(super) fn write_json(path: &Path, value: &Map<String, Value>) -> Result<(), ConvertError> {
    let mut text = Vec::new();
    let indent = serde_json::ser::PrettyFormatter::with_indent(b"    ");
    value
        .serialize(&mut serde_json::Serializer::with_formatter(&mut text, indent))
        .map_err(|e| write_error(path)(e.into()))?;
    text.push(b'\n');
    fs::write(path, text).map_err(write_error(path))
}
