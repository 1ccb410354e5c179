//! The formats of tool calls. To add one, implement [`OutputFormat`] and list it in [`FORMATS`].

mod arguments;
mod hermes;
mod json_call;
mod llama3_json;
mod mistral;
mod qwen3_coder;
mod schema;

use super::{Delta, ToolCallIds};
use crate::Tool;
use serde_json::Value;
use std::{fmt, sync::Arc};

/// Every format that has a name, in the order of detection.
pub(super) static FORMATS: &[&dyn OutputFormat] =
    &[&hermes::Hermes, &llama3_json::Llama3Json, &mistral::Mistral, &qwen3_coder::Qwen3Coder];

/// How a family of models writes tool calls.
///
/// The driver reads the content and looks for the openers. Where one stands it hands what follows
/// to a [`SpanParser`], until that says that the span is over.
pub trait OutputFormat: Sync {
    /// The format's name, as vLLM's `--tool-call-parser` has it.
    fn name(&self) -> &'static str;

    /// Whether the source of a chat template shows that its model writes this format.
    fn detect(&self, template: &str) -> bool;

    /// Texts that begin a span. None of them begins another, or contains one.
    fn openers(&self) -> &'static [&'static str];

    /// Further texts that stand in spans and may be special tokens of a tokenizer. Special tokens
    /// that are named neither here nor among the openers never reach a parser.
    fn marks(&self) -> &'static [&'static str];

    /// A parser for the text that follows `opener`.
    fn open(&self, opener: &str, tools: &KnownTools) -> Box<dyn SpanParser>;
}

/// Reads one span: what follows an opener, up to the end of the calls in it.
///
/// A call that was emitted stands. Text that belongs to no call is returned and becomes content.
pub trait SpanParser: fmt::Debug + Send {
    /// Reads one character and tells the calls that it completes or continues.
    fn push(&mut self, c: char, calls: &mut CallWriter<'_>) -> Span;

    /// The output ends inside the span. Returns the text that belongs to no call, as
    /// [`Span::Over`] does.
    fn finish(&mut self, calls: &mut CallWriter<'_>) -> String;
}

/// Whether a span goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Span {
    /// The next character belongs to it, too.
    Open,
    /// The span is over. The driver reads `rest` again as content. If the span emitted no call,
    /// `rest` is all that followed the opener, and the opener itself becomes content.
    Over {
        /// The text at the span's end that belongs to no call.
        rest: String,
    },
}

impl Span {
    /// The end of a span, all of which was read.
    #[must_use]
    pub fn closed() -> Self {
        Self::Over { rest: String::new() }
    }
}

/// Tells calls while they are read.
#[derive(Debug)]
pub struct CallWriter<'a> {
    pub(super) out: &'a mut Vec<Delta>,
    pub(super) ids: &'a mut ToolCallIds,
    /// Calls of the message so far.
    pub(super) calls: &'a mut usize,
}

impl CallWriter<'_> {
    /// A call begins. It gets its id here: what models write as ids need not be unique.
    pub fn start(&mut self, name: &str) {
        let (index, id) = (*self.calls, self.ids.next_id());
        *self.calls += 1;
        self.out.push(Delta::ToolCallStart { index, id, name: name.to_owned() });
    }

    /// More JSON text of the arguments of the call that began last.
    pub fn arguments(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        if let Some(Delta::ToolCallArguments { fragment, .. }) = self.out.last_mut() {
            fragment.push_str(text);
            return;
        }
        let (index, fragment) = (self.calls.saturating_sub(1), text.to_owned());
        self.out.push(Delta::ToolCallArguments { index, fragment });
    }
}

/// The tools that a request offers. Cloning shares them.
#[derive(Debug, Clone, Default)]
pub struct KnownTools(Option<Arc<[Tool]>>);

impl KnownTools {
    /// Takes every name, for outputs whose tools nobody knows.
    #[must_use]
    pub fn any() -> Self {
        Self(None)
    }

    /// Whether a call of this name is one. Names are never empty.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        !name.is_empty() && self.0.as_ref().is_none_or(|t| t.iter().any(|t| t.name == name))
    }

    /// Whether a name may begin like this.
    #[must_use]
    pub fn has_prefix(&self, start: &str) -> bool {
        self.0.as_ref().is_none_or(|t| t.iter().any(|t| t.name.starts_with(start)))
    }

    /// The JSON schema of one argument of a tool.
    #[must_use]
    pub fn schema(&self, name: &str, argument: &str) -> Option<&Value> {
        let tool = self.0.as_ref()?.iter().find(|t| t.name == name)?;
        tool.parameters.as_ref()?.get("properties")?.get(argument)
    }
}

impl From<Arc<[Tool]>> for KnownTools {
    /// Takes the names of these tools and no other.
    fn from(tools: Arc<[Tool]>) -> Self {
        Self(Some(tools))
    }
}
