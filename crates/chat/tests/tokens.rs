//! Tokenizer, incremental decoding, stop strings.

#![allow(
    clippy::unwrap_used,
    clippy::needless_pass_by_value,
    reason = "a test may panic, and json! makes values"
)]

mod common;

use common::{build, byte_level, byte_level_json, every_decoder, llama, sentencepiece_with};
use proptest::prelude::*;
use serde_json::json;
use std::fs;
use taper_base::{GeneratedToken, TokenId};
use taper_chat::{
    ChatError, StopMatch, StopPatterns, StopStrings, TextOptions, TextStep, TextStream, Tokenizer,
};

fn pieces(tokenizer: &Tokenizer, ids: &[TokenId], skip: bool) -> Vec<String> {
    let mut detokenizer = tokenizer.detokenizer(skip);
    let mut out: Vec<String> = ids.iter().map(|&id| detokenizer.push(id).unwrap()).collect();
    out.push(detokenizer.finish().unwrap());
    out
}

#[test]
fn round_trip_and_vocabulary() {
    let tokenizer = byte_level();
    let ids = tokenizer.encode("he said: hehe 👋<|end|>", false).unwrap();
    assert_eq!(ids[0], 256);
    assert_eq!(*ids.last().unwrap(), 258);
    assert_eq!(tokenizer.decode(&ids, true).unwrap(), "he said: hehe 👋");
    assert_eq!(tokenizer.decode(&ids, false).unwrap(), "he said: hehe 👋<|end|>");
    assert_eq!(tokenizer.vocab_size(), 262);
    assert_eq!(tokenizer.token_id("<tool_call>"), Some(259));
    assert_eq!(tokenizer.token_id("nothing"), None);
    assert!(tokenizer.is_special(258));
    assert!(!tokenizer.is_special(259) && !tokenizer.is_special(0) && !tokenizer.is_special(9999));
}

#[test]
fn bytes_of_tokens() {
    let tokenizer = byte_level();
    assert_eq!(tokenizer.token_bytes(0xF0), [0xF0]);
    assert_eq!(tokenizer.token_text(0xF0), "\u{FFFD}");
    assert_eq!(tokenizer.token_bytes(257), b" he");
    assert_eq!(tokenizer.token_bytes(258), b"<|end|>");
    assert_eq!(tokenizer.token_text(260), "<｜mark▁x｜>");
    assert_eq!(tokenizer.token_bytes(9999), b"");
    let tokenizer = llama();
    assert_eq!(tokenizer.token_bytes(0xF0), [0xF0]);
    assert_eq!(tokenizer.token_text(257), " a");
    assert_eq!(tokenizer.token_text(266), "<s>");
}

#[test]
fn characters_come_whole() {
    let wave: Vec<TokenId> = "👋é".bytes().map(TokenId::from).collect();
    assert_eq!(pieces(&byte_level(), &wave, true), ["", "", "", "👋", "", "é", ""]);
    // A run of byte tokens counts as a whole, and it ends with the next other token.
    let mut ids = wave.clone();
    ids.push(258);
    assert_eq!(pieces(&llama(), &ids, true), ["", "", "", "", "", "", "👋éa", ""]);
    // Invalid bytes: replaced as soon as they are certain, or at the end.
    assert_eq!(pieces(&byte_level(), &[0xF0, 0x9F, 65], true), ["", "", "\u{FFFD}A", ""]);
    assert_eq!(
        pieces(&byte_level(), &[65, 0xFF, 0xF0, 0x9F], true),
        ["A", "\u{FFFD}", "", "", "\u{FFFD}"]
    );
    assert_eq!(pieces(&llama(), &[0xF0, 0x9F], true), ["", "", "\u{FFFD}\u{FFFD}"]);
}

#[test]
fn leading_space() {
    assert_eq!(pieces(&llama(), &[257, 257, 266, 256], true), ["a", " a", "", " ", ""]);
    assert_eq!(pieces(&llama(), &[260, 257], true), [" ", " a", ""]);
}

