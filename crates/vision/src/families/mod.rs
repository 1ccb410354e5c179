//! Which tower and processor a `model_type` has.

mod gemma3;
mod gemma4;
mod glm4v;
mod idefics3;
mod internvl;
mod lfm2_vl;
mod llama4;
mod llava;
mod pixtral;
mod projector;
mod qwen_vl;
mod square;
mod vit;

use crate::{
    Fields, VisionError,
    encoder::{Processor, Tower},
    weights::Weights,
};
use serde_json::Value;
use taper_base::TokenId;

/// What a family's parts are made of.
pub(crate) struct Sources<'a> {
    pub(crate) config: Fields<'a>,
    /// `vision_config`.
    pub(crate) vision: Fields<'a>,
    pub(crate) processor: Fields<'a>,
    pub(crate) weights: Weights<'a>,
    pub(crate) token: &'a dyn Fn(&str) -> Option<TokenId>,
}

/// A family's parts.
pub(crate) struct Parts {
    pub(crate) processor: Box<dyn Processor>,
    pub(crate) tower: Box<dyn Tower>,
    pub(crate) placeholder: TokenId,
    pub(crate) image_token: TokenId,
    pub(crate) hidden: usize,
    /// Parts of names of tensors that files have and images do not need.
    pub(crate) idle: &'static [&'static str],
}

type Build = fn(&Sources<'_>) -> Result<Parts, VisionError>;

static FAMILIES: &[(&str, Build)] = &[
    ("gemma3", gemma3::gemma3),
    ("gemma4", gemma4::build),
    ("glm4v", glm4v::build),
    ("glm4v_moe", glm4v::build),
    ("idefics3", idefics3::build),
    ("internvl", internvl::build),
    ("lfm2-vl", lfm2_vl::build),
    ("lfm2_vl", lfm2_vl::build),
    ("llama4", llama4::build),
    ("llava", llava::build),
    ("mistral3", pixtral::build),
    ("paligemma", gemma3::paligemma),
    ("pixtral", pixtral::build),
    ("qwen2_5_vl", qwen_vl::qwen2_5_vl),
    ("qwen2_vl", qwen_vl::qwen2_vl),
    ("qwen3_5", qwen_vl::qwen3_vl),
    ("qwen3_5_moe", qwen_vl::qwen3_vl),
    ("qwen3_vl", qwen_vl::qwen3_vl),
    ("qwen3_vl_moe", qwen_vl::qwen3_vl),
    ("smolvlm", idefics3::build),
];

pub(crate) fn find(model_type: &str) -> Option<Build> {
    FAMILIES.iter().find(|(name, _)| *name == model_type).map(|(_, build)| *build)
}

/// `model_type`s whose images are encoded, sorted.
#[must_use]
pub fn model_types() -> Vec<&'static str> {
    FAMILIES.iter().map(|(name, _)| *name).collect()
}

impl Sources<'_> {
    /// A token by its text.
    pub(crate) fn token(&self, text: &str) -> Result<TokenId, VisionError> {
        (self.token)(text).ok_or_else(|| VisionError::Token(text.to_owned()))
    }

    /// A token by the first of some fields of config.json that is there, else by its text.
    pub(crate) fn token_of(&self, fields: &[&str], text: &str) -> Result<TokenId, VisionError> {
        let id = fields.iter().find_map(|name| self.config.get(name).and_then(Value::as_u64));
        match id.and_then(|id| TokenId::try_from(id).ok()) {
            Some(id) => Ok(id),
            None => self.token(text),
        }
    }

    /// The tensors below the first of some names that holds `within`.
    pub(crate) fn below(&self, names: &[&str], within: &str) -> Result<Weights<'_>, VisionError> {
        let missing = || taper_weights::WeightsError::MissingTensor {
            name: format!("{}.{within}", names.first().unwrap_or(&"")),
        };
        Ok(self.weights.first(names, within).ok_or_else(missing)?)
    }
}
