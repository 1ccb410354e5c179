//! A model's tokenizer, as `tokenizer.json` and `tokenizer_config.json` describe it.

use crate::{
    ChatError, Detokenizer,
    added::{self, Added, Beside},
    decoding::Chain,
};
use serde::Deserialize;
use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
};
use taper_base::TokenId;
use tokenizers::{
    DecoderWrapper, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper, TokenizerImpl,
    models::bpe::BPE,
};

/// Text to tokens and back. Cloning is cheap.
#[derive(Clone)]
pub struct Tokenizer {
    inner: Arc<Inner>,
}

struct Inner {
    tokenizer: tokenizers::Tokenizer,
    /// At the beginning of a text.
    chain: Chain,
    config: TokenizerConfig,
}

/// What of `tokenizer_config.json` matters here.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct TokenizerConfig {
    #[serde(default)]
    pub(crate) bos_token: Option<TokenText>,
    #[serde(default)]
    pub(crate) eos_token: Option<TokenText>,
    /// Added tokens by their number, which `tokenizer.json` may lack.
    #[serde(default)]
    pub(crate) added_tokens_decoder: BTreeMap<TokenId, Added>,
}

/// A token as the JSON files name it: its text, or an object that holds it.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged, expecting = "a token's text, or an object with its content")]
pub(crate) enum TokenText {
    Plain(String),
    Added { content: String },
}

impl TokenText {
    pub(crate) fn as_str(&self) -> &str {
        match self {
            Self::Plain(text) | Self::Added { content: text } => text,
        }
    }
}

