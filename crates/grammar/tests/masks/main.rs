//! Masks against an independent validator: every output that they allow validates.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail the test")]

mod formats;
mod hostile;
mod message;
mod official;
mod schemas;
mod support;
mod thinking;
mod valid;
#[allow(dead_code, reason = "other tests use more of it")]
#[path = "../../../chat/tests/formats/writers.rs"]
mod writers;
