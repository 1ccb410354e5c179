//! `/tokenize` and `/detokenize`, in vLLM's shapes.

use super::chat_prompt::{PromptFields, render};
use crate::{
    decode::Body,
    errors::ApiError,
    messages,
    state::AppState,
    wire::{DetokenizeRequest, DetokenizeResponse, TokenizeRequest, TokenizeResponse},
};
use axum::{
    Json,
    body::Bytes,
    extract::{State, rejection::BytesRejection},
    http::HeaderMap,
};

pub(super) async fn tokenize(
    State(state): State<AppState>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<TokenizeResponse>, ApiError> {
    let config = &state.0.config;
    let mut body = Body::parse(&headers, body, config.max_body_bytes)?;
    let wire: TokenizeRequest = body.read()?;
    body.finish(&[], config.allow_unknown_fields)?;
    state.0.model(wire.model.as_deref())?;
    let strings = wire.return_token_strs.unwrap_or(false);
    let (state2, max_model_len) = (state.clone(), state.0.engine.info().max_model_len);
    let tokens = blocking(move || text_tokens(&state2, wire)).await?;
    let token_strs =
        strings.then(|| tokens.iter().map(|t| state.0.tokenizer.token_text(*t)).collect());
    Ok(Json(TokenizeResponse { count: tokens.len(), max_model_len, tokens, token_strs }))
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
                ("add_generation_prompt", wire.add_generation_prompt.is_some()),
                ("continue_final_message", wire.continue_final_message.is_some()),
            ];
            if let Some((name, _)) = only_messages.iter().find(|(_, set)| *set) {
                return Err(ApiError::value(*name, "only goes with 'messages'"));
            }
            Ok(tokenizer.encode(&prompt, wire.add_special_tokens.unwrap_or(true))?)
        }
        (None, Some(wire_messages)) => {
            let fields = PromptFields {
                messages: messages::messages(wire_messages)?,
                tools: messages::tools(wire.tools.unwrap_or_default())?,
                kwargs: wire.chat_template_kwargs,
                enable_thinking: wire.enable_thinking,
                add_generation_prompt: wire.add_generation_prompt,
                continue_final_message: wire.continue_final_message,
            };
            let prompt = render(state, fields)?;
            // The template writes special tokens itself.
            Ok(tokenizer.encode(&prompt, wire.add_special_tokens.unwrap_or(false))?)
        }
    }
}

pub(super) async fn detokenize(
    State(state): State<AppState>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<DetokenizeResponse>, ApiError> {
    let config = &state.0.config;
    let mut body = Body::parse(&headers, body, config.max_body_bytes)?;
    let wire: DetokenizeRequest = body.read()?;
    body.finish(&[], config.allow_unknown_fields)?;
    state.0.model(wire.model.as_deref())?;
    let vocab = state.0.engine.info().vocab_size;
    if let Some(at) = wire.tokens.iter().position(|t| *t >= vocab) {
        let detail = format!("is outside the vocabulary of {vocab} tokens");
        return Err(ApiError::value(format!("tokens[{at}]"), detail));
    }
    Ok(Json(DetokenizeResponse { prompt: state.0.tokenizer.decode(&wire.tokens, false)? }))
}

/// Long texts take long to tokenize: other connections must not wait for that.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    tokio::task::spawn_blocking(work).await.map_err(|error| {
        tracing::error!(%error, "a request's preparation panicked");
        ApiError::Internal
    })?
}
