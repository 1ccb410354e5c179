//! Several residual streams, of which layers compute one (AltUp: Baykal et al., arXiv 2301.13310), as Gemma 3n
//! has them. The streams of a token are side by side in a row.
//!
//! ```text
//! before a layer: x_i + Σ_j predict(m)_ij x_j         with m = tanh(router(norm(x_active)))
//! after it:       x_i + (1 + correct(m)_i) (y - x_active), with m of the layer's result y
//! ```

use crate::{
    LoadOptions, ModelError,
    feed_forward::size,
    source::Source,
    spec::{Spec, StreamSpec},
};
use taper_base::Phase;
use taper_tensor::{Linear, RmsNorm, Tensor, match_rows, mix_streams, ops};

/// Streams of a stack of layers: how they begin, and how one is made of them.
#[derive(Debug)]
pub(crate) struct Streams {
    hidden: usize,
    first: Vec<Linear>,
    last: Vec<Linear>,
}

impl Streams {
    /// The tensors below `decoder`, with its dot.
    pub(crate) fn load(
        model: &Spec,
        spec: StreamSpec,
        weights: Source<'_>,
        decoder: &str,
        options: LoadOptions<'_>,
    ) -> Result<Self, ModelError> {
        let hidden = model.hidden;
        let maps = |name: &str| {
            let one = |i| {
                let map = weights.linear(&format!("{decoder}{name}.{i}"), hidden, hidden, false)?;
                Ok::<_, ModelError>(map.place(options.place())?)
            };
            (0..spec.count - 1).map(one).collect::<Result<Vec<_>, _>>()
        };
        Ok(Self {
            hidden,
            first: maps("altup_projections")?,
            last: maps("altup_unembed_projections")?,
        })
    }

    /// All streams of embeddings: `[t, hidden]` -> `[t, streams * hidden]`.
    pub(crate) fn begin(&self, x: &Tensor, phase: Phase) -> Result<Tensor, ModelError> {
        let own = |map: &Linear| Ok(match_rows(&map.forward(x, phase)?, x, LEAST)?);
        let others = self.first.iter().map(own).collect::<Result<Vec<_>, ModelError>>()?;
        let all: Vec<_> = std::iter::once(x).chain(&others).collect();
        Ok(ops::join_columns(&all)?)
    }

    /// The mean of all streams, each brought to the size of the first: `[t, streams * hidden]` -> `[t, hidden]`.
    pub(crate) fn end(&self, x: &Tensor, phase: Phase) -> Result<Tensor, ModelError> {
        let first = stream(x, 0, self.hidden)?;
        let mut sum = first.clone();
        for (i, map) in self.last.iter().enumerate() {
            let own = map.forward(&stream(x, i + 1, self.hidden)?, phase)?;
            sum = ops::add(&sum, &match_rows(&own, &first, LEAST)?)?;
        }
        Ok(ops::scale(&sum, 1.0 / (self.last.len() + 1) as f32)?)
    }

    /// Weights in all, and bytes they take.
    pub(crate) fn size(&self) -> (u64, u64) {
        size(self.first.iter().chain(&self.last))
    }
}

/// What the mean square of a stream counts as at least, where it is brought to a size.
const LEAST: f32 = 1e-5;

/// One of the streams, `[t, streams * hidden]` -> `[t, hidden]`.
fn stream(x: &Tensor, i: usize, hidden: usize) -> Result<Tensor, ModelError> {
    Ok(ops::columns(x, i * hidden..(i + 1) * hidden)?)
}

/// A layer's part in the exchange of streams, and the low-rank map beside its attention (LAuReL: Menghani et al.,
/// arXiv 2411.07501).
#[derive(Debug)]
pub(crate) struct AltUp {
    spec: StreamSpec,
    hidden: usize,
    router_norm: RmsNorm,
    router: Linear,
    predict: Linear,
    correct: Linear,
    /// Factors of the active stream, as the layer's own inputs see it, `[1, hidden]`.
    scale: Option<Tensor>,
    /// Which streams take what those inputs give: all but the first, `[1, streams]`.
    others: Tensor,
    laurel: [Linear; 2],
    laurel_norm: RmsNorm,
}

