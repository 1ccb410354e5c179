//! Reasoning and tool calls in what a model writes, found while it is written.

mod format;
mod ids;

pub use format::{ReasoningFormat, ToolFormat, starts_in_reasoning};
pub use ids::ToolCallIds;

use crate::ToolCall;

/// What an [`OutputParser`] looks for.
#[derive(Debug, Clone, Default)]
pub struct ParserOptions {
    /// How reasoning is marked.
    pub reasoning: ReasoningFormat,
    /// How tool calls are written.
    pub tools: ToolFormat,
    /// The prompt left reasoning open: see [`starts_in_reasoning`].
    pub starts_in_reasoning: bool,
    /// The tools of the request; a call of any other stays content. `None` takes every name.
    pub known_tools: Option<Vec<String>>,
    /// Seed of the ids of tool calls; `None` makes them random.
    pub id_seed: Option<u64>,
}

/// A piece of a parsed message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Delta {
    /// More reasoning.
    Reasoning(String),
    /// More content.
    Content(String),
    /// A tool call begins; its arguments follow.
    ToolCallStart {
        /// The call's place among the message's calls, from 0.
        index: usize,
        /// The call's id.
        id: String,
        /// The tool.
        name: String,
    },
    /// More of a call's arguments.
    ToolCallArguments {
        /// The call's place.
        index: usize,
        /// Concatenated, these are the JSON text of the arguments.
        fragment: String,
    },
}

/// A whole parsed message.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ParsedMessage {
    /// Reasoning, if there is any.
    pub reasoning: Option<String>,
    /// Content, if there is any.
    pub content: Option<String>,
    /// Tool calls, in order.
    pub tool_calls: Vec<ToolCall>,
}

impl ParsedMessage {
    /// Adds a piece.
    pub fn apply(&mut self, delta: Delta) {
        match delta {
            Delta::Reasoning(text) => self.reasoning.get_or_insert_default().push_str(&text),
            Delta::Content(text) => self.content.get_or_insert_default().push_str(&text),
            Delta::ToolCallStart { id, name, .. } => {
                self.tool_calls.push(ToolCall { id, name, arguments: String::new() });
            }
            Delta::ToolCallArguments { index, fragment } => {
                if let Some(call) = self.tool_calls.get_mut(index) {
                    call.arguments.push_str(&fragment);
                }
            }
        }
    }
}

/// Splits what a model writes into reasoning, content and tool calls.
#[derive(Debug)]
pub struct OutputParser {
    _options: ParserOptions,
}

impl OutputParser {
    /// A parser for one output.
    #[must_use]
    pub fn new(options: ParserOptions) -> Self {
        Self { _options: options }
    }

    /// Takes more text.
    pub fn push(&mut self, text: &str) -> Vec<Delta> {
        vec![Delta::Content(text.to_owned())]
    }

    /// The end of the text.
    pub fn finish(&mut self) -> Vec<Delta> {
        Vec::new()
    }

    /// Parses a whole output.
    #[must_use]
    pub fn parse(options: ParserOptions, text: &str) -> ParsedMessage {
        let mut parser = Self::new(options);
        let mut message = ParsedMessage::default();
        for delta in parser.push(text).into_iter().chain(parser.finish()) {
            message.apply(delta);
        }
        message
    }
}
