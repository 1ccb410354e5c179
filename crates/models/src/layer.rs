//! A layer: a mixer and a feed-forward, the norms around them, and how their results are added.

use crate::{
    LoadOptions, ModelError, StateSession,
    experts::Experts,
    feed_forward::{FeedForward, Residual},
    mixers::{self, Mixer, StateIds, Step},
    norms::{Input, Norm},
    per_layer::LayerInput,
    source::Source,
    spec::{LayerSpec, MlpSpec, Spec},
    streams::AltUp,
};
use taper_tensor::{Linear, RmsNorm, Tensor, join_heads, ops, split_heads_at};

/// A loaded layer.
#[derive(Debug)]
pub(crate) struct Layer {
    norm: Option<Norm>,
    mixer: Option<Box<dyn Mixer>>,
    after_mixer: Option<Norm>,
    mlp_norm: Option<Norm>,
    mlp: Option<FeedForward>,
    after_mlp: Option<Norm>,
    /// What it makes of inputs of its own.
    input: Option<LayerInput>,
    scalar: Option<f32>,
    /// Of a model of several streams.
    altup: Option<AltUp>,
    shortcut: Option<Shortcut>,
}

/// A result that goes around the next layer, beside the stream.
#[derive(Debug)]
enum Shortcut {
    /// What experts make of what the feed-forward reads.
    Gives(Box<Experts>),
    /// What the layer before gave.
    Takes,
}