#[test]
fn leftover_truncation_and_padding_do_nothing() {
    let mut json = byte_level_json();
    json["truncation"] = json!({
        "direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0,
    });
    json["padding"] = json!({
        "strategy": { "Fixed": 8 }, "direction": "Right", "pad_to_multiple_of": null,
        "pad_id": 0, "pad_type_id": 0, "pad_token": "!",
    });
    let tokenizer = Tokenizer::from_bytes(json.to_string().as_bytes(), None).unwrap();
    assert_eq!(tokenizer.encode("abcd", true).unwrap().len(), 4);
}

#[test]
fn broken_files_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let error = Tokenizer::load(dir.path()).unwrap_err();
    assert!(matches!(&error, ChatError::Read { path, .. } if path.ends_with("tokenizer.json")));
    assert!(error.to_string().contains("tokenizer.json"));

    for broken in ["", "{", "[]", "{}", "{\"model\": {\"type\": \"BPE\"}}"] {
        fs::write(dir.path().join("tokenizer.json"), broken).unwrap();
        let error = Tokenizer::load(dir.path()).unwrap_err();
        assert!(
            matches!(&error, ChatError::Tokenizer { path, .. } if path.ends_with("tokenizer.json"))
        );
        assert!(error.to_string().contains("tokenizer.json is not a tokenizer: "));
    }

    let ctc = json!({
        "type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": true,
    });
    fs::write(dir.path().join("tokenizer.json"), sentencepiece_with(ctc).to_string()).unwrap();
    let error = Tokenizer::load(dir.path()).unwrap_err();
    assert!(matches!(error, ChatError::UnsupportedDecoder { decoder: "CTC", .. }));

    fs::write(dir.path().join("tokenizer.json"), byte_level_json().to_string()).unwrap();
    fs::write(dir.path().join("tokenizer_config.json"), "{\"eos_token\": 5}").unwrap();
    let error = Tokenizer::load(dir.path()).unwrap_err();
    assert!(
        matches!(&error, ChatError::Json { path, .. } if path.ends_with("tokenizer_config.json"))
    );

    let config = r#"{"bos_token": null, "eos_token": {"content": "<|end|>", "lstrip": false}}"#;
    fs::write(dir.path().join("tokenizer_config.json"), config).unwrap();
    let tokenizer = Tokenizer::load(dir.path()).unwrap();
    assert_eq!((tokenizer.bos_token(), tokenizer.eos_token()), (None, Some("<|end|>")));
}

fn patterns(strings: &[&str]) -> StopPatterns {
    StopPatterns::new(strings.iter().map(|&s| s.to_owned()).collect()).unwrap()
}

fn stop(strings: &[&str], include: bool) -> StopStrings {
    StopStrings::new(patterns(strings), include)
}

fn found(text: &str, stop: Option<&str>) -> StopMatch {
    StopMatch { text: text.to_owned(), stop: stop.map(str::to_owned) }
}

#[test]
fn stop_strings_across_pieces() {
    let mut s = stop(&["STOP", "</s>"], false);
    assert_eq!(s.push("abcST"), found("abc", None));
    assert_eq!(s.push("ST"), found("ST", None));
    assert_eq!(s.push("OP and more"), found("", Some("STOP")));
    assert_eq!(s.push("more"), found("", None));
    assert_eq!(s.finish(), "");

    let mut s = stop(&["STOP"], true);
    assert_eq!(s.push("abcSTO"), found("abc", None));
    assert_eq!(s.push("P!"), found("STOP", Some("STOP")));

    let mut s = stop(&["STOP"], false);
    assert_eq!(s.push("abcSTO"), found("abc", None));
    assert_eq!(s.finish(), "STO");

    // The first to end; of those, the longest.
    assert_eq!(stop(&["bcd", "abcde", "c"], false).push("xabcdef"), found("xab", Some("c")));
    assert_eq!(stop(&["c", "bc"], false).push("abc"), found("a", Some("bc")));
    assert_eq!(stop(&["aab"], false).push("aaab"), found("a", Some("aab")));
    assert_eq!(stop(&["\n\n"], false).push("a\n"), found("a", None));
    assert_eq!(stop(&["éa"], false).push("xéa"), found("x", Some("éa")));
    assert_eq!(stop(&[], false).push("x"), found("x", None));
    assert!(matches!(StopPatterns::new(vec![String::new()]), Err(ChatError::EmptyStopString)));
    let long = vec!["a".repeat(StopPatterns::MAX_BYTES), "b".to_owned()];
    assert!(matches!(StopPatterns::new(long), Err(ChatError::LongStopStrings { .. })));
}

