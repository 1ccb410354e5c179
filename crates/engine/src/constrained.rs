//! A sequence's grammar while it runs.

use taper_base::{
    Constraint, ConstraintError, End, ErrorId, GenerationError, SharedGrammar, TokenId, TokenMask,
    TokenSet,
};

/// A grammar with the output so far behind it, and the mask of the next token.
#[derive(Debug)]
pub(crate) struct Constrained {
    constraint: Box<dyn Constraint>,
    /// End-of-sequence tokens that do not end this request.
    never: Vec<TokenId>,
    /// Tokens that must come next are not looked for: each has to be sampled, as something is to be
    /// told of it.
    samples_all: bool,
    mask: Option<Result<Option<TokenMask>, ConstraintError>>,
}

/// What a token leads to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Follows {
    /// The token was chosen under a mask.
    pub(crate) masked: bool,
    /// Tokens that must come next.
    pub(crate) forced: Vec<TokenId>,
    /// The grammar wants more.
    pub(crate) open: bool,
    /// Nothing can follow: the output is over.
    pub(crate) over: bool,
}

impl Constrained {
    /// At the beginning of the output of a request that ends at `stops`, for a model whose own
    /// end-of-sequence tokens are `eos`.
    pub(crate) fn new(
        grammar: &SharedGrammar,
        eos: &TokenSet,
        stops: &TokenSet,
        samples_all: bool,
    ) -> Self {
        let never = eos.iter().copied().filter(|token| !stops.has(*token)).collect();
        Self { constraint: grammar.start(), never, samples_all, mask: None }
    }

    /// Finds the tokens that may come next, unless they are known. It may take a millisecond.
    pub(crate) fn prepare(&mut self) {
        if self.mask.is_none() {
            let mask = self.constraint.mask();
            self.mask = Some(mask.map(|mask| mask.map(|mask| mask.without(&self.never))));
        }
    }

    /// The tokens that may come next, which [`Self::prepare`] has found; `None` where all may.
    pub(crate) fn mask(&self) -> Result<Option<&TokenMask>, ConstraintError> {
        match &self.mask {
            Some(Ok(mask)) => Ok(mask.as_ref()),
            Some(Err(error)) => Err(error.clone()),
            None => Err(ConstraintError::Broken("a mask was not prepared".to_owned())),
        }
    }

    /// Whether only some tokens may come next.
    pub(crate) fn is_masked(&self) -> bool {
        matches!(self.mask, Some(Ok(Some(_))))
    }

    /// Takes a token that was chosen and does not end the output, and at most `room` that follow
    /// from it, up to one that `ends` the output.
    pub(crate) fn accept(
        &mut self,
        token: TokenId,
        room: usize,
        ends: impl Fn(TokenId) -> bool,
    ) -> Result<Follows, ConstraintError> {
        let masked = self.is_masked();
        self.mask = None;
        self.constraint.accept(token)?;
        let mut forced = Vec::new();
        if !self.samples_all {
            forced = self.constraint.forced();
            let usable = forced.iter().take(room).take_while(|&&token| !ends(token)).count();
            forced.truncate(usable);
            forced.iter().try_for_each(|&token| self.constraint.accept(token))?;
        }
        let end = self.constraint.end();
        Ok(Follows { masked, forced, open: end == End::No, over: end == End::Must })
    }
}

/// What a grammar's error means to whoever asked.
pub(crate) fn error(position: usize, source: ConstraintError) -> GenerationError {
    let position = u32::try_from(position).unwrap_or(u32::MAX);
    match source {
        ConstraintError::Broken(_) => {
            let id = ErrorId::random();
            tracing::error!(%id, position, error = %source, "a grammar failed");
            GenerationError::Internal { id, source: std::sync::Arc::new(source) }
        }
        source => {
            tracing::debug!(position, %source, "a grammar leaves no token");
            GenerationError::Grammar { position, source }
        }
    }
}
