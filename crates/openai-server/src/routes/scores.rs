//! `/v1/rerank` and `/v1/score`.

use crate::{
    decode::Body,
    errors::ApiError,
    intake::{Payload, prepare},
    random::random_id,
    scores::{Scored, scores},
    state::{AppState, Served, unix_time},
    wire::{
        EmbeddingUsage, InertFields, RerankDocument, RerankRequest, RerankResponse, RerankResult,
        RerankText, Score, ScoreRequest, ScoreResponse,
    },
};
use axum::{
    Json,
    extract::State,
    response::{IntoResponse, Response},
};

pub(super) async fn rerank(
    State(state): State<AppState>,
    payload: Payload,
) -> Result<Response, ApiError> {
    prepare(&state, payload, ranked).await
}

pub(super) async fn score(
    State(state): State<AppState>,
    payload: Payload,
) -> Result<Response, ApiError> {
    prepare(&state, payload, scored).await
}

fn ranked(state: &AppState, mut body: Body) -> Result<Response, ApiError> {
    let wire: RerankRequest = body.read()?;
    body.read::<InertFields>()?;
    body.finish(&[], state.0.config.allow_unknown_fields)?;
    let Served { name: model, .. } = state.0.model(wire.model.as_deref())?;
    let texts: Vec<_> = wire.documents.iter().map(|RerankText(text)| text.as_str()).collect();
    let Scored { scores, tokens } =
        scores(state, std::slice::from_ref(&wire.query), &texts, ["query", "documents"])?;
    let mut order: Vec<_> = scores.into_iter().enumerate().collect();
    order.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    let most = wire.top_n.filter(|n| *n > 0).map_or(usize::MAX, |n| n as usize);
    let show = wire.return_documents.unwrap_or(true);
    let result = |(index, relevance_score): (usize, f32)| RerankResult {
        index,
        document: texts
            .get(index)
            .filter(|_| show)
            .map(|text| RerankDocument { text: (*text).to_owned() }),
        relevance_score,
    };
    let results = order.into_iter().take(most).map(result).collect();
    let (id, usage) = (random_id("rerank"), usage(tokens));
    Ok(Json(RerankResponse { id, model, usage, results }).into_response())
}

fn scored(state: &AppState, mut body: Body) -> Result<Response, ApiError> {
    let wire: ScoreRequest = body.read()?;
    body.read::<InertFields>()?;
    body.finish(&[], state.0.config.allow_unknown_fields)?;
    let Served { name: model, .. } = state.0.model(wire.model.as_deref())?;
    let (firsts, seconds) = (wire.text_1.0, wire.text_2.0);
    if firsts.len() > 1 && firsts.len() != seconds.len() {
        let detail = "must have as many texts as 'text_1', which has more than one";
        return Err(ApiError::value("text_2", detail));
    }
    let seconds: Vec<_> = seconds.iter().map(String::as_str).collect();
    let Scored { scores, tokens } = scores(state, &firsts, &seconds, ["text_1", "text_2"])?;
    let score = |(index, score): (usize, f32)| Score { index, object: "score", score };
    let response = ScoreResponse {
        id: random_id("score"),
        object: "list",
        created: unix_time(),
        model,
        data: scores.into_iter().enumerate().map(score).collect(),
        usage: usage(tokens),
    };
    Ok(Json(response).into_response())
}

fn usage(tokens: usize) -> EmbeddingUsage {
    EmbeddingUsage { prompt_tokens: tokens, total_tokens: tokens }
}
