//! The tokenizer of the metadata as tokenizer.json and tokenizer_config.json.
//!
//! A file holds the vocabulary, and merges (BPE over bytes) or scores (SentencePiece's BPE). How a
//! text is split before is only named; the expressions are those of llama.cpp's `llama-vocab.cpp`.

use super::{
    GgufError,
    file::{Keys, Meta},
};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};

/// Kinds of tokens.
const UNKNOWN: i128 = 2;
const CONTROL: i128 = 3;
const USER_DEFINED: i128 = 4;

/// Bytes of merges for each byte of tokens. Vocabularies have about 3; one of all runs of a letter
/// would fill the memory.
const MOST_MERGED: usize = 64;

/// What SentencePiece writes for a blank.
const BLANK: &str = "\u{2581}";

pub(super) const GPT2: &str =
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// How texts are split before BPE over bytes.
#[derive(Debug, Clone, Copy)]
struct Splits {
    /// Each splits what the one before has left.
    patterns: &'static [&'static str],
    nfc: bool,
    /// A piece that is a token is not merged from its bytes, and a text begins with BOS.
    as_llama3: bool,
}

fn splits(pre: &str) -> Option<Splits> {
    let plain = |patterns| Splits { patterns, nfc: false, as_llama3: false };
    Some(match pre {
        "gpt-2" | "phi-2" | "mpt" | "olmo" | "jais" | "trillion" => plain(&[GPT2]),
        "smollm" | "starcoder" | "refact" | "command-r" | "codeshell" | "exaone" => {
            plain(&[r"\p{N}", GPT2])
        }
        "default" => plain(&[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"]),
        "llama3" | "llama-v3" | "llama-bpe" | "lfm2" | "falcon3" | "pixtral" => {
            Splits { as_llama3: true, ..plain(&[LLAMA3]) }
        }
        "smaug-bpe" | "dbrx" => plain(&[LLAMA3]),
        "qwen2" | "deepseek-r1-qwen" | "megrez" => Splits { nfc: true, ..plain(&[QWEN2]) },
        "qwen35" => Splits { nfc: true, ..plain(&[QWEN35]) },
        "tekken" => Splits { as_llama3: true, ..plain(&[TEKKEN]) },
        "gpt-4o" | "llama4" => plain(&[GPT4O]),
        _ => return None,
    })
}

/// llama.cpp's name of what splits a text so, if it has one.
pub(super) fn pre(patterns: &[&str], ignores_merges: bool, nfc: bool) -> Option<&'static str> {
    let names = [
        "gpt-2",
        "smollm",
        "llama-bpe",
        "smaug-bpe",
        "qwen2",
        "qwen35",
        "tekken",
        "gpt-4o",
        "default",
    ];
    let fits = |name: &&str| {
        splits(name).is_some_and(|own| {
            own.patterns == patterns && own.nfc == nfc && own.as_llama3 == ignores_merges
        })
    };
    // Some say that they ignore merges, and others of their kind do not.
    let alike =
        |name: &&str| splits(name).is_some_and(|own| own.patterns == patterns && own.nfc == nfc);
    let mut found = names.into_iter();
    found.clone().find(fits).or_else(|| found.find(alike))
}

/// The lists of the metadata.
struct Vocabulary<'a> {
    meta: &'a BTreeMap<String, Meta>,
    tokens: Vec<&'a str>,
}

impl<'a> Vocabulary<'a> {
    fn read(meta: &'a BTreeMap<String, Meta>) -> Result<Self, GgufError> {
        let tokens = texts(meta, "tokens")?;
        Ok(Self { meta, tokens })
    }

    fn token(&self, role: &str) -> Option<(u32, &'a str)> {
        let Some(Meta::Whole(id)) = self.meta.get(&key(&format!("{role}_token_id"))) else {
            return None;
        };
        let id = u32::try_from(*id).ok()?;
        Some((id, self.tokens.get(id as usize)?))
    }

    fn flag(&self, name: &str) -> Option<bool> {
        match self.meta.get(&key(name))? {
            Meta::Flag(flag) => Some(*flag),
            _ => None,
        }
    }

