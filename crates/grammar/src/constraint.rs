//! An output under its rules: thinking, free text, calls, and what a grammar describes.

use crate::{
    compiled::Compiled,
    scan::{Found, Scan},
    thinking::Thinking,
    vocabulary::Vocabulary,
};
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

/// What follows the thinking.
#[derive(Debug)]
pub(crate) enum Body {
    /// A grammar describes all of it.
    Whole(Arc<Compiled>),
    /// Free text, and calls in it.
    Free(Calls),
    /// Anything: only the thinking has its rules.
    Any,
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
        let mut machine = Machine { rules, state: State::Over, spent: 0 };
        machine.state = match &machine.rules.thinking {
            Some(thinking) if thinking.open => machine.think(None),
            thinking => State::begin(&machine.rules, thinking.is_some(), false),
        };
        Box::new(machine)
    }
}

/// An output so far.
#[derive(Clone)]
struct Machine {
    rules: Arc<Rules>,
    state: State,
    /// Tokens of its thinking.
    spent: u32,
}

impl fmt::Debug for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Machine").field("rules", &self.rules).finish_non_exhaustive()
    }
}

/// Where an output stands.
#[derive(Clone)]
enum State {
    /// The text of this number began it, if it was not the prompt.
    Thinking {
        tail: Vec<u8>,
        which: Option<usize>,
    },
    /// The thinking has been long enough: the text that ends it comes, from its token of this number.
    Closing {
        which: Option<usize>,
        at: usize,
    },
    /// At the beginning of the body. Thinking may begin instead, or a line break come between.
    Begin {
        matcher: Matcher,
        think: bool,
        breaks: bool,
    },
    /// Inside what a grammar describes to the end.
    Whole(Matcher),
    /// In free text; `begun` says that there was some.
    Free {
        tail: Vec<u8>,
        begun: bool,
        /// Thinking may begin instead of it.
        think: bool,
        /// The end of the text, which may be the beginning of a mark that begins thinking.
        mark: Vec<u8>,
    },
    /// In a call amid free text.
    Call(Matcher),
    Over,
}

impl State {
    /// The beginning of the body, before which thinking may begin.
    fn begin(rules: &Rules, think: bool, breaks: bool) -> Self {
        match &rules.body {
            Body::Whole(compiled) => Self::Begin { matcher: compiled.start(), think, breaks },
            Body::Free(_) | Body::Any => Self::free(false, think),
        }
    }

