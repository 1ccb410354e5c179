//! Names of the formats of tool calls, and how to tell them from a chat template.

use super::{formats::FORMATS, reasoning::prefix_of, span::OutputFormat};
use crate::ChatError;
use std::{fmt, str::FromStr};

/// How a model writes tool calls: one of the named formats, a format of your own, or not at all.
#[derive(Clone, Copy, Default)]
pub struct ToolFormat(Option<&'static dyn OutputFormat>);

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
        let mut names: Vec<_> = FORMATS.iter().map(|f| f.name()).collect();
        names.sort_unstable();
        [&["none"], &names[..]].concat()
    }

    /// The format of a model with this chat template and `model_type`.
    ///
    /// The template's own marks count. Where several formats have them, or none does and the
    /// template takes tools all the same, the architecture chooses.
    #[must_use]
    pub fn detect(template_source: &str, model_type: &str) -> Self {
        let rank = |f: &dyn OutputFormat| prefix_of(f.architectures(), model_type);
        let shown = FORMATS.iter().copied().filter(|f| f.detect(template_source));
        // Of formats that rank alike, `max_by_key` takes the last.
        let best = shown.rev().max_by_key(|f| rank(*f));
        let takes_tools = || template_source.contains("tools");
        let of_architecture = || {
            let known = FORMATS.iter().copied().filter(|f| rank(*f) > 0);
            known.rev().max_by_key(|f| rank(*f)).filter(|_| takes_tools())
        };
        Self(best.or_else(of_architecture))
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
