//! One request while it runs.

use crate::{
    adapters::AdapterUse,
    constrained::{self, Constrained, Follows},
    listener::Listener,
    media::Media,
    worker::Submission,
};
use std::{borrow::Cow, sync::Arc};
use taper_base::{
    ConstraintError, DeviceDraw, ErrorId, Event, FinishReason, GenRequest, GeneratedToken,
    GenerationError, TokenId, TokenLogprobs, TokenMask, TokenSet,
};
use taper_kv_cache::EVERY_TOKENS;
use taper_models::{Adapter, Ahead, ImagePositions};
use taper_sampler::{Choice, Sampler, SamplerError, token_logprobs};
use taper_tensor::pool;

/// More bans than this are not worth telling a device about in every step.
const MAX_BANNED_ON_DEVICE: usize = 1024;

/// A request's tokens, sampler and listener.
#[derive(Debug)]
pub(crate) struct Sequence {
    /// The prompt and what was generated.
    tokens: Vec<TokenId>,
    media: Media,
    prompt_len: usize,
    max_new: usize,
    min_new: usize,
    /// End the generation when chosen.
    stops: TokenSet,
    sampler: Sampler,
    grammar: Option<Constrained>,
    /// The only tokens that may be chosen.
    allowed: Option<TokenMask>,
    /// Sequences of tokens that the output must not contain.
    bad_words: Arc<[Vec<TokenId>]>,
    prompt_logprobs: Option<PromptLogprobs>,
    listener: Listener,
    adapter: Option<AdapterUse>,
    /// Tokens that may come next, computed in this step.
    draft: Vec<TokenId>,
    max_draft_tokens: Option<u32>,
    prediction: Arc<[TokenId]>,
    /// A step goes no further than to a multiple of so many tokens.
    cut_tokens: Option<usize>,
}

/// What a step made of a sequence that was sampled.
#[derive(Debug, Default)]
pub(crate) struct Advance {
    /// New tokens, drawn or forced by a grammar, that are to be reported.
    pub(crate) tokens: Vec<GeneratedToken>,
    /// Tokens that were drafted.
    pub(crate) drafted: usize,
    /// The first so many of `tokens` were drafted, and are in the cache.
    pub(crate) accepted: usize,
    /// Tokens that were not drawn.
    pub(crate) forced: usize,
    /// Tokens drawn under a mask.
    pub(crate) masked: usize,
    /// The request's last event.
    pub(crate) last: Option<Event>,
}

#[derive(Debug)]
struct PromptLogprobs {
    top: u8,
    entries: Vec<Option<TokenLogprobs>>,
}

impl Sequence {
    pub(crate) fn new(
        submission: Submission,
        eos: &TokenSet,
        vocab: u32,
        sight: (Option<ImagePositions>, Option<Ahead>),
    ) -> Self {
        let Submission { request, max_new, listener, adapter, recall } = submission;
        let stops = stops(&request, eos);
        let prompt_len = request.prompt.len();
        let entries = |top| PromptLogprobs { top, entries: vec![None; prompt_len] };
        let limited = request.allowed.is_some() || !request.bad_words.is_empty();
        let samples_all = limited || request.sampling.logprobs.is_some();
        let constrained = |grammar| Constrained::new(grammar, eos, &stops, samples_all);
        Self {
            media: Media::new(&request, sight),
            sampler: Sampler::new(&request.sampling, &request.prompt, vocab),
            tokens: request.prompt,
            prompt_len,
            max_new: max_new as usize,
            min_new: request.stop.min_tokens as usize,
            grammar: request.grammar.as_ref().map(constrained),
            allowed: request.allowed,
            bad_words: request.bad_words,
            stops,
            prompt_logprobs: request.prompt_logprobs.map(entries),
            listener,
            adapter,
            draft: Vec::new(),
            max_draft_tokens: request.max_draft_tokens,
            prediction: request.prediction,
            cut_tokens: recall.map(|_| EVERY_TOKENS),
        }
    }

