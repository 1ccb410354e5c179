//! An output under its rules: thinking, free text, calls, and what a grammar describes.

use crate::{compiled::Compiled, scan::Scan, vocabulary::Vocabulary};
use llguidance::{Matcher, api::StopReason};
use std::{fmt, sync::Arc};
use taper_base::{Constraint, ConstraintError, End, Grammar, TokenId, TokenMask};

/// How an output is built.
#[derive(Debug)]
pub(crate) struct Rules {
    pub(crate) vocabulary: Arc<Vocabulary>,
    pub(crate) thinking: Option<Thinking>,
    pub(crate) body: Body,
}

/// Reasoning before the output, which nothing constrains.
#[derive(Debug)]
pub(crate) struct Thinking {
    /// The output begins inside it.
    pub(crate) open: bool,
    /// The one token that begins it.
    pub(crate) begin: Option<TokenId>,
    pub(crate) end: Scan,
}

/// What follows the thinking.
#[derive(Debug)]
pub(crate) enum Body {
    /// A grammar describes all of it.
    Whole(Arc<Compiled>),
    /// Free text, and calls in it.
    Free(Calls),
}

/// Calls in free text.
#[derive(Debug)]
pub(crate) struct Calls {
    pub(crate) opener: Scan,
    /// The opener counts only at the beginning.
    pub(crate) at_start: bool,
    /// What follows the opener.
    pub(crate) call: Arc<Compiled>,
    /// Nothing follows a call.
    pub(crate) one: bool,
}

/// Rules that several sequences share.
#[derive(Debug)]
pub(crate) struct SharedRules(pub(crate) Arc<Rules>);

impl Grammar for SharedRules {
    fn start(&self) -> Box<dyn Constraint> {
        let rules = Arc::clone(&self.0);
        let state = match &rules.thinking {
            Some(thinking) if thinking.open => State::Thinking { tail: Vec::new() },
            thinking => State::begin(&rules, thinking.as_ref().and_then(|t| t.begin), false),
        };
        Box::new(Machine { rules, state })
    }
}

/// An output so far.
#[derive(Clone)]
struct Machine {
    rules: Arc<Rules>,
    state: State,
}

impl fmt::Debug for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Machine").field("rules", &self.rules).finish_non_exhaustive()
    }
}

/// Where an output stands.
#[derive(Clone)]
enum State {
    Thinking {
        tail: Vec<u8>,
    },
    /// At the beginning of the body. Thinking may begin instead, or a line break come between.
    Begin {
        matcher: Matcher,
        think: Option<TokenId>,
        breaks: bool,
    },
    /// Inside what a grammar describes to the end.
    Whole(Matcher),
    /// In free text. Thinking may begin instead of it; `begun` says that there was some.
    Free {
        tail: Vec<u8>,
        begun: bool,
        think: Option<TokenId>,
    },
    /// In a call amid free text.
    Call(Matcher),
    Over,
}

impl State {
    /// The beginning of the body.
    fn begin(rules: &Rules, think: Option<TokenId>, breaks: bool) -> Self {
        match &rules.body {
            Body::Whole(compiled) => Self::Begin { matcher: compiled.start(), think, breaks },
            Body::Free(_) => Self::Free { tail: Vec::new(), begun: false, think },
        }
    }
}

impl Machine {
    /// The mask of a grammar.
    fn masked(&self, matcher: &mut Matcher) -> Result<TokenMask, ConstraintError> {
        let mask = matcher.compute_mask().map_err(|e| self.failure(matcher, &e.to_string()))?;
        let mask = self.rules.vocabulary.mask(mask.as_slice());
        if mask.count() == 0 { Err(ConstraintError::DeadEnd) } else { Ok(mask) }
    }

    /// What a matcher's error means.
    fn failure(&self, matcher: &Matcher, error: &str) -> ConstraintError {
        match matcher.stop_reason() {
            StopReason::NoExtensionBias => ConstraintError::DeadEnd,
            StopReason::LexerTooComplex | StopReason::ParserTooComplex => {
                self.rules.compiled().wear_out();
                ConstraintError::TooComplex
            }
            _ if error.contains("Too many items") => ConstraintError::TooComplex,
            _ => ConstraintError::Broken(error.to_owned()),
        }
    }

    /// All tokens but some; `None` where there are none to leave out.
    fn all_but(&self, tokens: &[TokenId]) -> Option<TokenMask> {
        let all = &self.rules.vocabulary.all_but_eos;
        let with_eos = || all.with(&self.rules.vocabulary.eos);
        (!tokens.is_empty()).then(|| with_eos().without(tokens))
    }

    /// Takes a token inside a grammar.
    fn consume(&self, matcher: &mut Matcher, token: TokenId) -> Result<(), ConstraintError> {
        matcher.consume_token(token).map_err(|e| self.failure(matcher, &e.to_string()))
    }

