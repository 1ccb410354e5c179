//! The part of the table for models and adapters.

use super::{INVALID, Row, SERVER, bad};
use crate::many::LibraryError;
use axum::http::StatusCode;
use taper_base::AdapterRefused;

/// The part of the table for models that come and go.
pub(super) fn library(source: &LibraryError) -> Row<'static> {
    match source {
        LibraryError::TooLarge { .. } => bad("model_too_large", Some("model")),
        LibraryError::NoRoom => (StatusCode::SERVICE_UNAVAILABLE, SERVER, "models_busy", None),
        LibraryError::Unusable { .. } => {
            (StatusCode::INTERNAL_SERVER_ERROR, SERVER, "model_load_failed", Some("model"))
        }
        LibraryError::NotOwned => bad("model_not_owned", Some("model")),
        LibraryError::Refused { .. } => bad("model_not_available", Some("model")),
        LibraryError::Hub { .. } => (StatusCode::BAD_GATEWAY, SERVER, "hub_failed", None),
        LibraryError::Cancelled | LibraryError::Internal => {
            (StatusCode::INTERNAL_SERVER_ERROR, SERVER, "internal_error", None)
        }
    }
}

/// The part of the table for adapters.
pub(super) fn refused_adapter(source: &AdapterRefused) -> Row<'static> {
    match source {
        AdapterRefused::Unknown { .. } => {
            (StatusCode::NOT_FOUND, INVALID, "adapter_not_found", Some("lora_name"))
        }
        AdapterRefused::NameTaken { .. } => bad("adapter_exists", Some("lora_name")),
        AdapterRefused::TooMany { .. } => bad("too_many_adapters", None),
        AdapterRefused::NotServed { .. } => bad("no_adapters", None),
        AdapterRefused::Load { .. } => bad("invalid_adapter", Some("lora_path")),
    }
}
