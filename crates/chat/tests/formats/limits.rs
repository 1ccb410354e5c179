//! Time and memory grow with the length of an output, whatever it is.

use crate::{FORMATS, options};
use std::time::{Duration, Instant};
use taper_chat::{OutputParser, ToolFormat};

const MEGABYTE: usize = 1 << 20;

/// Beginnings that make a parser wait for more.
const TAILS: &[&str] =
    &["", " ", "{\"", "{\\\"a", "[{\"a\": \"", "f", "f(s=\"", "<function=f>", "call:f{s:", "\n"];

/// A model that repeats itself must not make the parser read the same text over and over. If it
/// did, this test would take hours.
#[test]
fn a_megabyte_of_openers_takes_no_more_than_its_length() {
    let begun = Instant::now();
    let mut outputs = 0;
    for name in FORMATS {
        let format = name.parse::<ToolFormat>().unwrap();
        for opener in format.get().unwrap().openers() {
            for tail in TAILS {
                let piece = format!("{opener}{tail}");
                let mut options = options(name);
                options.recovery = tail.len() % 2 == 0;
                let size = if cfg!(debug_assertions) { MEGABYTE / 16 } else { MEGABYTE };
                let text = piece.repeat(size / piece.len() + 1);
                let message = OutputParser::parse(options, &text);
                let kept = message.content.map_or(0, |t| t.len())
                    + message.reasoning.map_or(0, |t| t.len())
                    + message.tool_calls.iter().map(|c| c.arguments.len()).sum::<usize>();
                assert!(kept <= 8 * text.len(), "{name} {piece}: {kept}");
                outputs += 1;
            }
        }
    }
    assert!(outputs > 300);
    assert!(begun.elapsed() < Duration::from_secs(240), "{:?}", begun.elapsed());
}

/// A whole megabyte of the worst piece, in one text and in pieces.
#[test]
fn a_megabyte_costs_seconds_at_most() {
    for (name, piece) in [
        ("hermes", "<tool_call>{\\\"a"),
        ("qwen3_coder", "<function=f>"),
        ("mistral", "[TOOL_CALLS]f"),
    ] {
        let text = piece.repeat(MEGABYTE / piece.len());
        let begun = Instant::now();
        let mut options = options(name);
        options.recovery = true;
        let message = OutputParser::parse(options.clone(), &text);
        assert_eq!(message.content.as_ref().map(String::len), Some(text.len()), "{name}");
        let mut parser = OutputParser::new(options);
        let mut told = 0;
        let mut rest = text.as_str();
        while !rest.is_empty() {
            let (piece, behind) = rest.split_at(rest.len().min(7));
            told += parser.push(piece).len();
            rest = behind;
        }
        assert!(told + parser.finish().len() > 0);
        assert!(begun.elapsed() < Duration::from_secs(60), "{name}: {:?}", begun.elapsed());
    }
}

/// White space where parsers skip it.
#[test]
fn a_megabyte_of_blanks_costs_no_more_than_its_length() {
    let begun = Instant::now();
    for (name, before, after) in [
        ("hermes", "<tool_call>", "{\"name\": \"f\", \"arguments\": {}}</tool_call>"),
        ("hermes", "<tool_call>{", "\"name\": \"f\", \"arguments\": {}}</tool_call>"),
        ("hermes", "<tool_call>{\"name\": \"f\", \"arguments\": {}", "}</tool_call>"),
        ("hermes", "<tool_call>{\"name\": \"f\", \"arguments\": {}}", "</tool_call>"),
        ("llama3_json", "{\"name\": \"f\", \"parameters\": {}}", ";"),
        ("qwen3_coder", "<tool_call>", "<function=f></function></tool_call>"),
        ("qwen3_coder", "<tool_call><function=f>", "</function></tool_call>"),
        ("glm45", "<tool_call>f<arg_key>s</arg_key>", "<arg_value>x</arg_value></tool_call>"),
        ("mistral", "[TOOL_CALLS]", "f[ARGS]{}"),
        ("pythonic", "[f(s=1", ")]"),
    ] {
        let text = format!("{before}{}{after}", " ".repeat(MEGABYTE));
        let message = OutputParser::parse(options(name), &text);
        assert_eq!(message.tool_calls.len(), 1, "{name} {before}");
    }
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
}

/// Brackets as deep as the text is long.
#[test]
fn depth_costs_no_stack() {
    for (name, begin, piece) in [
        ("hermes", "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": ", "["),
        ("pythonic", "[f(a=", "["),
        ("gemma4", "<|tool_call>call:f{a:", "{k:"),
    ] {
        let text = format!("{begin}{}", piece.repeat(200_000));
        let message = OutputParser::parse(options(name), &text);
        assert_eq!(message.tool_calls.len(), 1, "{name}");
    }
}
