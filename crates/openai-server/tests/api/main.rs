//! The API over a scripted engine and a tokenizer of one token a byte.

mod chat;
mod completions;
mod info;
mod malformed;
mod serving;
mod stream;
mod support;
mod tools;
