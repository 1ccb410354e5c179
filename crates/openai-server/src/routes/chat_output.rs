//! The text of one chat choice, taken apart into reasoning, content and tool calls.

use crate::{
    generation::Piece,
    logprobs,
    prepare::Shown,
    wire::{
        CallDelta, CallOut, CalledDelta, CalledOut, ChatChoice, ChatLogprobs, ChatMessage,
        DeltaOut, TokenLogprobOut,
    },
};
use taper_base::FinishReason;
use taper_chat::{Delta, OutputParser, ParsedMessage, ParserOptions, Tokenizer};

/// What a delta means for the message.
#[derive(Debug, Default)]
pub(super) struct Update {
    pub(super) deltas: Vec<Delta>,
    pub(super) logprobs: Vec<TokenLogprobOut>,
    /// The token, if tokens are shown.
    pub(super) token: Option<u32>,
    pub(super) finish: Option<&'static str>,
    /// The message is over though the engine would go on.
    pub(super) cut: bool,
}

/// One choice while it is written.
#[derive(Debug)]
pub(super) struct ChatOutput {
    parser: OutputParser,
    tokenizer: Tokenizer,
    in_reasoning: bool,
    /// With `parallel_tool_calls: false` a second call ends the message.
    one_call: bool,
    shown: Shown,
    hide_reasoning: bool,
    calls: usize,
    pub(super) reasoning_tokens: u64,
    /// Tokens amid reasoning that may be the beginning of a tag.
    undecided: u64,
}

impl ChatOutput {
    pub(super) fn new(options: ParserOptions, tokenizer: &Tokenizer, one_call: bool) -> Self {
        Self {
            in_reasoning: options.starts_in_reasoning,
            parser: OutputParser::new(options),
            tokenizer: tokenizer.clone(),
            one_call,
            shown: Shown::default(),
            hide_reasoning: false,
            calls: 0,
            reasoning_tokens: 0,
            undecided: 0,
        }
    }

    /// What is shown of tokens, and whether reasoning is left out.
    pub(super) fn showing(self, shown: Shown, hide_reasoning: bool) -> Self {
        Self { shown, hide_reasoning, ..self }
    }

    pub(super) fn take(&mut self, piece: &Piece) -> Update {
        let mut update = Update::default();
        let was_reasoning = self.in_reasoning();
        if !piece.text.is_empty() {
            update.deltas = self.parser.push(&piece.text);
        }
        if piece.finish.is_some() {
            update.deltas.extend(self.parser.finish());
        }
        if let Some(second) = self.second_call(&update.deltas) {
            update.deltas.truncate(second);
            update.cut = true;
        }
        let starts = |d: &&Delta| matches!(d, Delta::ToolCallStart { .. });
        self.calls += update.deltas.iter().filter(starts).count();
        self.count_reasoning(was_reasoning, piece, &update.deltas);
        if self.hide_reasoning {
            update.deltas.retain(|delta| !matches!(delta, Delta::Reasoning(_)));
        }
        let token = piece.token.as_ref().filter(|_| self.shown.token_ids);
        update.token = token.map(|token| token.id);
        if let Some(token) = piece.token.as_ref().filter(|t| !t.stops) {
            let entry = token.logprobs.as_ref();
            let as_ids = self.shown.as_ids;
            let entry = entry.map(|at| logprobs::chat(&self.tokenizer, at, as_ids));
            update.logprobs.extend(entry);
        }
        update.finish = match piece.finish {
            _ if update.cut => Some("tool_calls"),
            None => None,
            Some(FinishReason::Stop) if self.calls > 0 => Some("tool_calls"),
            Some(FinishReason::Stop) => Some("stop"),
            Some(FinishReason::Length) => Some("length"),
        };
        update
    }

    fn second_call(&self, deltas: &[Delta]) -> Option<usize> {
        let second = |d: &Delta| matches!(d, Delta::ToolCallStart { index, .. } if *index > 0);
        self.one_call.then(|| deltas.iter().position(second)).flatten()
    }

