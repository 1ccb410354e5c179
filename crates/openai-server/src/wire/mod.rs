//! The JSON of the API: what comes in, what goes out, field by field. No engine types here.

mod anthropic;
mod anthropic_out;
mod chat;
mod common;
mod completion;
mod embedding;
mod image;
mod lenient;
mod misc;
mod ollama;
mod responses;
mod responses_out;
mod score;
mod speech;
mod unsupported;

pub(crate) use anthropic::*;
pub(crate) use anthropic_out::*;
pub(crate) use chat::*;
pub(crate) use common::*;
pub(crate) use completion::*;
pub(crate) use embedding::*;
pub(crate) use image::*;
pub(crate) use lenient::*;
pub(crate) use misc::*;
pub(crate) use ollama::*;
pub(crate) use responses::*;
pub(crate) use responses_out::*;
pub(crate) use score::*;
pub(crate) use speech::*;
pub(crate) use unsupported::*;
