//! Texts to vectors.

use crate::{Error, ModelSource, Pooling, Result, pooling::Modules};
use taper_chat::Tokenizer;
use taper_models::Encoder;
use taper_tensor::ops;

/// A model that makes a vector of a text, such as `all-MiniLM-L6-v2`: texts of one meaning are near each other.
/// It runs on the CPU.
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
}

/// Tokens computed together.
const TOKENS_A_STEP: usize = 4096;

impl Embedder {
    /// Loads a directory in the layout of sentence-transformers, or a model of the hub's cache.
    ///
    /// # Errors
    /// It is not found, is no encoder that Taper has, or a file is missing or broken.
    pub fn load(model: &str) -> Result<Self> {
        let source = ModelSource::find(model)?;
        let modules = match source.dir() {
            Some(dir) => Modules::read(dir)?,
            None => Modules { pooling: Pooling::Mean, normalise: false, max_tokens: None },
        };
        let encoder = Encoder::load(&source.checkpoint()?);
        let encoder = encoder.map_err(|e| Error::Model { model: source.to_string(), source: e })?;
        Ok(Self { name: source.name(), encoder, tokenizer: source.tokenizer()?, modules })
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Elements of a vector.
    #[must_use]
    pub fn dimensions(&self) -> usize {
        self.encoder.hidden()
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

    /// A vector of each text, `[texts, dimensions]`. It does not depend on the other texts.
    ///
    /// # Errors
    /// A text is longer than [`Self::max_tokens`], or cannot be tokenized.
    pub fn embed(&self, texts: &[impl AsRef<str>]) -> Result<Vec<Vec<f32>>> {
        let mut tokens = Vec::with_capacity(texts.len());
        for (i, text) in texts.iter().enumerate() {
            let ids = self.tokenizer.encode(text.as_ref(), true)?;
            let (got, most) = (ids.len(), self.max_tokens());
            if got == 0 || got > most {
                return Err(Error::TextLength { text: i, got, most });
            }
            tokens.push(ids);
        }
        let mut vectors = Vec::with_capacity(texts.len());
        let mut rest = tokens.as_slice();
        while !rest.is_empty() {
            let mut sum = 0;
            let fits = |ids: &&Vec<u32>| {
                sum += ids.len();
                sum <= TOKENS_A_STEP
            };
            let (step, after) = rest.split_at(rest.iter().take_while(fits).count().max(1));
            vectors.extend(self.step(step)?);
            rest = after;
        }
        Ok(vectors)
    }

    fn step(&self, texts: &[Vec<u32>]) -> Result<Vec<Vec<f32>>> {
        let texts: Vec<_> = texts.iter().map(Vec::as_slice).collect();
        let failed = |source| Error::Model { model: self.name.clone(), source };
        let found = self.encoder.forward(&texts).map_err(failed)?;
        let one = |tokens: &taper_tensor::Tensor| {
            let rows = |x: &[f32]| x.chunks_exact(self.dimensions()).map(<[f32]>::to_vec).collect();
            let rows: Vec<_> = ops::with_host_f32(tokens, rows)?;
            let mut vector = self.modules.pooling.of(&rows);
            if self.modules.normalise {
                let length = vector.iter().map(|x| x * x).sum::<f32>().sqrt().max(1e-12);
                vector.iter_mut().for_each(|x| *x /= length);
            }
            Ok(vector)
        };
        found.iter().map(one).collect()
    }
}
