//! A model's tokens as bytes, in a trie.

use crate::{GrammarError, constraint::is_break};
use llguidance::{ParserFactory, earley::SlicedBiasComputer};
use std::sync::Arc;
use taper_base::{TokenId, TokenMask};
use taper_chat::Tokenizer;
use toktrie::{InferenceCapabilities, TokEnv, TokRxInfo, TokTrie, TokenizerEnv};

/// Longer tokens, which are runs of one character, do not fit the trie's nodes.
const LONGEST_TOKEN: usize = 1000;

/// Most states of a grammar's lexer, one or two kilobytes each.
const MAX_LEXER_STATES: usize = 50_000;
/// Most symbols of a grammar's rules.
const MAX_GRAMMAR_SIZE: usize = 200_000;

/// The tokens of a model.
pub(crate) struct Vocabulary {
    pub(crate) factory: ParserFactory,
    tokenizer: Tokenizer,
    /// Each token's text in bytes; special tokens have theirs too.
    texts: Vec<Vec<u8>>,
    special: Vec<bool>,
    /// Tokens that stand for something; an embedding may have more rows than there are tokens.
    real: Vec<u32>,
    pub(crate) eos: Vec<TokenId>,
    /// All tokens but those that end the output.
    pub(crate) all_but_eos: TokenMask,
    /// Line breaks, as they come behind thinking.
    pub(crate) breaks: Vec<TokenId>,
}

impl std::fmt::Debug for Vocabulary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vocabulary").field("tokens", &self.texts.len()).finish_non_exhaustive()
    }
}

/// The trie, and how text becomes tokens.
struct Env {
    trie: TokTrie,
    tokenizer: Tokenizer,
    canonical: bool,
}

impl Vocabulary {
    /// The first `size` tokens of a tokenizer; `eos` end an output.
    pub(crate) fn new(
        tokenizer: &Tokenizer,
        size: u32,
        eos: &[TokenId],
    ) -> Result<Self, GrammarError> {
        let texts: Vec<_> = (0..size).map(|id| tokenizer.token_bytes(id)).collect();
        let special: Vec<_> = (0..size).map(|id| tokenizer.is_special(id)).collect();
        let eos: Vec<_> = eos.iter().copied().filter(|id| *id < size).collect();
        let words: Vec<_> = texts
            .iter()
            .zip(&special)
            .map(|(text, special)| match special {
                _ if text.is_empty() || text.len() > LONGEST_TOKEN => Vec::new(),
                true => [&[TokTrie::SPECIAL_TOKEN_MARKER], text.as_slice()].concat(),
                // In no text of UTF-8, and the trie takes it for the mark of special tokens.
                false if text[0] == TokTrie::SPECIAL_TOKEN_MARKER => Vec::new(),
                false => text.clone(),
            })
            .collect();
        let mut real = vec![0u32; texts.len().div_ceil(32)];
        for id in words.iter().enumerate().filter(|(_, w)| !w.is_empty()).map(|(id, _)| id) {
            real[id / 32] |= 1 << (id % 32);
        }
        for &id in &eos {
            real[id as usize / 32] |= 1 << (id % 32);
        }
        let all_but_eos = TokenMask::from(real.clone()).without(&eos);
        let first = eos.first().copied().unwrap_or(toktrie::INVALID_TOKEN);
        let mut trie = TokTrie::from(&TokRxInfo::new(size, first), &words);
        if eos.len() > 1 {
            trie = trie.with_eos_tokens(&eos);
        }
        let mut env = Env { trie, tokenizer: tokenizer.clone(), canonical: true };
        env.canonical = env.writes_json_as_it_is();
        if !env.canonical {
            tracing::info!("this tokenizer changes text: tokens that a grammar forces are sampled");
        }
        let env: TokEnv = Arc::new(env);
        let slices = SlicedBiasComputer::general_slices();
        let wrong = |error: &dyn std::fmt::Display| GrammarError::Vocabulary(error.to_string());
        let caps = InferenceCapabilities { ff_tokens: false, ..InferenceCapabilities::default() };
        let mut factory = ParserFactory::new(&env, caps, &slices).map_err(|e| wrong(&e))?;
        factory.quiet();
        let limits = factory.limits_mut();
        limits.max_lexer_states = MAX_LEXER_STATES;
        limits.max_grammar_size = MAX_GRAMMAR_SIZE;
        limits.verbose_errors = false;
        let tokenizer = tokenizer.clone();
        let breaks =
            (0..).zip(&words).filter(|(_, word)| is_break(word)).map(|(id, _)| id).collect();
        Ok(Self { factory, tokenizer, texts, special, real, eos, all_but_eos, breaks })
    }