    /// Tokens that may come next, whose logits this step computes too.
    pub(crate) fn draft(&self) -> &[TokenId] {
        &self.draft
    }

    /// Sets what this step computes beside the sequence's own tokens.
    pub(crate) fn set_draft(&mut self, tokens: Vec<TokenId>) {
        self.draft = tokens;
    }

    /// Keeps the first tokens of the draft.
    pub(crate) fn cut_draft(&mut self, len: u32) {
        self.draft.truncate(len as usize);
    }

    /// Whether its request lets tokens be drafted.
    pub(crate) fn takes_drafts(&self) -> bool {
        self.max_draft_tokens != Some(0)
    }

    /// Most tokens that may be drafted now: what the request lets be, and what a step may compute after the
    /// newest token.
    pub(crate) fn max_draft_tokens(&self) -> Option<u32> {
        let Some(cut) = self.cut_tokens else { return self.max_draft_tokens };
        let room = (cut - 1 - self.tokens.len().saturating_sub(1) % cut) as u32;
        Some(self.max_draft_tokens.unwrap_or(room).min(room))
    }

    /// Tokens of which no step crosses a multiple; 0 sets no limit.
    pub(crate) fn cut_tokens(&self) -> u32 {
        self.cut_tokens.map_or(0, |cut| cut as u32)
    }

    /// What the request says that its output is likely to contain.
    pub(crate) fn prediction(&self) -> &[TokenId] {
        &self.prediction
    }

    /// Draws the next token, and those after it for as long as each is what was drafted: from `first`, if a
    /// device has drawn it, or from `rows`, the logits of the newest token and of the draft's.
    ///
    /// Each draw is as it would be without the draft: after the tokens that it follows, and from their logits.
    pub(crate) fn advance(
        &mut self,
        first: Option<Choice>,
        rows: &mut [f32],
        vocab: usize,
    ) -> Advance {
        let draft = std::mem::take(&mut self.draft);
        let mut advance = Advance { drafted: draft.len(), ..Advance::default() };
        let end = self.draw(first, rows, vocab, &draft, &mut advance);
        advance.last = match end {
            Ok(finish) => finish.map(Event::Finished),
            Err(error) => Some(Event::Failed(error)),
        };
        advance
    }

    fn draw(
        &mut self,
        mut first: Option<Choice>,
        rows: &mut [f32],
        vocab: usize,
        draft: &[TokenId],
        advance: &mut Advance,
    ) -> Result<Option<FinishReason>, GenerationError> {
        loop {
            let choice = match first.take() {
                Some(choice) => choice,
                None => self.choose(&mut rows[advance.accepted * vocab..][..vocab])?,
            };
            let follows = self.follows(choice.token)?;
            advance.forced += follows.forced.len();
            advance.masked += usize::from(follows.masked);
            let from = advance.tokens.len();
            let finish = self.accept(choice, &follows, &mut advance.tokens);
            let drafted = draft.get(from..).unwrap_or_default().iter();
            let pairs = drafted.zip(&advance.tokens[from..]);
            advance.accepted += pairs.take_while(|(drafted, token)| **drafted == token.id).count();
            if finish.is_some() || advance.accepted < advance.tokens.len() {
                return Ok(finish);
            }
        }
    }

    /// Reports what a step has made of the sequence.
    pub(crate) fn report(&mut self, tokens: Vec<GeneratedToken>, drafted: usize, accepted: usize) {
        if tokens.is_empty() {
            return;
        }
        self.prompt_done();
        tokens.into_iter().for_each(|token| self.send(Event::Token(token)));
        if drafted > 0 {
            let (accepted, rejected) = (accepted as u32, (drafted - accepted) as u32);
            self.send(Event::Drafted { accepted, rejected });
        }
    }

    pub(crate) fn adapter(&self) -> Option<&Adapter> {
        self.adapter.as_ref().map(AdapterUse::adapter)
    }

    /// The request has begun to run.
    pub(crate) fn begins(&mut self, cached_tokens: u32) {
        self.adapter.iter_mut().for_each(AdapterUse::begins);
        self.send(Event::Started { cached_tokens });
    }

