//! Reasoning and tool calls in what a model writes, found while it is written.

mod driver;
mod format;
mod formats;
mod ids;
mod input;
mod reasoning;
mod recovery;
mod scan;
mod span;
mod syntax;
mod tags;

pub use driver::{OutputParser, ParserOptions};
pub use format::ToolFormat;
pub use ids::ToolCallIds;
pub use reasoning::ReasoningFormat;
pub use span::{CallWriter, KnownTools, OutputFormat, Span, SpanParser};
pub use syntax::{ArgumentSyntax, CallSyntax, Literals, Opener, Tags};

use crate::ToolCall;

/// A part of a parsed message, streamed as a delta.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Delta {
    /// More reasoning.
    Reasoning(String),
    /// More content.
    Content(String),
    /// A tool call begins; its arguments follow.
    ToolCallStart {
        /// Index of the call among the message's calls, from 0.
        index: usize,
        /// The call's id.
        id: String,
        /// The tool.
        name: String,
    },
    /// More of a call's arguments.
    ToolCallArguments {
        /// Index of the call.
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
    /// Adds a delta to the message.
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
