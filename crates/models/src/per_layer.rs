//! Embeddings of each layer's own, beside those that enter the stream (Gemma 3n and 4).
//!
//! ```text
//! of a token, for all layers: (table row · sqrt(size) + norm(project(embedding) / sqrt(hidden))) / sqrt(2)
//! a layer adds to the stream: norm(up(activation(gate(x)) · its part))
//! ```

use crate::{
    LoadOptions, ModelError,
    feed_forward::size,
    source::Source,
    spec::{PerLayerSpec, Spec},
};
use taper_base::Phase;
use taper_tensor::{Embedding, Linear, Pass, RmsNorm, Tensor, ops};

/// What gives all layers their inputs.
#[derive(Debug)]
pub(crate) struct PerLayer {
    spec: PerLayerSpec,
    hidden: usize,
    table: Embedding,
    project: Linear,
    norm: RmsNorm,
}

impl PerLayer {
    /// The tensors below `decoder`, with its dot.
    pub(crate) fn load(
        model: &Spec,
        spec: PerLayerSpec,
        weights: Source<'_>,
        decoder: &str,
        options: LoadOptions<'_>,
    ) -> Result<Self, ModelError> {
        let all = model.layers.len().saturating_mul(spec.size);
        let table = format!("{decoder}embed_tokens_per_layer");
        let project = format!("{decoder}per_layer_model_projection");
        let project = weights.linear(&project, model.hidden, all, false)?;
        let gains = format!("{decoder}per_layer_projection_norm.weight");
        Ok(Self {
            spec,
            hidden: model.hidden,
            // Rows are read now and then: the table stays in its file, also beside a GPU.
            table: weights.embedding(&table, spec.vocab, all)?,
            project: project.place(options.place())?,
            norm: RmsNorm::new(weights.vector(&gains, spec.size)?, model.norm_eps),
        })
    }

    /// Inputs of all layers, `[t, layers * size]`, of tokens and their scaled embeddings.
    pub(crate) fn inputs(
        &self,
        tokens: &[u32],
        embeddings: &Tensor,
        phase: Phase,
    ) -> Result<Tensor, ModelError> {
        let size = self.spec.size;
        // Tokens that it does not have are those of media.
        let known = |&token: &u32| if (token as usize) < self.spec.vocab { token } else { 0 };
        let tokens: Vec<u32> = tokens.iter().map(known).collect();
        let own = ops::scale(&self.table.forward(&tokens)?, (size as f32).sqrt())?;
        let own = match embeddings.gpu() {
            Some(gpu) => own.to_gpu(gpu)?,
            None => own,
        };
        let projected = self.project.forward(embeddings, phase)?;
        let projected = ops::scale(&projected, (self.hidden as f32).powf(-0.5))?;
        let [t, all] = [tokens.len(), self.project.out_features()];
        let rows = projected.reshape(&[t * (all / size), size])?;
        let context = self.norm.forward(&rows)?.reshape(&[t, all])?;
        Ok(ops::scale(&ops::add(&context, &own)?, std::f32::consts::FRAC_1_SQRT_2)?)
    }

    /// Weights in all, and bytes they take.
    pub(crate) fn size(&self) -> (u64, u64) {
        let (parameters, bytes) = size([&self.project]);
        let (rows, width) = self.table.shape();
        (parameters + (rows * width) as u64, bytes + self.table.bytes())
    }
}

/// What a layer does with its part.
#[derive(Debug)]
pub(crate) struct LayerInput {
    layer: usize,
    size: usize,
    gate: Linear,
    up: Linear,
    norm: RmsNorm,
}

impl LayerInput {
    /// That of a layer below `at`.
    pub(crate) fn load(
        model: &Spec,
        (spec, layer): (PerLayerSpec, usize),
        weights: Source<'_>,
        at: &str,
        options: LoadOptions<'_>,
    ) -> Result<Self, ModelError> {
        let gate = format!("{at}.per_layer_input_gate");
        let gate = weights.linear(&gate, model.hidden, spec.size, false)?;
        let up = format!("{at}.per_layer_projection");
        let up = weights.linear(&up, spec.size, model.hidden, false)?;
        let gains = format!("{at}.post_per_layer_input_norm.weight");
        let norm = RmsNorm::new(weights.vector(&gains, model.hidden)?, model.norm_eps);
        let (gate, up) = (gate.place(options.place())?, up.place(options.place())?);
        Ok(Self { layer, size: spec.size, gate, up, norm })
    }

    /// What the layer makes of `x` and its part of `inputs`, which are those of the same rows.
    pub(crate) fn forward(
        &self,
        x: &Tensor,
        inputs: &Tensor,
        activation: ops::Activation,
        pass: Pass<'_>,
    ) -> Result<Tensor, ModelError> {
        let first = self.layer * self.size;
        let own = ops::columns(inputs, first..first + self.size)?;
        let inner = ops::gated(activation, &self.gate.forward(x, pass)?, &own)?;
        Ok(self.norm.forward(&self.up.forward(&inner, pass)?)?)
    }

    /// Weights in all, and bytes they take.
    pub(crate) fn size(&self) -> (u64, u64) {
        size(self.maps())
    }

    /// Maps that adapters may change.
    pub(crate) fn maps(&self) -> [&Linear; 2] {
        [&self.gate, &self.up]
    }
}