    fn free(begun: bool, think: bool) -> Self {
        Self::Free { tail: Vec::new(), begun, think, mark: Vec::new() }
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
                if let Some(compiled) = self.rules.compiled() {
                    compiled.wear_out();
                }
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

    /// Thinking begins, by the text of this number if it was not the prompt. It may have to end at once.
    fn think(&self, which: Option<usize>) -> State {
        match self.is_spent() {
            true => State::Closing { which, at: 0 },
            false => State::Thinking { tail: Vec::new(), which },
        }
    }

    fn is_spent(&self) -> bool {
        self.rules.thinking.as_ref().is_some_and(|thinking| thinking.is_spent(self.spent))
    }

    /// The tokens that end the thinking by force.
    fn closing(&self, which: Option<usize>) -> &[TokenId] {
        self.rules.thinking.as_ref().map_or(&[], |thinking| thinking.closing(which))
    }

    /// Which text a token is that begins thinking.
    fn begins_thinking(&self, token: TokenId) -> Option<usize> {
        self.rules.thinking.as_ref()?.begins(token)
    }

    /// The state behind a token, from the one before it.
    fn next(&mut self, state: State, token: TokenId) -> Result<State, ConstraintError> {
        let rules = Arc::clone(&self.rules);
        let text = rules.vocabulary.text(token);
        match state {
            State::Thinking { mut tail, which } => {
                let end = rules.thinking.as_ref().map(|thinking| &thinking.end);
                if let Some(Found { rest, .. }) = end.and_then(|end| end.push(&mut tail, text)) {
                    return Ok(State::begin(&rules, false, rest.is_empty()));
                }
                self.spent = self.spent.saturating_add(1);
                Ok(match self.is_spent() {
                    true => State::Closing { which, at: 0 },
                    false => State::Thinking { tail, which },
                })
            }
            State::Closing { which, at } => match self.closing(which) {
                end if end.get(at) != Some(&token) => Err(self.broken(token)),
                end if at + 1 < end.len() => Ok(State::Closing { which, at: at + 1 }),
                _ => Ok(State::begin(&rules, false, true)),
            },
            State::Begin { think: true, .. } | State::Free { begun: false, think: true, .. }
                if self.begins_thinking(token).is_some() =>
            {
                Ok(self.think(self.begins_thinking(token)))
            }
            State::Begin { mut matcher, breaks, .. } => {
                let taken = matcher.try_consume_tokens(&[token]);
                match taken.map_err(|e| self.failure(&matcher, &e.to_string()))? {
                    0 if breaks && is_break(text) => {
                        Ok(State::Begin { matcher, think: false, breaks: false })
                    }
                    0 => Err(self.broken(token)),
                    _ => Ok(State::Whole(matcher)),
                }
            }
            State::Whole(mut matcher) => {
                self.consume(&mut matcher, token)?;
                Ok(State::Whole(matcher))
            }
            State::Free { tail, begun, mut mark, .. } => {
                let budget = rules.thinking.as_ref().and_then(|t| t.budget.as_ref());
                match budget.and_then(|budget| budget.begin.push(&mut mark, text)) {
                    Some(Found { which, .. }) => Ok(self.think(Some(which))),
                    None => self.free(tail, mark, begun, text),
                }
            }
            State::Call(mut matcher) => {
                self.consume(&mut matcher, token)?;
                Ok(self.after_call(matcher))
            }
            State::Over => Err(self.broken(token)),
        }
    }

    /// Free text goes on, or a call begins.
    fn free(
        &self,
        mut tail: Vec<u8>,
        mark: Vec<u8>,
        begun: bool,
        text: &[u8],
    ) -> Result<State, ConstraintError> {
        let blank = text.iter().all(u8::is_ascii_whitespace);
        if let Body::Free(calls) = &self.rules.body
            && !(calls.at_start && begun)
            && let Some(Found { rest, .. }) = calls.opener.push(&mut tail, text)
        {
            let mut matcher = calls.call.start();
            for token in self.rules.vocabulary.spell(rest) {
                self.consume(&mut matcher, token)?;
            }
            return Ok(self.after_call(matcher));
        }
        Ok(State::Free { tail, begun: begun || !blank, think: false, mark })
    }

    fn after_call(&self, matcher: Matcher) -> State {
        match &self.rules.body {
            _ if !matcher.is_stopped() => State::Call(matcher),
            Body::Free(calls) if calls.one => State::Over,
            _ => State::free(true, false),
        }
    }

    /// What free text may not go on with.
    fn banned(&self, tail: &[u8], begun: bool) -> Vec<TokenId> {
        let mut banned = match &self.rules.body {
            Body::Free(calls) if !(calls.at_start && begun) => calls.opener.banned(tail),
            _ => Vec::new(),
        };
        if let Some(thinking) = self.rules.thinking.as_ref().filter(|_| self.is_spent()) {
            // A model whose thinking was cut likes to end it once more.
            banned.extend(thinking.marks(&self.rules.vocabulary));
        }
        banned
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
    fn compiled(&self) -> Option<&Compiled> {
        match &self.body {
            Body::Whole(compiled) => Some(compiled),
            Body::Free(calls) => Some(&calls.call),
            Body::Any => None,
        }
    }
}

impl Constraint for Machine {
    fn mask(&mut self) -> Result<Option<TokenMask>, ConstraintError> {
        self.look(|this, state| {
            let vocabulary = &this.rules.vocabulary;
            match state {
                State::Thinking { .. } if matches!(this.rules.body, Body::Any) => Ok(None),
                // An output that ended here would lack its body.
                State::Thinking { tail, .. } => {
                    let end = this.rules.thinking.as_ref().map(|thinking| &thinking.end);
                    let banned = end.map_or_else(Vec::new, |end| end.banned(tail));
                    Ok(Some(vocabulary.all_but_eos.without(&banned)))
                }
                State::Closing { which, at } => {
                    Ok(Some(this.closing(*which).get(*at).copied().into_iter().collect()))
                }
                State::Begin { matcher, think, breaks } => {
                    let mask = this.masked(matcher)?;
                    let thinking = this.rules.thinking.as_ref().filter(|_| *think);
                    let mut more = thinking.map_or_else(Vec::new, Thinking::begin);
                    if *breaks {
                        more.extend(&vocabulary.breaks);
                    }
                    Ok(Some(mask.with(&more)))
                }
                State::Whole(matcher) | State::Call(matcher) => this.masked(matcher).map(Some),
                State::Free { tail, begun, .. } => Ok(this.all_but(&this.banned(tail, *begun))),
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
            State::Closing { which, at } => {
                let (which, at) = (*which, *at);
                self.closing(which).get(at..).unwrap_or_default().to_vec()
            }
            State::Begin { matcher, think: false, breaks: false }
            | State::Whole(matcher)
            | State::Call(matcher) => matcher.compute_ff_tokens(),
            _ => Vec::new(),
        }
    }

    fn end(&mut self) -> End {
        match &mut self.state {
            State::Thinking { .. } | State::Closing { .. }
                if matches!(self.rules.body, Body::Any) =>
            {
                End::May
            }
            State::Thinking { .. } | State::Closing { .. } | State::Call(_) => End::No,
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
