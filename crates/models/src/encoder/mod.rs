//! Encoders: models that give a vector for each token of a text.

mod attention;
mod bert;
mod decoder;
mod head;
mod rotary;
mod rotary_shape;
mod shape;

use crate::{ModelError, source::Source};
use bert::Bert;
use decoder::TextDecoder;
use head::Head;
use rotary::Rotary;
use rotary_shape::RotaryShape;
use serde_json::Value;
use shape::EncoderShape;
use taper_base::TokenId;
use taper_tensor::Tensor;
use taper_weights::Checkpoint;

/// `model_type`s that [`Encoder::load`] knows.
pub static ENCODERS: &[&str] =
    &["bert", "roberta", "xlm-roberta", "modernbert", "nomic_bert", "qwen3", "gemma3_text"];

/// A loaded encoder. It runs on the CPU, in `f32`.
#[derive(Debug)]
pub struct Encoder {
    kind: Kind,
    head: Option<Head>,
}

#[derive(Debug)]
enum Kind {
    Bert(Box<Bert>),
    Rotary(Box<Rotary>),
    Decoder(Box<TextDecoder>),
}

/// Tokens of a text, or of two that are read together.
#[derive(Debug, Clone, Copy)]
pub struct EncoderText<'a> {
    /// All tokens.
    pub tokens: &'a [TokenId],
    /// Where the second text begins; the number of tokens if there is one text.
    pub first_of_second: usize,
}

impl<'a> From<&'a [TokenId]> for EncoderText<'a> {
    fn from(tokens: &'a [TokenId]) -> Self {
        Self { tokens, first_of_second: tokens.len() }
    }
}

impl Encoder {
    /// Builds the encoder that a checkpoint holds. A head for training beside it is left alone.
    ///
    /// # Errors
    /// The family is unknown, config.json asks for what it does not do, or a tensor is missing or of another shape.
    pub fn load(weights: &Checkpoint) -> Result<Self, ModelError> {
        let model_type = weights.config().get("model_type").and_then(Value::as_str);
        let kind = match model_type {
            Some("qwen3" | "gemma3_text") => Kind::Decoder(Box::new(TextDecoder::load(weights)?)),
            Some(family @ ("modernbert" | "nomic_bert")) => {
                let read = match family {
                    "modernbert" => RotaryShape::modernbert,
                    _ => RotaryShape::nomic,
                };
                let source = Source::new(weights, &[], false);
                Kind::Rotary(Box::new(Rotary::load(read(weights.config())?, source)?))
            }
            _ => {
                let shape = EncoderShape::read(weights.config())?;
                Kind::Bert(Box::new(Bert::load(shape, Source::new(weights, &[], false))?))
            }
        };
        Ok(Self { kind, head: None })
    }

    /// As [`Self::load`], with the head by which a pair of texts is scored.
    ///
    /// # Errors
    /// As [`Self::load`], or the model has no head with one output.
    pub fn load_scorer(weights: &Checkpoint) -> Result<Self, ModelError> {
        let encoder = Self::load(weights)?;
        let head = match encoder.kind {
            // Its head gives the logits of answers.
            Kind::Decoder(ref decoder) if !decoder.is_bidirectional() => None,
            _ => Some(Head::load(weights, encoder.hidden())?),
        };
        Ok(Self { head, ..encoder })
    }

    /// Elements of a vector.
    #[must_use]
    pub fn hidden(&self) -> usize {
        match &self.kind {
            Kind::Bert(bert) => bert.hidden(),
            Kind::Rotary(rotary) => rotary.hidden(),
            Kind::Decoder(decoder) => decoder.hidden(),
        }
    }

    /// Size of the vocabulary.
    #[must_use]
    pub fn vocab(&self) -> usize {
        match &self.kind {
            Kind::Bert(bert) => bert.vocab(),
            Kind::Rotary(rotary) => rotary.vocab(),
            Kind::Decoder(decoder) => decoder.vocab(),
        }
    }

    /// The longest text, in tokens.
    #[must_use]
    pub fn max_tokens(&self) -> usize {
        match &self.kind {
            Kind::Bert(bert) => bert.max_tokens(),
            Kind::Rotary(rotary) => rotary.max_tokens(),
            Kind::Decoder(decoder) => decoder.max_tokens(),
        }
    }

    /// Vectors of the tokens of some texts. A text's vectors do not depend on the others.
    ///
    /// # Shapes
    /// For each text of `t` tokens `[t, hidden]`.
    ///
    /// # Errors
    /// A text of no token or of too many, or a token outside the vocabulary.
    pub fn forward(&self, texts: &[&[TokenId]]) -> Result<Vec<Tensor>, ModelError> {
        let texts: Vec<_> = texts.iter().map(|&tokens| EncoderText::from(tokens)).collect();
        self.vectors(&texts)
    }

    fn vectors(&self, texts: &[EncoderText<'_>]) -> Result<Vec<Tensor>, ModelError> {
        let lengths = self.lengths(texts)?;
        let x = match &self.kind {
            Kind::Bert(bert) => bert.forward(texts, &lengths)?,
            Kind::Rotary(rotary) => rotary.forward(texts, &lengths)?,
            Kind::Decoder(decoder) => decoder.forward(texts, &lengths)?,
        };
        let mut first = 0;
        let mut cut = |n: usize| {
            let rows = x.entries(first..first + n);
            first += n;
            Ok(rows?)
        };
        lengths.into_iter().map(&mut cut).collect()
    }

    fn lengths(&self, texts: &[EncoderText<'_>]) -> Result<Vec<usize>, ModelError> {
        let length = |text: &EncoderText<'_>| match (self.max_tokens(), text.tokens.len()) {
            (expected, got) if got == 0 || got > expected => {
                Err(ModelError::Batch { what: "tokens of a text", expected, got })
            }
            (_, got) => Ok(got),
        };
        texts.iter().map(length).collect()
    }

    /// The score of each pair of texts, by the head of [`Self::load_scorer`].
    ///
    /// # Errors
    /// As [`Self::forward`], or the model was loaded without a head.
    pub fn scores(&self, pairs: &[EncoderText<'_>]) -> Result<Vec<f32>, ModelError> {
        let none = ModelError::Batch { what: "heads", expected: 1, got: 0 };
        let head = self.head.as_ref().ok_or(none)?;
        self.vectors(pairs)?.iter().map(|text| head.score(text)).collect()
    }

    /// Logits of two tokens after each text: how a language model is asked.
    ///
    /// # Shapes
    /// One pair a text.
    ///
    /// # Errors
    /// As [`Self::forward`], a token outside the vocabulary, or the model is no language model.
    pub fn answers(
        &self,
        texts: &[&[TokenId]],
        tokens: [TokenId; 2],
    ) -> Result<Vec<[f32; 2]>, ModelError> {
        let Kind::Decoder(decoder) = &self.kind else {
            return Err(ModelError::Batch { what: "output projections", expected: 1, got: 0 });
        };
        let texts: Vec<_> = texts.iter().map(|&tokens| EncoderText::from(tokens)).collect();
        let lengths = self.lengths(&texts)?;
        decoder.answers(&texts, &lengths, tokens)
    }
}
