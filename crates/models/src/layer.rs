//! A layer: a mixer and a feed-forward, the norms around them, and how their results are added.

use crate::{
    LoadOptions, ModelError, StateSession,
    feed_forward::{FeedForward, Residual},
    mixers::{self, Mixer, StateIds, Step},
    norms::{Input, Norm},
    source::Source,
    spec::{LayerSpec, Spec},
};
use taper_tensor::{RmsNorm, Tensor, ops};

/// A loaded layer.
#[derive(Debug)]
pub(crate) struct Layer {
    norm: Option<Norm>,
    mixer: Option<Box<dyn Mixer>>,
    after_mixer: Option<Norm>,
    mlp_norm: Option<Norm>,
    mlp: Option<FeedForward>,
    after_mlp: Option<Norm>,
}

impl Layer {
    /// The layer below `at`, where and as it will run.
    pub(crate) fn load(
        spec: &Spec,
        layer: &LayerSpec,
        ids: &mut StateIds,
        weights: Source<'_>,
        at: &str,
        options: LoadOptions<'_>,
    ) -> Result<Self, ModelError> {
        let norms = spec.attention_norms.filter(|_| layer.mixer.attends()).unwrap_or(spec.norms);
        let place =
            |name: Option<&str>, of: bool| name.filter(|_| of).map(|name| format!("{at}.{name}"));
        let norm = |name, of| {
            let norm = |name: String| Norm::load(spec, weights, &name, spec.hidden);
            place(name, of).map(norm).transpose()
        };
        let after = |name, of| {
            let own = (spec.norm_offset, spec.after_norm_eps.unwrap_or(spec.norm_eps));
            let norm = |name: String| Norm::load_with(spec, weights, &name, spec.hidden, own);
            place(name, of).map(norm).transpose()
        };
        let mixer = mixers::load(spec, layer, ids, weights, at, options)?;
        let mlp = FeedForward::load(spec, layer.mlp, weights, at, options)?;
        Ok(Self {
            norm: norm(norms.mixer, mixer.is_some() || spec.parallel)?,
            after_mixer: after(norms.after_mixer, mixer.is_some())?,
            mlp_norm: norm(norms.mlp, mlp.is_some())?,
            after_mlp: after(norms.after_mlp, mlp.is_some())?,
            mixer,
            mlp,
        })
    }

    /// The norm that reads the layer's input, of a kind that the layer before may apply.
    pub(crate) fn first_norm(&self) -> Option<&RmsNorm> {
        self.norm.as_ref().and_then(Norm::rms)
    }

    /// Weights in all, and bytes they take.
    pub(crate) fn size(&self) -> (u64, u64) {
        let mixer = self.mixer.as_ref().map_or((0, 0), |mixer| mixer.size());
        let mlp = self.mlp.as_ref().map_or((0, 0), FeedForward::size);
        (mixer.0 + mlp.0, mixer.1 + mlp.1)
    }

    /// The layer's output for the rows of `kept`, or all. The norm of the layer after it is `next` to read
    /// that.
    pub(crate) fn forward(
        &self,
        step: &Step<'_>,
        (x, kept, next): (&Tensor, Option<&[u32]>, Option<&RmsNorm>),
        state: &mut dyn StateSession,
    ) -> Result<Tensor, ModelError> {
        let take = |x: &Tensor| match kept {
            Some(rows) => ops::take_rows(x, rows),
            None => Ok(x.clone()),
        };
        let input = Input::new(x, self.norm.as_ref())?;
        let mixed = match &self.mixer {
            Some(mixer) => {
                // Rows are chosen before the output projection where not all are kept.
                let step = Step { whole: kept.is_none(), ..*step };
                Some((mixer, take(&mixer.mix(&input, &step, state)?)?))
            }
            None => None,
        };
        let x = take(x)?;
        if x.dims()[0] == 0 {
            return Ok(x);
        }
        let scale = step.spec.branch_scale;
        let sum = match mixed {
            Some((mixer, mixed)) => {
                let ahead = self.mlp_norm.as_ref().and_then(Norm::rms);
                let reads = self.mlp.as_ref().is_some_and(FeedForward::reads_normed);
                let ahead = ahead.filter(|_| reads && !step.spec.parallel);
                add_branch((&x, ahead), self.after_mixer.as_ref(), scale, |residual| {
                    mixer.project(&mixed, residual, step.phase)
                })?
            }
            None => x.clone(),
        };
        let Some(mlp) = &self.mlp else { return Ok(sum) };
        let input = match (step.spec.parallel, &self.mlp_norm) {
            (true, None) => Input { x: take(&input.x)?, norm: input.norm },
            (true, norm) => Input::new(&x, norm.as_ref())?,
            (false, norm) => Input::new(&sum, norm.as_ref())?,
        };
        add_branch((&sum, next), self.after_mlp.as_ref(), scale, |residual| {
            mlp.forward(&input, step.spec.activation, residual, step.phase)
        })
    }
}

/// `x + scale · norm(branch)`; a branch that is neither normed nor scaled adds `x` itself. The norm beside `x`
/// reads the sum next.
fn add_branch(
    (x, next): (&Tensor, Option<&RmsNorm>),
    norm: Option<&Norm>,
    scale: Option<f32>,
    branch: impl FnOnce(Residual<'_>) -> Result<Tensor, ModelError>,
) -> Result<Tensor, ModelError> {
    if norm.is_none() && scale.is_none() {
        return branch(Some((x, next)));
    }
    let mut y = branch(None)?;
    if let Some(norm) = norm {
        y = norm.forward(&y)?;
    }
    if let Some(scale) = scale {
        y = ops::scale(&y, scale)?;
    }
    Ok(ops::add(x, &y)?)
}
