//! tokenizer.json and tokenizer_config.json as llama.cpp's metadata.

use super::{Meta, Value};
use crate::gguf::{GgufError, tokenizer as read};
use serde_json::Value as Json;
use std::collections::HashMap;

/// Kinds of tokens.
const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;
const BYTE: i32 = 6;

/// Adds the tokenizer of a model of so many tokens, which end a text at `stops`.
///
/// # Errors
/// A tokenizer that llama.cpp has no name for.
pub(crate) fn tokenizer(
    meta: &mut Meta,
    files: (&Json, &Json),
    vocab: usize,
    stops: &[u32],
) -> Result<(), GgufError> {
    let (tokenizer, config) = files;
    let unknown = |what: &str| GgufError::unsupported(format!("the tokenizer {what}"));
    let model = &tokenizer["model"];
    let ids = model["vocab"].as_object().ok_or_else(|| unknown("has no vocabulary of BPE"))?;
    let merges = merges(model).ok_or_else(|| unknown("has no merges of BPE"))?;
    let mut tokens: Vec<Option<(String, i32)>> = vec![None; vocab];
    let mut put = |id: &Json, token: &str, kind: i32| {
        let id = id.as_u64().and_then(|id| usize::try_from(id).ok());
        if let Some(place) = id.and_then(|id| tokens.get_mut(id)) {
            *place = Some((token.to_owned(), kind));
        }
    };
    let pieces = model["byte_fallback"].as_bool() == Some(true);
    let byte = |token: &str| pieces && token.len() == 6 && token.starts_with("<0x");
    for (token, id) in ids {
        put(id, token, if byte(token) { BYTE } else { NORMAL });
    }
    let added = tokenizer["added_tokens"].as_array().into_iter().flatten();
    let special = added.clone().filter(|a| a["special"].as_bool() == Some(true));
    let special = special.filter_map(|a| a["content"].as_str());
    let unk = text(&config["unk_token"]).or_else(|| model["unk_token"].as_str());
    let special: Vec<_> = special.collect();
    for a in added {
        let Some(content) = a["content"].as_str() else { continue };
        let kind = match special.contains(&content) {
            true if pieces && unk == Some(content) => UNKNOWN,
            true => CONTROL,
            false => USER_DEFINED,
        };
        put(&a["id"], content, kind);
    }
    let missing = |i: usize| (format!("[PAD{i}]"), UNUSED);
    let tokens: Vec<_> =
        tokens.into_iter().enumerate().map(|(i, t)| t.unwrap_or_else(|| missing(i))).collect();
    let mut set = |name: &str, value| meta.push((format!("tokenizer.ggml.{name}"), value));
    match pieces {
        true => {
            set("model", Value::Text("llama".to_owned()));
            set("pre", Value::Text("default".to_owned()));
            set("scores", Value::Floats(scores(&tokens, &merges)));
            set("add_space_prefix", Value::Flag(prefixes(tokenizer)));
        }
        false => {
            let nfc = tokenizer["normalizer"]["type"].as_str() == Some("NFC");
            let ignores = model["ignore_merges"].as_bool() == Some(true);
            let pre = read::pre(&patterns(&tokenizer["pre_tokenizer"]), ignores, nfc);
            let pre =
                pre.ok_or_else(|| unknown("splits texts in a way that llama.cpp has no name for"))?;
            set("model", Value::Text("gpt2".to_owned()));
            set("pre", Value::Text(pre.to_owned()));
            let joined = merges.iter().map(|[a, b]| format!("{a} {b}")).collect();
            set("merges", Value::Texts(joined));
        }
    }
    let number: HashMap<_, _> =
        (0u32..).zip(&tokens).map(|(id, (t, _))| (t.as_str(), id)).collect();
    let of = |role: &str| number.get(text(&config[format!("{role}_token")])?).copied();
    for (role, name) in [("bos", "bos"), ("unk", "unknown"), ("pad", "padding")] {
        if let Some(id) = of(role) {
            set(&format!("{name}_token_id"), Value::U32(id));
        }
    }
    // The end of a text, and what else ends an answer.
    let eos = of("eos").or(stops.first().copied());
    let others = stops.iter().copied().filter(|stop| Some(*stop) != eos);
    let ends = eos.into_iter().chain(others);
    for (name, id) in ["eos", "eot", "eom"].into_iter().zip(ends) {
        set(&format!("{name}_token_id"), Value::U32(id));
    }
    set("add_bos_token", Value::Flag(begins(tokenizer, config)));
    let (texts, kinds) = tokens.into_iter().unzip();
    set("tokens", Value::Texts(texts));
    set("token_type", Value::Kinds(kinds));
    if let Some(template) = template(config) {
        meta.push(("tokenizer.chat_template".to_owned(), Value::Text(template.to_owned())));
    }
    Ok(())
}

