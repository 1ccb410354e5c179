//! The head of a cross-encoder: from the first token's vector to one number.

use crate::{ModelError, source::Source};
use serde_json::Value;
use taper_tensor::{Linear, Phase, Tensor, ops};
use taper_weights::Checkpoint;

/// `out(tanh(dense(x)))`, or `out(x)` without a dense layer.
#[derive(Debug)]
pub(super) struct Head {
    dense: Option<Linear>,
    out: Linear,
}

impl Head {
    /// BERT's pooler and classifier, or RoBERTa's classifier of two maps.
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
        if source.has("classifier.out_proj.weight") {
            let dense = Some(linear("classifier.dense", hidden)?);
            return Ok(Self { dense, out: linear("classifier.out_proj", 1)? });
        }
        let found = ["", "bert.", "roberta."]
            .into_iter()
            .find(|at| source.has(&format!("{at}pooler.dense.weight")));
        let dense = found.map(|at| linear(&format!("{at}pooler.dense"), hidden)).transpose()?;
        Ok(Self { dense, out: linear("classifier", 1)? })
    }

    /// One score a row.
    pub(super) fn scores(&self, x: &Tensor) -> Result<Vec<f32>, ModelError> {
        let inner = match &self.dense {
            Some(dense) => {
                let inner = dense.forward(x, Phase::Decode)?;
                let tanh = |x: &[f32]| x.iter().map(|x| x.tanh()).collect::<Vec<_>>();
                Tensor::from_vec(ops::with_host_f32(&inner, tanh)?, inner.dims())?
            }
            None => x.clone(),
        };
        Ok(ops::with_host_f32(&self.out.forward(&inner, Phase::Decode)?, <[f32]>::to_vec)?)
    }
}
