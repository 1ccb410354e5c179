//! Texts to vectors.

use crate::{
    Error, ModelSource, Pooling, Result,
    pooling::{After, Modules, normalize},
};
use std::sync::Arc;
use taper_base::{TextVectors, TokenId, VectorsError};
use taper_chat::Tokenizer;
use taper_models::Encoder;
use taper_tensor::{Tensor, ops};

/// A model that makes a vector of a text, such as `all-MiniLM-L6-v2`, Qwen 3 Embedding or EmbeddingGemma: texts of one
/// meaning are near each other. It runs on the CPU.
///
/// ```no_run
/// # fn main() -> taper::Result<()> {
/// let model = taper::Embedder::load("all-MiniLM-L6-v2")?;
/// let vectors = model.embed(&["a cat", "a kitten", "a car"])?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Embedder {
    name: String,
    encoder: Encoder,
    tokenizer: Tokenizer,
    modules: Modules,
    dimensions: usize,
}

/// How texts become vectors.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct EmbedOptions {
    /// What is written before each text; `None` is the model's default, if it has one.
    pub prompt: Option<String>,
    /// First elements to keep, of a model that was trained for that (Matryoshka: Kusupati et al., arXiv 2205.13147).
    /// Vectors have length 1 again if the model's have.
    pub dimensions: Option<usize>,
}

impl EmbedOptions {
    /// What is written before each text.
    #[must_use]
    pub fn prompt(self, prompt: &str) -> Self {
        Self { prompt: Some(prompt.to_owned()), ..self }
    }

    /// First elements to keep.
    #[must_use]
    pub fn dimensions(self, dimensions: usize) -> Self {
        Self { dimensions: Some(dimensions), ..self }
    }
}

/// Tokens computed together.
const TOKENS_A_STEP: usize = 4096;

impl Embedder {
    /// Loads a directory in the layout of sentence-transformers, or a model of the hub's cache.
    ///
    /// # Errors
    /// It is not found, is no encoder that Taper has, or a file is missing or broken.
    pub fn load(model: &str) -> Result<Self> {
        Self::from_source(&ModelSource::find(model)?)
    }

    /// As [`Self::load`], of a model that was found.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn from_source(source: &ModelSource) -> Result<Self> {
        let modules = source.dir().map(Modules::read).transpose()?.unwrap_or_default();
        let encoder = Encoder::load(&source.checkpoint()?);
        let encoder = encoder.map_err(|e| Error::Model { model: source.to_string(), source: e })?;
        let mut dimensions = encoder.hidden();
        for module in &modules.after {
            dimensions = module.outputs(dimensions).ok_or_else(|| Error::Embedding {
                path: source.dir().map_or_else(Default::default, |dir| dir.join("modules.json")),
                what: format!("a Dense module, which does not read vectors of {dimensions}"),
            })?;
        }
        let (name, tokenizer) = (source.name(), source.tokenizer()?);
        Ok(Self { name, encoder, tokenizer, modules, dimensions })
    }

    /// Whether a model's files are those of a model for vectors of texts: they have sentence-transformers' list of
    /// modules, or an encoder's configuration.
    ///
    /// # Errors
    /// The configuration cannot be read.
    pub fn is_for(source: &ModelSource) -> Result<bool> {
        let Some(dir) = source.dir() else { return Ok(false) };
        if dir.join("modules.json").is_file() {
            return Ok(true);
        }
        let weights = source.checkpoint()?;
        let model_type = weights.config().get("model_type").and_then(|name| name.as_str());
        let types = ["bert", "roberta", "xlm-roberta", "modernbert", "nomic_bert"];
        Ok(model_type.is_some_and(|name| types.contains(&name)))
    }

    /// Its tokenizer.
    #[must_use]
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Elements of a vector.
    #[must_use]
    pub fn dimensions(&self) -> usize {
        self.dimensions
    }

    /// The longest text, in tokens.
    #[must_use]
    pub fn max_tokens(&self) -> usize {
        let most = self.encoder.max_tokens();
        self.modules.max_tokens.map_or(most, |n| n.min(most))
    }

    /// How tokens' vectors become a text's.
    #[must_use]
    pub fn pooling(&self) -> Pooling {
        self.modules.pooling
    }

    /// What the model's makers write before a text of a kind, such as `query`.
    #[must_use]
    pub fn prompt(&self, name: &str) -> Option<&str> {
        self.modules.prompts.prompts.get(name).map(String::as_str)
    }

    /// Names that [`Self::prompt`] knows.
    pub fn prompt_names(&self) -> impl Iterator<Item = &str> {
        self.modules.prompts.prompts.keys().map(String::as_str)
    }

    /// A vector of each text, `[texts, dimensions]`. It does not depend on the other texts.
    ///
    /// # Errors
    /// A text is longer than [`Self::max_tokens`], or cannot be tokenized.
    pub fn embed(&self, texts: &[impl AsRef<str>]) -> Result<Vec<Vec<f32>>> {
        self.embed_with(texts, &EmbedOptions::default())
    }

    /// As [`Self::embed`], with options.
    ///
    /// # Errors
    /// As [`Self::embed`], or more elements are to be kept than there are.
    pub fn embed_with(
        &self,
        texts: &[impl AsRef<str>],
        options: &EmbedOptions,
    ) -> Result<Vec<Vec<f32>>> {
        let tokens = self.tokenize(texts, options)?;
        self.embed_tokens(&tokens, options.dimensions)
    }

    /// Tokens of each text, behind its prompt.
    ///
    /// # Errors
    /// A text cannot be tokenized.
    pub fn tokenize(
        &self,
        texts: &[impl AsRef<str>],
        options: &EmbedOptions,
    ) -> Result<Vec<Vec<TokenId>>> {
        let prompts = &self.modules.prompts;
        let default = || prompts.default_prompt_name.as_deref().and_then(|name| self.prompt(name));
        let prompt = options.prompt.as_deref().or_else(default).unwrap_or_default();
        let encode = |text: &str| match prompt {
            "" => Ok(self.tokenizer.encode(text, true)?),
            prompt => Ok(self.tokenizer.encode(&format!("{prompt}{text}"), true)?),
        };
        texts.iter().map(|text| encode(text.as_ref())).collect()
    }

    /// As [`Self::embed`], of texts that are tokens.
    ///
    /// # Errors
    /// A text is empty or longer than [`Self::max_tokens`], a token is outside the vocabulary, or more elements are to
    /// be kept than there are.
    pub fn embed_tokens(
        &self,
        texts: &[Vec<TokenId>],
        dimensions: Option<usize>,
    ) -> Result<Vec<Vec<f32>>> {
        if let Some(asked) = dimensions.filter(|&n| n == 0 || n > self.dimensions) {
            return Err(Error::Dimensions { asked, most: self.dimensions });
        }
        for (i, ids) in texts.iter().enumerate() {
            let (got, most) = (ids.len(), self.max_tokens());
            if got == 0 || got > most {
                return Err(Error::TextLength { text: i, got, most });
            }
        }
        let mut vectors = Vec::with_capacity(texts.len());
        for step in steps(texts) {
            vectors.extend(self.step(step, dimensions)?);
        }
        Ok(vectors)
    }

    fn step(&self, texts: &[Vec<TokenId>], keep: Option<usize>) -> Result<Vec<Vec<f32>>> {
        let texts: Vec<_> = texts.iter().map(Vec::as_slice).collect();
        let failed = |source| Error::Model { model: self.name.clone(), source };
        let found = self.encoder.forward(&texts).map_err(failed)?;
        found.iter().map(|tokens| self.vector(tokens, keep)).collect()
    }

    /// The vector of a text, of its tokens' vectors.
    fn vector(&self, tokens: &Tensor, keep: Option<usize>) -> Result<Vec<f32>> {
        let hidden = self.encoder.hidden();
        let rows = |x: &[f32]| x.chunks_exact(hidden).map(<[f32]>::to_vec).collect();
        let rows: Vec<_> = ops::with_host_f32(tokens, rows)?;
        let mut vector = self.modules.pooling.of(&rows);
        for module in &self.modules.after {
            vector = module.of(vector)?;
        }
        if let Some(n) = keep {
            vector.truncate(n);
            if let Some(After::Normalize) = self.modules.after.last() {
                normalize(&mut vector);
            }
        }
        Ok(vector)
    }
}