/// A token as the files name it: its text, or an object that holds it.
fn text(token: &Json) -> Option<&str> {
    token.as_str().or_else(|| token["content"].as_str())
}

/// Pairs, which older files have as a text with a blank.
fn merges(model: &Json) -> Option<Vec<[String; 2]>> {
    let pair = |m: &Json| match (m.as_str(), m.as_array().map(Vec::as_slice)) {
        (Some(text), _) => text.split_once(' ').map(|(a, b)| [a.to_owned(), b.to_owned()]),
        (_, Some([a, b])) => Some([a.as_str()?.to_owned(), b.as_str()?.to_owned()]),
        _ => None,
    };
    model["merges"].as_array()?.iter().map(pair).collect()
}

/// What SentencePiece merges first has the highest score.
fn scores(tokens: &[(String, i32)], merges: &[[String; 2]]) -> Vec<f32> {
    let mut ranks = HashMap::new();
    for (rank, [a, b]) in merges.iter().enumerate() {
        ranks.entry(format!("{a}{b}")).or_insert(rank);
    }
    let score = |(token, kind): &(String, i32)| match (*kind, ranks.get(token)) {
        (NORMAL | USER_DEFINED, Some(rank)) => -(*rank as f32),
        (NORMAL, None) => -(merges.len() as f32),
        _ => 0.0,
    };
    tokens.iter().map(score).collect()
}

/// Whether a blank goes before every text.
fn prefixes(tokenizer: &Json) -> bool {
    let steps = |list: &Json, own: &Json| -> Vec<Json> {
        list.as_array().cloned().unwrap_or_else(|| vec![own.clone()])
    };
    let normalizer = &tokenizer["normalizer"];
    let normalizers = steps(&normalizer["normalizers"], normalizer);
    let before = &tokenizer["pre_tokenizer"];
    let before = steps(&before["pretokenizers"], before);
    normalizers.iter().any(|n| n["type"].as_str() == Some("Prepend"))
        || before.iter().any(|p| {
            let never = p["prepend_scheme"].as_str() == Some("never");
            p["type"].as_str() == Some("Metaspace") && !never
        })
}

/// The expressions by which a text is split, one after the other.
fn patterns(before: &Json) -> Vec<&str> {
    let all = before["pretokenizers"].as_array();
    let steps = all.map_or_else(|| vec![before], |all| all.iter().collect());
    let mut found = Vec::new();
    for step in steps {
        match step["type"].as_str() {
            Some("Split") => found.extend(step["pattern"]["Regex"].as_str()),
            Some("Digits") if step["individual_digits"].as_bool() == Some(true) => {
                found.push(r"\p{N}");
            }
            Some("ByteLevel") if step["use_regex"].as_bool() != Some(false) => {
                found.push(read::GPT2);
            }
            _ => {}
        }
    }
    found
}

/// Whether the token of the beginning goes before every text.
fn begins(tokenizer: &Json, config: &Json) -> bool {
    if let Some(said) = config["add_bos_token"].as_bool() {
        return said;
    }
    let processor = &tokenizer["post_processor"];
    let all = processor["processors"].as_array();
    let mut steps = all.map_or_else(|| vec![processor], |all| all.iter().collect()).into_iter();
    let bos = text(&config["bos_token"]);
    steps.any(|step| {
        let first = &step["single"][0]["SpecialToken"]["id"];
        first.as_str().is_some() && first.as_str() == bos
    })
}

fn template(config: &Json) -> Option<&str> {
    let template = &config["chat_template"];
    let named = || {
        let default = |t: &&Json| t["name"].as_str() == Some("default");
        template.as_array()?.iter().find(default)?["template"].as_str()
    };
    template.as_str().or_else(named)
}