impl Layer {
    /// The layer below `at`, where and as it will run.
    pub(crate) fn load(
        spec: &Spec,
        (index, layer): (usize, &LayerSpec),
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
        let mlp = FeedForward::load(spec, &layer.mlp, weights, at, options)?;
        let scalar = || weights.array(&format!("{at}.layer_scalar"), &[1]);
        let scalar = spec.layer_scalar.then(scalar).transpose()?;
        let input = |own| LayerInput::load(spec, (own, index), weights, at, options);
        let shortcut = match layer.mlp {
            MlpSpec::Shortcut(_, experts) => {
                let experts = Experts::load(spec, experts, weights, &format!("{at}.mlp"))?;
                Some(Shortcut::Gives(Box::new(experts.placed(options)?)))
            }
            MlpSpec::AfterShortcut(_) => Some(Shortcut::Takes),
            _ => None,
        };
        let altup = |own| AltUp::load(spec, own, weights, at, options);
        Ok(Self {
            shortcut,
            altup: spec.streams.map(altup).transpose()?,
            input: spec.per_layer.map(input).transpose()?,
            scalar: scalar.and_then(|scalar| scalar.first().copied()),
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
        let input = self.input.as_ref().map_or((0, 0), LayerInput::size);
        let altup = self.altup.as_ref().map_or((0, 0), AltUp::size);
        let shortcut = match &self.shortcut {
            Some(Shortcut::Gives(experts)) => experts.size(),
            Some(Shortcut::Takes) | None => (0, 0),
        };
        let all = [mixer, mlp, input, altup, shortcut];
        (all.iter().map(|part| part.0).sum(), all.iter().map(|part| part.1).sum())
    }

    /// Maps that adapters may change.
    pub(crate) fn maps(&self) -> Vec<&Linear> {
        let mut maps = self.mixer.as_ref().map_or_else(Vec::new, |mixer| mixer.maps());
        maps.extend(self.mlp.as_ref().map_or_else(Vec::new, FeedForward::maps));
        maps.extend(self.input.iter().flat_map(LayerInput::maps));
        maps
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
        if let Some(altup) = &self.altup {
            return self.forward_streams(altup, step, (x, kept), state);
        }
        let (x, around) = match &self.shortcut {
            Some(Shortcut::Takes) => {
                let [x, around] = split_heads_at(x, x.dims()[1], step.spec.hidden)?;
                (x, Some(take(&around)?))
            }
            _ => (x.clone(), None),
        };
        let (x, next) = (&x, next.filter(|_| self.shortcut.is_none()));
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
        let pass = step.after(kept);
        let scale = step.spec.branch_scale;
        let sum = match mixed {
            Some((mixer, mixed)) => {
                let ahead = self.mlp_norm.as_ref().and_then(Norm::rms);
                let reads = self.mlp.as_ref().is_some_and(FeedForward::reads_normed);
                let ahead = ahead.filter(|_| reads && !step.spec.parallel);
                add_branch((&x, ahead), self.after_mixer.as_ref(), scale, |residual| {
                    mixer.out().project(&mixed, residual, pass)
                })?
            }
            None => x.clone(),
        };
        let Some(mlp) = &self.mlp else { return self.finish(sum, step, kept) };
        let input = match (step.spec.parallel, &self.mlp_norm) {
            (true, None) => Input { x: take(&input.x)?, norm: input.norm },
            (true, norm) => Input::new(&x, norm.as_ref())?,
            (false, norm) => Input::new(&sum, norm.as_ref())?,
        };
        let sum = add_branch((&sum, next), self.after_mlp.as_ref(), scale, |residual| {
            mlp.forward(&input, step.spec.activation, residual, pass)
        })?;
        match (&self.shortcut, around) {
            (Some(Shortcut::Gives(experts)), _) => {
                let around = experts.forward(&input, step.spec.activation, None)?;
                Ok(join_heads(&sum, &around, 1)?)
            }
            (_, Some(around)) => Ok(ops::add(&sum, &around)?),
            (_, None) => self.finish(sum, step, kept),
        }
    }

    /// [`Self::forward`] of several streams side by side.
    fn forward_streams(
        &self,
        altup: &AltUp,
        step: &Step<'_>,
        (x, kept): (&Tensor, Option<&[u32]>),
        state: &mut dyn StateSession,
    ) -> Result<Tensor, ModelError> {
        let (phase, activation) = (step.pass.phase, step.spec.activation);
        let pass = step.after(kept);
        let take = |x: &Tensor| match kept {
            Some(rows) => ops::take_rows(x, rows),
            None => Ok(x.clone()),
        };
        let normed = |norm: &Option<Norm>, x: Tensor| match norm {
            Some(norm) => norm.forward(&x),
            None => Ok(x),
        };
        let streams = altup.predict(x, phase)?;
        let (Some(mixer), Some(mlp)) = (&self.mixer, &self.mlp) else { return Ok(streams) };
        let active = altup.active(&streams)?;
        let input = Input::new(&active, self.norm.as_ref())?;
        let mixed = take(&mixer.mix(&input, &Step { whole: false, ..*step }, state)?)?;
        let (streams, active, read) = (take(&streams)?, take(&active)?, take(&input.normed()?)?);
        if streams.dims()[0] == 0 {
            return Ok(streams);
        }
        let attended = normed(&self.after_mixer, mixer.out().project(&mixed, None, pass)?)?;
        let sum = ops::add(&ops::add(&active, &attended)?, &altup.laurel(&read, phase)?)?;
        let sum = ops::scale(&sum, std::f32::consts::FRAC_1_SQRT_2)?;
        let input = Input::new(&sum, self.mlp_norm.as_ref())?;
        let inner = normed(&self.after_mlp, mlp.forward(&input, activation, None, pass)?)?;
        let streams = altup.correct(&streams, &ops::add(&sum, &inner)?, phase)?;
        match (&self.input, step.inputs) {
            (Some(own), Some(inputs)) => {
                let (x, inputs) = (altup.scaled(&streams)?, take(inputs)?);
                altup.add_to_others(&streams, &own.forward(&x, &inputs, activation, pass)?)
            }
            _ => Ok(streams),
        }
    }

    /// Adds what the layer makes of its own inputs, and scales the sum, of the rows of `kept`, or all.
    fn finish(
        &self,
        mut x: Tensor,
        step: &Step<'_>,
        kept: Option<&[u32]>,
    ) -> Result<Tensor, ModelError> {
        if let (Some(own), Some(inputs)) = (&self.input, step.inputs) {
            let inputs = match kept {
                Some(rows) => ops::take_rows(inputs, rows)?,
                None => inputs.clone(),
            };
            let pass = step.after(kept);
            let more = own.forward(&x, &inputs, step.spec.activation, pass)?;
            x = ops::add(&x, &more)?;
        }
        match self.scalar {
            Some(scalar) => Ok(ops::scale(&x, scalar)?),
            None => Ok(x),
        }
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
