//! `POST /api/embed`.

use super::ask::model_name;
use crate::{
    decode::Body,
    errors::ApiError,
    intake::{Payload, prepare},
    routes::embeddings,
    scores::in_turn,
    state::AppState,
    wire::{OllamaEmbedRequest, OllamaEmbedResponse, OllamaInertFields, Prompt},
};
use axum::{Json, extract::State};
use std::time::Instant;
use taper_base::TokenId;

pub(in crate::routes) async fn embed(
    State(state): State<AppState>,
    payload: Payload,
) -> Result<Json<OllamaEmbedResponse>, ApiError> {
    prepare(&state, payload, answer).await
}

fn answer(state: &AppState, mut body: Body) -> Result<Json<OllamaEmbedResponse>, ApiError> {
    let arrived = Instant::now();
    let vectors = state.0.vectors.as_deref().ok_or(ApiError::NoVectors)?;
    let wire: OllamaEmbedRequest = body.read()?;
    body.read::<OllamaInertFields>()?;
    body.finish(&[], state.0.config.allow_unknown_fields)?;
    let name = wire.model.map(|name| model_name(state, name));
    let model = state.0.model(name.as_deref())?.name;
    let dimensions = embeddings::dimensions(wire.dimensions, vectors)?;
    let cuts = wire.truncate != Some(false);
    let most = state.0.engine.info().max_model_len;
    let text = |text: String| Prompt::Text(if cuts { state.0.start_of(text, most) } else { text });
    let input: Vec<_> = wire.input.0.into_iter().map(text).collect();
    let mut texts = embeddings::tokens(state, vectors, &input)?;
    if cuts {
        let last = vectors.tokenize("").map_err(embeddings::failed)?;
        texts.iter_mut().for_each(|text| cut(text, vectors.max_tokens(), &last));
    }
    let prompt_eval_count = texts.iter().map(Vec::len).sum();
    let found = in_turn(|| vectors.vectors(&texts, dimensions)).map_err(embeddings::failed)?;
    Ok(Json(OllamaEmbedResponse {
        model,
        embeddings: found,
        total_duration: u64::try_from(arrived.elapsed().as_nanos()).unwrap_or(u64::MAX),
        load_duration: 0,
        prompt_eval_count,
    }))
}

/// Keeps the first `most` tokens of a text, and what the model wants behind it: the end of the tokens of no text.
fn cut(text: &mut Vec<TokenId>, most: usize, of_none: &[TokenId]) {
    if text.len() <= most {
        return;
    }
    let same = text.iter().rev().zip(of_none.iter().rev()).take_while(|(a, b)| a == b).count();
    let end = text.split_off(text.len() - same.min(most));
    text.truncate(most - end.len());
    text.extend(end);
}

#[cfg(test)]
mod tests {
    use super::cut;

    #[test]
    fn a_text_is_cut_before_its_last_tokens() {
        let after = |text: &[u32], most, of_none: &[u32]| {
            let mut text = text.to_vec();
            cut(&mut text, most, of_none);
            text
        };
        assert_eq!(after(&[1, 5, 6, 7, 2], 4, &[1, 2]), [1, 5, 6, 2]);
        assert_eq!(after(&[1, 5, 6, 7, 2], 5, &[1, 2]), [1, 5, 6, 7, 2]);
        assert_eq!(after(&[5, 6, 7], 2, &[]), [5, 6]);
        assert_eq!(after(&[5, 2, 2], 1, &[2, 2]), [2]);
    }
}
