//! Calls as the templates write them come back as the calls that were written, under every cut.

use crate::{
    FORMATS, cuts_change_nothing, options,
    pieces::{cut, streamed},
    writers::{Call, WRITERS, Writer},
};
use proptest::prelude::*;
use serde_json::{Map, Value, json};
use taper_chat::{OutputParser, ParsedMessage};

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) % n as u64) as usize
    }

    fn pick<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())].clone()
    }
}

const TEXTS: &[&str] = &[
    "Paris",
    "",
    "Köln 👋",
    "it's \"here\"",
    "a\nb\n\n  c",
    "\\n \\ \"\\\"",
    "{\"a\": [1, {x}]}",
    "x < y && z > w </b> <i>",
    "f(a=1, b='c')",
    "[TOOL] `code` # 1, 2: 3; 4",
    "true",
    "12",
    "null, none",
    "tab\there",
    "日本語、テキスト。",
];

fn values(key: &str) -> Vec<Value> {
    let texts = || TEXTS.iter().map(|t| json!(t)).collect::<Vec<_>>();
    match key {
        "a" | "days" | "int" => {
            vec![json!(0), json!(-7), json!(42), json!(9_007_199_254_740_993_i64)]
        }
        "float" => vec![json!(2.75), json!(-0.125), json!(1e-7)],
        "bool" => vec![json!(true), json!(false)],
        "object" => vec![json!({}), json!({ "k": [1, "x", null, { "d": "it's" }], "b": true })],
        "list" => vec![json!([]), json!(["a", { "b": false }, [1, [2.5]], ""])],
        "nullable" => vec![Value::Null, json!("text")],
        "union" => vec![json!("text"), json!({ "a": 1 })],
        "unit" => vec![json!("celsius"), json!("fahrenheit")],
        _ => texts(),
    }
}

const TOOLS: &[(&str, &[&str])] = &[
    ("f", &["a", "s"]),
    ("get_weather", &["city", "days"]),
    ("write_file", &["content"]),
    ("types", &["int", "float", "bool", "object", "list", "nullable", "union", "unit"]),
];

fn call(random: &mut Random) -> Call {
    let (name, keys) = random.pick(TOOLS);
    let mut arguments = Map::new();
    for key in keys {
        if random.below(4) > 0 {
            arguments.insert((*key).to_owned(), random.pick(&values(key)));
        }
    }
    Call { name, arguments }
}

/// What was written and what must come back.
struct Written {
    text: String,
    before: &'static str,
    after: &'static str,
    calls: Vec<Call>,
}

fn written(writer: &Writer, seed: u64) -> Written {
    let mut random = Random(seed);
    let count = 1 + random.below(3);
    let calls: Vec<Call> = (0..count).map(|_| call(&mut random)).collect();
    let before = random.pick(&["", "Let me look.", "Sure:\n\n* a < b\n* c"]);
    let after = if writer.text_behind { random.pick(&["", "", "Done."]) } else { "" };
    let space = if before.is_empty() { "" } else { "\n" };
    let text = format!("{before}{space}{}{after}", (writer.write)(&calls));
    Written { text, before, after, calls }
}

#[track_caller]
fn check(written: &Written, message: &ParsedMessage, format: &str) {
    let Written { text, before, after, calls } = written;
    let got: Vec<_> = message.tool_calls.iter().map(|c| (c.name.as_str(), &c.arguments)).collect();
    let context = format!("{format}: {text}\n{got:?}");
    assert_eq!(got.len(), calls.len(), "{context}");
    for ((name, arguments), call) in got.iter().zip(calls) {
        let arguments: Value =
            serde_json::from_str(arguments).unwrap_or_else(|e| panic!("{e}: {context}"));
        assert_eq!((*name, arguments), (call.name, json!(call.arguments)), "{context}");
    }
    let content = message.content.as_deref().unwrap_or("");
    let parts: Vec<&str> = [before, after].into_iter().filter(|t| !t.is_empty()).copied().collect();
    let plain = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(plain(content), plain(&parts.join(" ")), "{context}");
}

#[test]
fn fifty_outputs_of_every_format_come_back_under_every_cut() {
    let mut checked = 0;
    for writer in WRITERS {
        for seed in 0..50 {
            let written = written(writer, seed);
            let options = options(writer.format);
            check(&written, &OutputParser::parse(options.clone(), &written.text), writer.format);
            cuts_change_nothing(&options, &written.text);
            checked += 1;
        }
    }
    assert_eq!(checked, 50 * WRITERS.len());
    for format in FORMATS {
        assert!(WRITERS.iter().any(|w| w.format == *format), "no outputs of {format}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2000, failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn outputs_come_back_whatever_the_cuts(
        at in 0..WRITERS.len(),
        seed: u64,
        cuts in proptest::collection::vec(0usize..600, 0..12),
    ) {
        let writer = &WRITERS[at];
        let written = written(writer, seed);
        let pieces = cut(&written.text, cuts);
        check(&written, &streamed(options(writer.format), &pieces), writer.format);
    }

    /// What is cut short is not lost, and makes no other parser's law break.
    #[test]
    fn outputs_that_end_early_are_the_same_under_every_cut(
        at in 0..WRITERS.len(),
        seed: u64,
        end in 0usize..600,
        cuts in proptest::collection::vec(0usize..600, 0..6),
    ) {
        let writer = &WRITERS[at];
        let mut text = written(writer, seed).text;
        let end = (0..=end.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(end);
        for recovery in [false, true] {
            let mut options = options(writer.format);
            options.recovery = recovery;
            let whole = OutputParser::parse(options.clone(), &text);
            prop_assert_eq!(streamed(options, &cut(&text, cuts.clone())), whole);
        }
    }
}
