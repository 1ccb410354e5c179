//! From a model's directory to its encoder of images.

use crate::{Fields, VisionError, encoder::Encoder, families, settings, weights::Weights};
use candle_core::Device;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use std::path::Path;
use taper_base::{ImageEncoder, TokenId};
use taper_weights::Checkpoint;

/// Sections of config.json that models with a tower have.
const SECTIONS: &[&str] = &["vision_config", "mm_vision_tower", "img_processor"];
/// Parts of names of tensors that towers and projectors have.
const PARTS: &[&str] = &[
    "visual",
    "vision_tower",
    "vision_model",
    "vision_encoder",
    "vision_projection",
    "vision_embed_tokens",
    "multi_modal_projector",
    "connector",
    "embed_vision",
    "image_newline",
];

/// Whether the config.json of a directory tells of a tower that can be opened.
#[must_use]
pub fn has_tower(dir: &Path) -> bool {
    let Ok(config) = taper_weights::read_json(&dir.join("config.json")) else { return false };
    let config = Value::Object(config);
    let fields = Fields(&config);
    let known = fields.text_or("model_type", "").is_ok_and(|name| families::find(name).is_some());
    known && tells_of_tower(fields)
}

/// Opens the tower of a model on the CPU, in `f32`. `None` if the model has none: its config.json tells of none, or its
/// files hold none of a tower's tensors, as those of conversions for text.
///
/// `token` finds a token by its text, such as `"<|image_pad|>"`.
///
/// # Errors
/// A tower of an unknown kind, a field that is wrong or not supported, a tensor that is missing, misshapen or not used,
/// or a token that the vocabulary lacks.
pub fn open(
    dir: &Path,
    token: &dyn Fn(&str) -> Option<TokenId>,
) -> Result<Option<Box<dyn ImageEncoder>>, VisionError> {
    open_with(dir, token, &Map::new())
}

/// As [`open`], with fields that count instead of those of the processor's file, such as `size`.
///
/// # Errors
/// As [`open`], or the processor has no such field.
pub fn open_with(
    dir: &Path,
    token: &dyn Fn(&str) -> Option<TokenId>,
    kwargs: &Map<String, Value>,
) -> Result<Option<Box<dyn ImageEncoder>>, VisionError> {
    open_on(dir, token, kwargs, &Device::Cpu)
}

/// As [`open_with`], on a device of candle.
///
/// # Errors
/// As [`open_with`], or the device fails.
pub fn open_on(
    dir: &Path,
    token: &dyn Fn(&str) -> Option<TokenId>,
    kwargs: &Map<String, Value>,
    device: &Device,
) -> Result<Option<Box<dyn ImageEncoder>>, VisionError> {
    let config = Value::Object(taper_weights::read_json(&dir.join("config.json"))?);
    if !tells_of_tower(Fields(&config)) {
        return Ok(None);
    }
    let checkpoint = Checkpoint::open(dir)?;
    if !checkpoint.list().iter().any(|tensor| of_tower(&tensor.name)) {
        return Ok(None);
    }
    let mut fields = settings::read(dir)?;
    settings::replace(&mut fields, kwargs)?;
    open_checkpoint(&checkpoint, &fields, token, device)
}

/// As [`open_on`], of a checkpoint that is open and of the fields of its processor's file.
///
/// # Errors
/// As [`open_on`].
pub fn open_checkpoint(
    checkpoint: &Checkpoint,
    processor: &Value,
    token: &dyn Fn(&str) -> Option<TokenId>,
    device: &Device,
) -> Result<Option<Box<dyn ImageEncoder>>, VisionError> {
    // What the language model asks for is its own affair.
    let checkpoint = checkpoint.copy();
    let config = Fields(checkpoint.config());
    if !tells_of_tower(config) || !checkpoint.list().iter().any(|tensor| of_tower(&tensor.name)) {
        return Ok(None);
    }
    let model_type = config.text_or("model_type", "")?;
    let Some(build) = families::find(model_type) else {
        return Err(VisionError::ModelType { model_type: model_type.to_owned() });
    };
    let sources = families::Sources {
        config,
        vision: config.section("vision_config"),
        processor: Fields(processor),
        weights: Weights::new(&checkpoint, device),
        token,
    };
    let parts = build(&sources)?;
    checkpoint.expect_all_used(|name| {
        !of_tower(name) || parts.idle.iter().any(|idle| name.contains(idle))
    })?;
    let mut settings = Sha256::new();
    for text in [model_type, &processor.to_string(), &sources.vision.0.to_string()] {
        settings.update((text.len() as u64).to_le_bytes());
        settings.update(text);
    }
    let own = checkpoint.list().into_iter().filter(|tensor| of_tower(&tensor.name));
    let elements: usize = own.map(|tensor| tensor.shape.iter().product::<usize>()).sum();
    let weight_bytes = (elements * size_of::<f32>()) as u64;
    Ok(Some(Box::new(Encoder {
        processor: parts.processor,
        tower: parts.tower,
        placeholder: parts.placeholder,
        image_token: parts.image_token,
        hidden: parts.hidden,
        weight_bytes,
        settings,
    })))
}

fn tells_of_tower(config: Fields<'_>) -> bool {
    SECTIONS.iter().any(|section| config.get(section).is_some())
}

fn of_tower(name: &str) -> bool {
    name.split('.').any(|part| PARTS.contains(&part))
}
