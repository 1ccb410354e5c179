//! Tokens to text, up to a stop string: the part that every front end shares.

use crate::{ChatError, Detokenizer, ParserOptions, StopPatterns, StopStrings, Tokenizer};
use std::sync::Arc;
use taper_base::{GeneratedToken, TokenId};

/// How a [`TextStream`] makes text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextOptions {
    /// Strings that end the text.
    pub stop: StopPatterns,
    /// The stop string or stop token that ended the text is part of it.
    pub include_stop_str_in_output: bool,
    /// Leave special tokens out of the text.
    pub skip_special_tokens: bool,
    /// Special tokens that are text all the same: see [`Self::keep_tags`].
    pub tags: Arc<[TokenId]>,
    /// The text of this many tokens is not searched for stop strings.
    pub min_tokens: u32,
}

impl Default for TextOptions {
    fn default() -> Self {
        Self {
            stop: StopPatterns::default(),
            tags: Arc::default(),
            include_stop_str_in_output: false,
            skip_special_tokens: true,
            min_tokens: 0,
        }
    }
}

impl TextOptions {
    /// Lets tags that are special tokens reach the parser although special tokens are skipped. The
    /// parser, in return, keeps them out of the content.
    pub fn keep_tags(&mut self, tokenizer: &Tokenizer, parser: &mut ParserOptions) {
        let special = |tag: &'static str| {
            let id = tokenizer.token_id(tag).filter(|id| tokenizer.is_special(*id))?;
            Some((tag, id))
        };
        let (tags, ids): (Vec<_>, Vec<_>) = parser.tags().into_iter().filter_map(special).unzip();
        parser.hidden_tags = if self.skip_special_tokens { tags } else { Vec::new() };
        self.tags = ids.into();
    }
}

/// Text that a token added.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TextStep {
    /// Text that is safe to send.
    pub text: String,
    /// The stop string that was found: the generation is over and may be dropped.
    pub stop: Option<String>,
}

/// Turns the tokens of one generation into text.
#[derive(Debug)]
pub struct TextStream {
    detokenizer: Detokenizer,
    stop: StopStrings,
    include_stop: bool,
    min_tokens: u32,
    tokens: u32,
    stopped: bool,
}

impl TextStream {
    /// A stream for one generation, which goes on where `prompt` ends.
    ///
    /// # Errors
    /// The tokenizer cannot decode the prompt.
    pub fn new(
        tokenizer: &Tokenizer,
        options: &TextOptions,
        prompt: &[TokenId],
    ) -> Result<Self, ChatError> {
        let skip = options.skip_special_tokens;
        let mut detokenizer = tokenizer.continuation(skip, prompt)?;
        detokenizer.keep(Arc::clone(&options.tags));
        Ok(Self {
            detokenizer,
            stop: StopStrings::new(options.stop.clone(), options.include_stop_str_in_output),
            include_stop: options.include_stop_str_in_output,
            min_tokens: options.min_tokens,
            tokens: 0,
            stopped: false,
        })
    }

    /// Takes a token. After a stop string nothing comes any more; one that ends where the request's
    /// grammar wants more is none.
    ///
    /// # Errors
    /// The tokenizer cannot decode it.
    pub fn push(&mut self, token: &GeneratedToken) -> Result<TextStep, ChatError> {
        if self.stopped {
            return Ok(TextStep::default());
        }
        self.tokens = self.tokens.saturating_add(1);
        if token.stops && !self.include_stop {
            return Ok(TextStep::default());
        }
        let text = self.detokenizer.push(token.id)?;
        if self.tokens <= self.min_tokens || token.open {
            return Ok(TextStep { text: self.stop.bypass(&text), stop: None });
        }
        Ok(self.search(&text))
    }

    /// The end of the generation: text that was held back. It may hold a stop string yet, when the
    /// last tokens' bytes were incomplete.
    ///
    /// # Errors
    /// The tokenizer cannot decode it.
    pub fn finish(&mut self) -> Result<TextStep, ChatError> {
        if self.stopped {
            return Ok(TextStep::default());
        }
        let rest = self.detokenizer.finish()?;
        let mut step = if self.tokens <= self.min_tokens {
            TextStep { text: rest, stop: None }
        } else {
            self.search(&rest)
        };
        if step.stop.is_none() {
            step.text.push_str(&self.stop.finish());
        }
        self.stopped = true;
        Ok(step)
    }

    fn search(&mut self, text: &str) -> TextStep {
        let found = self.stop.push(text);
        self.stopped = found.stop.is_some();
        TextStep { text: found.text, stop: found.stop }
    }
}
