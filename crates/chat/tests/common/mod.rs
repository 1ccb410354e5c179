//! Small tokenizers, made here.
#![allow(clippy::needless_pass_by_value, reason = "callers write values in place")]

use serde_json::{Map, Value, json};
use taper_chat::Tokenizer;

/// GPT-2's character for a byte.
fn byte_char(byte: u8) -> char {
    let printable = |b: u8| matches!(b, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    if printable(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|&b| !printable(b)).count();
    char::from_u32(0x100 + u32::try_from(before).unwrap()).unwrap()
}

fn added(id: usize, content: &str, special: bool) -> Value {
    json!({
        "id": id, "content": content, "special": special,
        "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
    })
}

pub(crate) fn build(json: &Value) -> Tokenizer {
    Tokenizer::from_bytes(json.to_string().as_bytes(), None).unwrap()
}

fn json(vocab: &[String], merges: Value, added: Vec<Value>, rest: Value) -> Value {
    let vocab: Map<String, Value> =
        vocab.iter().enumerate().map(|(id, token)| (token.clone(), json!(id))).collect();
    let mut out = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added,
        "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": null,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
            "vocab": vocab, "merges": merges,
        },
    });
    for (key, value) in rest.as_object().unwrap() {
        if key == "byte_fallback" {
            out["model"][key] = value.clone();
        } else {
            out[key] = value.clone();
        }
    }
    out
}

/// Byte-level BPE: token N is byte N, 256 is "he", 257 " he"; then added tokens.
pub(crate) fn byte_level_json() -> Value {
    let mut vocab: Vec<String> = (0..=255).map(|b| byte_char(b).to_string()).collect();
    vocab.extend(["he".to_owned(), "Ġhe".to_owned()]);
    let level = json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false,
    });
    json(
        &vocab,
        json!([["h", "e"], ["Ġ", "he"]]),
        vec![
            added(258, "<|end|>", true),
            added(259, "<tool_call>", false),
            added(260, "<｜mark▁x｜>", false),
            added(261, "a b", false),
        ],
        json!({ "pre_tokenizer": level, "decoder": level }),
    )
}

pub(crate) fn byte_level() -> Tokenizer {
    build(&byte_level_json())
}

/// Tokens of a sentencepiece model: N is `<0xNN>` for byte N, then words.
fn sentencepiece(decoder: Value) -> Value {
    let mut vocab: Vec<String> = (0..=255).map(|b| format!("<0x{b:02X}>")).collect();
    vocab.extend(["▁", "▁a", "a", "b", "▁▁", "é", "##c", "d</w>", " ", ","].map(str::to_owned));
    let added = vec![added(266, "<s>", true), added(267, "<turn>", false)];
    json(&vocab, json!([]), added, json!({ "byte_fallback": true, "decoder": decoder }))
}

/// As Llama 2 and Phi-3: a leading space is dropped.
pub(crate) fn llama() -> Tokenizer {
    build(&llama_json())
}

fn llama_json() -> Value {
    sentencepiece(json!({ "type": "Sequence", "decoders": [
        { "type": "Replace", "pattern": { "String": "▁" }, "content": " " },
        { "type": "ByteFallback" },
        { "type": "Fuse" },
        { "type": "Strip", "content": " ", "start": 1, "stop": 0 },
    ]}))
}

/// Every decoder that can be streamed.
pub(crate) fn every_decoder() -> Vec<Value> {
    let metaspace = json!({
        "type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true,
    });
    vec![
        byte_level_json(),
        llama_json(),
        sentencepiece(Value::Null),
        sentencepiece(metaspace.clone()),
        sentencepiece(json!({ "type": "WordPiece", "prefix": "##", "cleanup": true })),
        sentencepiece(json!({ "type": "Sequence", "decoders": [
            { "type": "BPEDecoder", "suffix": "</w>" },
            { "type": "ByteFallback" },
        ]})),
        sentencepiece(json!({ "type": "Sequence", "decoders": [
            { "type": "ByteFallback" },
            metaspace,
            { "type": "Fuse" },
            { "type": "Strip", "content": "a", "start": 2, "stop": 0 },
        ]})),
    ]
}

pub(crate) fn sentencepiece_with(decoder: Value) -> Value {
    json(&["a".to_owned()], json!([]), Vec::new(), json!({ "decoder": decoder }))
}
