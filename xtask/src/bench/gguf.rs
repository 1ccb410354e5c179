//! GGUF files for llama.cpp, in bf16 or Q4_0: magic, counts, metadata, tensor table, padding, tensors.

use super::{
    shape::{self, CONTEXT, HEAD_DIM, RMS_EPS, ROPE_THETA, Random, Shape, TensorSpec},
    vocabulary::{CHATML, END_OF_TEXT, END_OF_TURN, Vocabulary},
};
use anyhow::Result;
use std::io::Write;

const VERSION: u32 = 3;
const ALIGNMENT: usize = 32;
/// Types of elements.
const F32: u32 = 0;
const Q4_0: u32 = 2;
const BF16: u32 = 30;

/// How matrices are stored; vectors are f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stored {
    /// The values that checkpoints have too.
    Bf16,
    /// Random codes: blocks of 32 with a scale, of a standard deviation that keeps activations' size.
    Q4,
}

/// Weights of a block of Q4_0, and its bytes.
const BLOCK: usize = 32;
const BLOCK_BYTES: usize = 2 + BLOCK / 2;

impl Stored {
    fn number(self) -> u32 {
        match self {
            Self::Bf16 => BF16,
            Self::Q4 => Q4_0,
        }
    }

    /// `general.file_type`.
    fn file_type(self) -> u32 {
        match self {
            Self::Bf16 => 32,
            Self::Q4 => 2,
        }
    }

    fn bytes(self, tensor: &TensorSpec) -> usize {
        match self {
            _ if tensor.is_vector() => 4 * tensor.len(),
            Self::Bf16 => 2 * tensor.len(),
            Self::Q4 => tensor.len() / BLOCK * BLOCK_BYTES,
        }
    }

    fn data(self, index: usize, tensor: &TensorSpec) -> Vec<u8> {
        if self == Self::Q4 && !tensor.is_vector() {
            return random_blocks(index, tensor);
        }
        let values = shape::values(index, tensor);
        if tensor.is_vector() {
            return values.chunks(2).flat_map(|bits| [0, 0, bits[0], bits[1]]).collect();
        }
        values
    }
}

/// What f16 has between the least normal and the largest number, cut off.
fn f16_bits(x: f32) -> u16 {
    ((x.to_bits() >> 13) - (112 << 10)) as u16
}

fn random_blocks(index: usize, tensor: &TensorSpec) -> Vec<u8> {
    let columns = tensor.dims.last().copied().unwrap_or(1);
    // Codes are uniform in -8..8: of standard deviation 4.6.
    let scale = f16_bits((columns as f32).sqrt().recip() / 4.6);
    let mut random = Random::new(index as u64 + 1);
    let mut out = Vec::with_capacity(tensor.len() / BLOCK * BLOCK_BYTES);
    for _ in 0..tensor.len() / BLOCK {
        out.extend(scale.to_le_bytes());
        out.extend(random.next().to_le_bytes());
        out.extend(random.next().to_le_bytes());
    }
    out
}

/// A value of the metadata.
enum Value {
    U32(u32),
    F32(f32),
    Bool(bool),
    Text(String),
    Texts(Vec<String>),
    I32s(Vec<i32>),
}

/// Writes a file; `progress` is told how many bytes of the checkpoint are done.
pub(crate) fn write(
    out: &mut impl Write,
    shape: &Shape,
    stored: Stored,
    vocabulary: &Vocabulary,
    progress: &mut dyn FnMut(u64),
) -> Result<()> {
    let tensors = shape.tensors();
    let metadata = metadata(shape, stored, vocabulary);
    let mut head = b"GGUF".to_vec();
    head.extend(VERSION.to_le_bytes());
    head.extend((tensors.len() as u64).to_le_bytes());
    head.extend((metadata.len() as u64).to_le_bytes());
    for (key, value) in &metadata {
        put_text(&mut head, key);
        put_value(&mut head, value);
    }
    let mut at = 0;
    for tensor in &tensors {
        put_text(&mut head, &tensor.gguf);
        head.extend((tensor.dims.len() as u32).to_le_bytes());
        // The fastest dimension comes first.
        tensor.dims.iter().rev().for_each(|&d| head.extend((d as u64).to_le_bytes()));
        head.extend(if tensor.is_vector() { F32 } else { stored.number() }.to_le_bytes());
        head.extend((at as u64).to_le_bytes());
        at += padded(stored.bytes(tensor));
    }
    head.resize(padded(head.len()), 0);
    out.write_all(&head)?;
    let mut done = 0;
    for (i, tensor) in tensors.iter().enumerate() {
        let mut data = stored.data(i, tensor);
        done += 2 * tensor.len() as u64;
        data.resize(padded(data.len()), 0);
        out.write_all(&data)?;
        progress(done);
    }
    Ok(())
}

