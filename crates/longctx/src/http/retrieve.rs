//! Chunks for a prompt.

use super::{Body, Refused, Service, Shared, blocking, evicted::check_top_k};
use crate::{
    ChunkKind, Error, FoundChunk, MAX_TOKENS, SearchRequest,
    scope::{Scope, explicit},
};
use axum::{
    Json,
    extract::State,
    http::{HeaderMap, HeaderName, HeaderValue},
    response::{IntoResponse, Response},
};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// All scopes of a session.
const WORKSPACE: &str = "ws:";

/// Bytes of the end of a prompt that stand for a question that is not asked.
const TAIL: usize = 512;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Retrieve {
    #[serde(default)]
    prefill_text: String,
    #[serde(default)]
    query: String,
    #[serde(default = "eight")]
    top_k: i64,
    #[serde(default)]
    session_id: Option<String>,
    #[serde(default)]
    explicit_scope: Option<String>,
    #[serde(default)]
    default_scope: Option<String>,
    #[serde(default)]
    metadata: Option<Metadata>,
}

#[derive(Deserialize)]
struct Metadata {
    session_id: Option<String>,
}

fn eight() -> i64 {
    8
}

#[derive(Debug, Serialize)]
struct Chunk {
    text: String,
    file_path: String,
    start_line: u32,
    end_line: u32,
    file_type: &'static str,
    score: f32,
}

#[derive(Debug, Serialize)]
struct Answer {
    chunks: Vec<Chunk>,
    scope_path: Option<String>,
    scope_hash: Option<String>,
    scope_status: &'static str,
    scope_sentinel: Option<String>,
    session_id: Option<String>,
    used_rerank: bool,
    paraphrases_count: u32,
}

pub(super) async fn handle(
    State(service): State<Service>,
    headers: HeaderMap,
    Body(body): Body<Retrieve>,
) -> Result<Response, Refused> {
    let top_k = check_top_k(body.top_k)?;
    let session = session(&headers, &body);
    let answer = blocking(service, move |s| answer(s, &body, session, top_k)).await?;
    let best = answer.chunks.first().map_or(0.0, |c| c.score);
    let told = [
        ("x-longctx-session", answer.session_id.clone().unwrap_or_else(|| "ephemeral".to_owned())),
        ("x-longctx-scope", answer.scope_path.clone().unwrap_or_default()),
        ("x-longctx-chunks-used", answer.chunks.len().to_string()),
        ("x-longctx-scope-status", answer.scope_status.to_owned()),
        ("x-longctx-confidence", format!("{best:.3}")),
    ];
    let mut response = Json(answer).into_response();
    for (name, value) in told {
        // Paths may have characters that no header has.
        if let Ok(value) = HeaderValue::from_str(&value) {
            response.headers_mut().insert(HeaderName::from_static(name), value);
        }
    }
    Ok(response)
}

/// Who asks: two headers, then the body.
fn session(headers: &HeaderMap, body: &Retrieve) -> Option<String> {
    let header = |name: &str| headers.get(name).and_then(|v| v.to_str().ok()).map(str::to_owned);
    let of_body = || body.session_id.clone();
    let of_metadata = || body.metadata.as_ref().and_then(|m| m.session_id.clone());
    let id = header("x-session-affinity").or_else(|| header("x-session-id"));
    id.or_else(of_body).or_else(of_metadata).filter(|id| !id.is_empty() && id.len() <= 256)
}

fn answer(
    shared: &Shared,
    body: &Retrieve,
    session: Option<String>,
    top_k: usize,
) -> Result<Answer, Error> {
    let Shared { library, scopes, .. } = shared;
    if let Some(id) = &session {
        scopes.touch(id);
    }
    let is_workspace = body.explicit_scope.as_deref() == Some(WORKSPACE);
    let chosen: Vec<Scope> = match body.explicit_scope.as_deref() {
        Some(WORKSPACE) => scopes.all(session.as_deref()),
        Some(path) => explicit(library, path).into_iter().collect(),
        None => {
            let relative_to = body.default_scope.as_deref().map(Path::new);
            let text = &body.prefill_text;
            scopes.of(library, text, relative_to, session.as_deref()).into_iter().collect()
        }
    };
    let query = if body.query.trim().is_empty() { tail(&body.prefill_text) } else { &body.query };
    let mut found: Vec<Chunk> = Vec::new();
    for scope in &chosen {
        found.extend(search(shared, scope, query, top_k)?);
    }
    found.sort_by(|a, b| b.score.total_cmp(&a.score));
    found.truncate(top_k);
    let scope_status = match (chosen.is_empty(), found.is_empty()) {
        (true, _) => "no-scope",
        (false, true) => "empty",
        _ => "ready",
    };
    let first = chosen.first().filter(|_| !is_workspace);
    let path = first.map(|s| s.path.to_string_lossy().into_owned());
    Ok(Answer {
        chunks: found,
        scope_path: if is_workspace { Some(WORKSPACE.to_owned()) } else { path },
        scope_hash: first.map(Scope::hash),
        scope_status,
        scope_sentinel: match is_workspace {
            true => Some("workspace".to_owned()).filter(|_| !chosen.is_empty()),
            false => first.map(|s| s.sentinel.clone()),
        },
        session_id: session,
        used_rerank: false,
        paraphrases_count: 0,
    })
}

fn search(shared: &Shared, scope: &Scope, query: &str, top_k: usize) -> Result<Vec<Chunk>, Error> {
    let request = SearchRequest {
        project: Some(scope.project.root().to_string_lossy().into_owned()),
        path_prefix: Some(scope.prefix()),
        max_results: u32::try_from(top_k).unwrap_or(1),
        max_tokens: MAX_TOKENS,
        ..SearchRequest::new(query)
    };
    let answer = match shared.library.search(&request) {
        // A question without a word has no answer.
        Err(Error::Invalid { field: "query", .. }) => return Ok(Vec::new()),
        answer => answer?,
    };
    Ok(answer.chunks.into_iter().map(|chunk| told(scope, chunk)).collect())
}

fn told(scope: &Scope, chunk: FoundChunk) -> Chunk {
    Chunk {
        file_path: scope.project.root().join(&chunk.file_path).to_string_lossy().into_owned(),
        start_line: chunk.start_line,
        end_line: chunk.end_line,
        file_type: match chunk.kind {
            ChunkKind::Function | ChunkKind::Class => "code",
            ChunkKind::Section => "prose",
            ChunkKind::Text => "text",
        },
        score: chunk.relevance_score,
        text: chunk.text,
    }
}

fn tail(text: &str) -> &str {
    &text[text.ceil_char_boundary(text.len().saturating_sub(TAIL))..]
}