    fn in_reasoning(&self) -> bool {
        self.parser.in_reasoning().unwrap_or(self.in_reasoning)
    }

    /// A token is reasoning if what it completed is, or if it completed nothing amid reasoning. The tags
    /// around it are not.
    fn count_reasoning(&mut self, was: bool, piece: &Piece, deltas: &[Delta]) {
        if let Some(last) = deltas.last() {
            self.in_reasoning = matches!(last, Delta::Reasoning(_));
        }
        let told = deltas.iter().any(|delta| matches!(delta, Delta::Reasoning(_)));
        let goes_on = was && self.in_reasoning();
        if goes_on && !told && self.parser.may_be_in_tag() {
            self.undecided += u64::from(piece.token.is_some());
            return;
        }
        let undecided = std::mem::take(&mut self.undecided);
        if told || goes_on {
            self.reasoning_tokens += undecided + u64::from(piece.token.is_some());
        }
    }
}

/// One choice that is returned whole.
#[derive(Debug)]
pub(super) struct Whole {
    pub(super) output: ChatOutput,
    message: ParsedMessage,
    logprobs: Option<ChatLogprobs>,
    token_ids: Option<Vec<u32>>,
    finish: &'static str,
}

impl Whole {
    pub(super) fn new(output: ChatOutput, logprobs: bool) -> Self {
        let logprobs = logprobs.then(ChatLogprobs::default);
        let (message, token_ids) =
            (ParsedMessage::default(), output.shown.token_ids.then(Vec::new));
        Self { output, message, logprobs, token_ids, finish: "stop" }
    }

    /// True when the engine need not go on.
    pub(super) fn take(&mut self, piece: &Piece) -> bool {
        let update = self.output.take(piece);
        for delta in update.deltas {
            self.message.apply(delta);
        }
        if let Some(logprobs) = &mut self.logprobs {
            logprobs.content.extend(update.logprobs);
        }
        if let Some(ids) = &mut self.token_ids {
            ids.extend(update.token);
        }
        if let Some(finish) = update.finish {
            self.finish = finish;
        }
        update.cut
    }

    pub(super) fn into_choice(self, index: usize) -> ChatChoice {
        let calls = self.message.tool_calls.into_iter().map(|call| CallOut {
            id: call.id,
            kind: "function",
            function: CalledOut { name: call.name, arguments: call.arguments },
        });
        let tool_calls: Vec<_> = calls.collect();
        // Null says that there are calls instead; without calls there is content, if only empty.
        let content = match self.message.content {
            Some(text) if text.is_empty() && !tool_calls.is_empty() => None,
            None if tool_calls.is_empty() => Some(String::new()),
            content => content,
        };
        ChatChoice {
            index,
            message: ChatMessage {
                role: "assistant",
                content,
                refusal: None,
                reasoning_content: self.message.reasoning,
                tool_calls,
                function_call: None,
            },
            logprobs: self.logprobs,
            finish_reason: self.finish,
            token_ids: self.token_ids,
        }
    }
}

/// A delta as the stream writes it.
pub(super) fn delta_out(delta: Delta) -> DeltaOut {
    let call = |index, id, kind, name, arguments| DeltaOut {
        tool_calls: vec![CallDelta { index, id, kind, function: CalledDelta { name, arguments } }],
        ..DeltaOut::default()
    };
    match delta {
        Delta::Content(text) => DeltaOut { content: Some(text), ..DeltaOut::default() },
        Delta::Reasoning(text) => DeltaOut { reasoning_content: Some(text), ..DeltaOut::default() },
        Delta::ToolCallStart { index, id, name } => {
            call(index, Some(id), Some("function"), Some(name), String::new())
        }
        Delta::ToolCallArguments { index, fragment } => call(index, None, None, None, fragment),
    }
}