impl AltUp {
    /// That of a layer below `at`.
    pub(crate) fn load(
        model: &Spec,
        spec: StreamSpec,
        weights: Source<'_>,
        at: &str,
        options: LoadOptions<'_>,
    ) -> Result<Self, ModelError> {
        let (hidden, n, eps) = (model.hidden, spec.count, model.norm_eps);
        let linear = |name: &str, inputs, outputs| {
            let map = weights.linear(&format!("{at}.{name}"), inputs, outputs, false)?;
            Ok::<_, ModelError>(map.place(options.place())?)
        };
        let gains = |name: &str| weights.vector(&format!("{at}.{name}"), hidden);
        let mut router = gains("altup.router_norm.weight")?;
        router.iter_mut().for_each(|gain| *gain /= hidden as f32);
        let constant = |values: Vec<f32>| {
            let dims = [1, values.len()];
            let values = Tensor::from_vec(values, &dims)?;
            Ok::<_, ModelError>(match options.gpu {
                Some(gpu) => values.to_gpu(gpu)?,
                None => values,
            })
        };
        let scale = constant(gains("altup.correct_output_scale")?)?;
        let others = (0..n).map(|i| if i == 0 { 0.0 } else { 1.0 }).collect();
        Ok(Self {
            spec,
            hidden,
            router_norm: RmsNorm::new(router, eps),
            router: linear("altup.modality_router", hidden, n)?,
            predict: linear("altup.prediction_coefs", n, n * n)?,
            correct: linear("altup.correction_coefs", n, n)?,
            scale: spec.scaled.then_some(scale),
            others: constant(others)?,
            laurel: [
                linear("laurel.linear_left", hidden, spec.laurel)?,
                linear("laurel.linear_right", spec.laurel, hidden)?,
            ],
            laurel_norm: RmsNorm::new(gains("laurel.post_laurel_norm.weight")?, eps),
        })
    }

    /// What the layer reads of the streams.
    pub(crate) fn active(&self, x: &Tensor) -> Result<Tensor, ModelError> {
        stream(x, self.spec.active, self.hidden)
    }

    /// The streams as the layer's result is compared with.
    pub(crate) fn predict(&self, x: &Tensor, phase: Phase) -> Result<Tensor, ModelError> {
        let modes = self.modes(&self.active(x)?, phase)?;
        let coefs = self.predict.forward(&modes, phase)?;
        Ok(mix_streams(x, x, &coefs, 0.0, self.hidden)?)
    }

    /// `x + norm(right(left(x)))`.
    pub(crate) fn laurel(&self, x: &Tensor, phase: Phase) -> Result<Tensor, ModelError> {
        let [left, right] = &self.laurel;
        let inner = right.forward(&left.forward(x, phase)?, phase)?;
        Ok(ops::add(x, &self.laurel_norm.forward(&inner)?)?)
    }

    /// Predicted streams, corrected by what the layer gave of the active one.
    pub(crate) fn correct(
        &self,
        predicted: &Tensor,
        result: &Tensor,
        phase: Phase,
    ) -> Result<Tensor, ModelError> {
        let coefs = self.correct.forward(&self.modes(result, phase)?, phase)?;
        let news = ops::add(result, &ops::scale(&self.active(predicted)?, -1.0)?)?;
        Ok(mix_streams(predicted, &news, &coefs, 1.0, self.hidden)?)
    }

    /// The active stream, as the layer's own inputs see it.
    pub(crate) fn scaled(&self, x: &Tensor) -> Result<Tensor, ModelError> {
        let active = self.active(x)?;
        match &self.scale {
            Some(scale) => Ok(ops::scale_columns(&active, scale)?),
            None => Ok(active),
        }
    }

    /// Adds `more` to every stream but the first.
    pub(crate) fn add_to_others(&self, x: &Tensor, more: &Tensor) -> Result<Tensor, ModelError> {
        Ok(mix_streams(x, more, &self.others, 0.0, self.hidden)?)
    }

    fn modes(&self, x: &Tensor, phase: Phase) -> Result<Tensor, ModelError> {
        let routed = self.router.forward(&self.router_norm.forward(x)?, phase)?;
        // A cap of 1 is tanh alone.
        Ok(ops::soft_cap(&routed, 1.0)?)
    }

    /// Weights in all, and bytes they take.
    pub(crate) fn size(&self) -> (u64, u64) {
        size([&self.router, &self.predict, &self.correct].into_iter().chain(&self.laurel))
    }
}
