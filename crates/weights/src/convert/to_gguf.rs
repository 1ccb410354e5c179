//! A conversion whose destination is a GGUF file.

use super::{
    ConvertError, GgufType,
    plan::{Form, Plan},
    write::Shards,
};
use crate::{
    Gguf, GgufError, WeightsError, checkpoint,
    gguf::write::{self, Extra, Listed, Value as Meta},
};
use serde_json::{Map, Value};
use std::{
    fs,
    path::{Path, PathBuf},
};
use taper_tensor::DType;

/// What the file is called until it is done.
pub(super) const NAME: &str = "model.gguf";

/// What the source has beside its weights.
#[derive(Debug)]
pub(super) struct Files {
    path: PathBuf,
    tokenizer: Value,
    config: Value,
    /// Tokens that end an answer, as generation_config.json has them.
    stops: Option<Value>,
}

impl Files {
    pub(super) fn of_gguf(file: &Gguf) -> Result<Self, ConvertError> {
        let path = file.paths().first().cloned().unwrap_or_default();
        let (tokenizer, config) = file.tokenizer_files()?;
        let parse = |text: Vec<u8>| {
            let json = |source| WeightsError::Json { path: path.clone(), source };
            serde_json::from_slice::<Value>(&text).map_err(json)
        };
        let (tokenizer, config) = (parse(tokenizer)?, parse(config)?);
        Ok(Self { path, tokenizer, config, stops: None })
    }

    pub(super) fn of_directory(dir: &Path) -> Result<Self, ConvertError> {
        let tokenizer = checkpoint::read_object(&dir.join("tokenizer.json"))?;
        let optional = |name: &str| match dir.join(name).is_file() {
            true => checkpoint::read_object(&dir.join(name)),
            false => Ok(Map::new()),
        };
        let mut config = optional("tokenizer_config.json")?;
        let template = dir.join("chat_template.jinja");
        if template.is_file() {
            let io = |source| WeightsError::Io { path: template.clone(), source };
            let text = fs::read_to_string(&template).map_err(io)?;
            config.insert("chat_template".to_owned(), text.into());
        }
        let stops = optional("generation_config.json")?.remove("eos_token_id");
        let (tokenizer, config) = (tokenizer.into(), config.into());
        Ok(Self { path: dir.to_owned(), tokenizer, config, stops })
    }
}

/// The file's header, and tensors that the source does not have.
#[derive(Debug)]
pub(super) struct Container {
    pub(super) header: Vec<u8>,
    extras: Vec<(u64, Extra)>,
}

impl Container {
    /// Writes what the source does not have.
    pub(super) fn write(&self, shards: &mut Shards) -> Result<(), ConvertError> {
        for (offset, extra) in &self.extras {
            let bytes: Vec<u8> = extra.values.iter().flat_map(|x| x.to_le_bytes()).collect();
            shards.put(0, *offset, &bytes)?;
        }
        Ok(())
    }
}

/// Gives all tensors llama.cpp's names, and makes the header.
pub(super) fn plan(
    plan: &mut Plan<'_>,
    config: &Value,
    files: &Files,
    kind: GgufType,
) -> Result<Container, ConvertError> {
    let refused = |source: GgufError| WeightsError::Gguf { path: files.path.clone(), source };
    let (architecture, head, mut meta, extras) = write::metadata(config).map_err(refused)?;
    for entry in &mut plan.entries {
        let nameless = || {
            let name = &entry.name;
            let what = format!("llama.cpp has no tensor for {name:?} in {}", architecture.name);
            refused(GgufError::Unsupported { what })
        };
        let (name, changes) = write::named(architecture, &entry.name, head).ok_or_else(nameless)?;
        entry.changes = changes;
        entry.outputs.iter_mut().for_each(|output| output.name.clone_from(&name));
    }
    general(&mut meta, config, kind);
    let vocab = config.get("vocab_size").and_then(Value::as_u64).unwrap_or(0);
    let vocab = usize::try_from(vocab).unwrap_or(0);
    let ends = files.stops.as_ref().or(config.get("eos_token_id"));
    let tokenizer = (&files.tokenizer, &files.config);
    write::tokenizer(&mut meta, tokenizer, vocab, &stops(ends)).map_err(refused)?;
    let outputs = plan.entries.iter().flat_map(|e| e.outputs.iter().map(|o| (o, e.form)));
    let mut listed: Vec<_> = outputs
        .map(|(o, form)| {
            let kind = match form {
                Form::Blocks(kind) => kind.number(),
                Form::Cast(DType::F16) => 1,
                _ => 0,
            };
            Listed { name: &o.name, shape: &o.shape, kind, offset: o.offset }
        })
        .collect();
    let ends = plan.entries.iter().flat_map(|e| &e.outputs).map(|o| o.offset + o.bytes);
    let mut end = ends.max().unwrap_or(0);
    let mut placed = Vec::new();
    for extra in extras {
        let offset = end.next_multiple_of(write::ALIGNMENT);
        end = offset + 4 * extra.values.len() as u64;
        placed.push((offset, [extra.values.len()], extra));
    }
    let more = placed.iter();
    listed.extend(more.map(|(offset, shape, extra)| Listed {
        name: extra.name,
        shape,
        kind: 0,
        offset: *offset,
    }));
    let header = write::header(&meta, &listed);
    let extras = placed.into_iter().map(|(offset, _, extra)| (offset, extra)).collect();
    Ok(Container { header, extras })
}

/// What is said of any model.
fn general(meta: &mut write::Meta, config: &Value, kind: GgufType) {
    // llama.cpp's numbers of what most tensors are.
    let number = match kind {
        GgufType::F16 => 1,
        GgufType::Q4_0 => 2,
        GgufType::Q8_0 => 7,
        GgufType::Q4_K => 14,
    };
    let name = config.get("_name_or_path").and_then(Value::as_str).filter(|n| !n.is_empty());
    if let Some(name) = name.and_then(|name| Path::new(name).file_name()?.to_str()) {
        meta.push(("general.name".to_owned(), Meta::Text(name.to_owned())));
    }
    meta.push(("general.file_type".to_owned(), Meta::U32(number)));
    meta.push(("general.quantization_version".to_owned(), Meta::U32(2)));
}

fn stops(value: Option<&Value>) -> Vec<u32> {
    let one = |v: &Value| v.as_u64().and_then(|id| u32::try_from(id).ok());
    match value {
        Some(Value::Array(all)) => all.iter().filter_map(one).collect(),
        Some(value) => one(value).into_iter().collect(),
        None => Vec::new(),
    }
}
