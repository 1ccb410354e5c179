//! `POST /v1/completions`: text on from text, without a template.

use crate::{
    FINGERPRINT, constraint,
    decode::Body,
    errors::ApiError,
    generation::{Generation, Step},
    infill::Infill,
    intake::{Payload, prepare},
    logprobs::{self, Legacy},
    prepare::{Params, Shown, StreamParams, params},
    random::random_id,
    record::Record,
    sse::{self, Chunks},
    state::{AppState, Served, unix_time},
    tokens::{bad_words, check_spaces, cut, prediction},
    wire::{
        ChunkUsage, CompletionChoice, CompletionRequest, CompletionResponse, InertFields,
        LegacyLogprobs, Prompt, PromptLogprobs, SamplingFields, UNSUPPORTED,
    },
};
use axum::{
    Extension, Json,
    extract::State,
    response::{IntoResponse, Response},
};
use std::sync::Arc;
use taper_base::{FinishReason, GeneratedToken, SamplingParams, SubmitError, TokenLogprobs};
use taper_chat::Tokenizer;

/// What OpenAI and vLLM generate when nobody says how much.
const DEFAULT_MAX_TOKENS: u32 = 16;

pub(super) async fn handle(
    State(state): State<AppState>,
    Extension(record): Extension<Arc<Record>>,
    payload: Payload,
) -> Result<Response, ApiError> {
    let config = &state.0.config;
    let plan = prepare(&state, payload, plan).await?;
    let tokens: Vec<&[u32]> = plan.prompts.iter().map(|p| &*p.tokens).collect();
    let requests = plan.params.requests(&tokens, plan.prompt_logprobs);
    let (n, text) = (plan.params.n as usize, &plan.params.text);
    let generation = Generation::submit(&state, record, requests, n, text, "prompt")?;
    let choices = plan.prompts.iter().flat_map(|prompt| {
        (0..n).map(|_| Output {
            tokenizer: state.0.tokenizer.clone(),
            prompt: prompt.clone(),
            echo: plan.echo,
            begun: false,
            score_only: plan.score_only,
            shown: plan.params.shown,
            token_ids: Vec::new(),
            logprobs: plan.logprobs.map(|top| Legacy::new(top, plan.params.shown.as_ids)),
            likelihood: Likelihood::default(),
        })
    });
    let writer = Writer {
        id: random_id("cmpl"),
        created: unix_time(),
        model: plan.model,
        choices: choices.collect(),
        params: plan
            .params
            .stream
            .unwrap_or(StreamParams { usage: false, continuous_usage: false }),
    };
    match plan.params.stream {
        Some(_) => Ok(sse::respond(generation, writer, config.keep_alive)),
        None => whole(generation, writer, plan.keep, n).await,
    }
}

/// A request, checked and tokenized.
struct Plan {
    model: String,
    params: Params,
    prompts: Vec<Source>,
    prompt_logprobs: Option<u8>,
    echo: bool,
    /// `max_tokens: 0` with `echo`: the prompt and its log probabilities are the response.
    score_only: bool,
    logprobs: Option<u8>,
    /// Choices of a prompt that are returned: `params.n` are made.
    keep: usize,
}

/// A prompt as it came and as the model sees it.
#[derive(Clone)]
struct Source {
    text: Arc<str>,
    tokens: Arc<[u32]>,
}

