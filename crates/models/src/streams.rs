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
use taper_tensor::{Linear, RmsNorm, Tensor, head_columns, ops};

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
        let mut streams = vec![host(x)?];
        for map in &self.first {
            streams.push(self.as_large(&streams[0], &map.forward(x, phase)?)?);
        }
        self.beside(x.dims()[0], &streams)
    }

    /// The mean of all streams, each brought to the size of the first: `[t, streams * hidden]` -> `[t, hidden]`.
    pub(crate) fn end(&self, x: &Tensor, phase: Phase) -> Result<Tensor, ModelError> {
        let mut sum = host(&head_columns(x, 0, self.hidden)?)?;
        let first = sum.clone();
        for (i, map) in self.last.iter().enumerate() {
            let own = head_columns(x, (i + 1) * self.hidden, self.hidden)?;
            let own = self.as_large(&first, &map.forward(&own, phase)?)?;
            sum.iter_mut().zip(own).for_each(|(sum, own)| *sum += own);
        }
        let count = (self.last.len() + 1) as f32;
        sum.iter_mut().for_each(|sum| *sum /= count);
        Ok(Tensor::from_vec(sum, &[x.dims()[0], self.hidden])?)
    }

    /// Rows of `x` with the root of the mean square of those of `like`.
    fn as_large(&self, like: &[f32], x: &Tensor) -> Result<Vec<f32>, ModelError> {
        const LEAST: f32 = 1e-5;
        let mean = |row: &[f32]| row.iter().map(|x| x * x).sum::<f32>() / row.len() as f32;
        let mut x = host(x)?;
        for (row, like) in x.chunks_exact_mut(self.hidden).zip(like.chunks_exact(self.hidden)) {
            let (target, own) = (mean(like).sqrt(), mean(row).max(LEAST).sqrt());
            row.iter_mut().for_each(|x| *x = *x * target / own);
        }
        Ok(x)
    }

    fn beside(&self, rows: usize, streams: &[Vec<f32>]) -> Result<Tensor, ModelError> {
        let row = |t: usize| streams.iter().flat_map(move |s| &s[t * self.hidden..][..self.hidden]);
        let all = (0..rows).flat_map(row).copied().collect();
        Ok(Tensor::from_vec(all, &[rows, streams.len() * self.hidden])?)
    }

    /// Weights in all, and bytes they take.
    pub(crate) fn size(&self) -> (u64, u64) {
        size(self.first.iter().chain(&self.last))
    }
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
    /// Factors of the active stream, as the layer's own inputs see it.
    scale: Option<Vec<f32>>,
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
        let scale = gains("altup.correct_output_scale")?;
        Ok(Self {
            spec,
            hidden,
            router_norm: RmsNorm::new(router, eps),
            router: linear("altup.modality_router", hidden, n)?,
            predict: linear("altup.prediction_coefs", n, n * n)?,
            correct: linear("altup.correction_coefs", n, n)?,
            scale: spec.scaled.then_some(scale),
            laurel: [
                linear("laurel.linear_left", hidden, spec.laurel)?,
                linear("laurel.linear_right", spec.laurel, hidden)?,
            ],
            laurel_norm: RmsNorm::new(gains("laurel.post_laurel_norm.weight")?, eps),
        })
    }

    /// What the layer reads of the streams.
    pub(crate) fn active(&self, x: &Tensor) -> Result<Tensor, ModelError> {
        Ok(head_columns(x, self.spec.active * self.hidden, self.hidden)?)
    }

    /// The streams as the layer's result is compared with.
    pub(crate) fn predict(&self, x: &Tensor, phase: Phase) -> Result<Tensor, ModelError> {
        let modes = self.modes(&self.active(x)?, phase)?;
        let coefs = host(&self.predict.forward(&modes, phase)?)?;
        let before = host(x)?;
        let (n, hidden) = (self.spec.count, self.hidden);
        let mut out = before.clone();
        let rows = out.chunks_exact_mut(n * hidden).zip(before.chunks_exact(n * hidden));
        for ((out, before), coefs) in rows.zip(coefs.chunks_exact(n * n)) {
            for (out, coefs) in out.chunks_exact_mut(hidden).zip(coefs.chunks_exact(n)) {
                for (before, coef) in before.chunks_exact(hidden).zip(coefs) {
                    out.iter_mut().zip(before).for_each(|(out, x)| *out += coef * x);
                }
            }
        }
        Ok(Tensor::from_vec(out, x.dims())?)
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
        let coefs = host(&self.correct.forward(&self.modes(result, phase)?, phase)?)?;
        let (n, hidden) = (self.spec.count, self.hidden);
        let (mut out, mut news) = (host(predicted)?, host(result)?);
        let active = host(&self.active(predicted)?)?;
        news.iter_mut().zip(active).for_each(|(new, x)| *new -= x);
        let rows = out.chunks_exact_mut(n * hidden).zip(news.chunks_exact(hidden));
        for ((out, news), coefs) in rows.zip(coefs.chunks_exact(n)) {
            for (out, coef) in out.chunks_exact_mut(hidden).zip(coefs) {
                out.iter_mut().zip(news).for_each(|(out, new)| *out += (coef + 1.0) * new);
            }
        }
        Ok(Tensor::from_vec(out, predicted.dims())?)
    }

    /// The active stream, as the layer's own inputs see it.
    pub(crate) fn scaled(&self, x: &Tensor) -> Result<Tensor, ModelError> {
        let active = self.active(x)?;
        let Some(scale) = &self.scale else { return Ok(active) };
        let mut scaled = host(&active)?;
        let rows = scaled.chunks_exact_mut(self.hidden);
        rows.for_each(|row| row.iter_mut().zip(scale).for_each(|(x, scale)| *x *= scale));
        Ok(Tensor::from_vec(scaled, active.dims())?)
    }

    /// Adds `more` to every stream but the first.
    pub(crate) fn add_to_others(&self, x: &Tensor, more: &Tensor) -> Result<Tensor, ModelError> {
        let (mut out, more) = (host(x)?, host(more)?);
        let rows = out.chunks_exact_mut(self.spec.count * self.hidden);
        for (out, more) in rows.zip(more.chunks_exact(self.hidden)) {
            for out in out.chunks_exact_mut(self.hidden).skip(1) {
                out.iter_mut().zip(more).for_each(|(out, more)| *out += more);
            }
        }
        Ok(Tensor::from_vec(out, x.dims())?)
    }

    fn modes(&self, x: &Tensor, phase: Phase) -> Result<Tensor, ModelError> {
        let routed = self.router.forward(&self.router_norm.forward(x)?, phase)?;
        let modes = host(&routed)?.into_iter().map(f32::tanh).collect();
        Ok(Tensor::from_vec(modes, routed.dims())?)
    }

    /// Weights in all, and bytes they take.
    pub(crate) fn size(&self) -> (u64, u64) {
        size([&self.router, &self.predict, &self.correct].into_iter().chain(&self.laurel))
    }
}

fn host(x: &Tensor) -> Result<Vec<f32>, ModelError> {
    Ok(ops::with_host_f32(x, <[f32]>::to_vec)?)
}
