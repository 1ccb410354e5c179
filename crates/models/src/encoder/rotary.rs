//! ModernBERT (Warner et al., arXiv 2412.13663) and Nomic's BERT (Nussbaum et al., arXiv 2402.01613): rotated queries
//! and keys, and gated layers.

use super::{
    EncoderText,
    attention::{Heads, Reach, attend},
    rotary_shape::{GateUp, RotaryShape},
};
use crate::{ModelError, source::Source};
use taper_tensor::{
    Embedding, LayerNorm, Linear, LinearGroup, Phase, RopeAngles, RopeTable, Tensor, norm_rope, ops,
};

/// A loaded encoder.
#[derive(Debug)]
pub(super) struct Rotary {
    shape: RotaryShape,
    words: Embedding,
    /// `[token_kinds, hidden]`; empty where a text's tokens are of no kind.
    kinds: Vec<f32>,
    norm: LayerNorm,
    layers: Vec<Layer>,
    /// Frequencies; a layer has those of its number.
    tables: Vec<RopeTable>,
    /// Behind layers that norm what they read.
    last: Option<LayerNorm>,
}

#[derive(Debug)]
struct Layer {
    qkv: LinearGroup<1>,
    out: Linear,
    /// None in ModernBERT's first layer, which reads what is normed already.
    norm: Option<LayerNorm>,
    gated: Gated,
    gated_norm: LayerNorm,
    /// Which of the frequencies turn it.
    table: usize,
    reach: Reach,
}

#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one a layer")]
enum Gated {
    /// What is activated, then what it is multiplied with, in one product.
    Joined(LinearGroup<1>, Linear),
    Apart(LinearGroup<2>, Linear),
}

impl Rotary {
    pub(super) fn load(shape: RotaryShape, source: Source<'_>) -> Result<Self, ModelError> {
        let names = shape.names;
        let at = ["", "model.", "nomic_bert."];
        let found = at.into_iter().find(|at| source.has(&format!("{at}{}.weight", names.words)));
        let at = found.unwrap_or_default();
        let words = source.embedding(&format!("{at}{}", names.words), shape.vocab, shape.hidden)?;
        let kinds = match (names.kinds, shape.token_kinds) {
            (Some(kinds), n @ 1..) => {
                source.array(&format!("{at}{kinds}.weight"), &[n, shape.hidden])?
            }
            _ => Vec::new(),
        };
        let layer = |i| Layer::load(source, &shape, &format!("{at}{}.{i}", names.layers), i);
        let layers = (0..shape.layers).map(layer).collect::<Result<_, _>>()?;
        let norm = |name: &str| norm(source, &shape, &format!("{at}{name}"));
        let (first, last) = (norm(names.norm)?, names.last.map(norm).transpose()?);
        let tables = shape.tables()?;
        Ok(Self { words, kinds, norm: first, layers, tables, last, shape })
    }

    pub(super) fn hidden(&self) -> usize {
        self.shape.hidden
    }

    pub(super) fn vocab(&self) -> usize {
        self.shape.vocab
    }

    pub(super) fn max_tokens(&self) -> usize {
        self.shape.positions
    }

    /// Vectors of all tokens, one text after the other.
    pub(super) fn forward(
        &self,
        texts: &[EncoderText<'_>],
        lengths: &[usize],
    ) -> Result<Tensor, ModelError> {
        let positions: Vec<_> = lengths.iter().flat_map(|&n| 0..n as u32).collect();
        let mut x = self.norm.forward(&self.embed(texts)?)?;
        let angles: Vec<_> = self.tables.iter().map(|table| table.angles(&positions)).collect();
        for layer in &self.layers {
            x = layer.forward(&x, lengths, &angles[layer.table], &self.shape)?;
        }
        Ok(match &self.last {
            Some(last) => last.forward(&x)?,
            None => x,
        })
    }

    fn embed(&self, texts: &[EncoderText<'_>]) -> Result<Tensor, ModelError> {
        let tokens: Vec<_> = texts.iter().flat_map(|text| text.tokens).copied().collect();
        let words = self.words.forward(&tokens)?;
        let hidden = self.shape.hidden;
        let of_kind = self.kinds.chunks_exact(hidden);
        let (Some(first), second) = (of_kind.clone().next(), of_kind.clone().nth(1)) else {
            return Ok(words);
        };
        let row = |text: &EncoderText<'_>, i| match second {
            Some(second) if i >= text.first_of_second => second,
            _ => first,
        };
        let rows = texts.iter().flat_map(|text| (0..text.tokens.len()).map(|i| row(text, i)));
        let rows = Tensor::from_vec(rows.flatten().copied().collect(), words.dims())?;
        Ok(ops::add(&words, &rows)?)
    }
}

impl Layer {
    fn load(
        source: Source<'_>,
        shape: &RotaryShape,
        at: &str,
        layer: usize,
    ) -> Result<Self, ModelError> {
        let (hidden, inner, names) = (shape.hidden, shape.intermediate, shape.names);
        let linear = |name: &str, inputs, outputs, bias| {
            source.linear(&format!("{at}.{name}"), inputs, outputs, bias)
        };
        let of_inner = |name: &str, outputs| linear(name, hidden, outputs, shape.biases.gated);
        let down = linear(names.down, inner, hidden, shape.biases.down)?;
        let gated = match names.gate_up {
            GateUp::Joined(joined) => {
                Gated::Joined(LinearGroup::new([of_inner(joined, 2 * inner)?])?, down)
            }
            GateUp::Apart(gate, up) => {
                let both = [of_inner(gate, inner)?, of_inner(up, inner)?];
                Gated::Apart(LinearGroup::new(both)?, down)
            }
        };
        let reads_normed = names.last.is_some() && layer == 0;
        let first = || norm(source, shape, &format!("{at}.{}", names.attention_norm));
        let (table, window) = shape.turns[layer];
        let qkv = linear(names.qkv, hidden, 3 * hidden, shape.biases.qkv)?;
        Ok(Self {
            qkv: LinearGroup::new([qkv])?,
            out: linear(names.out, hidden, hidden, shape.biases.out)?,
            norm: (!reads_normed).then(first).transpose()?,
            gated,
            gated_norm: norm(source, shape, &format!("{at}.{}", names.gated_norm))?,
            table,
            reach: Reach { both: true, window },
        })
    }