/// For a server.
impl TextVectors for Embedder {
    fn dimensions(&self) -> usize {
        self.dimensions
    }

    fn max_tokens(&self) -> usize {
        Self::max_tokens(self)
    }

    fn vocab_size(&self) -> u32 {
        u32::try_from(self.encoder.vocab()).unwrap_or(u32::MAX)
    }

    fn tokenize(&self, text: &str) -> std::result::Result<Vec<TokenId>, VectorsError> {
        let tokens = Self::tokenize(self, &[text], &EmbedOptions::default());
        Ok(tokens.map_err(of_server)?.pop().unwrap_or_default())
    }

    fn vectors(
        &self,
        texts: &[Vec<TokenId>],
        dimensions: Option<usize>,
    ) -> std::result::Result<Vec<Vec<f32>>, VectorsError> {
        let vocab = self.vocab_size();
        match texts.iter().flatten().find(|&&token| token >= vocab) {
            Some(&token) => Err(VectorsError::UnknownToken { token, vocab }),
            None => self.embed_tokens(texts, dimensions).map_err(of_server),
        }
    }
}

/// An error as a server knows it.
pub(crate) fn of_server(error: Error) -> VectorsError {
    match error {
        Error::TextLength { text, got, most } => VectorsError::Length { text, got, most },
        Error::Dimensions { most, .. } => VectorsError::Dimensions { most },
        other => VectorsError::Failed(Arc::new(other)),
    }
}

/// Texts that are computed together, one part of all after the other.
pub(crate) fn steps<T: AsRef<[TokenId]>>(texts: &[T]) -> impl Iterator<Item = &[T]> {
    let mut rest = texts;
    std::iter::from_fn(move || {
        let mut sum = 0;
        let fits = |text: &&T| {
            sum += text.as_ref().len();
            sum <= TOKENS_A_STEP
        };
        let n = rest.iter().take_while(fits).count().max(1).min(rest.len());
        let (step, after) = rest.split_at(n);
        rest = after;
        (!step.is_empty()).then_some(step)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_have_every_text_once() {
        let texts = [3000, 1000, 97, 5000, 1].map(|n| vec![0; n]);
        let lengths: Vec<Vec<_>> =
            steps(&texts).map(|step| step.iter().map(Vec::len).collect()).collect();
        assert_eq!(lengths, [vec![3000, 1000], vec![97], vec![5000], vec![1]]);
        assert_eq!(steps::<Vec<TokenId>>(&[]).count(), 0);
    }
}