fn metadata(shape: &Shape, stored: Stored, vocabulary: &Vocabulary) -> Vec<(String, Value)> {
    let number = |n: usize| Value::U32(n as u32);
    let text = |text: &str| Value::Text(text.to_owned());
    let (tokens, types): (Vec<_>, Vec<_>) = vocabulary.gguf_tokens().unzip();
    let words = &vocabulary.words;
    let merges = vocabulary.merges.iter().map(|&(a, b)| format!("{} {}", words[a], words[b]));
    let family = if shape.experts.is_some() { "qwen3moe" } else { "qwen3" };
    let mut list = vec![
        ("general.architecture", text(family)),
        ("general.name", text(shape.name)),
        ("general.file_type", Value::U32(stored.file_type())),
        ("*.block_count", number(shape.layers)),
        ("*.context_length", number(CONTEXT)),
        ("*.embedding_length", number(shape.hidden)),
        ("*.feed_forward_length", number(shape.intermediate)),
        ("*.attention.head_count", number(shape.heads)),
        ("*.attention.head_count_kv", number(shape.kv_heads)),
        ("*.attention.key_length", number(HEAD_DIM)),
        ("*.attention.value_length", number(HEAD_DIM)),
        ("*.attention.layer_norm_rms_epsilon", Value::F32(RMS_EPS)),
        ("*.rope.freq_base", Value::F32(ROPE_THETA as f32)),
        ("tokenizer.ggml.model", text("gpt2")),
        ("tokenizer.ggml.pre", text("qwen2")),
        ("tokenizer.ggml.tokens", Value::Texts(tokens)),
        ("tokenizer.ggml.token_type", Value::I32s(types)),
        ("tokenizer.ggml.merges", Value::Texts(merges.collect())),
        ("tokenizer.ggml.bos_token_id", number(END_OF_TEXT)),
        ("tokenizer.ggml.eos_token_id", number(END_OF_TURN)),
        ("tokenizer.ggml.padding_token_id", number(END_OF_TEXT)),
        ("tokenizer.ggml.add_bos_token", Value::Bool(false)),
        ("tokenizer.chat_template", text(CHATML)),
    ];
    if let Some((experts, chosen)) = shape.experts {
        list.extend([
            ("*.expert_count", number(experts)),
            ("*.expert_used_count", number(chosen)),
            ("*.expert_feed_forward_length", number(shape.intermediate)),
        ]);
    }
    list.into_iter().map(|(key, value)| (key.replace('*', family), value)).collect()
}

fn padded(bytes: usize) -> usize {
    bytes.next_multiple_of(ALIGNMENT)
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn put_value(out: &mut Vec<u8>, value: &Value) {
    const ARRAY: u32 = 9;
    let kind: u32 = match value {
        Value::U32(_) => 4,
        Value::F32(_) => 6,
        Value::Bool(_) => 7,
        Value::Text(_) => 8,
        Value::Texts(_) | Value::I32s(_) => ARRAY,
    };
    out.extend(kind.to_le_bytes());
    match value {
        Value::U32(n) => out.extend(n.to_le_bytes()),
        Value::F32(x) => out.extend(x.to_le_bytes()),
        Value::Bool(b) => out.push(u8::from(*b)),
        Value::Text(text) => put_text(out, text),
        Value::Texts(texts) => {
            out.extend(8_u32.to_le_bytes());
            out.extend((texts.len() as u64).to_le_bytes());
            texts.iter().for_each(|text| put_text(out, text));
        }
        Value::I32s(numbers) => {
            out.extend(5_u32.to_le_bytes());
            out.extend((numbers.len() as u64).to_le_bytes());
            numbers.iter().for_each(|n| out.extend(n.to_le_bytes()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_as_long_as_its_parts() {
        let shape = Shape { name: "t", hidden: 8, layers: 0, intermediate: 8, ..shape::SMALL };
        let (mut file, mut seen) = (Vec::new(), 0);
        let vocabulary = Vocabulary { words: vec![], merges: vec![] };
        write(&mut file, &shape, Stored::Bf16, &vocabulary, &mut |done| seen = done).unwrap();
        assert_eq!(file[..8], *b"GGUF\x03\0\0\0");
        assert_eq!(u64::from_le_bytes(file[8..16].try_into().unwrap()), 2, "tensors");
        let data = padded(shape::VOCAB * 8 * 2) + padded(8 * 4);
        assert_eq!(file.len() % ALIGNMENT, 0);
        assert!(file.len() > data);
        assert_eq!(seen, 2 * shape.parameters() as u64);
        let norm = &file[file.len() - 32..];
        let first = f32::from_le_bytes(norm[..4].try_into().unwrap());
        assert!((first - 1.0).abs() < 0.2, "{first}");
    }

    #[test]
    fn blocks_of_four_bits_have_their_length() {
        let shape = Shape { name: "t", hidden: 64, layers: 0, intermediate: 64, ..shape::SMALL };
        let mut file = Vec::new();
        let vocabulary = Vocabulary { words: vec![], merges: vec![] };
        write(&mut file, &shape, Stored::Q4, &vocabulary, &mut |_| {}).unwrap();
        let data = padded(shape::VOCAB * 64 / 32 * 18) + padded(64 * 4);
        assert!(file.len() > data);
        let first = &file[file.len() - data..];
        let bits = u32::from(u16::from_le_bytes([first[0], first[1]]));
        let scale = f32::from_bits((bits << 13) + (112 << 23));
        assert!((scale - 1.0 / (8.0 * 4.6)).abs() < 1e-4, "{scale}");
    }
}