fn plan(state: &AppState, mut body: Body) -> Result<Plan, ApiError> {
    let config = &state.0.config;
    let wire: CompletionRequest = body.read()?;
    let mut fields: SamplingFields = body.read()?;
    body.read::<InertFields>()?;
    body.finish(UNSUPPORTED, config.allow_unknown_fields)?;
    let Served { name: model, adapter } = state.0.model(wire.model.as_deref())?;
    if wire.logprobs.is_some_and(|k| k > SamplingParams::MAX_LOGPROBS) {
        let detail = format!("must be between 0 and {}", SamplingParams::MAX_LOGPROBS);
        return Err(ApiError::value("logprobs", detail));
    }
    let echo = wire.echo.unwrap_or(false);
    let asked = wire.max_tokens.unwrap_or(DEFAULT_MAX_TOKENS);
    let score_only = asked == 0;
    if score_only && !echo {
        return Err(ApiError::value("max_tokens", "must be at least 1 without 'echo'"));
    }
    let info = state.0.engine.info();
    // The engine makes at least one token; when only the prompt is asked for, it is stopped before.
    let content = constraint::asked(&mut fields)?;
    let params = params(&fields, Some(asked.max(1)), wire.logprobs, config, info)?;
    check_spaces(&fields, state)?;
    let bad_words = bad_words(&fields, state)?;
    let prediction = prediction(&fields, state, params.stop.max_tokens)?;
    let mut params = Params { adapter, bad_words, prediction, ..params };
    let keep = params.n as usize;
    if let Some(best_of) = wire.best_of.filter(|best_of| *best_of != params.n) {
        choose_among(best_of, &mut params, config.max_choices)?;
    }
    params.grammar = constraint::of_content(state, content.as_ref())?;
    let count = wire.prompt.0.len();
    if count == 0 {
        return Err(ApiError::value("prompt", "must not be empty"));
    }
    if count.saturating_mul(params.n as usize) > config.max_choices as usize {
        let detail = format!("prompts times choices must be at most {}", config.max_choices);
        return Err(ApiError::value("prompt", detail));
    }
    let special = wire.add_special_tokens.unwrap_or(true);
    let suffix = wire.suffix.filter(|suffix| !suffix.is_empty());
    let infill = match suffix {
        Some(suffix) => Some(infill(state, &suffix, echo, &mut params)?),
        None => None,
    };
    let one = |prompt| match &infill {
        Some(infill) => middle(state, prompt, infill, special),
        None => source(state, prompt, special, params.kept),
    };
    let prompts = wire.prompt.0.iter().map(one).collect::<Result<_, _>>()?;
    let echoed = match wire.logprobs {
        Some(k) if echo => Some(k),
        _ => score_only.then_some(0),
    };
    let prompt_logprobs = echoed.max(params.shown.prompt_logprobs);
    let logprobs = wire.logprobs;
    Ok(Plan { model, params, prompts, prompt_logprobs, echo, score_only, logprobs, keep })
}

/// Has more choices made than are returned: the likeliest are, so log probabilities are needed.
fn choose_among(best_of: u32, params: &mut Params, most: u32) -> Result<(), ApiError> {
    if best_of < params.n || best_of > most {
        let detail = format!("must be between 'n' and {most}, got {best_of}");
        return Err(ApiError::value("best_of", detail));
    }
    if params.stream.is_some() {
        return Err(ApiError::value("best_of", "is not possible with 'stream': true"));
    }
    params.n = best_of;
    params.sampling.logprobs.get_or_insert(0);
    Ok(())
}

/// What fills in before a suffix. It also ends at the tokens that mark such texts.
pub(super) fn infill(
    state: &AppState,
    suffix: &str,
    echo: bool,
    params: &mut Params,
) -> Result<Infill, ApiError> {
    for (name, given) in [("echo", echo), ("truncate_prompt_tokens", params.kept.is_some())] {
        if given {
            return Err(ApiError::value(name, "is not possible with 'suffix'"));
        }
    }
    state.0.check_text(suffix, "suffix")?;
    let infill = Infill::new(&state.0.tokenizer, suffix, state.0.engine.info().vocab_size)?;
    if !params.stop.ignore_eos {
        params.stop.token_ids = params.stop.token_ids.union(&infill.ends);
    }
    Ok(infill)
}

/// A prompt that goes on with a suffix.
fn middle(
    state: &AppState,
    prompt: &Prompt,
    infill: &Infill,
    special: bool,
) -> Result<Source, ApiError> {
    if let Prompt::Text(text) = prompt {
        state.0.check_text(text, "prompt")?;
    }
    let tokens = infill.prompt(&state.0.tokenizer, prompt, special)?;
    check_length(state, &tokens)?;
    // It is not echoed.
    Ok(Source { text: "".into(), tokens: tokens.into() })
}

fn check_length(state: &AppState, tokens: &[u32]) -> Result<(), ApiError> {
    let (prompt, max) = (tokens.len(), state.0.engine.info().max_model_len);
    if prompt <= max as usize {
        return Ok(());
    }
    let prompt = u32::try_from(prompt).unwrap_or(u32::MAX);
    let source = SubmitError::TooLong { prompt, new: 1, max };
    Err(ApiError::Submit { source, prompt_param: "prompt" })
}