fn token(id: TokenId) -> GeneratedToken {
    GeneratedToken { id, logprobs: None, stops: false, open: false }
}

fn run(options: TextOptions, tokens: &[GeneratedToken]) -> (String, Option<String>) {
    let mut stream = TextStream::new(&byte_level(), &options, &[]).unwrap();
    let mut text = String::new();
    let mut stop = None;
    for token in tokens {
        let step = stream.push(token).unwrap();
        text.push_str(&step.text);
        stop = stop.or(step.stop);
    }
    let step = stream.finish().unwrap();
    text.push_str(&step.text);
    assert_eq!(stream.finish().unwrap(), TextStep::default());
    (text, stop.or(step.stop))
}

#[test]
fn text_stream() {
    let bytes = |text: &str| text.bytes().map(|b| token(b.into())).collect::<Vec<_>>();
    let with = |stop: &str| TextOptions { stop: patterns(&[stop]), ..TextOptions::default() };
    let some = |s: &str| Some(s.to_owned());
    assert_eq!(run(with("👋"), &bytes("hi 👋 there")), ("hi ".to_owned(), some("👋")));
    let include = TextOptions { include_stop_str_in_output: true, ..with("👋") };
    assert_eq!(run(include.clone(), &bytes("hi 👋 there")), ("hi 👋".to_owned(), some("👋")));
    // The text of the first tokens is not searched.
    let later = TextOptions { min_tokens: 2, ..with("a") };
    assert_eq!(run(later, &bytes("aabab")), ("aab".to_owned(), some("a")));
    // A stop token adds text only when asked for.
    let end = GeneratedToken { stops: true, ..token(258) };
    let mut tokens = bytes("ok ST");
    tokens.push(end);
    assert_eq!(run(with("STOP"), &tokens), ("ok ST".to_owned(), None));
    let shown = TextOptions { skip_special_tokens: false, ..include };
    assert_eq!(run(shown, &tokens), ("ok ST<|end|>".to_owned(), None));
    // Bytes cut off at the end may complete a stop string.
    assert_eq!(
        run(with("\u{FFFD}"), &[token(65), token(0xF0)]),
        ("A".to_owned(), some("\u{FFFD}"))
    );
}

/// The definition, for comparison: the match that ends first, of those the longest.
fn first_stop(text: &str, strings: &[String]) -> Option<(usize, String)> {
    (1..=text.len()).find_map(|end| {
        let ended = strings.iter().filter(|s| text.as_bytes()[..end].ends_with(s.as_bytes()));
        ended.max_by_key(|s| s.len()).map(|s| (end - s.len(), s.clone()))
    })
}

fn continued(tokenizer: &Tokenizer, prompt: &[TokenId], ids: &[TokenId]) -> String {
    let mut detokenizer = tokenizer.continuation(true, prompt).unwrap();
    let mut text: String = ids.iter().map(|&id| detokenizer.push(id).unwrap()).collect();
    text.push_str(&detokenizer.finish().unwrap());
    text
}

