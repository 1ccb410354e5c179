//! Names of the output formats, and how to tell them from a chat template.

use super::formats::{FORMATS, OutputFormat};
use crate::ChatError;
use std::{fmt, str::FromStr};

/// How a model marks its reasoning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ReasoningFormat {
    /// The model does not mark reasoning: everything is content.
    #[default]
    None,
    /// `<think>..</think>`, as Qwen3 writes it.
    Think,
    /// `<think>..</think>`, where the output begins inside the block even if the prompt does not
    /// open it, as with DeepSeek-R1.
    ThinkOpen,
}

/// How a model writes tool calls: one of the named formats, a format of your own, or not at all.
#[derive(Clone, Copy, Default)]
pub struct ToolFormat(Option<&'static dyn OutputFormat>);

impl ReasoningFormat {
    /// Every name that [`FromStr`] takes; those of vLLM's `--reasoning-parser`.
    pub const NAMES: &'static [&'static str] = &["none", "qwen3", "deepseek_r1"];

    /// The format that a chat template speaks of.
    #[must_use]
    pub fn detect(template_source: &str) -> Self {
        if template_source.contains("</think>") { Self::Think } else { Self::None }
    }
}

impl ToolFormat {
    /// No tool calls: everything is content.
    pub const NONE: Self = Self(None);

    /// A format that need not be among the named ones.
    #[must_use]
    pub const fn new(format: &'static dyn OutputFormat) -> Self {
        Self(Some(format))
    }

    /// Every name that [`FromStr`] takes; those of vLLM's `--tool-call-parser`.
    #[must_use]
    pub fn names() -> Vec<&'static str> {
        ["none"].into_iter().chain(FORMATS.iter().map(|f| f.name())).collect()
    }

    /// The format that a chat template speaks of.
    #[must_use]
    pub fn detect(template_source: &str) -> Self {
        Self(FORMATS.iter().copied().find(|f| f.detect(template_source)))
    }

    /// The format, if there is one.
    #[must_use]
    pub fn get(self) -> Option<&'static dyn OutputFormat> {
        self.0
    }

    /// Whether everything is content.
    #[must_use]
    pub fn is_none(self) -> bool {
        self.0.is_none()
    }
}

impl FromStr for ReasoningFormat {
    type Err = ChatError;

    fn from_str(name: &str) -> Result<Self, ChatError> {
        match name {
            "" | "none" => Ok(Self::None),
            "qwen3" => Ok(Self::Think),
            "deepseek_r1" => Ok(Self::ThinkOpen),
            _ => Err(ChatError::UnknownFormat {
                kind: "reasoning parser",
                name: name.to_owned(),
                choices: Self::NAMES.to_vec(),
            }),
        }
    }
}

impl FromStr for ToolFormat {
    type Err = ChatError;

    fn from_str(name: &str) -> Result<Self, ChatError> {
        if matches!(name, "" | "none") {
            return Ok(Self::NONE);
        }
        let format = FORMATS.iter().copied().find(|f| f.name() == name);
        format.map(Self::new).ok_or_else(|| ChatError::UnknownFormat {
            kind: "tool-call parser",
            name: name.to_owned(),
            choices: Self::names(),
        })
    }
}

impl fmt::Display for ReasoningFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Think => "qwen3",
            Self::ThinkOpen => "deepseek_r1",
        })
    }
}

impl fmt::Display for ToolFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.map_or("none", OutputFormat::name))
    }
}

impl fmt::Debug for ToolFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ToolFormat({self})")
    }
}

/// Formats are equal if their names are.
impl PartialEq for ToolFormat {
    fn eq(&self, other: &Self) -> bool {
        self.0.map(OutputFormat::name) == other.0.map(OutputFormat::name)
    }
}

impl Eq for ToolFormat {}

/// Whether a rendered prompt leaves `<think>` open, so that the output begins with reasoning.
///
/// Only the very end counts: a user may write `<think>` too.
#[must_use]
pub fn starts_in_reasoning(prompt: &str) -> bool {
    prompt.trim_end().ends_with("<think>")
}
