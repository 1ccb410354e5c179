//! What a request asks of its content, as a grammar of llguidance.

use crate::{
    GrammarError,
    ebnf::{self, quoted},
    schema::{any_object, prepare},
};
use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use serde_json::{Value, json};

/// What the content of an output must be.
#[derive(Debug, Clone, PartialEq)]
pub enum Content {
    /// Any JSON object.
    JsonObject,
    /// JSON that a schema describes.
    JsonSchema {
        /// The schema.
        schema: Value,
        /// What is not supported is refused; else it is left out.
        strict: bool,
        /// A regular expression of what may stand between JSON's tokens; nothing by default.
        whitespace: Option<String>,
    },
    /// All of it matches a regular expression.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// A grammar: Lark, as llguidance has it, or EBNF, as llama.cpp and XGrammar have it.
    Grammar(String),
}

/// How JSON is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Separators {
    /// Without blanks.
    Compact,
    /// As Python does, and so chat templates: a blank behind commas and colons.
    Spaced,
}

/// Adds how a schema is to be compiled.
pub(crate) fn with_options(
    mut schema: Value,
    separators: Separators,
    whitespace: Option<&str>,
    strict: bool,
) -> Value {
    let (item, key) = match separators {
        Separators::Compact => (",", ":"),
        Separators::Spaced => (", ", ": "),
    };
    if let Some(schema) = schema.as_object_mut() {
        let options = json!({
            "item_separator": item,
            "key_separator": key,
            "whitespace_flexible": false,
            "whitespace_pattern": whitespace,
            "coerce_one_of": !strict,
            // Without `u`: a name could be written in a second way that no rule recognizes.
            "json_allowed_escapes": "nrbtf\\\"",
        });
        schema.insert("x-guidance".to_owned(), options);
    }
    schema
}

/// What a grammar is made of.
#[derive(Debug)]
pub(crate) enum Source {
    Json(Value),
    Regex(String),
    Lark(String),
}

impl Source {
    pub(crate) fn of(content: &Content) -> Result<Self, GrammarError> {
        Ok(match content {
            Content::JsonObject => {
                Self::Json(with_options(any_object(), Separators::Compact, None, true))
            }
            Content::JsonSchema { schema, strict, whitespace } => {
                let schema = prepare(schema, *strict)?;
                let whitespace = whitespace.as_deref();
                Self::Json(with_options(schema, Separators::Compact, whitespace, *strict))
            }
            Content::Regex(regex) => Self::Regex(regex.clone()),
            Content::Choice(texts) if texts.is_empty() => {
                return Err(GrammarError::Syntax("there must be at least one choice".to_owned()));
            }
            Content::Choice(texts) => {
                let texts: Vec<_> = texts.iter().map(|text| quoted(text)).collect();
                Self::Lark(format!("start: {}", texts.join(" | ")))
            }
            Content::Grammar(text) if ebnf::is_ebnf(text) => Self::Lark(ebnf::to_lark(text)?),
            Content::Grammar(text) => Self::Lark(text.clone()),
        })
    }

    /// Names it among others.
    pub(crate) fn key(&self) -> String {
        match self {
            Self::Json(schema) => format!("json {schema}"),
            Self::Regex(regex) => format!("regex {regex}"),
            Self::Lark(text) => format!("lark {text}"),
        }
    }

    pub(crate) fn grammar(self) -> TopLevelGrammar {
        TopLevelGrammar::from_grammar(match self {
            Self::Json(schema) => GrammarWithLexer::from_json_schema(schema),
            Self::Regex(regex) => GrammarWithLexer::from_regex(&regex),
            Self::Lark(text) => GrammarWithLexer::from_lark(text),
        })
    }

    /// As the right side of a rule of Lark.
    pub(crate) fn rule(&self) -> Option<String> {
        match self {
            Self::Json(schema) => Some(format!("%json {schema}")),
            Self::Regex(_) | Self::Lark(_) => None,
        }
    }
}
