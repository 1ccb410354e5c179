//! Encoders: models that read a text in both directions and give a vector for each token (BERT, Devlin et al.,
//! arXiv 1810.04805).

mod attention;
mod shape;

use crate::{ModelError, source::Source};
use attention::attend;
use shape::EncoderShape;
use taper_base::TokenId;
use taper_tensor::{Embedding, LayerNorm, Linear, LinearGroup, Phase, Tensor, ops};
use taper_weights::Checkpoint;

/// `model_type`s that [`Encoder::load`] knows.
pub static ENCODERS: &[&str] = &["bert", "roberta", "xlm-roberta"];

/// A loaded encoder. It runs on the CPU, in `f32`.
#[derive(Debug)]
pub struct Encoder {
    shape: EncoderShape,
    words: Embedding,
    /// Of a position, with that of the first kind of token added: `[positions, hidden]`.
    positions: Vec<f32>,
    norm: LayerNorm,
    layers: Vec<Layer>,
}

#[derive(Debug)]
struct Layer {
    qkv: LinearGroup<3>,
    out: Linear,
    out_norm: LayerNorm,
    up: LinearGroup<1>,
    down: Linear,
    down_norm: LayerNorm,
}

impl Encoder {
    /// Builds the encoder that a checkpoint holds. A head for training beside it is left alone.
    ///
    /// # Errors
    /// The family is unknown, config.json asks for what it does not do, or a tensor is missing or of another shape.
    pub fn load(weights: &Checkpoint) -> Result<Self, ModelError> {
        let shape = EncoderShape::read(weights.config())?;
        let source = Source::new(weights, &[], false);
        let found = ["", "bert.", "roberta."]
            .into_iter()
            .find(|at| source.has(&format!("{at}embeddings.word_embeddings.weight")));
        let at = found.unwrap_or_default();
        let table = format!("{at}embeddings");
        let words = format!("{table}.word_embeddings");
        let words = source.embedding(&words, shape.vocab, shape.hidden)?;
        let kinds = format!("{table}.token_type_embeddings.weight");
        let kinds = source.array(&kinds, &[shape.token_kinds, shape.hidden])?;
        let positions = format!("{table}.position_embeddings.weight");
        let mut positions = source.array(&positions, &[shape.positions, shape.hidden])?;
        for row in positions.chunks_exact_mut(shape.hidden) {
            row.iter_mut().zip(&kinds).for_each(|(x, kind)| *x += kind);
        }
        let layer = |i| Layer::load(source, &shape, &format!("{at}encoder.layer.{i}"));
        let layers = (0..shape.layers).map(layer).collect::<Result<_, _>>()?;
        let norm = norm(source, &shape, &format!("{table}.LayerNorm"))?;
        Ok(Self { shape, words, positions, norm, layers })
    }

    /// Elements of a vector.
    #[must_use]
    pub fn hidden(&self) -> usize {
        self.shape.hidden
    }

    /// The longest text, in tokens.
    #[must_use]
    pub fn max_tokens(&self) -> usize {
        self.shape.positions - self.shape.first_position
    }

    /// Vectors of the tokens of some texts. A text's vectors do not depend on the others.
    ///
    /// # Shapes
    /// For each text of `t` tokens `[t, hidden]`.
    ///
    /// # Errors
    /// A text of no token or of too many, or a token outside the vocabulary.
    pub fn forward(&self, texts: &[&[TokenId]]) -> Result<Vec<Tensor>, ModelError> {
        let mut x = self.norm.forward(&self.embed(texts)?)?;
        let lengths: Vec<_> = texts.iter().map(|text| text.len()).collect();
        for layer in &self.layers {
            x = layer.forward(&x, &lengths, self.shape)?;
        }
        let mut first = 0;
        let mut cut = |n: usize| {
            let rows = x.entries(first..first + n);
            first += n;
            Ok(rows?)
        };
        lengths.into_iter().map(&mut cut).collect()
    }

    /// Words, positions and the kind of token, not yet normed, of all texts one after the other.
    fn embed(&self, texts: &[&[TokenId]]) -> Result<Tensor, ModelError> {
        let (first, hidden) = (self.shape.first_position, self.shape.hidden);
        let mut positions = Vec::new();
        for text in texts {
            let (expected, got) = (self.max_tokens(), text.len());
            if got == 0 || got > expected {
                return Err(ModelError::Batch { what: "tokens of a text", expected, got });
            }
            let of_text = first * hidden..(first + got) * hidden;
            positions.extend_from_slice(&self.positions[of_text]);
        }
        let words = self.words.forward(&texts.concat())?;
        Ok(ops::add(&words, &Tensor::from_vec(positions, words.dims())?)?)
    }
}

impl Layer {
    fn load(source: Source<'_>, shape: &EncoderShape, at: &str) -> Result<Self, ModelError> {
        let (hidden, inner) = (shape.hidden, shape.intermediate);
        let linear = |name: &str, inputs, outputs| {
            source.linear(&format!("{at}.{name}"), inputs, outputs, true)
        };
        let of_self = |name: &str| linear(&format!("attention.self.{name}"), hidden, hidden);
        Ok(Self {
            qkv: LinearGroup::new([of_self("query")?, of_self("key")?, of_self("value")?])?,
            out: linear("attention.output.dense", hidden, hidden)?,
            out_norm: norm(source, shape, &format!("{at}.attention.output.LayerNorm"))?,
            up: LinearGroup::new([linear("intermediate.dense", hidden, inner)?])?,
            down: linear("output.dense", inner, hidden)?,
            down_norm: norm(source, shape, &format!("{at}.output.LayerNorm"))?,
        })
    }

    fn forward(
        &self,
        x: &Tensor,
        lengths: &[usize],
        shape: EncoderShape,
    ) -> Result<Tensor, ModelError> {
        let phase = Phase::Decode;
        let [q, k, v] = self.qkv.forward_normed(x, None, phase)?;
        let mixed = attend([&q, &k, &v], lengths, shape.heads)?;
        let x = self.out_norm.forward(&self.out.forward_add(&mixed, x, None, phase)?)?;
        let [inner] = self.up.forward_normed(&x, None, phase)?;
        let inner = ops::activate(shape.activation, &inner)?;
        Ok(self.down_norm.forward(&self.down.forward_add(&inner, &x, None, phase)?)?)
    }
}

fn norm(source: Source<'_>, shape: &EncoderShape, at: &str) -> Result<LayerNorm, ModelError> {
    let one = |name: &str| source.vector(&format!("{at}.{name}"), shape.hidden);
    Ok(LayerNorm::new(one("weight")?, Some(one("bias")?), shape.norm_eps)?)
}
