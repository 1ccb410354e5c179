//! The API over a scripted engine and a tokenizer of one token a byte.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::needless_pass_by_value,
    reason = "helpers of tests are tests"
)]

mod anthropic;
mod anthropic_errors;
mod anthropic_stream;
mod browsers;
mod chat;
mod clients;
mod completions;
mod context;
mod faults;
mod fields;
mod formats;
mod functions;
mod images;
mod infill;
mod info;
mod keys;
mod leaks;
mod lenient;
mod limits;
mod log;
mod malformed;
mod many;
mod many_files;
mod ollama;
mod openapi;
mod responses;
mod responses_stored;
mod responses_stream;
mod routes;
mod serving;
mod speech;
mod stream;
mod support;
mod tls;
mod tools;
mod untouched;
mod videos;
