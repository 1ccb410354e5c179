//! What a model writes, as Anthropic's content blocks.

use crate::{
    FINGERPRINT,
    wire::{BlockDelta, BlockOut, MessageUsage, ThinkingTokens, Usage},
};
use serde_json::{Map, Value};
use taper_chat::Delta;

/// Stands where Anthropic proves that thinking is its own; nothing is checked when it comes back.
const SIGNATURE: &str = FINGERPRINT;

/// How much of the thinking is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Show {
    Whole,
    /// Its blocks come empty.
    Omitted,
}

/// What happens to the blocks of a message.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Change {
    Start(BlockOut),
    Delta(BlockDelta),
    Stop,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Thinking,
    Text,
    Call,
}

/// Makes blocks of deltas, one after the other.
#[derive(Debug)]
pub(super) struct Blocks {
    show: Show,
    open: Option<Kind>,
    /// Blank text that is a block only if more follows.
    blank: String,
}

impl Blocks {
    pub(super) fn new(show: Show) -> Self {
        Self { show, open: None, blank: String::new() }
    }

    pub(super) fn take(&mut self, delta: Delta) -> Vec<Change> {
        let mut out = Vec::new();
        match delta {
            Delta::Reasoning(thinking) => {
                let block = BlockOut::Thinking { thinking: String::new(), signature: "" };
                self.enter(Kind::Thinking, block, &mut out);
                if self.show == Show::Whole {
                    out.push(Change::Delta(BlockDelta::ThinkingDelta { thinking }));
                }
            }
            Delta::Content(mut text) => {
                if self.open != Some(Kind::Text) {
                    self.blank.push_str(&text);
                    if self.blank.trim().is_empty() {
                        return out;
                    }
                    text = std::mem::take(&mut self.blank);
                }
                self.enter(Kind::Text, BlockOut::Text { text: String::new() }, &mut out);
                out.push(Change::Delta(BlockDelta::TextDelta { text }));
            }
            Delta::ToolCallStart { id, name, .. } => {
                self.close(&mut out);
                let block = BlockOut::ToolUse { id, name, input: Map::new() };
                self.enter(Kind::Call, block, &mut out);
            }
            Delta::ToolCallArguments { fragment: partial_json, .. } => {
                out.push(Change::Delta(BlockDelta::InputJsonDelta { partial_json }));
            }
        }
        out
    }

    /// The end of the message.
    pub(super) fn finish(&mut self) -> Vec<Change> {
        let mut out = Vec::new();
        self.close(&mut out);
        out
    }

    fn enter(&mut self, kind: Kind, block: BlockOut, out: &mut Vec<Change>) {
        if self.open != Some(kind) {
            self.close(out);
            self.open = Some(kind);
            out.push(Change::Start(block));
        }
    }

    fn close(&mut self, out: &mut Vec<Change>) {
        self.blank.clear();
        match self.open.take() {
            None => return,
            Some(Kind::Thinking) => {
                out.push(Change::Delta(BlockDelta::SignatureDelta { signature: SIGNATURE }));
            }
            Some(Kind::Text | Kind::Call) => {}
        }
        out.push(Change::Stop);
    }
}

/// Blocks put together again.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    blocks: Vec<BlockOut>,
    /// The arguments of the call that is open.
    arguments: String,
}

impl Gathered {
    pub(super) fn apply(&mut self, change: Change) {
        let delta = match change {
            Change::Start(block) => return self.blocks.push(block),
            Change::Stop => return self.end_call(),
            Change::Delta(delta) => delta,
        };
        match (self.blocks.last_mut(), delta) {
            (Some(BlockOut::Text { text }), BlockDelta::TextDelta { text: more }) => {
                text.push_str(&more);
            }
            (
                Some(BlockOut::Thinking { thinking, .. }),
                BlockDelta::ThinkingDelta { thinking: more },
            ) => thinking.push_str(&more),
            (
                Some(BlockOut::Thinking { signature, .. }),
                BlockDelta::SignatureDelta { signature: own },
            ) => *signature = own,
            (_, BlockDelta::InputJsonDelta { partial_json }) => {
                self.arguments.push_str(&partial_json);
            }
            _ => {}
        }
    }

    /// Arguments that are no object, because the output was cut off, become an empty one.
    fn end_call(&mut self) {
        if let Some(BlockOut::ToolUse { input, .. }) = self.blocks.last_mut() {
            if let Ok(Value::Object(whole)) = serde_json::from_str(&self.arguments) {
                *input = whole;
            }
            self.arguments.clear();
        }
    }

    pub(super) fn into_blocks(self) -> Vec<BlockOut> {
        self.blocks
    }
}

/// How a message ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct End {
    /// The chat route's word for it.
    pub(super) finish: Option<&'static str>,
    /// The stop string that ended it.
    pub(super) stop: Option<String>,
}

impl End {
    /// Anthropic's words: `stop_reason` and `stop_sequence`. `cut` says that the context was full
    /// before the limit of the request was reached.
    pub(super) fn reason(self, cut: bool) -> (&'static str, Option<String>) {
        match (self.finish, self.stop) {
            (Some("tool_calls"), _) => ("tool_use", None),
            (Some("length"), _) if cut => ("model_context_window_exceeded", None),
            (Some("length"), _) => ("max_tokens", None),
            (_, Some(stop)) => ("stop_sequence", Some(stop)),
            _ => ("end_turn", None),
        }
    }
}

/// Anthropic counts tokens that come from the cache apart.
pub(super) fn usage(usage: &Usage) -> MessageUsage {
    let cached = usage.prompt_tokens_details.cached_tokens;
    let thinking_tokens = usage.completion_tokens_details.reasoning_tokens;
    MessageUsage {
        input_tokens: usage.prompt_tokens.saturating_sub(cached),
        cache_creation_input_tokens: 0,
        cache_read_input_tokens: cached,
        output_tokens: usage.completion_tokens,
        output_tokens_details: ThinkingTokens { thinking_tokens },
    }
}
