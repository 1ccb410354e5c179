//! Grammars of outputs: see the README below.
#![doc = include_str!("../README.md")]

mod calls;
mod compiled;
mod constraint;
mod ebnf;
mod error;
mod formats;
mod literal;
mod locate;
mod pointer;
mod scan;
mod schema;
mod source;
mod tagged;
mod thinking;
mod vocabulary;

pub use calls::CallRules;
pub use error::GrammarError;
pub use source::Content;

use calls::Writer;
use compiled::{Cache, Compiled, MAX_BYTES};
use constraint::{Body, Calls, Rules, SharedRules};
use scan::Scan;
use serde_json::Value;
use source::Source;
use std::sync::Arc;
use taper_base::{SharedGrammar, TokenId};
use taper_chat::{Opener, Tokenizer};
use thinking::Thinking;
use vocabulary::Vocabulary;

/// Makes the grammars of one model's outputs, and keeps those that were used last.
#[derive(Debug)]
pub struct Grammars {
    vocabulary: Arc<Vocabulary>,
    cache: Cache,
}

/// What an output must be.
#[derive(Debug, Clone, Copy, Default)]
pub struct Output<'a> {
    /// Reasoning that may come before all else, and that nothing constrains.
    pub reasoning: Option<Reasoning>,
    /// What its content must be.
    pub content: Option<&'a Content>,
    /// Which tools it may call.
    pub calls: Option<CallRules<'a>>,
}

/// How reasoning is marked, and how much of it there may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reasoning {
    /// The texts that begin it.
    pub begins: &'static [&'static str],
    /// The texts that end it.
    pub ends: &'static [&'static str],
    /// The output begins inside it.
    pub open: bool,
    /// Most tokens of it, the marks left out. Then the end comes by force.
    pub budget: Option<u32>,
}

impl Grammars {
    /// For outputs of tokens below `vocab_size`, which those of `eos` end. It takes about a second
    /// for a large vocabulary.
    ///
    /// # Errors
    /// The tokenizer's vocabulary cannot be used.
    pub fn new(
        tokenizer: &Tokenizer,
        vocab_size: u32,
        eos: &[TokenId],
    ) -> Result<Self, GrammarError> {
        let vocabulary = Arc::new(Vocabulary::new(tokenizer, vocab_size, eos)?);
        Ok(Self { vocabulary, cache: Cache::default() })
    }

    /// The grammar of an output, which has content or calls that are constrained. It takes up to
    /// two seconds, and mostly a few milliseconds: not to be called where anybody waits.
    ///
    /// # Errors
    /// What is asked for is wrong, not supported, or too large.
    pub fn output(&self, output: &Output<'_>) -> Result<SharedGrammar, GrammarError> {
        let body = match (output.content, output.calls) {
            (content, Some(calls)) if content.is_some() || calls.required => {
                let content = content.filter(|_| !calls.required).map(Source::of).transpose()?;
                let rule = content.as_ref().map(Self::content_rule).transpose()?;
                let lark = Writer::new(self, calls)?.whole(rule.as_deref())?;
                Body::Whole(self.compile(Source::Lark(lark))?)
            }
            (_, Some(calls)) => Body::Free(self.free(calls)?),
            (Some(content), None) => Body::Whole(self.compile(Source::of(content)?)?),
            (None, None) if output.reasoning.is_some_and(|r| r.budget.is_some()) => Body::Any,
            (None, None) => {
                return Err(GrammarError::Syntax("nothing is constrained".to_owned()));
            }
        };
        let vocabulary = Arc::clone(&self.vocabulary);
        let thinking = output.reasoning.filter(|reasoning| !reasoning.ends.is_empty());
        let thinking = thinking.map(|reasoning| Thinking::new(&reasoning, &vocabulary));
        let rules = Arc::new(Rules { vocabulary, thinking, body });
        Ok(SharedGrammar::from(Arc::new(SharedRules(rules))))
    }

    /// How often a grammar was found that had been prepared before.
    #[must_use]
    pub fn cache_hits(&self) -> usize {
        self.cache.hits()
    }

    fn content_rule(source: &Source) -> Result<String, GrammarError> {
        let detail = "content that is no JSON beside tools";
        source.rule().ok_or_else(|| GrammarError::Unsupported {
            pointer: "#".to_owned(),
            detail: detail.to_owned(),
        })
    }

    /// Calls in free text.
    fn free(&self, rules: CallRules<'_>) -> Result<Calls, GrammarError> {
        let writer = Writer::new(self, rules)?;
        let opener = writer.syntax.opener;
        let call = self.compile(Source::Lark(writer.after_opener()?))?;
        let may_follow = |rest: &[u8]| {
            let mut matcher = call.start();
            let tokens = self.vocabulary.spell(rest);
            matcher.try_consume_tokens(&tokens).is_ok_and(|taken| taken == tokens.len())
        };
        Ok(Calls {
            opener: Scan::new(&[opener.text()], &self.vocabulary, may_follow),
            at_start: matches!(opener, Opener::AtStart(_)),
            call: Arc::clone(&call),
            one: !rules.many,
        })
    }

    fn compile(&self, source: Source) -> Result<Arc<Compiled>, GrammarError> {
        let key = source.key();
        if key.len() > MAX_BYTES {
            return Err(GrammarError::TooLarge { what: "a grammar's bytes", limit: MAX_BYTES });
        }
        let schema = match &source {
            Source::Json(schema) => Some(schema.clone()),
            _ => None,
        };
        let compiled = self.cache.get(&key, &self.vocabulary, || source.grammar());
        compiled.map_err(|error| match (schema, error) {
            (Some(schema), GrammarError::Syntax(detail)) => {
                let refuses = |part: &Value| {
                    let part = Source::Json(part.clone());
                    self.cache.get(&part.key(), &self.vocabulary, || part.grammar()).is_err()
                };
                let pointer = locate::locate(&schema, refuses).to_string();
                GrammarError::Schema { pointer, detail }
            }
            (_, error) => error,
        })
    }

    /// Whether a schema can be used.
    fn check(&self, schema: &Value) -> Result<(), GrammarError> {
        self.compile(Source::Json(schema.clone())).map(drop)
    }
}
