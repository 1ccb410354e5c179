//! Text around a language model: see the README below.
#![doc = include_str!("../README.md")]

mod added;
mod decoding;
mod detokenizer;
mod error;
mod message;
mod output;
mod stop;
mod template;
mod text;
mod tokenizer;

pub use detokenizer::Detokenizer;
pub use error::ChatError;
pub use message::{Content, ContentPart, Message, Role, Tool, ToolCall};
pub use output::{
    ArgumentSyntax, CallSyntax, CallWriter, Delta, KnownTools, Literals, Opener, OutputFormat,
    OutputParser, ParsedMessage, ParserOptions, ReasoningFormat, Span, SpanParser, Tags,
    ToolCallIds, ToolFormat,
};
pub use stop::{StopMatch, StopPatterns, StopStrings};
pub use template::{ChatTemplate, TemplateRequest};
pub use text::{TextOptions, TextStep, TextStream};
pub use tokenizer::Tokenizer;
