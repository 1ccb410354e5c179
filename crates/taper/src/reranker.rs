//! How well texts answer a query.

use crate::{
    Error, ModelSource, Result,
    embedder::{of_server, steps},
};
use serde_json::Value;
use taper_base::{TextPair, TextScores, TokenId, VectorsError};
use taper_chat::Tokenizer;
use taper_models::{Encoder, EncoderText};

/// A model that reads a query and a text together and says how well the text answers: a cross-encoder of one label, or
/// Qwen 3 Reranker. It runs on the CPU.
///
/// ```no_run
/// # fn main() -> taper::Result<()> {
/// let model = taper::Reranker::load("bge-reranker-base")?;
/// let scores = model.score("What is a panda?", &["A bear of China.", "A car."])?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Reranker {
    name: String,
    encoder: Encoder,
    tokenizer: Tokenizer,
    kind: Kind,
    max_tokens: usize,
}

#[derive(Debug)]
enum Kind {
    /// Its head gives a number; a sigmoid of it is the score, unless the model says otherwise.
    Head { sigmoid: bool },
    /// It answers "no" or "yes", which are these tokens.
    Answers([TokenId; 2]),
}

/// A score between a text and a query.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ranked {
    /// Which of the texts.
    pub index: usize,
    /// Its score.
    pub score: f32,
}

/// What Qwen 3 Reranker is told where nobody says it.
const TASK: &str = "Given a web search query, retrieve relevant passages that answer the query";
const BEFORE: &str = "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the \
    Instruct provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n";
const AFTER: &str = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";

impl Reranker {
    /// Loads a directory, or a model of the hub's cache.
    ///
    /// # Errors
    /// It is not found, is no reranker that Taper has, or a file is missing or broken.
    pub fn load(model: &str) -> Result<Self> {
        Self::from_source(&ModelSource::find(model)?)
    }

    /// As [`Self::load`], of a model that was found.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn from_source(source: &ModelSource) -> Result<Self> {
        let weights = source.checkpoint()?;
        let tokenizer = source.tokenizer()?;
        let encoder = Encoder::load_scorer(&weights);
        let encoder = encoder.map_err(|e| Error::Model { model: source.to_string(), source: e })?;
        let model_type = weights.config().get("model_type").and_then(Value::as_str);
        let kind = match model_type {
            Some("qwen3") => {
                let id = |word: &'static str| match tokenizer.encode(word, false)?[..] {
                    [id] => Ok(id),
                    _ => Err(Error::NoAnswerToken { word }),
                };
                Kind::Answers([id("no")?, id("yes")?])
            }
            _ => Kind::Head { sigmoid: sigmoid(weights.config())? },
        };
        let max_tokens = encoder.max_tokens();
        Ok(Self { name: source.name(), encoder, tokenizer, kind, max_tokens })
    }

    /// Whether a model's configuration is that of a cross-encoder of one label. Qwen 3 Reranker has that of a language
    /// model.
    ///
    /// # Errors
    /// The configuration cannot be read.
    pub fn is_for(source: &ModelSource) -> Result<bool> {
        if source.dir().is_none() {
            return Ok(false);
        }
        let weights = source.checkpoint()?;
        let architectures = weights.config().get("architectures").and_then(Value::as_array);
        let mut names = architectures.into_iter().flatten().filter_map(Value::as_str);
        Ok(names.any(|name| name.ends_with("ForSequenceClassification")))
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

    /// The longest query and text together, in tokens.
    #[must_use]
    pub fn max_tokens(&self) -> usize {
        self.max_tokens
    }

    /// The score of each text, higher for what answers the query better. It does not depend on the other texts.
    ///
    /// # Errors
    /// A pair is longer than [`Self::max_tokens`], or cannot be tokenized.
    pub fn score(&self, query: &str, texts: &[impl AsRef<str>]) -> Result<Vec<f32>> {
        self.score_by(None, query, texts)
    }

    /// As [`Self::score`], with what is asked of the texts, for models that are told so.
    ///
    /// # Errors
    /// As [`Self::score`], or the model is told nothing.
    pub fn score_by(
        &self,
        task: Option<&str>,
        query: &str,
        texts: &[impl AsRef<str>],
    ) -> Result<Vec<f32>> {
        let pairs = texts.iter().map(|text| self.pair(task, query, text.as_ref()));
        self.scores_of(&pairs.collect::<Result<Vec<_>>>()?)
    }

    fn scores_of(&self, pairs: &[TextPair]) -> Result<Vec<f32>> {
        let most = self.max_tokens;
        let mut lengths = pairs.iter().map(|pair| pair.tokens.len()).enumerate();
        if let Some((text, got)) = lengths.find(|(_, got)| *got > most) {
            return Err(Error::TextLength { text, got, most });
        }
        let mut scores = Vec::with_capacity(pairs.len());
        for step in steps(pairs) {
            scores.extend(self.step(step)?);
        }
        Ok(scores)
    }

    /// The texts by their scores, the best first.
    ///
    /// # Errors
    /// As [`Self::score`].
    pub fn rank(&self, query: &str, texts: &[impl AsRef<str>]) -> Result<Vec<Ranked>> {
        let scores = self.score(query, texts)?.into_iter().enumerate();
        let mut ranked: Vec<_> = scores.map(|(index, score)| Ranked { index, score }).collect();
        ranked.sort_by(|a, b| b.score.total_cmp(&a.score));
        Ok(ranked)
    }

    fn pair(&self, task: Option<&str>, query: &str, text: &str) -> Result<TextPair> {
        match self.kind {
            Kind::Head { .. } => {
                if task.is_some() {
                    return Err(Error::NoTask { model: self.name.clone() });
                }
                let (tokens, first_of_second) = self.tokenizer.encode_pair(query, text)?;
                Ok(TextPair { tokens, first_of_second })
            }
            Kind::Answers(_) => {
                let task = task.unwrap_or(TASK);
                let asked = format!("<Instruct>: {task}\n<Query>: {query}\n<Document>: {text}");
                // In three parts, as its makers do it.
                let mut tokens = self.tokenizer.encode(BEFORE, false)?;
                tokens.extend(self.tokenizer.encode(&asked, false)?);
                tokens.extend(self.tokenizer.encode(AFTER, false)?);
                Ok(TextPair { first_of_second: tokens.len(), tokens })
            }
        }
    }

    fn step(&self, pairs: &[TextPair]) -> Result<Vec<f32>> {
        let failed = |source| Error::Model { model: self.name.clone(), source };
        let logistic = |x: f32| 1.0 / (1.0 + (-x).exp());
        match self.kind {
            Kind::Head { sigmoid } => {
                let texts = pairs.iter().map(|pair| {
                    let TextPair { tokens, first_of_second } = pair;
                    EncoderText { tokens, first_of_second: *first_of_second }
                });
                let scores = self.encoder.scores(&texts.collect::<Vec<_>>()).map_err(failed)?;
                Ok(if sigmoid { scores.into_iter().map(logistic).collect() } else { scores })
            }
            Kind::Answers(tokens) => {
                let texts: Vec<_> = pairs.iter().map(|pair| pair.tokens.as_slice()).collect();
                let answers = self.encoder.answers(&texts, tokens).map_err(failed)?;
                // The softmax of two.
                Ok(answers.into_iter().map(|[no, yes]| logistic(yes - no)).collect())
            }
        }
    }
}