#[test]
fn generated_text_goes_on_where_the_prompt_ends() {
    for json in every_decoder().into_iter().skip(1).take(3) {
        let tokenizer = build(&json);
        let whole = tokenizer.decode(&[257, 257, 258], true).unwrap();
        let prompt = tokenizer.decode(&[257], true).unwrap();
        assert_eq!(prompt + &continued(&tokenizer, &[257], &[257, 258]), whole);
    }
    // A prompt that shows nothing leaves the beginning to the output.
    assert_eq!(continued(&llama(), &[266], &[257]), "a");
    assert_eq!(continued(&llama(), &[266, 257], &[257]), " a");
    // The rest of a character that the prompt began.
    assert_eq!(continued(&llama(), &[257, 0xC3], &[0xA9]), "é");
    assert_eq!(continued(&byte_level(), &[65, 0xC3], &[0xA9]), "é");
    // A character that the prompt finished is not told again.
    assert_eq!(continued(&llama(), &[257, 0xC3, 0xA9], &[0xC3, 0xA9]), "é");
}

#[test]
fn added_tokens_of_other_files_are_known() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
    let mut json = byte_level_json();
    json["added_tokens"].as_array_mut().unwrap().truncate(1);
    write("tokenizer.json", &json.to_string());
    let text = "a<tool_call>b";
    let tokens = || Tokenizer::load(dir.path()).unwrap().encode(text, false).unwrap();
    assert!(tokens().len() > 3);
    write("added_tokens.json", r#"{"<tool_call>": 259}"#);
    assert_eq!(tokens(), [64 + 33, 259, 64 + 34]);
    write("added_tokens.json", "{,}");
    let config = r#"{"added_tokens_decoder": {"259": {"content": "<tool_call>", "special": true},
                     "999": {"content": "<far>", "special": false}}}"#;
    write("tokenizer_config.json", config);
    assert_eq!(tokens(), [64 + 33, 259, 64 + 34]);
    let tokenizer = Tokenizer::load(dir.path()).unwrap();
    assert!(tokenizer.is_special(259));
    assert_eq!(tokenizer.token_id("<far>"), None);
    write("special_tokens_map.json", r#"{"bos_token": "<|end|>", "eos_token": {"content": "he"}}"#);
    let tokenizer = Tokenizer::load(dir.path()).unwrap();
    assert_eq!((tokenizer.bos_token(), tokenizer.eos_token()), (Some("<|end|>"), Some("he")));
    assert!(tokenizer.is_special(256));
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 500, failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn streamed_text_is_decoded_text(
        ids in proptest::collection::vec(prop_oneof![0u32..270, 0xC0u32..0xF8, 0x80u32..0xC0], 0..24),
        skip: bool,
    ) {
        for json in every_decoder() {
            let tokenizer = build(&json);
            let streamed = pieces(&tokenizer, &ids, skip).concat();
            prop_assert_eq!(&streamed, &tokenizer.decode(&ids, skip).unwrap());
            // The library panics on nothing: 266 is special, what lies beyond does not exist.
            if ids.iter().any(|&id| id < 258) {
                let library = tokenizers::Tokenizer::from_bytes(json.to_string()).unwrap();
                prop_assert_eq!(streamed, library.decode(&ids, skip).unwrap());
            }
        }
    }

    #[test]
    fn stop_strings_as_defined(
        text in "[abé]{0,30}",
        strings in proptest::collection::vec("[abé]{1,4}", 0..4),
        cut in 1usize..5,
    ) {
        let mut s = StopStrings::new(StopPatterns::new(strings.clone()).unwrap(), false);
        let (mut out, mut stop) = (String::new(), None);
        let chars: Vec<char> = text.chars().collect();
        for piece in chars.chunks(cut) {
            let step = s.push(&piece.iter().collect::<String>());
            out.push_str(&step.text);
            stop = stop.or(step.stop);
        }
        out.push_str(&s.finish());
        match first_stop(&text, &strings) {
            Some((start, string)) => {
                prop_assert_eq!(out, &text[..start]);
                prop_assert_eq!(stop, Some(string));
            }
            None => prop_assert_eq!((out, stop), (text, None)),
        }
    }
}