    pub(crate) fn tokens(&self) -> &[TokenId] {
        &self.tokens
    }

    pub(crate) fn media(&self) -> &Media {
        &self.media
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
        self.listener.is_closed()
    }

    pub(crate) fn send(&mut self, event: Event) {
        self.listener.send(event);
    }

    /// Ends the request: with a last event, or without where nobody listens.
    pub(crate) fn end(&mut self, last: Option<Event>) {
        match last {
            Some(event) => self.listener.end(event),
            None => self.listener.dismiss(),
        }
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
            token_logprobs(row, tokens[at], top).map_err(|e| error(at - 1, e, false))
        });
        for ((at, _), entry) in rows.into_iter().zip(entries) {
            prompt.entries[at] = Some(entry?);
        }
        Ok(())
    }

    /// The whole prompt has run: reports its log probabilities, once.
    pub(crate) fn prompt_done(&mut self) {
        if let Some(prompt) = self.prompt_logprobs.take() {
            self.listener.send(Event::Prompt(prompt.entries));
        }
    }

    /// Nothing more is to be generated.
    pub(crate) fn is_full(&self) -> bool {
        self.tokens.len() - self.prompt_len >= self.max_new
    }

    /// The request has a grammar.
    pub(crate) fn is_constrained(&self) -> bool {
        self.grammar.is_some()
    }

    /// Hands the grammar out, if the request has one, so that its mask can be found elsewhere.
    pub(crate) fn take_grammar(&mut self) -> Option<Constrained> {
        self.grammar.take()
    }

    /// Takes the grammar back.
    pub(crate) fn put_grammar(&mut self, grammar: Constrained) {
        self.grammar = Some(grammar);
    }

    /// Chooses the next token from its logits.
    fn choose(&mut self, logits: &mut [f32]) -> Result<Choice, GenerationError> {
        // Beside the forward pass only the first mask of a step was found.
        self.grammar.iter_mut().for_each(Constrained::prepare);
        let (at, banned) = (self.tokens.len() - 1, self.banned());
        let mask = self.mask().map_err(|e| constrained::error(at, e))?;
        let choice = self.sampler.sample_on(&pool::Kernels, logits, &banned, mask.as_deref());
        choice.map_err(|e| error(at, e, !banned.is_empty() || mask.is_some()))
    }

    /// What a device that has the logits must know to choose the next token; `None` where the logits
    /// are wanted here.
    pub(crate) fn on_device(&self) -> Option<DeviceDraw> {
        let banned = self.banned();
        if self.prompt_logprobs.is_some() || banned.len() > MAX_BANNED_ON_DEVICE {
            return None;
        }
        let mask = self.mask().ok()?;
        self.sampler.on_device(&banned, mask.as_deref())
    }

    /// The only tokens that may be chosen next; `None` where all may.
    fn mask(&self) -> Result<Option<Cow<'_, TokenMask>>, ConstraintError> {
        let grammar = self.grammar.as_ref().map_or(Ok(None), Constrained::mask)?;
        Ok(match (grammar, &self.allowed) {
            (Some(grammar), Some(allowed)) => Some(Cow::Owned(grammar.and(allowed))),
            (mask, allowed) => mask.or(allowed.as_ref()).map(Cow::Borrowed),
        })
    }

    /// What the request's grammar makes of a token that was chosen.
    fn follows(&mut self, token: TokenId) -> Result<Follows, GenerationError> {
        let generated = self.tokens.len() - self.prompt_len;
        let room = self.max_new.saturating_sub(generated + 1);
        let Self { grammar: Some(grammar), stops, tokens, .. } = self else {
            return Ok(Follows::default());
        };
        if stops.has(token) {
            return Ok(Follows { masked: grammar.is_masked(), ..Follows::default() });
        }
        let follows = grammar.accept(token, room, |token| stops.has(token));
        follows.map_err(|e| constrained::error(tokens.len(), e))
    }

    /// Tokens that would end the generation too early, and those that would complete a bad word.
    fn banned(&self) -> Cow<'_, [TokenId]> {
        let output = &self.tokens[self.prompt_len..];
        let stops: &[TokenId] = if output.len() < self.min_new { &self.stops } else { &[] };
        let completing = |word: &Vec<TokenId>| {
            let (last, before) = word.split_last()?;
            output.ends_with(before).then_some(*last)
        };
        let words: Vec<_> = self.bad_words.iter().filter_map(completing).collect();
        if words.is_empty() {
            return Cow::Borrowed(stops);
        }
        Cow::Owned([stops, &words].concat())
    }

    /// Appends a chosen token and those that follow from it, here and to `new`; tells whether the last of
    /// them was the output's last.
    fn accept(
        &mut self,
        choice: Choice,
        follows: &Follows,
        new: &mut Vec<GeneratedToken>,
    ) -> Option<FinishReason> {
        let Choice { token, logprobs } = choice;
        let stops = self.stops.has(token);
        // Between forced tokens the grammar wants more, and behind the last one it may.
        let open = |more: bool| more || follows.open;
        let more = !follows.forced.is_empty();
        let from = new.len();
        new.push(GeneratedToken { id: token, logprobs, stops, open: open(more) });
        for (i, &id) in follows.forced.iter().enumerate() {
            let open = open(i + 1 < follows.forced.len());
            new.push(GeneratedToken { id, logprobs: None, stops: false, open });
        }
        for token in &new[from..] {
            self.tokens.push(token.id);
            self.sampler.accept(token.id);
        }
        if stops || follows.over {
            Some(FinishReason::Stop)
        } else if self.is_full() {
            Some(FinishReason::Length)
        } else {
            None
        }
    }
}

