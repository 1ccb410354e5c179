//! Filling in the middle: a prompt, and a suffix that follows what the model writes.

use crate::{errors::ApiError, wire::Prompt};
use taper_base::{TokenId, TokenSet};
use taper_chat::{ChatError, Tokenizer};

/// How a family of models marks what is to be filled in.
#[derive(Debug, Clone, Copy)]
struct Marks {
    prefix: &'static str,
    suffix: &'static str,
    /// Where the model goes on; none where it goes on behind the prefix, which then comes last.
    middle: Option<&'static str>,
}

const fn marks(prefix: &'static str, suffix: &'static str, middle: &'static str) -> Marks {
    Marks { prefix, suffix, middle: Some(middle) }
}

const ALL: &[Marks] = &[
    // Qwen Coder, CodeGemma.
    marks("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    // StarCoder, Granite, SmolLM.
    marks("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    marks("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    marks("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    // GLM.
    marks("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),
    CODE_LLAMA,
    // Codestral.
    Marks { prefix: "[PREFIX]", suffix: "[SUFFIX]", middle: None },
];

const CODE_LLAMA: Marks = marks("▁<PRE>", "▁<SUF>", "▁<MID>");

/// Where the models end what they fill in, beside their own end-of-sequence tokens.
const ENDS: &[&str] = &[
    "<|endoftext|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<|file_separator|>",
    "<fim_pad>",
    "<fim-pad>",
    "<file_sep>",
    "▁<EOT>",
];

/// The marks of a tokenizer, and the suffix of a request.
#[derive(Debug)]
pub(crate) struct Infill {
    prefix: TokenId,
    suffix: TokenId,
    middle: Option<TokenId>,
    /// Tokens of the suffix.
    after: Vec<TokenId>,
    /// Tokens that end what is filled in.
    pub(crate) ends: TokenSet,
}

impl Infill {
    /// Finds the tokens by their names. Tokens that the model does not have, from `vocab` on, are
    /// none.
    pub(crate) fn new(tokenizer: &Tokenizer, suffix: &str, vocab: u32) -> Result<Self, ApiError> {
        let id = |name: &str| tokenizer.token_id(name).filter(|id| *id < vocab);
        let found = ALL.iter().find_map(|marks| {
            let middle = marks.middle.map(|name| id(name).ok_or(())).transpose().ok()?;
            Some((marks, id(marks.prefix)?, id(marks.suffix)?, middle))
        });
        let Some((marks, prefix, suffix_mark, middle)) = found else {
            let detail = "this model's tokenizer has no tokens for filling in the middle";
            return Err(ApiError::unsupported("suffix", detail));
        };
        // These models are trained on suffixes without it.
        let bare = marks.middle.is_none() || marks.prefix == CODE_LLAMA.prefix;
        let after = match bare {
            true => without_space(tokenizer, suffix)?,
            false => tokenizer.encode(suffix, false)?,
        };
        let own = [Some(prefix), Some(suffix_mark), middle].into_iter().flatten();
        let ends = own.chain(ENDS.iter().filter_map(|name| id(name))).collect();
        Ok(Self { prefix, suffix: suffix_mark, middle, after, ends })
    }

    /// The tokens of a prompt with the suffix. `special` puts the beginning-of-sequence token in
    /// front, where texts of this tokenizer begin with it.
    pub(crate) fn prompt(
        &self,
        tokenizer: &Tokenizer,
        prompt: &Prompt,
        special: bool,
    ) -> Result<Vec<TokenId>, ChatError> {
        let begin = tokenizer.bos_token().and_then(|token| tokenizer.token_id(token));
        let first = tokenizer.encode("", special)?.first().copied();
        let before = match prompt {
            Prompt::Text(text) => tokenizer.encode(text, false)?,
            Prompt::Tokens(tokens) => tokens.clone(),
        };
        let mut all = Vec::with_capacity(before.len() + self.after.len() + 4);
        all.extend(first.filter(|_| first == begin));
        match self.middle {
            Some(middle) => {
                all.push(self.prefix);
                all.extend(before);
                all.push(self.suffix);
                all.extend(&self.after);
                all.push(middle);
            }
            None => {
                all.push(self.suffix);
                all.extend(&self.after);
                all.push(self.prefix);
                all.extend(before);
            }
        }
        Ok(all)
    }
}

/// Tokens of a text without the space that this tokenizer puts before every text: behind a line
/// feed there is none.
fn without_space(tokenizer: &Tokenizer, text: &str) -> Result<Vec<TokenId>, ChatError> {
    let line = tokenizer.encode("\n", false)?;
    let both = tokenizer.encode(&format!("\n{text}"), false)?;
    match both.strip_prefix(line.as_slice()) {
        Some(tokens) => Ok(tokens.to_vec()),
        None => tokenizer.encode(text, false),
    }
}
