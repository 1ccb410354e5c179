//! What the model writes, as Ollama's lines.

use super::errors;
use crate::{
    errors::ApiError,
    generation::{Generation, Step, Times},
    routes::chat_output::ChatOutput,
    sse::{Chunks, Writer},
    wire::{OllamaCallOut, OllamaCalledOut, OllamaCounts, OllamaMessageOut, OllamaResponse},
};
use axum::{
    Json,
    response::{IntoResponse, Response},
};
use chrono::{DateTime, SecondsFormat, Utc};
use std::time::{Duration, SystemTime};
use taper_base::FinishReason;
use taper_chat::Delta;

/// Which route answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Chat,
    Generate,
}

/// A time as Ollama writes it.
pub(in crate::routes) fn rfc3339(at: SystemTime) -> String {
    DateTime::<Utc>::from(at).to_rfc3339_opts(SecondsFormat::Micros, true)
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// A part of a message, or all of it.
#[derive(Debug, Default)]
struct Part {
    content: String,
    thinking: String,
    calls: Vec<OllamaCallOut>,
}

impl Part {
    fn is_empty(&self) -> bool {
        self.content.is_empty() && self.thinking.is_empty() && self.calls.is_empty()
    }

    fn add(&mut self, more: Self) {
        self.content += &more.content;
        self.thinking += &more.thinking;
        self.calls.extend(more.calls);
    }

    fn line(self, kind: Kind, model: &str) -> OllamaResponse<'_> {
        let thinking = (!self.thinking.is_empty()).then_some(self.thinking);
        let mut line = OllamaResponse {
            model,
            created_at: rfc3339(SystemTime::now()),
            message: None,
            response: None,
            thinking: None,
            done: false,
            done_reason: None,
            counts: None,
        };
        match kind {
            Kind::Chat => {
                let (content, tool_calls) = (self.content, self.calls);
                let role = "assistant";
                line.message = Some(OllamaMessageOut { role, content, thinking, tool_calls });
            }
            Kind::Generate => (line.response, line.thinking) = (Some(self.content), thinking),
        }
        line
    }
}

/// The response to a request that asks nothing.
pub(super) fn loaded(kind: Kind, model: &str) -> OllamaResponse<'_> {
    OllamaResponse { done: true, done_reason: Some("load"), ..Part::default().line(kind, model) }
}

/// A call whose arguments are still written.
#[derive(Debug)]
struct Open {
    index: usize,
    id: String,
    name: String,
    arguments: String,
}

impl Open {
    /// Arguments that are no JSON object, as when the output was cut, become an empty one.
    fn close(self) -> OllamaCallOut {
        let arguments = serde_json::from_str(&self.arguments).unwrap_or_default();
        let function = OllamaCalledOut { index: self.index, name: self.name, arguments };
        OllamaCallOut { id: self.id, function }
    }
}

/// The answer while it is written.
#[derive(Debug)]
pub(super) struct Answer {
    kind: Kind,
    output: ChatOutput,
    model: String,
    call: Option<Open>,
    finish: Option<&'static str>,
}

impl Answer {
    pub(super) fn new(kind: Kind, output: ChatOutput, model: String) -> Self {
        Self { kind, output, model, call: None, finish: None }
    }

    /// What a step adds. Calls come whole.
    fn take(&mut self, step: Step, generation: &mut Generation) -> Part {
        let (mut part, Step::Piece(piece)) = (Part::default(), step) else {
            return Part::default();
        };
        let update = self.output.take(&piece);
        if update.cut {
            generation.finish(0, FinishReason::Stop);
        }
        for delta in update.deltas {
            match delta {
                Delta::Content(text) => part.content += &text,
                Delta::Reasoning(text) => part.thinking += &text,
                Delta::ToolCallStart { index, id, name } => {
                    let next = Open { index, id, name, arguments: String::new() };
                    part.calls.extend(self.call.replace(next).map(Open::close));
                }
                Delta::ToolCallArguments { fragment, .. } => {
                    if let Some(call) = &mut self.call {
                        call.arguments += &fragment;
                    }
                }
            }
        }
        if update.finish.is_some() {
            self.finish = update.finish;
            part.calls.extend(self.call.take().map(Open::close));
        }
        part
    }

    /// The last line, or the only one.
    fn last(&self, part: Part, generation: &Generation) -> OllamaResponse<'_> {
        let usage = generation.usage(self.output.reasoning_tokens);
        let Times { total, prefill, decode } = generation.times();
        let counts = OllamaCounts {
            total_duration: nanoseconds(total),
            load_duration: 0,
            prompt_eval_count: usage.prompt_tokens,
            prompt_eval_duration: nanoseconds(prefill),
            eval_count: usage.completion_tokens,
            eval_duration: nanoseconds(decode),
        };
        let reason = if self.finish == Some("length") { "length" } else { "stop" };
        OllamaResponse {
            done: true,
            done_reason: Some(reason),
            counts: Some(counts),
            ..part.line(self.kind, &self.model)
        }
    }

    pub(super) async fn whole(mut self, mut generation: Generation) -> Result<Response, ApiError> {
        let mut all = Part::default();
        while let Some(step) = generation.next().await {
            let (_, step) = step?;
            all.add(self.take(step, &mut generation));
        }
        Ok(Json(self.last(all, &generation)).into_response())
    }
}

impl Writer for Answer {
    fn step(
        &mut self,
        _: usize,
        step: Step,
        generation: &mut Generation,
        out: &mut Chunks,
    ) -> Result<(), ApiError> {
        let part = self.take(step, generation);
        match part.is_empty() {
            true => Ok(()),
            false => out.push(&part.line(self.kind, &self.model)),
        }
    }

    fn end(&mut self, generation: &Generation, out: &mut Chunks) -> Result<(), ApiError> {
        out.push(&self.last(Part::default(), generation))
    }

    fn fail(&mut self, error: &ApiError, _: &Generation, out: &mut Chunks) -> Result<(), ApiError> {
        out.push(&errors::body(&error.body()))
    }
}