/// For a server.
impl TextScores for Reranker {
    fn max_tokens(&self) -> usize {
        self.max_tokens
    }

    fn vocab_size(&self) -> u32 {
        u32::try_from(self.encoder.vocab()).unwrap_or(u32::MAX)
    }

    fn tokenize(&self, query: &str, text: &str) -> std::result::Result<TextPair, VectorsError> {
        self.pair(None, query, text).map_err(of_server)
    }

    fn scores(&self, pairs: &[TextPair]) -> std::result::Result<Vec<f32>, VectorsError> {
        let vocab = TextScores::vocab_size(self);
        match pairs.iter().flat_map(|pair| &pair.tokens).find(|&&token| token >= vocab) {
            Some(&token) => Err(VectorsError::UnknownToken { token, vocab }),
            None => self.scores_of(pairs).map_err(of_server),
        }
    }
}

/// Whether scores go through a sigmoid, as sentence-transformers has it unless config.json names another function.
fn sigmoid(config: &Value) -> Result<bool> {
    let own = config.get("sentence_transformers").and_then(|own| own.get("activation_fn"));
    let older = || config.get("sbert_ce_default_activation_function");
    match own.or_else(older).and_then(Value::as_str) {
        None => Ok(true),
        Some(name) if name.ends_with("Sigmoid") => Ok(true),
        Some(name) if name.ends_with("Identity") => Ok(false),
        Some(name) => Err(Error::Activation { name: name.to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn config_says_what_becomes_of_a_score() -> Result<()> {
        assert!(sigmoid(&json!({}))?);
        let of = |name| sigmoid(&json!({ "sbert_ce_default_activation_function": name }));
        assert!(
            of("torch.nn.modules.activation.Sigmoid")? && !of("torch.nn.modules.linear.Identity")?
        );
        let own = json!({ "sentence_transformers": { "activation_fn": "torch.nn.modules.linear.Identity" } });
        assert!(!sigmoid(&own)?);
        assert!(matches!(of("my.Function"), Err(Error::Activation { .. })));
        Ok(())
    }
}