    /// Tokens that stand in texts as they are.
    fn added(&self) -> Vec<Value> {
        let Some(Meta::Numbers(kinds)) = self.meta.get(&key("token_type")) else {
            return Vec::new();
        };
        let one = |(id, (kind, content)): (usize, (Meta, &&str))| {
            let Meta::Whole(kind @ (UNKNOWN | CONTROL | USER_DEFINED)) = kind else { return None };
            let special = kind != USER_DEFINED;
            Some(json!({
                "id": id, "content": content, "special": special, "single_word": false,
                "lstrip": false, "rstrip": false, "normalized": false,
            }))
        };
        kinds.iter().zip(&self.tokens).enumerate().filter_map(one).collect()
    }

    fn ids(&self) -> HashMap<&'a str, usize> {
        self.tokens.iter().enumerate().map(|(id, token)| (*token, id)).collect()
    }
}

fn key(name: &str) -> String {
    format!("tokenizer.ggml.{name}")
}

fn texts<'a>(meta: &'a BTreeMap<String, Meta>, name: &str) -> Result<Vec<&'a str>, GgufError> {
    let missing = || GgufError::metadata(key(name));
    let Some(Meta::List(list)) = meta.get(&key(name)) else { return Err(missing()) };
    let text = |m: &'a Meta| match m {
        Meta::Text(text) => Ok(text.as_str()),
        _ => Err(missing()),
    };
    list.iter().map(text).collect()
}

/// tokenizer.json and tokenizer_config.json.
pub(super) fn files(keys: Keys<'_>) -> Result<(Value, Value), GgufError> {
    let vocabulary = Vocabulary::read(keys.meta)?;
    let kind = match keys.meta.get(&key("model")) {
        Some(Meta::Text(kind)) => kind.as_str(),
        _ => return Err(GgufError::metadata(key("model"))),
    };
    let (tokenizer, bos) = match kind {
        "gpt2" => byte_level(&vocabulary)?,
        "llama" => sentence_piece(&vocabulary)?,
        other => {
            return Err(GgufError::unsupported(format!("its tokenizer {other:?} is not read")));
        }
    };
    let tokenizer =
        with_bos(tokenizer, vocabulary.flag("add_bos_token").unwrap_or(bos), &vocabulary);
    // Other classes of transformers would change what tokenizer.json says.
    let mut config = json!({ "tokenizer_class": "PreTrainedTokenizerFast" });
    for (role, name) in [("bos", "bos"), ("eos", "eos"), ("unknown", "unk"), ("padding", "pad")] {
        if let Some((_, token)) = vocabulary.token(role) {
            config[format!("{name}_token")] = token.into();
        }
    }
    if let Some(Meta::Text(template)) = keys.meta.get("tokenizer.chat_template") {
        config["chat_template"] = template.as_str().into();
    }
    Ok((tokenizer, config))
}

/// Tokens that end an answer.
pub(super) fn stops(keys: Keys<'_>) -> Result<Vec<u32>, GgufError> {
    let vocabulary = Vocabulary::read(keys.meta)?;
    let roles = ["eos", "eot", "eom"].iter().filter_map(|role| vocabulary.token(role));
    let mut ids: Vec<u32> = roles.map(|(id, _)| id).collect();
    ids.dedup();
    Ok(ids)
}

fn byte_level(vocabulary: &Vocabulary<'_>) -> Result<(Value, bool), GgufError> {
    let pre = match vocabulary.meta.get(&key("pre")) {
        Some(Meta::Text(pre)) => pre.as_str(),
        _ => "default",
    };
    let unknown = || {
        GgufError::unsupported(format!("its tokenizer splits texts as {pre:?}, which is not known"))
    };
    let splits = splits(pre).ok_or_else(unknown)?;
    let pattern = |regex: &&str| json!({ "type": "Split", "pattern": { "Regex": regex }, "behavior": "Isolated", "invert": false });
    let mut steps: Vec<Value> = splits.patterns.iter().map(pattern).collect();
    let bytes = |kind: &str| json!({ "type": kind, "add_prefix_space": false, "trim_offsets": true, "use_regex": false });
    steps.push(bytes("ByteLevel"));
    let merges = texts(vocabulary.meta, "merges")?;
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": vocabulary.added(),
        "normalizer": splits.nfc.then(|| json!({ "type": "NFC" })),
        "pre_tokenizer": { "type": "Sequence", "pretokenizers": steps },
        "post_processor": null,
        "decoder": bytes("ByteLevel"),
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
            "ignore_merges": splits.as_llama3, "vocab": vocabulary.ids(), "merges": merges,
        },
    });
    Ok((tokenizer, splits.as_llama3))
}

