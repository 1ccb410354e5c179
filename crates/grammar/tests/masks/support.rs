//! A tokenizer of a real model, and a writer that knows nothing but the masks.

use serde_json::{Value, json};
use std::{collections::BTreeSet, sync::OnceLock};
use taper_base::{Constraint, ConstraintError, End, SharedGrammar, TokenId};
use taper_chat::{Tokenizer, ToolFormat};
use taper_grammar::{Content, GrammarError, Grammars, Output};

const TOKENIZER: &[u8] = include_bytes!("../../../server/models/demo/tokenizer.json");
const CONFIG: &[u8] = include_bytes!("../../../server/models/demo/tokenizer_config.json");

pub(crate) struct Model {
    pub(crate) tokenizer: Tokenizer,
    pub(crate) grammars: Grammars,
    pub(crate) eos: TokenId,
    /// Tokens that bring an end nearer, the best ones first.
    nearer: [Vec<TokenId>; 4],
}

pub(crate) fn model() -> &'static Model {
    static MODEL: OnceLock<Model> = OnceLock::new();
    MODEL.get_or_init(|| Model::new(TOKENIZER))
}

/// A model to which the marks of all formats of tool calls are special tokens.
pub(crate) fn marked_model() -> &'static Model {
    static MODEL: OnceLock<Model> = OnceLock::new();
    MODEL.get_or_init(|| {
        let mut json: Value = serde_json::from_slice(TOKENIZER).unwrap();
        let plain = Tokenizer::from_bytes(TOKENIZER, Some(CONFIG)).unwrap();
        let added = json["added_tokens"].as_array_mut().unwrap();
        let marks = marks().into_iter().filter(|mark| plain.token_id(mark).is_none());
        for (id, mark) in (plain.vocab_size()..).zip(marks) {
            added.push(json!({ "id": id, "content": mark, "single_word": false, "lstrip": false,
                               "rstrip": false, "normalized": false, "special": true }));
        }
        Model::new(json.to_string().as_bytes())
    })
}

/// The marks that are tokens of some model.
fn marks() -> BTreeSet<&'static str> {
    let names = ToolFormat::names().into_iter().filter(|name| *name != "none");
    let formats = names.map(|name| name.parse::<ToolFormat>().unwrap().get().unwrap());
    let all = formats.flat_map(|format| format.openers().iter().chain(format.marks()).copied());
    let is_token = |mark: &&str| {
        let tag = mark.starts_with('<') && mark.ends_with('>') && !mark.contains("｜DSML｜");
        let bracket = mark.starts_with('[') && mark.ends_with(']');
        tag || bracket || *mark == "｜DSML｜"
    };
    all.filter(is_token).collect()
}

impl Model {
    fn new(tokenizer: &[u8]) -> Self {
        let tokenizer = Tokenizer::from_bytes(tokenizer, Some(CONFIG)).unwrap();
        let eos = tokenizer.token_id("<|im_end|>").unwrap();
        let size = tokenizer.vocab_size() as u32 + 64;
        let grammars = Grammars::new(&tokenizer, size, &[eos]).unwrap();
        let of = |texts: &[&str]| {
            let all = 0..tokenizer.vocab_size() as u32;
            all.filter(|id| texts.contains(&tokenizer.token_text(*id).as_str())).collect()
        };
        let nearer = [of(&QUOTES), of(&MARKS), of(&ENDS), of(&CLOSING)];
        Self { tokenizer, grammars, eos, nearer }
    }

    /// The text of an output, with all its marks.
    fn text(&self, written: &[TokenId]) -> String {
        let bytes: Vec<u8> =
            written.iter().flat_map(|id| self.tokenizer.token_bytes(*id)).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

pub(crate) fn schema(schema: &Value, strict: bool) -> Content {
    Content::JsonSchema { schema: schema.clone(), strict, whitespace: None }
}

pub(crate) fn grammar(content: &Content) -> Result<SharedGrammar, GrammarError> {
    model().grammars.output(&Output { content: Some(content), ..Output::default() })
}

/// SplitMix64.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.bits() % n.max(1) as u64) as usize
    }

    pub(crate) fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    pub(crate) fn of<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }
}

/// What a walk under masks wrote.
#[derive(Debug)]
pub(crate) enum Walk {
    Whole(String),
    /// It had no end yet.
    Open,
    Failed(String, ConstraintError),
}

/// Writes an output: any token of the mask, and now and then, or after `free` tokens mostly, one that
/// brings the end nearer. With `force`, forced tokens are taken as they come.
pub(crate) fn walk(
    constraint: Box<dyn Constraint>,
    random: &mut Random,
    free: usize,
    force: bool,
) -> Walk {
    model().walk(constraint, random, (free, force), &[])
}