    /// A token's text; that of special tokens too.
    pub(crate) fn text(&self, token: TokenId) -> &[u8] {
        self.texts.get(token as usize).map_or(&[], Vec::as_slice)
    }

    /// All tokens and their texts.
    pub(crate) fn tokens(&self) -> impl Iterator<Item = (TokenId, &[u8])> {
        (0..).zip(&self.texts).map(|(id, text)| (id, text.as_slice()))
    }

    /// The one token that a text is, special or added.
    pub(crate) fn token(&self, text: &str) -> Option<TokenId> {
        let id = self.tokenizer.token_id(text)?;
        (self.text(id) == text.as_bytes()).then_some(id)
    }

    /// The tokens of a mark, as the tokenizer writes it.
    pub(crate) fn tokens_of(&self, text: &str) -> Vec<TokenId> {
        let one = self.token(text).map(|token| vec![token]);
        let encoded = || {
            let tokens = self.tokenizer.encode(text, false).ok()?;
            let bytes: Vec<u8> = tokens.iter().flat_map(|id| self.text(*id)).copied().collect();
            (bytes == text.as_bytes()).then_some(tokens)
        };
        one.or_else(encoded).unwrap_or_else(|| self.spell(text.as_bytes()))
    }

    /// The special token that a text is.
    pub(crate) fn special_token(&self, text: &str) -> Option<TokenId> {
        self.token(text).filter(|id| self.special[*id as usize])
    }

    /// A mask of llguidance's, less the rows that stand for nothing.
    pub(crate) fn mask(&self, words: &[u32]) -> TokenMask {
        self.real.iter().zip(words).map(|(real, word)| real & word).collect::<Vec<_>>().into()
    }

    /// Some tokens that spell a text.
    pub(crate) fn spell(&self, text: &[u8]) -> Vec<TokenId> {
        self.factory.tok_env().tok_trie().greedy_tokenize(text)
    }

    pub(crate) fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }
}

impl Env {
    /// The tokens of a text, if they spell it: some tokenizers add a space, or normalize.
    fn encode(&self, text: &[u8]) -> Option<Vec<TokenId>> {
        let tokens = self.tokenizer.encode(std::str::from_utf8(text).ok()?, false).ok()?;
        let known = |id: &TokenId| (*id as usize) < self.trie.vocab_size();
        let spelt = tokens.iter().all(known) && self.trie.decode_raw(&tokens) == text;
        let plain = !tokens.iter().any(|id| self.trie.is_special_token(*id));
        (spelt && plain).then_some(tokens)
    }

    fn writes_json_as_it_is(&self) -> bool {
        let texts = ["{\"name\": \"", "\",\"a b\":[1,-2.5],\"c\":", "true}\n</tool_call>", "é"];
        texts.iter().all(|text| self.encode(text.as_bytes()).is_some())
    }
}

impl TokenizerEnv for Env {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, text: &[u8]) -> Vec<TokenId> {
        self.encode(text).unwrap_or_else(|| self.trie.greedy_tokenize(text))
    }

    fn tokenize_is_canonical(&self) -> bool {
        self.canonical
    }
}