fn sentence_piece(vocabulary: &Vocabulary<'_>) -> Result<(Value, bool), GgufError> {
    let prefix = vocabulary.flag("add_space_prefix").unwrap_or(true);
    let mut normalizers =
        vec![json!({ "type": "Replace", "pattern": { "String": " " }, "content": BLANK })];
    let mut decoders = vec![
        json!({ "type": "Replace", "pattern": { "String": BLANK }, "content": " " }),
        json!({ "type": "ByteFallback" }),
        json!({ "type": "Fuse" }),
    ];
    if prefix {
        normalizers.insert(0, json!({ "type": "Prepend", "prepend": BLANK }));
        decoders.push(json!({ "type": "Strip", "content": " ", "start": 1, "stop": 0 }));
    }
    let unknown = vocabulary.token("unknown").map(|(_, token)| token);
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": vocabulary.added(),
        "normalizer": { "type": "Sequence", "normalizers": normalizers },
        "pre_tokenizer": null,
        "post_processor": null,
        "decoder": { "type": "Sequence", "decoders": decoders },
        "model": {
            "type": "BPE", "dropout": null, "unk_token": unknown, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true,
            "ignore_merges": false, "vocab": vocabulary.ids(), "merges": merges(vocabulary)?,
        },
    });
    Ok((tokenizer, true))
}

/// All ways to make a token of two others. SentencePiece merges what has the highest score.
fn merges(vocabulary: &Vocabulary<'_>) -> Result<Vec<[String; 2]>, GgufError> {
    let missing = || GgufError::metadata(key("scores"));
    let Some(Meta::Numbers(scores)) = vocabulary.meta.get(&key("scores")) else {
        return Err(missing());
    };
    let ids = vocabulary.ids();
    let most = MOST_MERGED * vocabulary.tokens.iter().map(|token| token.len()).sum::<usize>();
    let (mut found, mut merged) = (Vec::new(), 0);
    for (id, (token, score)) in vocabulary.tokens.iter().zip(scores.iter()).enumerate() {
        let Meta::Real(score) = score else { return Err(missing()) };
        for (at, _) in token.char_indices().skip(1) {
            let (left, right) = token.split_at(at);
            if ids.contains_key(left) && ids.contains_key(right) {
                merged += token.len();
                if merged > most {
                    let what =
                        "its tokens are made of each other in more ways than any tokenizer's";
                    return Err(GgufError::damaged(what));
                }
                found.push((score, id, [left.to_owned(), right.to_owned()]));
            }
        }
    }
    found.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    Ok(found.into_iter().map(|(_, _, pair)| pair).collect())
}

/// Puts the token of the beginning in front of every text.
fn with_bos(mut tokenizer: Value, wanted: bool, vocabulary: &Vocabulary<'_>) -> Value {
    if let (true, Some((id, token))) = (wanted, vocabulary.token("bos")) {
        let bos = json!({ "SpecialToken": { "id": token, "type_id": 0 } });
        let text = |name: &str, kind: u8| json!({ "Sequence": { "id": name, "type_id": kind } });
        tokenizer["post_processor"] = json!({
            "type": "TemplateProcessing",
            "single": [bos, text("A", 0)],
            "pair": [bos, text("A", 0), bos, text("B", 1)],
            "special_tokens": { token: { "id": token, "ids": [id], "tokens": [token] } },
        });
    }
    tokenizer
}
