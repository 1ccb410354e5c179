//! One request while it runs.

use taper_base::{
    Event, EventSink, FinishReason, GenRequest, GeneratedToken, GenerationError, TokenId,
    TokenLogprobs,
};
use taper_sampler::{Choice, DeviceDraw, Sampler, SamplerError, token_logprobs};
use taper_tensor::pool;

/// A request's tokens, sampler and listener.
#[derive(Debug)]
pub(crate) struct Sequence {
    /// The prompt and what was generated.
    tokens: Vec<TokenId>,
    prompt_len: usize,
    max_new: usize,
    min_new: usize,
    /// Ends the generation when chosen.
    stops: Vec<TokenId>,
    sampler: Sampler,
    prompt_logprobs: Option<PromptLogprobs>,
    sink: Box<dyn EventSink>,
}

#[derive(Debug)]
struct PromptLogprobs {
    top: u8,
    entries: Vec<Option<TokenLogprobs>>,
}

impl Sequence {
    pub(crate) fn new(
        request: GenRequest,
        max_new: u32,
        eos: &[TokenId],
        vocab: u32,
        sink: Box<dyn EventSink>,
    ) -> Self {
        let mut stops = request.stop.token_ids;
        if !request.stop.ignore_eos {
            stops.extend_from_slice(eos);
        }
        let prompt_len = request.prompt.len();
        let entries = |top| PromptLogprobs { top, entries: vec![None; prompt_len] };
        Self {
            sampler: Sampler::new(&request.sampling, &request.prompt, vocab),
            tokens: request.prompt,
            prompt_len,
            max_new: max_new as usize,
            min_new: request.stop.min_tokens as usize,
            stops,
            prompt_logprobs: request.prompt_logprobs.map(entries),
            sink,
        }
    }

    pub(crate) fn tokens(&self) -> &[TokenId] {
        &self.tokens
    }

    pub(crate) fn prompt_len(&self) -> usize {
        self.prompt_len
    }

    /// How many of the tokens `start..end` are the prompt's.
    pub(crate) fn prompt_tokens(&self, start: u32, end: u32) -> usize {
        self.prompt_len.min(end as usize).saturating_sub(start as usize)
    }

    pub(crate) fn wants_prompt_logprobs(&self) -> bool {
        self.prompt_logprobs.is_some()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.sink.is_closed()
    }

    pub(crate) fn send(&mut self, event: Event) {
        self.sink.send(event);
    }

    /// Takes the logits of tokens `first..` as log probabilities of the prompt tokens after them.
    pub(crate) fn observe_prompt<'a>(
        &mut self,
        first: usize,
        rows: impl Iterator<Item = &'a [f32]>,
    ) -> Result<(), GenerationError> {
        let Some(prompt) = &mut self.prompt_logprobs else { return Ok(()) };
        let rows: Vec<_> = (first + 1..self.prompt_len).zip(rows).collect();
        let (top, tokens) = (prompt.top, &self.tokens);
        let entries = pool::map(rows.len(), |i| {
            let (at, row) = rows[i];
            token_logprobs(row, tokens[at], top).map_err(|e| error(at - 1, &e))
        });
        for ((at, _), entry) in rows.into_iter().zip(entries) {
            prompt.entries[at] = Some(entry?);
        }
        Ok(())
    }

    /// The whole prompt has run: reports its log probabilities, once.
    pub(crate) fn prompt_done(&mut self) {
        if let Some(prompt) = self.prompt_logprobs.take() {
            self.sink.send(Event::Prompt(prompt.entries));
        }
    }

    /// Nothing more is to be generated.
    pub(crate) fn is_full(&self) -> bool {
        self.tokens.len() - self.prompt_len >= self.max_new
    }

    /// Chooses the next token from its logits.
    pub(crate) fn choose(&self, logits: &mut [f32]) -> Result<Choice, GenerationError> {
        let choice = self.sampler.sample_on(&pool::Kernels, logits, self.banned());
        choice.map_err(|e| error(self.tokens.len() - 1, &e))
    }

    /// What a device that has the logits must know to choose the next token; `None` where the logits
    /// are wanted here.
    pub(crate) fn on_device(&self) -> Option<DeviceDraw> {
        self.sampler.on_device(self.banned()).filter(|_| self.prompt_logprobs.is_none())
    }

    /// Tokens that would end the generation too early.
    fn banned(&self) -> &[TokenId] {
        let generated = self.tokens.len() - self.prompt_len;
        if generated < self.min_new { &self.stops } else { &[] }
    }

    /// Appends and reports a chosen token; tells whether it was the last.
    pub(crate) fn accept(&mut self, choice: Choice) -> Option<FinishReason> {
        let id = choice.token;
        let stops = self.stops.contains(&id);
        self.tokens.push(id);
        self.sampler.accept(id);
        self.sink.send(Event::Token(GeneratedToken { id, logprobs: choice.logprobs, stops }));
        if stops {
            Some(FinishReason::Stop)
        } else if self.is_full() {
            Some(FinishReason::Length)
        } else {
            None
        }
    }
}

fn error(position: usize, cause: &SamplerError) -> GenerationError {
    tracing::warn!(position, %cause, "no token can be chosen");
    GenerationError::NonFiniteLogits { position: u32::try_from(position).unwrap_or(u32::MAX) }
}