    /// The state behind a token, from the one before it.
    fn next(&self, state: State, token: TokenId) -> Result<State, ConstraintError> {
        let rules = &self.rules;
        let text = rules.vocabulary.text(token);
        match state {
            State::Thinking { mut tail } => {
                let end = rules.thinking.as_ref().map(|thinking| &thinking.end);
                match end.and_then(|end| end.push(&mut tail, text)) {
                    Some(rest) => Ok(State::begin(rules, None, rest.is_empty())),
                    None => Ok(State::Thinking { tail }),
                }
            }
            State::Begin { think, .. } | State::Free { begun: false, think, .. }
                if think == Some(token) =>
            {
                Ok(State::Thinking { tail: Vec::new() })
            }
            State::Begin { mut matcher, breaks, .. } => {
                let taken = matcher.try_consume_tokens(&[token]);
                match taken.map_err(|e| self.failure(&matcher, &e.to_string()))? {
                    0 if breaks && is_break(text) => {
                        Ok(State::Begin { matcher, think: None, breaks: false })
                    }
                    0 => Err(self.broken(token)),
                    _ => Ok(State::Whole(matcher)),
                }
            }
            State::Whole(mut matcher) => {
                self.consume(&mut matcher, token)?;
                Ok(State::Whole(matcher))
            }
            State::Free { tail, begun, .. } => self.free(tail, begun, text),
            State::Call(mut matcher) => {
                self.consume(&mut matcher, token)?;
                Ok(self.after_call(matcher))
            }
            State::Over => Err(self.broken(token)),
        }
    }

    /// Free text goes on, or a call begins.
    fn free(&self, mut tail: Vec<u8>, begun: bool, text: &[u8]) -> Result<State, ConstraintError> {
        let Body::Free(calls) = &self.rules.body else { return Ok(State::Over) };
        let blank = text.iter().all(u8::is_ascii_whitespace);
        let searches = !(calls.at_start && begun);
        if let Some(rest) = searches.then(|| calls.opener.push(&mut tail, text)).flatten() {
            let mut matcher = calls.call.start();
            for token in self.rules.vocabulary.spell(rest) {
                self.consume(&mut matcher, token)?;
            }
            return Ok(self.after_call(matcher));
        }
        Ok(State::Free { tail, begun: begun || !blank, think: None })
    }

    fn after_call(&self, matcher: Matcher) -> State {
        match &self.rules.body {
            _ if !matcher.is_stopped() => State::Call(matcher),
            Body::Free(calls) if calls.one => State::Over,
            _ => State::Free { tail: Vec::new(), begun: true, think: None },
        }
    }

    fn broken(&self, token: TokenId) -> ConstraintError {
        ConstraintError::Broken(format!("the grammar does not allow token {token}"))
    }

    /// Looks at the state, which a matcher changes while it is looked at.
    fn look<T>(&mut self, look: impl FnOnce(&Self, &mut State) -> T) -> T {
        let mut state = std::mem::replace(&mut self.state, State::Over);
        let out = look(self, &mut state);
        self.state = state;
        out
    }
}

impl Rules {
    fn compiled(&self) -> &Compiled {
        match &self.body {
            Body::Whole(compiled) => compiled,
            Body::Free(calls) => &calls.call,
        }
    }
}

impl Constraint for Machine {
    fn mask(&mut self) -> Result<Option<TokenMask>, ConstraintError> {
        self.look(|this, state| {
            let vocabulary = &this.rules.vocabulary;
            match state {
                // An output that ended here would lack its body.
                State::Thinking { tail } => {
                    let end = this.rules.thinking.as_ref().map(|thinking| &thinking.end);
                    let banned = end.map_or_else(Vec::new, |end| end.banned(tail));
                    Ok(Some(vocabulary.all_but_eos.without(&banned)))
                }
                State::Begin { matcher, think, breaks } => {
                    let mask = this.masked(matcher)?;
                    let mut more: Vec<_> = think.iter().copied().collect();
                    if *breaks {
                        more.extend(&vocabulary.breaks);
                    }
                    Ok(Some(mask.with(&more)))
                }
                State::Whole(matcher) | State::Call(matcher) => this.masked(matcher).map(Some),
                State::Free { tail, begun, .. } => match &this.rules.body {
                    Body::Free(calls) if !(calls.at_start && *begun) => {
                        Ok(this.all_but(&calls.opener.banned(tail)))
                    }
                    _ => Ok(None),
                },
                State::Over => Ok(Some(vocabulary.eos.iter().copied().collect())),
            }
        })
    }

    fn accept(&mut self, token: TokenId) -> Result<(), ConstraintError> {
        let state = std::mem::replace(&mut self.state, State::Over);
        self.state = self.next(state, token)?;
        Ok(())
    }

    fn forced(&mut self) -> Vec<TokenId> {
        match &mut self.state {
            State::Begin { matcher, think: None, breaks: false }
            | State::Whole(matcher)
            | State::Call(matcher) => matcher.compute_ff_tokens(),
            _ => Vec::new(),
        }
    }

    fn end(&mut self) -> End {
        match &mut self.state {
            State::Thinking { .. } | State::Call(_) => End::No,
            State::Begin { matcher, .. } | State::Whole(matcher) => {
                if matcher.is_stopped() {
                    End::Must
                } else if matcher.is_accepting().unwrap_or(false) {
                    End::May
                } else {
                    End::No
                }
            }
            State::Free { .. } => End::May,
            State::Over => End::Must,
        }
    }

    fn fork(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}

/// One or two line breaks, which models write behind their thinking.
pub(crate) fn is_break(text: &[u8]) -> bool {
    matches!(text, b"\n" | b"\n\n")
}
