//! Responses that are kept: `GET`, `DELETE`, their input items, and the end of those in the background.

use crate::{
    errors::ApiError,
    stored::Responses,
    wire::{ItemList, ResponseDeleted, ResponseOut},
};
use axum::{
    Json,
    extract::{
        Path, Query, State,
        rejection::{PathRejection, QueryRejection},
    },
    response::{IntoResponse, Response},
};
use serde_json::Value;
use std::sync::Arc;

type Id = Result<Path<String>, PathRejection>;
type Fields = Result<Query<Vec<(String, String)>>, QueryRejection>;

pub(in crate::routes) async fn get(
    State(responses): State<Arc<Responses>>,
    id: Id,
    fields: Fields,
) -> Result<Response, ApiError> {
    for (name, value) in read(fields)? {
        match (name.as_str(), value.as_str()) {
            // Everything is there in any case.
            ("include" | "include[]", _) => {}
            ("stream" | "include_obfuscation", "false") => {}
            ("stream" | "include_obfuscation", _) => {
                return Err(ApiError::unsupported(name, "must be false"));
            }
            ("starting_after", _) => {
                return Err(ApiError::unsupported(name, "is only for streams"));
            }
            _ => return Err(ApiError::UnknownParameter { param: name }),
        }
    }
    Ok(Json(&*responses.get(&named(id)?, None)?.response).into_response())
}

pub(in crate::routes) async fn delete(
    State(responses): State<Arc<Responses>>,
    id: Id,
) -> Result<Json<ResponseDeleted>, ApiError> {
    let id = named(id)?;
    responses.delete(&id)?;
    Ok(Json(ResponseDeleted { id, object: "response", deleted: true }))
}

pub(in crate::routes) async fn cancel(
    State(responses): State<Arc<Responses>>,
    id: Id,
) -> Result<Json<ResponseOut>, ApiError> {
    let id = named(id)?;
    let stored = responses.get(&id, None)?;
    if stored.response.status == "cancelled" {
        return Ok(Json(ResponseOut::clone(&stored.response)));
    }
    if !stored.cancel() {
        return Err(ApiError::NotInProgress { id });
    }
    Ok(Json(ResponseOut { status: "cancelled", ..ResponseOut::clone(&stored.response) }))
}

/// The whole conversation that a response came from, page by page.
pub(in crate::routes) async fn input_items(
    State(responses): State<Arc<Responses>>,
    id: Id,
    fields: Fields,
) -> Result<Json<ItemList>, ApiError> {
    let page = page(read(fields)?)?;
    let exchange = responses.get(&named(id)?, None)?.exchange;
    let mut items = exchange.items(false);
    if page.newest_first {
        items.reverse();
    }
    let id_of = |item: &Value| item.get("id").and_then(Value::as_str).map(str::to_owned);
    let begin = match &page.after {
        None => 0,
        Some(after) => {
            let found = items.iter().position(|item| id_of(item).as_ref() == Some(after));
            let missing = || ApiError::value("after", format!("there is no item '{after}'"));
            found.ok_or_else(missing)? + 1
        }
    };
    let has_more = items.len() - begin > page.limit;
    let data: Vec<Value> = items.into_iter().skip(begin).take(page.limit).cloned().collect();
    let (first_id, last_id) = (data.first().and_then(id_of), data.last().and_then(id_of));
    Ok(Json(ItemList { object: "list", data, first_id, last_id, has_more }))
}

struct Page {
    limit: usize,
    newest_first: bool,
    after: Option<String>,
}

fn page(fields: Vec<(String, String)>) -> Result<Page, ApiError> {
    let mut page = Page { limit: 20, newest_first: true, after: None };
    for (name, value) in fields {
        match name.as_str() {
            "limit" => {
                let limit = value.parse().ok().filter(|limit| (1..=100).contains(limit));
                let wrong = || ApiError::value("limit", "must be a number from 1 to 100");
                page.limit = limit.ok_or_else(wrong)?;
            }
            "order" => {
                page.newest_first = match value.as_str() {
                    "asc" => false,
                    "desc" => true,
                    _ => return Err(ApiError::value("order", "must be 'asc' or 'desc'")),
                }
            }
            "after" => page.after = Some(value),
            // Everything is there in any case.
            "include" | "include[]" => {}
            _ => return Err(ApiError::UnknownParameter { param: name }),
        }
    }
    Ok(page)
}

fn named(id: Id) -> Result<String, ApiError> {
    id.map(|Path(id)| id).map_err(|_| ApiError::value("id", "must be UTF-8"))
}

fn read(fields: Fields) -> Result<Vec<(String, String)>, ApiError> {
    fields.map(|Query(fields)| fields).map_err(|_| ApiError::value("query", "cannot be read"))
}
