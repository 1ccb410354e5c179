//! `/tokenize` and `/detokenize`, in vLLM's shapes.

use super::chat_prompt::{PromptFields, render};
use crate::{
    decode::Body,
    errors::ApiError,
    intake::{Payload, prepare},
    messages,
    state::AppState,
    wire::{DetokenizeRequest, DetokenizeResponse, TokenizeRequest, TokenizeResponse},
};
use axum::{
    Json,
    extract::State,
    response::{IntoResponse, Response},
};
use taper_chat::Content;

/// Most tokens that are made into text at a time.
const MOST_TOKENS: usize = 1 << 20;

pub(super) async fn tokenize(
    State(state): State<AppState>,
    payload: Payload,
) -> Result<Response, ApiError> {
    prepare(&state, payload, tokens_of).await
}

pub(super) async fn detokenize(
    State(state): State<AppState>,
    payload: Payload,
) -> Result<Response, ApiError> {
    prepare(&state, payload, text_of).await
}

/// The response is written here too: it is as long as the request.
fn tokens_of(state: &AppState, mut body: Body) -> Result<Response, ApiError> {
    let wire: TokenizeRequest = body.read()?;
    body.finish(&[], state.0.config.allow_unknown_fields)?;
    state.0.model(wire.model.as_deref())?;
    let strings = wire.return_token_strs.unwrap_or(false);
    let tokens = text_tokens(state, wire)?;
    let text = |token: &u32| state.0.tokenizer.token_text(*token);
    let token_strs = strings.then(|| tokens.iter().map(text).collect());
    let (count, max_model_len) = (tokens.len(), state.0.engine.info().max_model_len);
    Ok(Json(TokenizeResponse { count, max_model_len, tokens, token_strs }).into_response())
}

fn text_tokens(state: &AppState, wire: TokenizeRequest) -> Result<Vec<u32>, ApiError> {
    let tokenizer = &state.0.tokenizer;
    match (wire.prompt, wire.messages) {
        (Some(_), Some(_)) => {
            Err(ApiError::value("messages", "'prompt' and 'messages' exclude each other"))
        }
        (None, None) => Err(ApiError::MissingParameter { param: "prompt".to_owned() }),
        (Some(prompt), None) => {
            let only_messages = [
                ("tools", wire.tools.is_some()),
                ("chat_template_kwargs", wire.chat_template_kwargs.is_some()),
                ("enable_thinking", wire.enable_thinking.is_some()),
                ("think", wire.think.is_some()),
                ("reasoning_effort", wire.reasoning_effort.is_some()),
                ("add_generation_prompt", wire.add_generation_prompt.is_some()),
                ("continue_final_message", wire.continue_final_message.is_some()),
            ];
            if let Some((name, _)) = only_messages.iter().find(|(_, set)| *set) {
                return Err(ApiError::value(*name, "only goes with 'messages'"));
            }
            state.0.check_text(&prompt, "prompt")?;
            Ok(tokenizer.encode(&prompt, wire.add_special_tokens.unwrap_or(true))?)
        }
        (None, Some(wire_messages)) => {
            let messages = messages::messages(wire_messages, &state.0.images)?;
            let contents = messages.iter().filter_map(|message| message.content.as_ref());
            if contents.flat_map(Content::images).next().is_some() {
                return Err(ApiError::unsupported("messages", "this route does not take images"));
            }
            let fields = PromptFields {
                messages,
                kwargs: wire.chat_template_kwargs,
                enable_thinking: wire.enable_thinking,
                think: wire.think,
                reasoning_effort: wire.reasoning_effort,
                add_generation_prompt: wire.add_generation_prompt,
                continue_final_message: wire.continue_final_message,
                ..PromptFields::default()
            };
            let tools = messages::tools(wire.tools.unwrap_or_default())?;
            let prompt = render(state, fields, &tools)?.text;
            // The template writes special tokens itself.
            Ok(tokenizer.encode(&prompt, wire.add_special_tokens.unwrap_or(false))?)
        }
    }
}

fn text_of(state: &AppState, mut body: Body) -> Result<Response, ApiError> {
    let wire: DetokenizeRequest = body.read()?;
    body.finish(&[], state.0.config.allow_unknown_fields)?;
    state.0.model(wire.model.as_deref())?;
    if wire.tokens.len() > MOST_TOKENS {
        let detail = format!("takes at most {MOST_TOKENS} tokens, got {}", wire.tokens.len());
        return Err(ApiError::value("tokens", detail));
    }
    let vocab = state.0.engine.info().vocab_size;
    if let Some(at) = wire.tokens.iter().position(|t| *t >= vocab) {
        let detail = format!("is outside the vocabulary of {vocab} tokens");
        return Err(ApiError::value(format!("tokens[{at}]"), detail));
    }
    let prompt = state.0.tokenizer.decode(&wire.tokens, false)?;
    Ok(Json(DetokenizeResponse { prompt }).into_response())
}