fn source(
    state: &AppState,
    prompt: &Prompt,
    special: bool,
    kept: Option<usize>,
) -> Result<Source, ApiError> {
    let tokenizer = &state.0.tokenizer;
    let (text, tokens) = match (prompt, kept) {
        (Prompt::Text(text), None) => {
            state.0.check_text(text, "prompt")?;
            (text.clone(), tokenizer.encode(text, special)?)
        }
        (Prompt::Text(text), Some(kept)) => {
            let tokens = tokenizer.encode(state.0.end_of(text, kept), special)?;
            let whole = tokens.len() <= kept;
            let tokens = cut(tokens, Some(kept));
            let text = if whole { text.clone() } else { tokenizer.decode(&tokens, false)? };
            (text, tokens)
        }
        (Prompt::Tokens(tokens), kept) => {
            let tokens = cut(tokens.clone(), kept);
            check_length(state, &tokens)?;
            (tokenizer.decode(&tokens, false)?, tokens)
        }
    };
    Ok(Source { text: text.into(), tokens: tokens.into() })
}

/// One choice while it is written.
struct Output {
    tokenizer: Tokenizer,
    prompt: Source,
    /// The prompt has yet to be written.
    echo: bool,
    /// Something has been written.
    begun: bool,
    score_only: bool,
    shown: Shown,
    /// Tokens whose text is held back, if tokens are shown.
    token_ids: Vec<u32>,
    logprobs: Option<Legacy>,
    likelihood: Likelihood,
}

/// How likely a choice is.
#[derive(Debug, Default)]
struct Likelihood {
    sum: f64,
    tokens: u32,
}

impl Likelihood {
    fn add(&mut self, token: &GeneratedToken) {
        if let Some(logprobs) = &token.logprobs {
            self.sum += f64::from(logprobs.chosen.logprob);
            self.tokens += 1;
        }
    }

    /// The mean log probability of a token.
    fn mean(&self) -> f64 {
        self.sum / f64::from(self.tokens.max(1))
    }
}

/// What a step adds to a choice.
#[derive(Default)]
struct Update {
    text: String,
    logprobs: Option<LegacyLogprobs>,
    prompt_logprobs: Option<PromptLogprobs>,
    prompt_token_ids: Option<Vec<u32>>,
    token_ids: Option<Vec<u32>>,
    finish: Option<FinishReason>,
    /// The choice is over though the engine would go on.
    cut: bool,
}

impl Output {
    fn take(&mut self, step: Step) -> Update {
        let mut update = Update::default();
        match step {
            Step::Prompt(entries) => {
                let scored = |top| logprobs::prompt(&self.tokenizer, &entries, top);
                update.prompt_logprobs = self.shown.prompt_logprobs.map(scored);
                self.write_prompt(&entries, &mut update.text);
                if self.score_only {
                    update.finish = Some(FinishReason::Length);
                    update.cut = true;
                }
            }
            Step::Piece(piece) => {
                self.write_prompt(&[], &mut update.text);
                if let Some(token) = &piece.token {
                    self.likelihood.add(token);
                    self.token_ids.extend(self.shown.token_ids.then_some(token.id));
                }
                if let (Some(legacy), Some(token)) = (&mut self.logprobs, &piece.token)
                    && !token.stops
                {
                    legacy.push(&self.tokenizer, token.id, token.logprobs.as_ref());
                }
                update.text.push_str(&piece.text);
                update.finish = piece.finish;
            }
        }
        // Entries wait for the chunk that has their text.
        if !update.text.is_empty() || update.finish.is_some() {
            update.logprobs = self.logprobs.as_mut().and_then(Legacy::take);
            if self.shown.token_ids {
                update.token_ids = Some(std::mem::take(&mut self.token_ids));
                let first = !std::mem::replace(&mut self.begun, true);
                update.prompt_token_ids = first.then(|| self.prompt.tokens.to_vec());
            }
        }
        update
    }

    fn write_prompt(&mut self, entries: &[Option<TokenLogprobs>], text: &mut String) {
        if !std::mem::take(&mut self.echo) {
            return;
        }
        text.push_str(&self.prompt.text);
        if let Some(legacy) = &mut self.logprobs {
            for (i, id) in self.prompt.tokens.iter().enumerate() {
                legacy.push(&self.tokenizer, *id, entries.get(i).and_then(Option::as_ref));
            }
        }
    }
}

