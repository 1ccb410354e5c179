//! The API described: `/openapi.json`, whose schemas are made of the wire types, and `/docs`, the
//! same for people.

mod operations;
mod page;
mod schemas;

use crate::{
    error_body::ErrorBody,
    wire::{AnthropicError, OllamaError},
};
use operations::{Operation, operations};
use schemas::Schemas;
use serde_json::{Map, Value, json};
use std::sync::OnceLock;

/// The document as JSON; `keys` says whether the server asks for API keys.
pub(crate) fn document(keys: bool) -> &'static str {
    static TEXTS: [OnceLock<String>; 2] = [OnceLock::new(), OnceLock::new()];
    TEXTS[usize::from(keys)].get_or_init(|| build(keys).to_string())
}

/// The document as a page, which loads nothing.
pub(crate) fn page() -> &'static str {
    static PAGE: OnceLock<String> = OnceLock::new();
    PAGE.get_or_init(|| page::render(&build(true)))
}

/// Statuses of errors, their meaning and their codes.
const ERRORS: &[(u16, &str, &str)] = &[
    (
        400,
        "The request is malformed, or asks for what this server does not have; `param` names the field.",
        "invalid_json, invalid_type, invalid_value, missing_required_parameter, unknown_parameter, \
         unsupported_parameter, unsupported_value, unreadable_body, too_many_values, empty_prompt, \
         context_length_exceeded, kv_cache_too_small, unknown_token, no_token_left, invalid_kv_bits, \
         template_failed, no_chat_template, unsupported_schema, invalid_schema, invalid_grammar, \
         grammar_too_large, grammar_too_complex, grammar_dead_end, no_vectors, no_scores, no_transcripts, no_generation, \
         invalid_form, invalid_audio, invalid_adapter, adapter_exists, not_in_progress, too_many_adapters, no_adapters, \
         model_too_large, model_not_loaded, model_not_owned, model_not_available",
    ),
    (401, "The API key is missing or wrong.", "invalid_api_key"),
    (
        403,
        "The request comes by a host name, or from a web page, that is not allowed, or its key lacks a scope.",
        "host_not_allowed, origin_not_allowed, insufficient_permissions, model_updates_not_allowed",
    ),
    (
        404,
        "There is no such model, adapter or route.",
        "model_not_found, adapter_not_found, response_not_found, unknown_url, one_model",
    ),
    (
        408,
        "The body came too slowly, the output was not read, or the generation took too long.",
        "body_timeout, output_not_read, request_timeout",
    ),
    (409, "The model is loaded.", "model_loaded"),
    (413, "The body is too large.", "body_too_large"),
    (
        415,
        "The body is not JSON, or no form where one is needed, or compressed in a way that this server does not know.",
        "unsupported_media_type, unsupported_encoding",
    ),
    (
        429,
        "The queue is full, or the key has used what it may; try again later.",
        "queue_full, rate_limit_exceeded, insufficient_quota",
    ),
    (
        500,
        "The server failed.",
        "internal_error, step_failed, non_finite_logits, non_finite_score, model_failed, tokenizer_failed, \
         transcript_failed, engine_gone, engine_restarted, model_load_failed",
    ),
    (502, "The hub cannot be reached, or failed.", "hub_failed"),
    (
        503,
        "The server ends, is busy, or its engine has failed; or other models are in use and leave no room.",
        "shutting_down, busy, engine_dead, models_busy",
    ),
];

fn build(keys: bool) -> Value {
    let mut schemas = Schemas::new();
    let mut paths = Map::new();
    // APIs, by their tags, whose errors have another form.
    let others = [
        ("Messages", error_of("Anthropic", &schemas.response::<AnthropicError>())),
        ("Ollama", error_of("Ollama", &schemas.response::<OllamaError>())),
    ];
    for operation in operations(&mut schemas) {
        let path = paths.entry(operation.path).or_insert_with(|| json!({}));
        path[operation.method] = described(&operation, keys, &others);
    }
    let error = schemas.response::<ErrorBody>();
    let responses: Map<_, _> =
        ERRORS.iter().map(|e| (e.0.to_string(), failure(e, &error))).collect();
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Taper",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "The APIs of OpenAI and vLLM over a local model. `null` means absent everywhere; fields \
                            that are not listed are refused.",
        },
        "paths": paths,
        "components": {
            "schemas": schemas.components(),
            "responses": responses,
            "headers": { "RequestId": {
                "description": "The request's own, or a new one.",
                "schema": { "type": "string" },
            } },
            "securitySchemes": {
                "key": { "type": "http", "scheme": "bearer" },
                "anthropicKey": { "type": "apiKey", "in": "header", "name": "x-api-key" },
            },
        },
    })
}

/// A response with an error.
fn failure((status, meaning, codes): &(u16, &str, &str), schema: &Value) -> Value {
    let mut response = json!({
        "description": format!("{meaning} Codes: {codes}."),
        "headers": request_id(),
        "content": { "application/json": { "schema": schema } },
    });
    if matches!(status, 429 | 503) {
        response["headers"]["Retry-After"] = json!({
            "description": "Seconds.",
            "schema": { "type": "integer" },
        });
    }
    response
}

/// A response with an error, as another API has it.
fn error_of(whose: &str, schema: &Value) -> Value {
    json!({
        "description": format!("An error in {whose}'s form."),
        "headers": request_id(),
        "content": { "application/json": { "schema": schema } },
    })
}

fn request_id() -> Value {
    json!({ "x-request-id": { "$ref": "#/components/headers/RequestId" } })
}

fn described(operation: &Operation, keys: bool, others: &[(&str, Value)]) -> Value {
    let mut responses = Map::new();
    for (status, description, content) in &operation.answers {
        let response = json!({
            "description": description,
            "headers": request_id(),
            "content": content,
        });
        responses.insert(status.to_string(), response);
    }
    for status in operation.errors {
        let shared = || json!({ "$ref": format!("#/components/responses/{status}") });
        let other = others.iter().find(|(tag, _)| *tag == operation.tag);
        let error = other.map_or_else(shared, |(_, error)| error.clone());
        responses.entry(status.to_string()).or_insert(error);
    }
    let mut all = json!({
        "operationId": operation.id,
        "tags": [operation.tag],
        "summary": operation.summary,
        "responses": responses,
    });
    if let Some(body) = &operation.body {
        all["requestBody"] =
            json!({ "required": true, "content": { operation.body_type: { "schema": body } } });
    }
    let mut parameters = Vec::new();
    if operation.path.contains("{id}") {
        parameters.push(json!({
            "name": "id", "in": "path", "required": true, "schema": { "type": "string", "minLength": 1 },
            "description": "A name, which may hold slashes, or an id.",
        }));
    }
    for (name, schema, description) in operation.query {
        let schema: Value = serde_json::from_str(schema).unwrap_or_default();
        parameters.push(json!({
            "name": name, "in": "query", "schema": schema, "description": description,
        }));
    }
    if !parameters.is_empty() {
        all["parameters"] = parameters.into();
    }
    if keys && !operation.open {
        let either = operation.tag == "Messages";
        let either = either.then(|| json!({ "anthropicKey": [] }));
        all["security"] = [json!({ "key": [] })].into_iter().chain(either).collect();
    }
    all
}