/// The tokens that end a request.
pub(crate) fn stops(request: &GenRequest, eos: &TokenSet) -> TokenSet {
    match request.stop.ignore_eos {
        true => request.stop.token_ids.clone(),
        // In the order in which most often nothing is copied.
        false if request.stop.token_ids.is_empty() => eos.clone(),
        false => request.stop.token_ids.union(eos),
    }
}

/// What a sampler's error means to whoever asked. Without a token left, it is the request's fault if
/// it bans some, and the model's otherwise.
fn error(position: usize, cause: SamplerError, bans: bool) -> GenerationError {
    let at = u32::try_from(position).unwrap_or(u32::MAX);
    match cause {
        SamplerError::NoCandidate if bans => {
            tracing::debug!(position, "the request leaves no token to choose from");
            GenerationError::NoCandidate { position: at }
        }
        SamplerError::NoCandidate | SamplerError::NotANumber { .. } => {
            tracing::warn!(position, %cause, "no token can be chosen");
            GenerationError::NonFiniteLogits { position: at }
        }
        SamplerError::WrongVocab { .. } | SamplerError::UnknownToken { .. } => {
            internal(Arc::new(cause), "no token can be chosen")
        }
    }
}

/// A bug: it is logged, and whoever asked learns where to find it.
pub(crate) fn internal(
    source: Arc<dyn std::error::Error + Send + Sync>,
    what: &str,
) -> GenerationError {
    let id = ErrorId::random();
    tracing::error!(%id, error = %source, "{what}");
    GenerationError::Internal { id, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_of_the_sampler_keeps_its_meaning() {
        let of = |cause, bans| error(7, cause, bans);
        assert!(matches!(
            of(SamplerError::NoCandidate, true),
            GenerationError::NoCandidate { position: 7 }
        ));
        for (cause, bans) in
            [(SamplerError::NoCandidate, false), (SamplerError::NotANumber { token: 3 }, true)]
        {
            assert!(matches!(of(cause, bans), GenerationError::NonFiniteLogits { position: 7 }));
        }
        let bug = of(SamplerError::WrongVocab { got: 3, vocab: 9 }, false);
        assert!(matches!(bug, GenerationError::Internal { .. }));
        assert!(!bug.to_string().contains("vocabulary"), "{bug}");
    }
}
