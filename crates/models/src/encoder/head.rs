//! The head of a cross-encoder: from a text's vectors to one number.

use super::shape::activation;
use crate::{ModelError, config, source::Source};
use serde_json::Value;
use taper_tensor::{LayerNorm, Linear, Phase, Tensor, ops, ops::Activation};
use taper_weights::Checkpoint;

/// `out(inner(x))` of the first token's vector, or of the mean of all.
#[derive(Debug)]
pub(super) struct Head {
    mean: bool,
    inner: Option<Inner>,
    out: Linear,
}

#[derive(Debug)]
enum Inner {
    /// `tanh(dense(x))`
    Tanh(Linear),
    /// `norm(activation(dense(x)))`
    Normed(Linear, Activation, LayerNorm),
}

impl Head {
    /// BERT's pooler and classifier, RoBERTa's classifier of two maps, or ModernBERT's head.
    pub(super) fn load(weights: &Checkpoint, hidden: usize) -> Result<Self, ModelError> {
        let labels = weights.config().get("id2label").and_then(Value::as_object).map(|l| l.len());
        let labels =
            weights.config().get("num_labels").and_then(Value::as_u64).or(labels.map(|n| n as u64));
        if labels.is_some_and(|n| n != 1) {
            let value = labels.unwrap_or_default().to_string();
            return Err(ModelError::Unsupported {
                family: "cross-encoder",
                field: "num_labels",
                value,
            });
        }
        let source = Source::new(weights, &[], false);
        let linear = |name: &str, outputs| source.linear(name, hidden, outputs, true);
        if source.has("head.dense.weight") {
            let (mean, inner) = modernbert(weights.config(), source, hidden)?;
            return Ok(Self { mean, inner: Some(inner), out: linear("classifier", 1)? });
        }
        let first =
            |inner: Option<Linear>, out| Self { mean: false, inner: inner.map(Inner::Tanh), out };
        if source.has("classifier.out_proj.weight") {
            let dense = Some(linear("classifier.dense", hidden)?);
            return Ok(first(dense, linear("classifier.out_proj", 1)?));
        }
        let found = ["", "bert.", "roberta."]
            .into_iter()
            .find(|at| source.has(&format!("{at}pooler.dense.weight")));
        let dense = found.map(|at| linear(&format!("{at}pooler.dense"), hidden)).transpose()?;
        Ok(first(dense, linear("classifier", 1)?))
    }

    /// The score of a text whose tokens have these vectors.
    pub(super) fn score(&self, text: &Tensor) -> Result<f32, ModelError> {
        let x = match self.mean {
            true => mean(text)?,
            false => text.entries(0..1)?,
        };
        let x = match &self.inner {
            Some(Inner::Tanh(dense)) => {
                let inner = dense.forward(&x, Phase::Decode)?;
                let tanh = |x: &[f32]| x.iter().map(|x| x.tanh()).collect::<Vec<_>>();
                Tensor::from_vec(ops::with_host_f32(&inner, tanh)?, inner.dims())?
            }
            Some(Inner::Normed(dense, activation, norm)) => {
                norm.forward(&ops::activate(*activation, &dense.forward(&x, Phase::Decode)?)?)?
            }
            None => x,
        };
        let score = self.out.forward(&x, Phase::Decode)?;
        Ok(ops::with_host_f32(&score, |score| score[0])?)
    }
}

/// Whether it reads the mean, and what is below its last map.
fn modernbert(
    config: &Value,
    source: Source<'_>,
    hidden: usize,
) -> Result<(bool, Inner), ModelError> {
    let family = "modernbert";
    config::require(family, config, "classifier_pooling", &["cls", "mean"])?;
    let text = |field| config.get(field).and_then(Value::as_str);
    let mean = text("classifier_pooling") == Some("mean");
    let flag = |field| config.get(field).and_then(Value::as_bool).unwrap_or(false);
    let dense = source.linear("head.dense", hidden, hidden, flag("classifier_bias"))?;
    let (field, eps) = ("classifier_activation", config.get("norm_eps").and_then(Value::as_f64));
    let activation = activation(family, field, text(field))?;
    let vector = |name| source.vector(name, hidden);
    let bias = flag("norm_bias").then(|| vector("head.norm.bias")).transpose()?;
    let norm = LayerNorm::new(vector("head.norm.weight")?, bias, eps.unwrap_or(1e-5) as f32)?;
    Ok((mean, Inner::Normed(dense, activation, norm)))
}

/// The mean of rows, as one row.
fn mean(x: &Tensor) -> Result<Tensor, ModelError> {
    let (rows, hidden) = (x.dims()[0], x.dims()[1]);
    let sums = ops::with_host_f32(x, |x| {
        let mut sums = vec![0.0; hidden];
        for row in x.chunks_exact(hidden) {
            sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
        }
        sums.iter_mut().for_each(|sum| *sum /= rows as f32);
        sums
    })?;
    Ok(Tensor::from_vec(sums, &[1, hidden])?)
}
