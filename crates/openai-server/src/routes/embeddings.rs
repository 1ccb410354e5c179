//! `/v1/embeddings`.

use crate::{
    decode::Body,
    errors::ApiError,
    intake::{Payload, prepare},
    scores::{MOST_TEXTS, MOST_TOKENS, in_turn},
    state::{AppState, Served},
    wire::{
        Embedding, EmbeddingRequest, EmbeddingResponse, EmbeddingUsage, InertFields, Prompt, Vector,
    },
};
use axum::{
    Json,
    extract::State,
    response::{IntoResponse, Response},
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use taper_base::{TextVectors, TokenId, VectorsError};

pub(super) async fn handle(
    State(state): State<AppState>,
    payload: Payload,
) -> Result<Response, ApiError> {
    prepare(&state, payload, answer).await
}

fn answer(state: &AppState, mut body: Body) -> Result<Response, ApiError> {
    let vectors = state.0.vectors.as_deref().ok_or(ApiError::NoVectors)?;
    let wire: EmbeddingRequest = body.read()?;
    body.read::<InertFields>()?;
    body.finish(&[], state.0.config.allow_unknown_fields)?;
    let Served { name: model, .. } = state.0.model(wire.model.as_deref())?;
    let as_text = match wire.encoding_format.as_deref() {
        None | Some("float") => false,
        Some("base64") => true,
        Some(other) => {
            let detail = format!("there is no format '{other}'; there are 'float' and 'base64'");
            return Err(ApiError::value("encoding_format", detail));
        }
    };
    let dimensions = dimensions(wire.dimensions, vectors)?;
    let texts = tokens(state, vectors, &wire.input.0)?;
    let prompt_tokens = texts.iter().map(Vec::len).sum();
    let found = in_turn(|| vectors.vectors(&texts, dimensions)).map_err(failed)?;
    let embedding = |(index, vector): (usize, Vec<f32>)| Embedding {
        object: "embedding",
        index,
        embedding: match as_text {
            false => Vector::Numbers(vector),
            true => {
                let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
                Vector::Text(BASE64_STANDARD.encode(bytes))
            }
        },
    };
    let data = found.into_iter().enumerate().map(embedding).collect();
    let usage = EmbeddingUsage { prompt_tokens, total_tokens: prompt_tokens };
    Ok(Json(EmbeddingResponse { object: "list", data, model, usage }).into_response())
}

/// Elements of a vector that are asked for.
pub(super) fn dimensions(
    asked: Option<u64>,
    vectors: &dyn TextVectors,
) -> Result<Option<usize>, ApiError> {
    let asked = asked.map(|n| usize::try_from(n).unwrap_or(usize::MAX));
    let most = vectors.dimensions();
    match asked.is_some_and(|n| n == 0 || n > most) {
        true => Err(ApiError::value("dimensions", format!("must be between 1 and {most}"))),
        false => Ok(asked),
    }
}

pub(super) fn failed(source: VectorsError) -> ApiError {
    ApiError::Vectors { source, param: "input" }
}

pub(super) fn tokens(
    state: &AppState,
    vectors: &dyn TextVectors,
    input: &[Prompt],
) -> Result<Vec<Vec<TokenId>>, ApiError> {
    if input.is_empty() || input.len() > MOST_TEXTS {
        let detail = format!("must have from 1 to {MOST_TEXTS} texts");
        return Err(ApiError::value("input", detail));
    }
    let (mut texts, mut sum) = (Vec::with_capacity(input.len()), 0);
    for text in input {
        let tokens = match text {
            Prompt::Text(text) => {
                state.0.check_text(text, "input")?;
                vectors.tokenize(text).map_err(failed)?
            }
            Prompt::Tokens(tokens) => tokens.clone(),
        };
        sum += tokens.len();
        if sum > MOST_TOKENS {
            let detail = format!("must have at most {MOST_TOKENS} tokens in all");
            return Err(ApiError::value("input", detail));
        }
        texts.push(tokens);
    }
    Ok(texts)
}
