//! Texts from outside of a conversation, put behind it.
//!
//! What is found for the last question goes to the end of that question's message: everything
//! before it has the tokens that it had, so the prefix cache still has them.

use crate::{errors::ApiError, state::AppState};
use axum::{
    http::{HeaderName, HeaderValue},
    response::Response,
};
use std::fmt;
use taper_chat::{Content, ContentPart, Message, Role};

/// Bytes of a question that are searched for: its end.
const MOST_QUESTION: usize = 4 << 10;

/// A part of the context that retrieved texts may take at most.
const SHARE: u32 = 4;

/// What begins and ends messages, reasoning and calls in templates, beside the added tokens of the tokenizer. Some are
/// the beginnings of several.
const MARKERS: [&str; 40] = [
    "<tool_call>",
    "</tool_call>",
    "<tool_calls>",
    "</tool_calls>",
    "<tool_response>",
    "</tool_response>",
    "<function=",
    "</function>",
    "<function_call>",
    "<function_calls>",
    "</function_calls>",
    "<start_function_call>",
    "<end_function_call>",
    "<parameter=",
    "</parameter>",
    "<invoke",
    "</invoke>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "<escape>",
    "<seed:",
    "</seed:",
    "<minimax:",
    "</minimax:",
    "<steptml:",
    "</steptml:",
    "<longcat_",
    "</longcat_",
    "<\u{ff5c}",
    "</\u{ff5c}",
    "[TOOL_CALLS]",
    "[TOOL_RESULTS]",
    "[INST]",
    "[/INST]",
    "<think>",
    "</think>",
    "<<SYS>>",
    "<</SYS>>",
];

/// Where texts for a question come from.
pub trait ContextSource: fmt::Debug + Send + Sync {
    /// The best texts for a question, as one text, of at most so many tokens as `tokens` counts them.
    /// None of `markers` may stand in it.
    fn retrieve(
        &self,
        question: &str,
        max_tokens: u32,
        tokens: &dyn Fn(&str) -> usize,
        markers: &[String],
    ) -> Retrieved;
}

/// What was found for a question.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Retrieved {
    /// Fenced, with where each part comes from; empty if nothing fits.
    pub text: String,
    /// Parts of it.
    pub chunks: u32,
    /// How well the best one fits, from 0 to 1.
    pub confidence: f32,
    /// Why there is nothing, or "ready".
    pub status: &'static str,
}

/// What a response says of it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Added {
    pub(crate) chunks: u32,
    pub(crate) tokens: u64,
    confidence: f32,
    status: &'static str,
}

impl Added {
    /// Found, but there was no room.
    pub(crate) fn without_room(self) -> Self {
        Self { chunks: 0, tokens: 0, status: "no-room", ..self }
    }

    pub(crate) fn tell(self, mut response: Response) -> Response {
        let told = [
            ("x-longctx-chunks-used", self.chunks.to_string()),
            ("x-longctx-tokens", self.tokens.to_string()),
            ("x-longctx-confidence", format!("{:.3}", self.confidence)),
            ("x-longctx-scope-status", self.status.to_owned()),
        ];
        for (name, value) in told {
            if let Ok(value) = HeaderValue::from_str(&value) {
                response.headers_mut().insert(HeaderName::from_static(name), value);
            }
        }
        response
    }
}

/// Checks the switch of a request: on by default where there is a source.
pub(crate) fn wanted(state: &AppState, asked: Option<bool>) -> Result<bool, ApiError> {
    match (asked, &state.0.config.context) {
        (Some(true), None) => {
            Err(ApiError::unsupported("longctx", "this server retrieves no context"))
        }
        (asked, source) => Ok(asked.unwrap_or(true) && source.is_some()),
    }
}

/// Puts what is found for the last message behind it. A conversation that does not end with a
/// question stays as it is.
pub(crate) fn splice(
    state: &AppState,
    messages: &[Message],
) -> Result<Option<(Vec<Message>, Added)>, ApiError> {
    let Some(source) = &state.0.config.context else { return Ok(None) };
    let Some(last) = messages.last().filter(|m| m.role == Role::User) else { return Ok(None) };
    let Some(question) = question(last) else { return Ok(None) };
    let most = state.0.engine.info().max_model_len / SHARE;
    let behind = |text: &str| format!("\n\n{text}");
    // What has no tokens does not fit.
    let tokens = |text: &str| {
        state.0.tokenizer.encode(&behind(text), false).map_or(usize::MAX, |tokens| tokens.len())
    };
    let found = source.retrieve(&question, most, &tokens, state.0.markers(&MARKERS));
    let mut added = Added {
        chunks: found.chunks,
        tokens: 0,
        confidence: found.confidence,
        status: found.status,
    };
    if found.text.is_empty() {
        return Ok(Some((messages.to_vec(), added)));
    }
    let text = behind(&found.text);
    added.tokens = state.0.tokenizer.encode(&text, false)?.len() as u64;
    let mut messages = messages.to_vec();
    if let Some(last) = messages.last_mut() {
        match &mut last.content {
            Some(Content::Text(own)) => own.push_str(&text),
            Some(Content::Parts(parts)) => parts.push(ContentPart::Text(text)),
            None => {}
        }
    }
    Ok(Some((messages, added)))
}

/// The text of a message, of which a long one is known by its end.
fn question(message: &Message) -> Option<String> {
    let text = match message.content.as_ref()? {
        Content::Text(text) => text.clone(),
        Content::Parts(parts) => {
            let texts = parts.iter().filter_map(ContentPart::text);
            texts.collect::<Vec<_>>().join("\n")
        }
    };
    let from = text.ceil_char_boundary(text.len().saturating_sub(MOST_QUESTION));
    Some(text[from..].to_owned()).filter(|text| !text.trim().is_empty())
}
