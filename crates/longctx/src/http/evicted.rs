//! Texts that left a KV cache.

use super::{Body, Refused, Service, blocking};
use crate::{Error, EvictedChunk};
use axum::{
    Json,
    extract::{Path, Query, State},
};
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Write {
    session_id: String,
    chunks: Vec<EvictedChunk>,
}

pub(super) async fn write(
    State(service): State<Service>,
    Body(body): Body<Write>,
) -> Result<Json<Value>, Refused> {
    let accepted = body.chunks.len();
    let write = move |s: &super::Shared| s.evicted.write(&body.session_id, body.chunks);
    let session_total = blocking(service, write).await?;
    Ok(Json(json!({ "accepted": accepted, "session_total": session_total })))
}

/// There is one ranking, so what chooses among several is checked and changes nothing.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Retrieve {
    session_id: String,
    query: String,
    #[serde(default = "eight")]
    top_k: i64,
    #[serde(default)]
    score_floor: f64,
    #[serde(default)]
    hybrid_alpha: Option<f64>,
    #[serde(default, rename = "use_rerank")]
    _use_rerank: Option<bool>,
    #[serde(default = "thirty_two")]
    prefilter: i64,
}

fn eight() -> i64 {
    8
}

fn thirty_two() -> i64 {
    32
}

fn invalid(field: &'static str, why: &str) -> Refused {
    Error::Invalid { field, why: why.to_owned() }.into()
}

pub(super) fn check_top_k(top_k: i64) -> Result<usize, Refused> {
    let found = usize::try_from(top_k).ok().filter(|k| (1..=64).contains(k));
    found.ok_or_else(|| invalid("top_k", "must be from 1 to 64"))
}

pub(super) async fn retrieve(
    State(service): State<Service>,
    Body(body): Body<Retrieve>,
) -> Result<Json<Value>, Refused> {
    let top_k = check_top_k(body.top_k)?;
    let unit = |n: f64| (0.0..=1.0).contains(&n);
    if !unit(body.score_floor) {
        return Err(invalid("score_floor", "must be from 0 to 1"));
    }
    if !body.hybrid_alpha.is_none_or(unit) {
        return Err(invalid("hybrid_alpha", "must be from 0 to 1"));
    }
    if !(1..=512).contains(&body.prefilter) {
        return Err(invalid("prefilter", "must be from 1 to 512"));
    }
    let find = move |s: &super::Shared| {
        s.evicted.retrieve(&body.session_id, &body.query, top_k, body.score_floor)
    };
    let (chunks, session_total) = blocking(service, find).await?;
    Ok(Json(json!({ "chunks": chunks, "session_total": session_total })))
}

#[derive(Deserialize)]
pub(super) struct Dump {
    session_id: Option<String>,
}

pub(super) async fn dump(
    State(service): State<Service>,
    Query(Dump { session_id }): Query<Dump>,
) -> Result<Json<Value>, Refused> {
    let id = session_id.ok_or_else(|| invalid("session_id", "is missing"))?;
    let own = id.clone();
    let chunks = blocking(service, move |s| Ok(s.evicted.dump(&own))).await?;
    let of = |what: fn(&EvictedChunk) -> Value| chunks.iter().map(what).collect::<Vec<_>>();
    Ok(Json(json!({
        "session_id": id,
        "session_total": chunks.len(),
        "token_ranges": of(|c| json!(c.token_range)),
        "layers": of(|c| json!(c.layer)),
        "scores": of(|c| json!(c.score)),
    })))
}

pub(super) async fn hibernate(
    State(service): State<Service>,
    Path(id): Path<String>,
) -> Result<Json<Value>, Refused> {
    let own = id.clone();
    let moved = blocking(service, move |s| s.evicted.hibernate(&own)).await?;
    Ok(Json(json!({ "session_id": id, "hibernated": moved.done, "n_chunks": moved.chunks })))
}

pub(super) async fn resume(
    State(service): State<Service>,
    Path(id): Path<String>,
) -> Result<Json<Value>, Refused> {
    let own = id.clone();
    let moved = blocking(service, move |s| Ok(s.evicted.resume(&own))).await?;
    let error = if moved.done { Value::Null } else { json!("there is no such session") };
    Ok(Json(json!({
        "session_id": id, "resumed": moved.done, "n_chunks": moved.chunks, "error": error
    })))
}

pub(super) async fn whereabouts(
    State(service): State<Service>,
    Path(id): Path<String>,
) -> Result<Json<Value>, Refused> {
    let found = blocking(service, move |s| Ok(s.evicted.whereabouts(&id))).await?;
    let mut answer = json!(found);
    answer["embedder_fingerprint"] = json!("bm25");
    Ok(Json(answer))
}
