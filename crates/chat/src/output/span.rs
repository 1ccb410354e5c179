//! The seam between the driver and the formats of tool calls.

use super::{Delta, ToolCallIds};
use crate::Tool;
use serde_json::{Map, Value};
use std::{fmt, sync::Arc};

/// How a family of models writes tool calls.
///
/// The driver reads the content and looks for the openers. Where one stands it hands what follows
/// to a [`SpanParser`], until that says that the span is over.
pub trait OutputFormat: Sync {
    /// The format's name, as vLLM's `--tool-call-parser` has it.
    fn name(&self) -> &'static str;

    /// Whether the source of a chat template shows that its model writes this format.
    fn detect(&self, template: &str) -> bool;

    /// Beginnings of the `model_type`s whose models write this format.
    fn architectures(&self) -> &'static [&'static str] {
        &[]
    }

    /// Texts that begin a span. Where one begins another, the longer one counts.
    fn openers(&self) -> &'static [&'static str];

    /// Further texts that stand in spans and may be special tokens of a tokenizer. Special tokens
    /// that are named neither here nor among the openers never reach a parser.
    fn marks(&self) -> &'static [&'static str];

    /// The openers that no ordinary text has. Where another format is expected, a call that begins
    /// with one of them is recovered.
    fn leaks(&self) -> &'static [&'static str] {
        &[]
    }

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
    /// The span is over. The driver reads `rest` again as content. If the span emitted nothing,
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

/// Tells what a span holds while it is read.
#[derive(Debug)]
pub struct CallWriter<'a> {
    pub(super) out: &'a mut Vec<Delta>,
    pub(super) ids: &'a mut ToolCallIds,
    /// Calls of the message so far.
    pub(super) calls: &'a mut usize,
    /// The span emitted something.
    pub(super) emitted: bool,
}

impl CallWriter<'_> {
    /// A call begins. It gets its id here: what models write as ids need not be unique.
    pub fn start(&mut self, name: &str) {
        let (index, id) = (*self.calls, self.ids.next_id());
        *self.calls += 1;
        self.emitted = true;
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

    /// More content, for formats that mark it.
    pub fn content(&mut self, text: &str) {
        self.emitted = true;
        push_content(self.out, text);
    }

    /// More reasoning, for formats that mark it as they mark calls.
    pub fn reasoning(&mut self, text: &str) {
        self.emitted = true;
        push_reasoning(self.out, text);
    }

    /// The span holds nothing to be told, and its marks are not content either.
    pub fn nothing(&mut self) {
        self.emitted = true;
    }
}

pub(super) fn push_content(out: &mut Vec<Delta>, text: &str) {
    match out.last_mut() {
        _ if text.is_empty() => {}
        Some(Delta::Content(content)) => content.push_str(text),
        _ => out.push(Delta::Content(text.to_owned())),
    }
}

pub(super) fn push_reasoning(out: &mut Vec<Delta>, text: &str) {
    match out.last_mut() {
        _ if text.is_empty() => {}
        Some(Delta::Reasoning(reasoning)) => reasoning.push_str(text),
        _ => out.push(Delta::Reasoning(text.to_owned())),
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
        self.parameters(name)?.get("properties")?.get(argument)
    }

    /// Whether a known tool takes these arguments: none of those that it requires is missing.
    #[must_use]
    pub fn takes(&self, name: &str, arguments: &Map<String, Value>) -> bool {
        let Some(tools) = &self.0 else { return false };
        let required = self.parameters(name).and_then(|p| p.get("required")?.as_array());
        let mut required = required.into_iter().flatten().filter_map(Value::as_str);
        tools.iter().any(|t| t.name == name) && required.all(|key| arguments.contains_key(key))
    }

    /// Whether there are tools to call by name.
    pub(super) fn is_some(&self) -> bool {
        self.0.as_ref().is_some_and(|tools| !tools.is_empty())
    }

    pub(super) fn parameters(&self, name: &str) -> Option<&Value> {
        self.0.as_ref()?.iter().find(|t| t.name == name)?.parameters.as_ref()
    }
}

impl From<Arc<[Tool]>> for KnownTools {
    /// Takes the names of these tools and no other.
    fn from(tools: Arc<[Tool]>) -> Self {
        Self(Some(tools))
    }
}
