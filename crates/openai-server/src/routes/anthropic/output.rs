//! What a model writes, as Anthropic's content blocks.

use crate::{
    FINGERPRINT,
    routes::segments::{self, Segment, Segments},
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

/// Makes blocks of deltas, one after the other.
#[derive(Debug)]
pub(super) struct Blocks {
    show: Show,
    segments: Segments,
    open: Option<Segment>,
}

impl Blocks {
    pub(super) fn new(show: Show) -> Self {
        Self { show, segments: Segments::default(), open: None }
    }

    pub(super) fn take(&mut self, delta: Delta) -> Vec<Change> {
        let changes = self.segments.take(delta);
        changes.into_iter().flat_map(|change| self.translated(change)).collect()
    }

    /// The end of the message.
    pub(super) fn finish(&mut self) -> Vec<Change> {
        let change = self.segments.finish();
        change.map(|change| self.translated(change)).unwrap_or_default()
    }

    fn translated(&mut self, change: segments::Change) -> Vec<Change> {
        match change {
            segments::Change::Start(segment) => {
                self.open = Some(segment.clone());
                vec![Change::Start(match segment {
                    Segment::Reasoning => {
                        BlockOut::Thinking { thinking: String::new(), signature: "" }
                    }
                    Segment::Text => BlockOut::Text { text: String::new() },
                    Segment::Call { id, name } => BlockOut::ToolUse { id, name, input: Map::new() },
                })]
            }
            segments::Change::More(more) => match self.open {
                Some(Segment::Reasoning) if self.show == Show::Omitted => Vec::new(),
                Some(Segment::Reasoning) => {
                    vec![Change::Delta(BlockDelta::ThinkingDelta { thinking: more })]
                }
                Some(Segment::Text) => vec![Change::Delta(BlockDelta::TextDelta { text: more })],
                Some(Segment::Call { .. }) => {
                    vec![Change::Delta(BlockDelta::InputJsonDelta { partial_json: more })]
                }
                None => Vec::new(),
            },
            segments::Change::End => match self.open.take() {
                Some(Segment::Reasoning) => {
                    let signed = BlockDelta::SignatureDelta { signature: SIGNATURE };
                    vec![Change::Delta(signed), Change::Stop]
                }
                _ => vec![Change::Stop],
            },
        }
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
