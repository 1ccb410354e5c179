//! The JSON of the API: what comes in, what goes out, field by field. No engine types here.

mod chat;
mod common;
mod completion;
mod embedding;
mod lenient;
mod misc;
mod score;
mod unsupported;

pub(crate) use chat::*;
pub(crate) use common::*;
pub(crate) use completion::*;
pub(crate) use embedding::*;
pub(crate) use lenient::*;
pub(crate) use misc::*;
pub(crate) use score::*;
pub(crate) use unsupported::*;
