//! Names of the output formats, and how to tell them from a chat template.

use crate::ChatError;
use std::{fmt, str::FromStr};

/// How a model marks its reasoning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ReasoningFormat {
    /// It does not: everything is content.
    #[default]
    None,
    /// `<think>..</think>`, as Qwen3 writes it.
    Think,
    /// The same, and the output begins inside it even if the prompt does not open it, as with
    /// DeepSeek-R1.
    ThinkOpen,
}

/// How a model writes tool calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ToolFormat {
    /// It does not: everything is content.
    #[default]
    None,
    /// `<tool_call>{"name": .., "arguments": {..}}</tool_call>`, as Hermes and Qwen write it.
    Hermes,
}

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
    /// Every name that [`FromStr`] takes; those of vLLM's `--tool-call-parser`.
    pub const NAMES: &'static [&'static str] = &["none", "hermes"];

    /// The format that a chat template speaks of.
    #[must_use]
    pub fn detect(template_source: &str) -> Self {
        // Qwen3-Coder's XML stands between the same tags.
        let hermes =
            template_source.contains("<tool_call>") && !template_source.contains("<function=");
        if hermes { Self::Hermes } else { Self::None }
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
                choices: Self::NAMES,
            }),
        }
    }
}

impl FromStr for ToolFormat {
    type Err = ChatError;

    fn from_str(name: &str) -> Result<Self, ChatError> {
        match name {
            "" | "none" => Ok(Self::None),
            "hermes" => Ok(Self::Hermes),
            _ => Err(ChatError::UnknownFormat {
                kind: "tool-call parser",
                name: name.to_owned(),
                choices: Self::NAMES,
            }),
        }
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
        f.write_str(match self {
            Self::None => "none",
            Self::Hermes => "hermes",
        })
    }
}

/// Whether a rendered prompt leaves `<think>` open, so that the output begins with reasoning.
///
/// Only the very end counts: a user may write `<think>` too.
#[must_use]
pub fn starts_in_reasoning(prompt: &str) -> bool {
    prompt.trim_end().ends_with("<think>")
}