fn reason(finish: FinishReason) -> &'static str {
    match finish {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
    }
}

struct Writer {
    id: String,
    created: u64,
    model: String,
    choices: Vec<Output>,
    params: StreamParams,
}

impl Writer {
    fn response(&self, choices: Vec<CompletionChoice>) -> CompletionResponse<'_> {
        CompletionResponse {
            id: &self.id,
            object: "text_completion",
            created: self.created,
            model: &self.model,
            choices,
            usage: None,
            system_fingerprint: FINGERPRINT,
        }
    }
}

/// Of `made` choices of each prompt, the `keep` likeliest are returned.
async fn whole(
    mut generation: Generation,
    mut writer: Writer,
    keep: usize,
    made: usize,
) -> Result<Response, ApiError> {
    let mut choices: Vec<_> = writer.choices.iter().map(|_| CompletionChoice::default()).collect();
    while let Some(step) = generation.next().await {
        let (index, step) = step?;
        let (Some(output), Some(choice)) = (writer.choices.get_mut(index), choices.get_mut(index))
        else {
            continue;
        };
        let update = output.take(step);
        if let (true, Some(finish)) = (update.cut, update.finish) {
            generation.finish(index, finish);
        }
        add(choice, update);
    }
    let means = writer.choices.iter().map(|output| output.likelihood.mean());
    let choices = likeliest(means.zip(choices).collect(), keep, made);
    let body = writer.response(choices).with_usage(generation.usage(0));
    Ok(Json(body).into_response())
}

fn add(choice: &mut CompletionChoice, update: Update) {
    choice.text.push_str(&update.text);
    if let Some(new) = update.logprobs {
        let all = choice.logprobs.get_or_insert_default();
        all.tokens.extend(new.tokens);
        all.token_logprobs.extend(new.token_logprobs);
        all.top_logprobs.extend(new.top_logprobs);
        all.text_offset.extend(new.text_offset);
    }
    if let Some(ids) = update.token_ids {
        choice.token_ids.get_or_insert_default().extend(ids);
    }
    choice.prompt_token_ids = choice.prompt_token_ids.take().or(update.prompt_token_ids);
    choice.prompt_logprobs = choice.prompt_logprobs.take().or(update.prompt_logprobs);
    choice.finish_reason = update.finish.map(reason);
}

/// The `keep` likeliest of each `made` choices, by their mean log probabilities, in their order.
fn likeliest(
    mut choices: Vec<(f64, CompletionChoice)>,
    keep: usize,
    made: usize,
) -> Vec<CompletionChoice> {
    if keep < made {
        let prompts = choices.chunks_mut(made);
        prompts.for_each(|own| own.sort_by(|(a, _), (b, _)| b.total_cmp(a)));
    }
    let kept = choices.into_iter().enumerate().filter(|(i, _)| i % made.max(1) < keep);
    let numbered =
        kept.enumerate().map(|(index, (_, (_, choice)))| CompletionChoice { index, ..choice });
    numbered.collect()
}

impl sse::Writer for Writer {
    fn step(
        &mut self,
        index: usize,
        step: Step,
        generation: &mut Generation,
        out: &mut Chunks,
    ) -> Result<(), ApiError> {
        let Some(output) = self.choices.get_mut(index) else { return Ok(()) };
        let update = output.take(step);
        if let (true, Some(finish)) = (update.cut, update.finish) {
            generation.finish(index, finish);
        }
        if update.text.is_empty() && update.finish.is_none() {
            return Ok(());
        }
        let mut choice = CompletionChoice { index, ..CompletionChoice::default() };
        add(&mut choice, update);
        let mut chunk = self.response(vec![choice]);
        chunk.usage = match self.params {
            StreamParams { usage: false, .. } => None,
            StreamParams { continuous_usage: true, .. } => {
                Some(ChunkUsage::Numbers(generation.usage(0)))
            }
            StreamParams { .. } => Some(ChunkUsage::Null),
        };
        out.push(&chunk)
    }

    fn end(&mut self, generation: &Generation, out: &mut Chunks) -> Result<(), ApiError> {
        if self.params.usage {
            out.push(&self.response(Vec::new()).with_usage(generation.usage(0)))?;
        }
        out.push_done();
        Ok(())
    }
}