impl Model {
    /// Writes an output as [`walk`] does, where one of `text_ends` ends arguments that are plain text.
    pub(crate) fn walk(
        &self,
        mut constraint: Box<dyn Constraint>,
        random: &mut Random,
        (free, force): (usize, bool),
        text_ends: &[&str],
    ) -> Walk {
        let model = self;
        let mut written = Vec::new();
        let text = |written: &[TokenId]| model.text(written);
        for step in 0..600 {
            if constraint.end() == End::Must {
                return Walk::Whole(text(&written));
            }
            let mask = match constraint.mask() {
                Ok(mask) => mask.expect("a grammar masks"),
                Err(error) => return Walk::Failed(text(&written), error),
            };
            let near = step >= free && !random.one_in(8);
            if near && mask.has(model.eos) {
                return Walk::Whole(text(&written));
            }
            let ended = || text_ends.iter().find_map(|end| model.closes_text(&*constraint, end));
            if near && let Some(tokens) = ended() {
                for token in tokens {
                    written.push(token);
                    constraint.accept(token).unwrap();
                }
                continue;
            }
            let allowed = |id: &TokenId| mask.has(*id) && *id != model.eos;
            let closing = model.nearer.iter().map(|all| all.iter().copied().filter(allowed));
            let closing = closing.map(Vec::from_iter).find(|tokens| near && !tokens.is_empty());
            let all = 0..model.tokenizer.vocab_size() as u32;
            let from = closing.unwrap_or_else(|| all.filter(allowed).collect());
            if from.is_empty() {
                return Walk::Whole(text(&written));
            }
            let token = *random.of(&from);
            written.push(token);
            if let Err(error) = constraint.accept(token) {
                return Walk::Failed(text(&written), error);
            }
            if force {
                for token in constraint.forced() {
                    let mask = constraint.mask().unwrap().unwrap();
                    assert!(mask.has(token) && mask.count() == 1, "{}", text(&written));
                    written.push(token);
                    constraint.accept(token).unwrap();
                }
            }
        }
        Walk::Open
    }

    /// Tokens of `end`, where the output stands in a text that it ends.
    fn closes_text(&self, constraint: &dyn Constraint, end: &str) -> Option<Vec<TokenId>> {
        let is_free = |constraint: &mut dyn Constraint| {
            let mask = constraint.mask().ok().flatten();
            mask.is_some_and(|mask| mask.count() as usize > self.tokenizer.vocab_size() * 4 / 5)
        };
        if !is_free(&mut *constraint.fork()) {
            return None;
        }
        let tokens = self.tokenizer.encode(end, false).unwrap();
        let mut ahead = constraint.fork();
        let taken = tokens.iter().all(|token| ahead.accept(*token).is_ok());
        (taken && !is_free(&mut *ahead)).then_some(tokens)
    }
}

/// What ends a string, in which all else can stand.
const QUOTES: [&str; 3] = ["\"}", "\"]", "\""];
/// What the tests' patterns want in a string before it ends.
const MARKS: [&str; 2] = ["é", "@"];
/// Ends of objects and lists, and the value that has nothing in it.
const ENDS: [&str; 6] = [")", ")]", "}", "]", "null", "None"];
/// What brings an end nearer.
const CLOSING: [&str; 11] = ["\"", "'", "}", "]", "\"}", "0", "1", ":", ",", "\n", "</"];

/// Whether a text is JSON that a schema describes, formats included.
pub(crate) fn validates(schema: &Value, text: &str) -> Result<(), String> {
    let value: Value = serde_json::from_str(text).map_err(|e| format!("no JSON: {e}"))?;
    let validator = jsonschema::options().should_validate_formats(true).build(schema);
    let validator = validator.map_err(|e| format!("no schema: {e}"))?;
    validator.validate(&value).map_err(|e| e.to_string())
}

/// Takes a text token by token; how many bytes of it were taken, and whether it may end there.
pub(crate) fn takes(grammar: &SharedGrammar, text: &str) -> (usize, bool) {
    let model = model();
    let mut constraint = grammar.start();
    let mut taken = 0;
    for byte in text.chars() {
        let tokens = model.tokenizer.encode(byte.encode_utf8(&mut [0; 4]), false).unwrap();
        if tokens.into_iter().any(|token| constraint.accept(token).is_err()) {
            return (taken, false);
        }
        taken += byte.len_utf8();
    }
    (taken, constraint.end() != End::No)
}
