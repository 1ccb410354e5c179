//! What a model writes, as output items and the events of a stream.

use super::{items::sealed, tools::Namespaces};
use crate::{
    errors::ApiError,
    generation::{Generation, Step},
    random::item_id,
    routes::{
        chat_output::ChatOutput,
        segments::{Change, Segment, Segments},
    },
    sse::Chunks,
    state::unix_time,
    wire::{
        IncompleteOut, OutputItem, PartIndex, PartOut, ResponseErrorOut, ResponseEvent,
        ResponseOut, TokenLogprobOut, What,
    },
};
use taper_base::FinishReason;

/// How items are written.
#[derive(Debug, Clone, Copy)]
pub(super) struct Style {
    /// Reasoning comes as its own summary.
    pub(super) summary: bool,
    /// Reasoning comes in `encrypted_content` too.
    pub(super) sealed: bool,
    pub(super) logprobs: bool,
}

/// A response while it is written.
pub(super) struct Turn {
    pub(super) response: ResponseOut,
    style: Style,
    namespaces: Namespaces,
    output: ChatOutput,
    segments: Segments,
    open: Option<Open>,
    /// Log probabilities of tokens whose text is held back.
    logprobs: Vec<TokenLogprobOut>,
}

/// The item that is being written.
struct Open {
    id: String,
    segment: Segment,
    /// The namespace of the function that is called.
    namespace: Option<String>,
    text: String,
    logprobs: Vec<TokenLogprobOut>,
}

/// Where events go, if anywhere.
pub(super) struct Events<'a> {
    pub(super) sequence: &'a mut u64,
    pub(super) out: &'a mut Chunks,
}

impl Events<'_> {
    fn push(&mut self, kind: &'static str, what: What<'_>) -> Result<(), ApiError> {
        let event = ResponseEvent { kind, sequence_number: *self.sequence, what };
        *self.sequence += 1;
        self.out.push_named(kind, &event)
    }
}

/// Pushes an event where there is a stream.
macro_rules! emit {
    ($events:expr, $kind:expr, $what:expr) => {
        if let Some(events) = $events.as_mut() {
            events.push($kind, $what)?;
        }
    };
}

impl Turn {
    pub(super) fn new(
        response: ResponseOut,
        style: Style,
        namespaces: Namespaces,
        output: ChatOutput,
    ) -> Self {
        let (segments, logprobs) = (Segments::default(), Vec::new());
        Self { response, style, namespaces, output, segments, open: None, logprobs }
    }

    /// The events before any output.
    pub(super) fn begin(&self, mut events: Option<Events<'_>>) -> Result<(), ApiError> {
        for kind in ["response.created", "response.in_progress"] {
            emit!(events, kind, What::Response { response: &self.response });
        }
        Ok(())
    }

    /// Takes what a step brings.
    pub(super) fn take(
        &mut self,
        step: Step,
        generation: &mut Generation,
        mut events: Option<Events<'_>>,
    ) -> Result<(), ApiError> {
        let Step::Piece(piece) = step else { return Ok(()) };
        let update = self.output.take(&piece);
        if update.cut {
            generation.finish(0, FinishReason::Stop);
        }
        if self.style.logprobs {
            self.logprobs.extend(update.logprobs);
        }
        for delta in update.deltas {
            for change in self.segments.take(delta) {
                self.apply(change, "completed", &mut events)?;
            }
        }
        let Some(finish) = update.finish else { return Ok(()) };
        let cut_off = finish == "length";
        let status = if cut_off { "incomplete" } else { "completed" };
        if let Some(end) = self.segments.finish() {
            self.apply(end, status, &mut events)?;
        }
        self.response.status = status;
        self.response.incomplete_details =
            cut_off.then_some(IncompleteOut { reason: "max_output_tokens" });
        Ok(())
    }

    /// The end of a response that was written.
    pub(super) fn end(
        &mut self,
        generation: &Generation,
        mut events: Option<Events<'_>>,
    ) -> Result<(), ApiError> {
        self.count(generation);
        let completed = self.response.status == "completed";
        self.response.completed_at = completed.then(unix_time);
        let kind = if completed { "response.completed" } else { "response.incomplete" };
        emit!(events, kind, What::Response { response: &self.response });
        Ok(())
    }

    /// The end of one that failed.
    pub(super) fn fail(
        &mut self,
        error: &ApiError,
        generation: &Generation,
        mut events: Option<Events<'_>>,
    ) -> Result<(), ApiError> {
        self.count(generation);
        self.keep_open("incomplete");
        self.response.status = "failed";
        let message = error.body().message().to_owned();
        self.response.error = Some(ResponseErrorOut { code: "server_error", message });
        emit!(events, "response.failed", What::Response { response: &self.response });
        Ok(())
    }

    /// The end of one that was cancelled.
    pub(super) fn cancel(&mut self, generation: &Generation) {
        self.count(generation);
        self.keep_open("incomplete");
        self.response.status = "cancelled";
    }

    fn count(&mut self, generation: &Generation) {
        self.response.usage = Some(generation.usage(self.output.reasoning_tokens).into());
    }

    /// Takes the item that is open for what it is.
    fn keep_open(&mut self, status: &'static str) {
        if let Some(open) = self.open.take() {
            self.response.output.push(self.style.item(&open, status));
        }
    }

    fn apply(
        &mut self,
        change: Change,
        status: &'static str,
        events: &mut Option<Events<'_>>,
    ) -> Result<(), ApiError> {
        match change {
            Change::Start(segment) => self.start(segment, events),
            Change::More(text) => self.more(&text, events),
            Change::End => self.close(status, events),
        }
    }

