//! A checkpoint as a GGUF file: what is in it besides the weights, by llama.cpp's names.

mod encode;
mod metadata;
mod tokenizer;

pub(crate) use encode::encode;
pub(crate) use metadata::{Extra, metadata};
pub(crate) use tokenizer::tokenizer;

use super::{
    architectures::Architecture,
    names::{self, Changes},
};

/// A value of the metadata.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    U32(u32),
    F32(f32),
    Flag(bool),
    Text(String),
    Texts(Vec<String>),
    Floats(Vec<f32>),
    Kinds(Vec<i32>),
}

/// Names and values, in order.
pub(crate) type Meta = Vec<(String, Value)>;

/// A tensor as the header lists it.
#[derive(Debug)]
pub(crate) struct Listed<'a> {
    pub(crate) name: &'a str,
    /// Rows first.
    pub(crate) shape: &'a [usize],
    /// ggml's number of the type.
    pub(crate) kind: u32,
    pub(crate) offset: u64,
}

/// Bytes that data begin at multiples of.
pub(crate) const ALIGNMENT: u64 = 32;

/// What stands before the data, with its padding.
pub(crate) fn header(meta: &Meta, tensors: &[Listed<'_>]) -> Vec<u8> {
    let mut out = b"GGUF".to_vec();
    out.extend(3u32.to_le_bytes());
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend((meta.len() as u64).to_le_bytes());
    for (key, value) in meta {
        text(&mut out, key);
        put(&mut out, value);
    }
    for tensor in tensors {
        text(&mut out, tensor.name);
        out.extend((tensor.shape.len() as u32).to_le_bytes());
        for &size in tensor.shape.iter().rev() {
            out.extend((size as u64).to_le_bytes());
        }
        out.extend(tensor.kind.to_le_bytes());
        out.extend(tensor.offset.to_le_bytes());
    }
    out.resize(out.len().next_multiple_of(ALIGNMENT as usize), 0);
    out
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn put(out: &mut Vec<u8>, value: &Value) {
    const LIST: u32 = 9;
    let mut list = |kind: u32, n: usize| {
        out.extend(LIST.to_le_bytes());
        out.extend(kind.to_le_bytes());
        out.extend((n as u64).to_le_bytes());
    };
    match value {
        Value::U32(x) => out.extend([4u32.to_le_bytes(), x.to_le_bytes()].concat()),
        Value::F32(x) => out.extend([6u32.to_le_bytes(), x.to_le_bytes()].concat()),
        Value::Flag(x) => {
            out.extend(7u32.to_le_bytes());
            out.push(u8::from(*x));
        }
        Value::Text(x) => {
            out.extend(8u32.to_le_bytes());
            text(out, x);
        }
        Value::Texts(all) => {
            list(8, all.len());
            all.iter().for_each(|x| text(out, x));
        }
        Value::Floats(all) => {
            list(6, all.len());
            all.iter().for_each(|x| out.extend(x.to_le_bytes()));
        }
        Value::Kinds(all) => {
            list(5, all.len());
            all.iter().for_each(|x| out.extend(x.to_le_bytes()));
        }
    }
}

/// llama.cpp's name of a tensor, and what it changes in the numbers; `None` where it has no name.
pub(crate) fn named(
    architecture: &Architecture,
    name: &str,
    head: usize,
) -> Option<(String, Changes)> {
    let theirs = names::to(architecture, name)?;
    let sizes = names::Sizes { head, values: None, before: 0 };
    let changes = names::changes(architecture, &theirs, sizes);
    Some((theirs, changes))
}
