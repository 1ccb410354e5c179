//! `POST /v1/completions`: text on from text, without a template.

use crate::{
    FINGERPRINT, constraint,
    decode::Body,
    errors::ApiError,
    generation::{Generation, Step},
    intake::{Payload, prepare},
    logprobs::Legacy,
    prepare::{Params, StreamParams, params},
    random::random_id,
    record::Record,
    sse::{self, Chunks},
    state::{AppState, Served, unix_time},
    wire::{
        ChunkUsage, CompletionChoice, CompletionRequest, CompletionResponse, InertFields,
        LegacyLogprobs, Prompt, SamplingFields, UNSUPPORTED,
    },
};
use axum::{
    Extension, Json,
    extract::State,
    response::{IntoResponse, Response},
};
use std::sync::Arc;
use taper_base::{FinishReason, SamplingParams, SubmitError, TokenLogprobs};
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
            score_only: plan.score_only,
            logprobs: plan.logprobs.then(Legacy::default),
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
        None => whole(generation, writer).await,
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
    logprobs: bool,
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
    if wire.suffix.as_ref().is_some_and(|s| !s.is_empty()) {
        let detail = "this server does not fill in the middle";
        return Err(ApiError::unsupported("suffix", detail));
    }
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
    let mut params = Params { adapter, ..params };
    if wire.best_of.is_some_and(|best_of| best_of != params.n) {
        return Err(ApiError::unsupported("best_of", "must be equal to 'n'"));
    }
    params.grammar = constraint::of_content(state, content.as_ref())?;
    let count = wire.prompt.0.len();
    if count == 0 {
        return Err(ApiError::value("prompt", "must not be empty"));
    }
    if count.saturating_mul(params.n as usize) > config.max_choices as usize {
        let detail = format!("prompts times 'n' must be at most {}", config.max_choices);
        return Err(ApiError::value("prompt", detail));
    }
    let special = wire.add_special_tokens.unwrap_or(true);
    let prompts =
        wire.prompt.0.iter().map(|p| source(state, p, special)).collect::<Result<_, _>>()?;
    let prompt_logprobs = match wire.logprobs {
        Some(k) if echo => Some(k),
        _ => score_only.then_some(0),
    };
    let logprobs = wire.logprobs.is_some();
    Ok(Plan { model, params, prompts, prompt_logprobs, echo, score_only, logprobs })
}

fn source(state: &AppState, prompt: &Prompt, special: bool) -> Result<Source, ApiError> {
    let tokenizer = &state.0.tokenizer;
    Ok(match prompt {
        Prompt::Text(text) => {
            state.0.check_text(text, "prompt")?;
            Source { text: text.as_str().into(), tokens: tokenizer.encode(text, special)?.into() }
        }
        Prompt::Tokens(tokens) => {
            let (prompt, max) = (tokens.len(), state.0.engine.info().max_model_len);
            if prompt > max as usize {
                let prompt = u32::try_from(prompt).unwrap_or(u32::MAX);
                let source = SubmitError::TooLong { prompt, new: 1, max };
                return Err(ApiError::Submit { source, prompt_param: "prompt" });
            }
            Source {
                text: tokenizer.decode(tokens, false)?.into(),
                tokens: tokens.as_slice().into(),
            }
        }
    })
}

/// One choice while it is written.
struct Output {
    tokenizer: Tokenizer,
    prompt: Source,
    /// The prompt has yet to be written.
    echo: bool,
    score_only: bool,
    logprobs: Option<Legacy>,
}

/// What a step adds to a choice.
#[derive(Default)]
struct Update {
    text: String,
    logprobs: Option<LegacyLogprobs>,
    finish: Option<FinishReason>,
    /// The choice is over though the engine would go on.
    cut: bool,
}

impl Output {
    fn take(&mut self, step: Step) -> Update {
        let mut update = Update::default();
        match step {
            Step::Prompt(entries) => {
                self.write_prompt(&entries, &mut update.text);
                if self.score_only {
                    update.finish = Some(FinishReason::Length);
                    update.cut = true;
                }
            }
            Step::Piece(piece) => {
                self.write_prompt(&[], &mut update.text);
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

async fn whole(mut generation: Generation, mut writer: Writer) -> Result<Response, ApiError> {
    let empty = |index| CompletionChoice {
        text: String::new(),
        index,
        logprobs: None,
        finish_reason: None,
    };
    let mut choices: Vec<_> = (0..writer.choices.len()).map(empty).collect();
    while let Some(step) = generation.next().await {
        let (index, step) = step?;
        let (Some(output), Some(choice)) = (writer.choices.get_mut(index), choices.get_mut(index))
        else {
            continue;
        };
        let update = output.take(step);
        choice.text.push_str(&update.text);
        if let Some(new) = update.logprobs {
            let all = choice.logprobs.get_or_insert_default();
            all.tokens.extend(new.tokens);
            all.token_logprobs.extend(new.token_logprobs);
            all.top_logprobs.extend(new.top_logprobs);
            all.text_offset.extend(new.text_offset);
        }
        choice.finish_reason = update.finish.map(reason);
        if let (true, Some(finish)) = (update.cut, update.finish) {
            generation.finish(index, finish);
        }
    }
    let body = writer.response(choices).with_usage(generation.usage(0));
    Ok(Json(body).into_response())
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
        let Update { text, logprobs, finish, cut } = output.take(step);
        if let (true, Some(finish)) = (cut, finish) {
            generation.finish(index, finish);
        }
        if text.is_empty() && finish.is_none() {
            return Ok(());
        }
        let finish_reason = finish.map(reason);
        let mut chunk =
            self.response(vec![CompletionChoice { text, index, logprobs, finish_reason }]);
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