/// `tokenizer.json`. The library's own way makes a tree of the whole document before it knows what
/// kind of model is in it; most are BPE, and can be read in one go.
fn parse(json: &[u8]) -> tokenizers::Result<tokenizers::Tokenizer> {
    type Bpe = TokenizerImpl<
        BPE,
        NormalizerWrapper,
        PreTokenizerWrapper,
        PostProcessorWrapper,
        DecoderWrapper,
    >;
    match serde_json::from_slice::<Bpe>(json) {
        Ok(bpe) => Ok(bpe.into()),
        Err(_) => tokenizers::Tokenizer::from_bytes(json),
    }
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenizer").field("vocab_size", &self.vocab_size()).finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// Reads `tokenizer.json` of a model's directory, and what the files beside it add:
    /// `tokenizer_config.json`, `special_tokens_map.json` and `added_tokens.json`.
    ///
    /// # Errors
    /// `tokenizer.json` is missing, or a file is broken; the error names it.
    pub fn load(dir: &Path) -> Result<Self, ChatError> {
        let path = dir.join("tokenizer.json");
        let json = crate::template::read(&path)?;
        let config_path = dir.join("tokenizer_config.json");
        let config =
            if config_path.exists() { Some(crate::template::read(&config_path)?) } else { None };
        let beside = Beside::read(dir);
        Self::build(&json, &path, config.as_deref(), &config_path, beside)
    }

    /// Builds a tokenizer from the contents of `tokenizer.json` and `tokenizer_config.json`.
    ///
    /// # Errors
    /// One of them is broken; the error names it as if it were a file.
    pub fn from_bytes(
        tokenizer_json: &[u8],
        tokenizer_config_json: Option<&[u8]>,
    ) -> Result<Self, ChatError> {
        Self::build(
            tokenizer_json,
            Path::new("tokenizer.json"),
            tokenizer_config_json,
            Path::new("tokenizer_config.json"),
            Beside::default(),
        )
    }

    fn build(
        json: &[u8],
        path: &Path,
        config: Option<&[u8]>,
        config_path: &Path,
        beside: Beside,
    ) -> Result<Self, ChatError> {
        let broken = |source| ChatError::Tokenizer { path: path.to_owned(), source };
        let mut tokenizer = parse(json).map_err(broken)?;
        // Left over from training: they would cut prompts, or fill them up.
        tokenizer.with_truncation(None).map_err(broken)?;
        tokenizer.with_padding(None);
        let chain = Chain::new(tokenizer.get_decoder()).map_err(|unsupported| {
            ChatError::UnsupportedDecoder { path: path.to_owned(), decoder: unsupported.0 }
        })?;
        let mut config = match config {
            None => TokenizerConfig::default(),
            Some(bytes) => serde_json::from_slice(bytes)
                .map_err(|source| ChatError::Json { path: PathBuf::from(config_path), source })?,
        };
        added::complete(&mut tokenizer, &mut config, beside).map_err(broken)?;
        Ok(Self { inner: Arc::new(Inner { tokenizer, chain, config }) })
    }

    /// Text to tokens.
    ///
    /// # Errors
    /// The tokenizer cannot encode it.
    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<TokenId>, ChatError> {
        self.inner
            .tokenizer
            .encode_fast(text, add_special_tokens)
            .map(|encoding| encoding.get_ids().to_vec())
            .map_err(|source| ChatError::Tokenization { source })
    }

    /// Tokens of two texts that are read together, with what the model wants around them, and where the second one
    /// begins.
    ///
    /// # Errors
    /// The tokenizer fails.
    pub fn encode_pair(
        &self,
        first: &str,
        second: &str,
    ) -> Result<(Vec<TokenId>, usize), ChatError> {
        let encoding = self.inner.tokenizer.encode_fast((first, second), true);
        let encoding = encoding.map_err(|source| ChatError::Tokenization { source })?;
        let kinds = encoding.get_type_ids();
        let begins = kinds.iter().position(|&kind| kind == 1).unwrap_or(kinds.len());
        Ok((encoding.get_ids().to_vec(), begins))
    }

    /// Tokens to text, all at once.
    ///
    /// # Errors
    /// The tokenizer cannot decode them.
    pub fn decode(&self, ids: &[TokenId], skip_special_tokens: bool) -> Result<String, ChatError> {
        // Not the library's own: its decoder for BPE panics when there is nothing to decode.
        let mut detokenizer = self.detokenizer(skip_special_tokens);
        let mut text = String::new();
        for &id in ids {
            text.push_str(&detokenizer.push(id)?);
        }
        text.push_str(&detokenizer.finish()?);
        Ok(text)
    }

    /// The bytes that a token stands for in the middle of a text, which need not be UTF-8; none
    /// for an unknown token.
    #[must_use]
    pub fn token_bytes(&self, id: TokenId) -> Vec<u8> {
        let token = self.shown(id, false).unwrap_or_default();
        self.inner.chain.bytes(&token).unwrap_or_else(|_| token.into_bytes())
    }

    /// A token as text, with U+FFFD for bytes that are not UTF-8.
    #[must_use]
    pub fn token_text(&self, id: TokenId) -> String {
        String::from_utf8_lossy(&self.token_bytes(id)).into_owned()
    }

    /// A token as the vocabulary writes it, unless it is unknown or to be skipped.
    pub(crate) fn shown(&self, id: TokenId, skip_special_tokens: bool) -> Option<String> {
        let tokenizer = &self.inner.tokenizer;
        let token = tokenizer.id_to_token(id)?;
        let skip = skip_special_tokens && tokenizer.get_added_vocabulary().is_special_token(&token);
        (!skip).then_some(token)
    }

    /// Whether a text has a space between any two tokens, as with WordPiece.
    #[must_use]
    pub fn joins_with_spaces(&self) -> bool {
        self.inner.chain.joins_with_spaces()
    }

    /// The token with this text in the vocabulary.
    #[must_use]
    pub fn token_id(&self, text: &str) -> Option<TokenId> {
        self.inner.tokenizer.token_to_id(text)
    }

    /// Tokens there are, added ones included.
    #[must_use]
    pub fn vocab_size(&self) -> usize {
        self.inner.tokenizer.get_vocab_size(true)
    }

    /// Whether a token is special, such as an end-of-turn mark.
    #[must_use]
    pub fn is_special(&self, id: TokenId) -> bool {
        let tokenizer = &self.inner.tokenizer;
        tokenizer
            .id_to_token(id)
            .is_some_and(|token| tokenizer.get_added_vocabulary().is_special_token(&token))
    }

    /// Tokens beside those that the vocabulary was trained with: what begins and ends turns, calls and reasoning, whether
    /// they count as special or not. Each is one token wherever its text stands.
    pub fn added_tokens(&self) -> impl Iterator<Item = &str> {
        let added = self.inner.tokenizer.get_added_vocabulary().get_vocab();
        added.keys().map(String::as_str)
    }

    /// The beginning-of-sequence token, as `tokenizer_config.json` names it.
    #[must_use]
    pub fn bos_token(&self) -> Option<&str> {
        self.inner.config.bos_token.as_ref().map(TokenText::as_str)
    }

    /// The end-of-sequence token, as `tokenizer_config.json` names it.
    #[must_use]
    pub fn eos_token(&self) -> Option<&str> {
        self.inner.config.eos_token.as_ref().map(TokenText::as_str)
    }

    /// An incremental decoder for what a model writes after `prompt`: decoded as its continuation,
    /// not as the beginning of a text, which some tokenizers begin without a space.
    ///
    /// # Errors
    /// The tokenizer cannot decode the prompt.
    pub fn continuation(
        &self,
        skip_special_tokens: bool,
        prompt: &[TokenId],
    ) -> Result<Detokenizer, ChatError> {
        let mut detokenizer = self.detokenizer(skip_special_tokens);
        detokenizer.follow(prompt)?;
        Ok(detokenizer)
    }

    /// An incremental decoder for one sequence: what it gives back, put together, is what
    /// [`decode`](Self::decode) makes of the same tokens.
    #[must_use]
    pub fn detokenizer(&self, skip_special_tokens: bool) -> Detokenizer {
        Detokenizer::new(self.clone(), skip_special_tokens, self.inner.chain.clone())
    }
}
