//! Flags for how a model writes tool calls and reasoning.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use std::iter;
use taper_chat::{ReasoningFormat, ToolFormat};

/// What `--tool-call-parser` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ToolParser {
    /// The format that the chat template and the architecture show.
    Auto,
    Named(ToolFormat),
}

impl ToolParser {
    /// Takes `auto` and the names of all formats.
    pub(crate) fn names() -> impl TypedValueParser<Value = Self> {
        let names = iter::once("auto").chain(ToolFormat::names());
        PossibleValuesParser::new(names).try_map(|name| match name.as_str() {
            "auto" => Ok(Self::Auto),
            name => name.parse().map(Self::Named),
        })
    }

    /// The format, for a model with this chat template.
    pub(crate) fn format(self, template: &str, model_type: &str) -> ToolFormat {
        match self {
            Self::Auto => ToolFormat::detect(template, model_type),
            Self::Named(format) => format,
        }
    }
}

/// Takes the names of all formats.
pub(crate) fn reasoning_parsers() -> impl TypedValueParser<Value = ReasoningFormat> {
    PossibleValuesParser::new(ReasoningFormat::names()).try_map(|name| name.parse())
}
