//! BERT (Devlin et al., arXiv 1810.04805), RoBERTa and XLM-RoBERTa.

use super::{
    EncoderText,
    attention::{Heads, Reach, attend},
    shape::EncoderShape,
};
use crate::{ModelError, source::Source};
use taper_tensor::{Embedding, LayerNorm, Linear, LinearGroup, Phase, Tensor, ops};

/// A loaded encoder.
#[derive(Debug)]
pub(super) struct Bert {
    shape: EncoderShape,
    words: Embedding,
    /// `[positions, hidden]`
    positions: Vec<f32>,
    /// `[token_kinds, hidden]`
    kinds: Vec<f32>,
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

impl Bert {
    pub(super) fn load(shape: EncoderShape, source: Source<'_>) -> Result<Self, ModelError> {
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
        let positions = source.array(&positions, &[shape.positions, shape.hidden])?;
        let layer = |i| Layer::load(source, &shape, &format!("{at}encoder.layer.{i}"));
        let layers = (0..shape.layers).map(layer).collect::<Result<_, _>>()?;
        let norm = norm(source, &shape, &format!("{table}.LayerNorm"))?;
        Ok(Self { shape, words, positions, kinds, norm, layers })
    }

    pub(super) fn hidden(&self) -> usize {
        self.shape.hidden
    }

    pub(super) fn vocab(&self) -> usize {
        self.shape.vocab
    }

    pub(super) fn max_tokens(&self) -> usize {
        self.shape.positions - self.shape.first_position
    }

    /// Vectors of all tokens, one text after the other.
    pub(super) fn forward(
        &self,
        texts: &[EncoderText<'_>],
        lengths: &[usize],
    ) -> Result<Tensor, ModelError> {
        let mut x = self.norm.forward(&self.embed(texts)?)?;
        for layer in &self.layers {
            x = layer.forward(&x, lengths, self.shape)?;
        }
        Ok(x)
    }

    /// Words, positions and kinds of tokens, not yet normed, of all texts one after the other.
    fn embed(&self, texts: &[EncoderText<'_>]) -> Result<Tensor, ModelError> {
        let EncoderShape { first_position: first, hidden, token_kinds, .. } = self.shape;
        let mut added = Vec::new();
        for text in texts {
            let of_text = first * hidden..(first + text.tokens.len()) * hidden;
            for (i, row) in self.positions[of_text].chunks_exact(hidden).enumerate() {
                // A model of one kind has it for every token.
                let kind = usize::from(i >= text.first_of_second && token_kinds > 1);
                let kind = &self.kinds[kind * hidden..][..hidden];
                added.extend(row.iter().zip(kind).map(|(x, kind)| x + kind));
            }
        }
        let tokens: Vec<_> = texts.iter().flat_map(|text| text.tokens).copied().collect();
        let words = self.words.forward(&tokens)?;
        Ok(ops::add(&words, &Tensor::from_vec(added, words.dims())?)?)
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
        let d = shape.hidden / shape.heads;
        let heads = Heads { heads: shape.heads, kv_heads: shape.heads, head_dim: d };
        let scale = (d as f32).powf(-0.5);
        let mixed = attend([&q, &k, &v], lengths, heads, Reach::ALL, (scale, None))?;
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