    /// Norms stand before the parts of a layer where one stands behind the last, and else behind them.
    fn forward(
        &self,
        x: &Tensor,
        lengths: &[usize],
        angles: &RopeAngles,
        shape: &RotaryShape,
    ) -> Result<Tensor, ModelError> {
        let before = shape.names.last.is_some();
        let normed = |norm: Option<&LayerNorm>, x: &Tensor| match norm {
            Some(norm) => norm.forward(x),
            None => Ok(x.clone()),
        };
        let (first, second) = (self.norm.as_ref(), Some(&self.gated_norm));
        let read = normed(first.filter(|_| before), x)?;
        let x = ops::add(&self.attend(&read, lengths, angles, shape)?, x)?;
        let x = normed(first.filter(|_| !before), &x)?;
        let read = normed(second.filter(|_| before), &x)?;
        let x = ops::add(&self.gated.forward(&read, shape)?, &x)?;
        Ok(normed(second.filter(|_| !before), &x)?)
    }

    fn attend(
        &self,
        x: &Tensor,
        lengths: &[usize],
        angles: &RopeAngles,
        shape: &RotaryShape,
    ) -> Result<Tensor, ModelError> {
        let (hidden, d) = (shape.hidden, shape.hidden / shape.heads);
        let [qkv] = self.qkv.forward_normed(x, None, Phase::Decode)?;
        let part = |i: usize| ops::columns(&qkv, i * hidden..(i + 1) * hidden);
        let [q, k] = norm_rope([(&part(0)?, None), (&part(1)?, None)], d, Some(angles))?;
        let flat = |turned: Tensor| turned.reshape(x.dims());
        let (q, k) = (flat(q)?, flat(k)?);
        let heads = Heads { heads: shape.heads, kv_heads: shape.heads, head_dim: d };
        let scale = ((d as f32).powf(-0.5), None);
        let mixed = attend([&q, &k, &part(2)?], lengths, heads, self.reach, scale)?;
        Ok(self.out.forward(&mixed, Phase::Decode)?)
    }
}

impl Gated {
    fn forward(&self, x: &Tensor, shape: &RotaryShape) -> Result<Tensor, ModelError> {
        let (gate, up, down) = match self {
            Self::Joined(both, down) => {
                let ([both], inner) =
                    (both.forward_normed(x, None, Phase::Decode)?, shape.intermediate);
                let part = |i: usize| ops::columns(&both, i * inner..(i + 1) * inner);
                (part(0)?, part(1)?, down)
            }
            Self::Apart(both, down) => {
                let [gate, up] = both.forward_normed(x, None, Phase::Decode)?;
                (gate, up, down)
            }
        };
        Ok(down.forward(&ops::gated(shape.activation, &gate, &up)?, Phase::Decode)?)
    }
}

fn norm(source: Source<'_>, shape: &RotaryShape, at: &str) -> Result<LayerNorm, ModelError> {
    let one = |name: &str| source.vector(&format!("{at}.{name}"), shape.hidden);
    let bias = shape.biases.norm.then(|| one("bias")).transpose()?;
    Ok(LayerNorm::new(one("weight")?, bias, shape.norm_eps)?)
}