    fn start(&mut self, segment: Segment, events: &mut Option<Events<'_>>) -> Result<(), ApiError> {
        let (prefix, namespace, segment) = match segment {
            Segment::Reasoning => ("rs", None, segment),
            Segment::Text => ("msg", None, segment),
            Segment::Call { id, name } => {
                let (namespace, name) = self.namespaces.split(name);
                ("fc", namespace, Segment::Call { id, name })
            }
        };
        let (id, text, logprobs) = (item_id(prefix), String::new(), Vec::new());
        let open = Open { id, segment, namespace, text, logprobs };
        let output_index = self.response.output.len();
        let item = self.style.begun(&open);
        emit!(events, "response.output_item.added", What::Item { output_index, item: &item });
        if let Some((at, part)) = self.style.part(&open) {
            let kind = match at.summary_index {
                Some(_) => "response.reasoning_summary_part.added",
                None => "response.content_part.added",
            };
            let (item_id, part) = (open.id.as_str(), &part);
            emit!(events, kind, What::Part { item_id, output_index, at, part });
        }
        self.open = Some(open);
        Ok(())
    }

    fn more(&mut self, text: &str, events: &mut Option<Events<'_>>) -> Result<(), ApiError> {
        let held = std::mem::take(&mut self.logprobs);
        let output_index = self.response.output.len();
        let Some(open) = &mut self.open else { return Ok(()) };
        open.text.push_str(text);
        let is_text = open.segment == Segment::Text;
        let kind = match open.segment {
            Segment::Reasoning if self.style.summary => "response.reasoning_summary_text.delta",
            Segment::Reasoning => "response.reasoning_text.delta",
            Segment::Text => "response.output_text.delta",
            Segment::Call { .. } => "response.function_call_arguments.delta",
        };
        let at = self.style.index(&open.segment);
        let logprobs = is_text.then_some(held.as_slice());
        emit!(
            events,
            kind,
            What::Delta { item_id: &open.id, output_index, at, delta: text, logprobs }
        );
        if is_text {
            open.logprobs.extend(held);
        }
        Ok(())
    }

    fn close(
        &mut self,
        status: &'static str,
        events: &mut Option<Events<'_>>,
    ) -> Result<(), ApiError> {
        let Some(mut open) = self.open.take() else { return Ok(()) };
        let output_index = self.response.output.len();
        if open.segment == Segment::Text {
            open.logprobs.append(&mut self.logprobs);
        }
        let (item_id, text) = (open.id.as_str(), open.text.as_str());
        if let Segment::Call { name, .. } = &open.segment {
            let what = What::Arguments { item_id, output_index, name, arguments: text };
            emit!(events, "response.function_call_arguments.done", what);
        }
        if let Some((at, part)) = self.style.part(&open) {
            let (done, part_done) = match (&open.segment, at.summary_index) {
                (Segment::Text, _) => ("response.output_text.done", "response.content_part.done"),
                (_, None) => ("response.reasoning_text.done", "response.content_part.done"),
                (_, Some(_)) => {
                    ("response.reasoning_summary_text.done", "response.reasoning_summary_part.done")
                }
            };
            let logprobs = (open.segment == Segment::Text).then_some(open.logprobs.as_slice());
            emit!(events, done, What::Done { item_id, output_index, at, text, logprobs });
            emit!(events, part_done, What::Part { item_id, output_index, at, part: &part });
        }
        let item = self.style.item(&open, status);
        emit!(events, "response.output_item.done", What::Item { output_index, item: &item });
        self.response.output.push(item);
        Ok(())
    }
}

impl Style {
    fn index(self, segment: &Segment) -> PartIndex {
        match segment {
            Segment::Reasoning if self.summary => {
                PartIndex { summary_index: Some(0), ..PartIndex::default() }
            }
            Segment::Reasoning | Segment::Text => {
                PartIndex { content_index: Some(0), ..PartIndex::default() }
            }
            Segment::Call { .. } => PartIndex::default(),
        }
    }

    /// The item's part as it is, if it has one.
    fn part(self, open: &Open) -> Option<(PartIndex, PartOut)> {
        let text = open.text.clone();
        let part = match open.segment {
            Segment::Reasoning if self.summary => PartOut::SummaryText { text },
            Segment::Reasoning => PartOut::ReasoningText { text },
            Segment::Text => {
                let logprobs = open.logprobs.clone();
                PartOut::OutputText { text, annotations: [], logprobs }
            }
            Segment::Call { .. } => return None,
        };
        Some((self.index(&open.segment), part))
    }

    /// The item before it has any part.
    fn begun(self, open: &Open) -> OutputItem {
        self.with(open, "in_progress", Vec::new(), None)
    }

    fn item(self, open: &Open, status: &'static str) -> OutputItem {
        let parts = self.part(open).into_iter().map(|(_, part)| part).collect();
        self.with(open, status, parts, self.sealed.then(|| sealed(&open.text)))
    }

    fn with(
        self,
        open: &Open,
        status: &'static str,
        parts: Vec<PartOut>,
        encrypted_content: Option<String>,
    ) -> OutputItem {
        let id = open.id.clone();
        match &open.segment {
            Segment::Reasoning => {
                let (summary, content) =
                    if self.summary { (parts, None) } else { (Vec::new(), Some(parts)) };
                OutputItem::Reasoning { id, status, summary, content, encrypted_content }
            }
            Segment::Text => OutputItem::Message { id, status, role: "assistant", content: parts },
            Segment::Call { id: call_id, name } => OutputItem::FunctionCall {
                id,
                status,
                call_id: call_id.clone(),
                name: name.clone(),
                namespace: open.namespace.clone(),
                arguments: open.text.clone(),
            },
        }
    }
}
