//! What follows a layer's mixer: projections with an activation between them, or a choice among many of such.

use crate::{
    LoadOptions, ModelError,
    decoder::parts,
    experts::{ExpertSpec, Experts},
    norms::{Input, Norm},
    source::Source,
    spec::{MlpSpec, Spec},
};
use taper_tensor::{
    Linear, LinearGroup, Pass, RmsNorm, Tensor,
    ops::{self, Activation, Xielu},
    sparse_gates,
};

/// What a feed-forward's result is added to, and the norm that reads the sum next.
pub(crate) type Residual<'a> = Option<(&'a Tensor, Option<&'a RmsNorm>)>;

/// `down(activation(gate(x)) * up(x))`.
#[derive(Debug)]
pub(crate) struct Gated {
    pub(crate) gate_up: LinearGroup<2>,
    pub(crate) down: Linear,
    /// What the activation gives is at most this, and the other factor as far from zero.
    pub(crate) limit: Option<f32>,
    /// What the gate is multiplied by before its activation, and what the result is.
    pub(crate) scales: Option<[f32; 2]>,
}

impl Gated {
    /// Where and as it will run.
    pub(crate) fn placed(self, options: LoadOptions<'_>) -> Result<Self, ModelError> {
        let Self { gate_up, down, limit, scales } = self;
        let place = options.place();
        let (gate_up, down) = (gate_up.place(place)?, down.place(place)?);
        Ok(Self { gate_up, down, limit, scales })
    }

    pub(crate) fn linears(&self) -> impl Iterator<Item = &Linear> {
        self.gate_up.parts().iter().chain([&self.down])
    }
}

/// `down(activation(up(x)))`.
#[derive(Debug)]
pub(crate) struct Plain {
    pub(crate) up: LinearGroup<1>,
    pub(crate) down: Linear,
}

impl Plain {
    /// Where and as it will run.
    pub(crate) fn placed(self, options: LoadOptions<'_>) -> Result<Self, ModelError> {
        let Self { up, down } = self;
        let place = options.place();
        Ok(Self { up: up.place(place)?, down: down.place(place)? })
    }

    pub(crate) fn linears(&self) -> impl Iterator<Item = &Linear> {
        self.up.parts().iter().chain([&self.down])
    }
}

/// A feed-forward that every token goes through.
#[derive(Debug)]
pub(crate) enum Dense {
    Gated(Gated),
    Plain(Plain),
    /// With a norm of what the down projection reads (BitNet).
    Normed(Gated, RmsNorm),
    /// With an activation of numbers that the layer stores (Apertus).
    Xielu(Plain, Xielu),
}

impl Dense {
    /// That of an inner size below `at`.
    pub(crate) fn load(
        spec: &Spec,
        weights: Source<'_>,
        at: &str,
        inner: usize,
    ) -> Result<Self, ModelError> {
        let (hidden, bias) = (spec.hidden, spec.mlp_bias);
        let down = weights.linear(&format!("{at}.down_proj"), inner, hidden, bias)?;
        if !spec.gated_mlp {
            let up = weights.linear(&format!("{at}.up_proj"), hidden, inner, bias)?;
            let plain = Plain { up: LinearGroup::new([up])?, down };
            return Ok(match spec.xielu {
                true => Self::Xielu(plain, xielu(weights, &format!("{at}.act_fn"))?),
                false => Self::Plain(plain),
            });
        }
        let names = [("gate_proj", inner), ("up_proj", inner)];
        let fused = spec.fused_mlp.then_some("gate_up_proj");
        let gate_up = parts(weights, hidden, bias, at, fused, names)?;
        let (gate_up, scales) = (LinearGroup::new(gate_up)?, spec.mlp_scales);
        let gated = Gated { gate_up, down, limit: None, scales };
        if spec.sub_norms {
            let gains = weights.vector(&format!("{at}.ffn_sub_norm.weight"), inner)?;
            return Ok(Self::Normed(gated, RmsNorm::new(gains, spec.norm_eps)));
        }
        Ok(Self::Gated(gated))
    }

    /// This feed-forward with a limit of its activation, if it has a gate.
    pub(crate) fn limited(mut self, limit: Option<f32>) -> Self {
        if let Self::Gated(gated) = &mut self {
            gated.limit = limit;
        }
        self
    }

    /// Where and as it will run.
    pub(crate) fn placed(self, options: LoadOptions<'_>) -> Result<Self, ModelError> {
        match self {
            Self::Gated(gated) => gated.placed(options).map(Self::Gated),
            Self::Plain(plain) => plain.placed(options).map(Self::Plain),
            Self::Normed(gated, norm) => Ok(Self::Normed(gated.placed(options)?, norm)),
            Self::Xielu(plain, curve) => Ok(Self::Xielu(plain.placed(options)?, curve)),
        }
    }

    pub(crate) fn linears(&self) -> Vec<&Linear> {
        match self {
            Self::Gated(gated) | Self::Normed(gated, _) => gated.linears().collect(),
            Self::Plain(plain) | Self::Xielu(plain, _) => plain.linears().collect(),
        }
    }

    /// Its result for the rows, plus `residual`.
    pub(crate) fn forward(
        &self,
        input: &Input<'_>,
        activation: Activation,
        residual: Residual<'_>,
        pass: Pass<'_>,
    ) -> Result<Tensor, ModelError> {
        let Input { x, norm } = input;
        match self {
            Self::Gated(Gated { gate_up, down, limit: Some(limit), .. }) => {
                let [gate, up] = gate_up.forward_normed(x, *norm, pass)?;
                let inner = ops::clamped_swiglu(&gate, &up, *limit)?;
                project(down, &inner, residual, pass)
            }
            Self::Gated(Gated { gate_up, down, scales: Some([before, after]), .. }) => {
                let [gate, up] = gate_up.forward_normed(x, *norm, pass)?;
                let inner = ops::gated(activation, &ops::scale(&gate, *before)?, &up)?;
                let y = ops::scale(&down.forward(&inner, pass)?, *after)?;
                Ok(match residual {
                    Some((residual, _)) => ops::add(residual, &y)?,
                    None => y,
                })
            }
            Self::Gated(Gated { gate_up, down, limit: None, scales: None }) => {
                Ok(gate_up.forward_down(down, x, *norm, activation, residual, pass)?)
            }
            Self::Plain(Plain { up, down }) => {
                let [inner] = up.forward_normed(x, *norm, pass)?;
                project(down, &ops::activate(activation, &inner)?, residual, pass)
            }
            Self::Normed(Gated { gate_up, down, .. }, inner_norm) => {
                let inner = gate_up.forward_gated(x, *norm, activation, pass)?;
                project(down, &inner_norm.forward(&inner)?, residual, pass)
            }
            Self::Xielu(Plain { up, down }, curve) => {
                let [inner] = up.forward_normed(x, *norm, pass)?;
                project(down, &ops::xielu(*curve, &inner)?, residual, pass)
            }
        }
    }
}

/// `out(x)`, plus `residual`.
pub(crate) fn project(
    out: &Linear,
    x: &Tensor,
    residual: Residual<'_>,
    pass: Pass<'_>,
) -> Result<Tensor, ModelError> {
    Ok(match residual {
        Some((residual, next)) => out.forward_add(x, residual, next, pass)?,
        None => out.forward(x, pass)?,
    })
}

/// The numbers of the activation below `at`. Two of them are constants that not all files have.
fn xielu(weights: Source<'_>, at: &str) -> Result<Xielu, ModelError> {
    let softplus = |x: f32| x.max(0.0) + (-x.abs()).exp().ln_1p();
    let stored = |name: &str, shape: &[usize]| {
        let values = weights.array(&format!("{at}.{name}"), shape)?;
        Ok::<_, ModelError>(values.first().copied().unwrap_or_default())
    };
    let constant = |name: &str, otherwise| match weights.has(&format!("{at}.{name}")) {
        true => stored(name, &[]),
        false => Ok(otherwise),
    };
    let (beta, eps) = (constant("beta", 0.5)?, constant("eps", -1e-6)?);
    let alpha_p = softplus(stored("alpha_p", &[1])?);
    let alpha_n = beta + softplus(stored("alpha_n", &[1])?);
    Ok(Xielu { alpha_p, alpha_n, beta, eps })
}

/// What a layer has.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one a layer")]
pub(crate) enum FeedForward {
    Dense(Dense),
    Experts(Experts),
    Both(Both),
    Sparse(Sparse),
}

/// A feed-forward most of whose gates are closed: what they have beyond so many standard deviations above their
/// mean counts (Gemma 3n).
#[derive(Debug)]
pub(crate) struct Sparse {
    maps: Gated,
    deviations: f32,
}

impl Sparse {
    /// Its result for the rows, plus `residual`.
    fn forward(
        &self,
        input: &Input<'_>,
        activation: Activation,
        residual: Residual<'_>,
        pass: Pass<'_>,
    ) -> Result<Tensor, ModelError> {
        let Gated { gate_up, down, .. } = &self.maps;
        let [gate, up] = gate_up.forward_normed(&input.x, input.norm, pass)?;
        let inner = ops::gated(activation, &sparse_gates(&gate, self.deviations)?, &up)?;
        project(down, &inner, residual, pass)
    }
}

/// A feed-forward and experts that read the same stream, each through norms of their own (Gemma 4).
#[derive(Debug)]
pub(crate) struct Both {
    dense: Dense,
    after_dense: Norm,
    experts: Experts,
    before_experts: Norm,
    after_experts: Norm,
}

impl Both {
    fn load(
        spec: &Spec,
        (inner, experts): (usize, ExpertSpec),
        weights: Source<'_>,
        at: &str,
        options: LoadOptions<'_>,
    ) -> Result<Self, ModelError> {
        let norm = |name: &str| Norm::load(spec, weights, &format!("{at}.{name}"), spec.hidden);
        Ok(Self {
            dense: Dense::load(spec, weights, &format!("{at}.mlp"), inner)?.placed(options)?,
            after_dense: norm("post_feedforward_layernorm_1")?,
            experts: Experts::load(spec, experts, weights, at)?.placed(options)?,
            before_experts: norm("pre_feedforward_layernorm_2")?,
            after_experts: norm("post_feedforward_layernorm_2")?,
        })
    }

    /// The sum of both results for the rows, plus `residual`.
    fn forward(
        &self,
        input: &Input<'_>,
        activation: Activation,
        residual: Residual<'_>,
        pass: Pass<'_>,
    ) -> Result<Tensor, ModelError> {
        let dense = self.dense.forward(input, activation, None, pass)?;
        let dense = self.after_dense.forward(&dense)?;
        // Rows are as the stream has them, before the norm that the input goes on with.
        let stream = Input::new(&input.x, Some(&self.before_experts))?;
        let experts = self.experts.forward(&stream, activation, None)?;
        let sum = ops::add(&dense, &self.after_experts.forward(&experts)?)?;
        match residual {
            Some((x, _)) => Ok(ops::add(x, &sum)?),
            None => Ok(sum),
        }
    }
}

impl FeedForward {
    /// That of the layer below `at`, where and as it will run; `None` of a layer without one.
    pub(crate) fn load(
        spec: &Spec,
        mlp: &MlpSpec,
        weights: Source<'_>,
        at: &str,
        options: LoadOptions<'_>,
    ) -> Result<Option<Self>, ModelError> {
        Ok(match *mlp {
            MlpSpec::None => None,
            MlpSpec::Dense(inner) | MlpSpec::Shortcut(inner, _) | MlpSpec::AfterShortcut(inner) => {
                let dense = Dense::load(spec, weights, &format!("{at}.mlp"), inner)?;
                Some(Self::Dense(dense.placed(options)?))
            }
            MlpSpec::Experts(experts) => {
                let block = format!("{at}.{}", experts.names.block);
                let experts = Experts::load(spec, experts, weights, &block)?;
                Some(Self::Experts(experts.placed(options)?))
            }
            MlpSpec::Sparse(inner, deviations) => {
                let dense = Dense::load(spec, weights, &format!("{at}.mlp"), inner)?;
                match dense.placed(options)? {
                    Dense::Gated(maps) => Some(Self::Sparse(Sparse { maps, deviations })),
                    other => Some(Self::Dense(other)),
                }
            }
            MlpSpec::DenseAndExperts(inner, experts) => {
                Some(Self::Both(Both::load(spec, (inner, experts), weights, at, options)?))
            }
        })
    }

    /// Maps that adapters may change: those of experts, which run apart, are not among them.
    pub(crate) fn maps(&self) -> Vec<&Linear> {
        match self {
            Self::Dense(dense) => dense.linears(),
            Self::Experts(_) => Vec::new(),
            Self::Sparse(sparse) => sparse.maps.linears().collect(),
            Self::Both(both) => both.dense.linears(),
        }
    }

    /// Weights in all, and bytes they take.
    pub(crate) fn size(&self) -> (u64, u64) {
        match self {
            Self::Dense(dense) => size(dense.linears()),
            Self::Experts(experts) => experts.size(),
            Self::Sparse(sparse) => size(sparse.maps.linears()),
            Self::Both(both) => {
                let (dense, experts) = (size(both.dense.linears()), both.experts.size());
                (dense.0 + experts.0, dense.1 + experts.1)
            }
        }
    }

    /// Whether its first products apply a norm themselves, so that it may be computed ahead.
    pub(crate) fn reads_normed(&self) -> bool {
        !matches!(self, Self::Experts(_))
    }

    /// Its result for the rows, plus `residual`.
    pub(crate) fn forward(
        &self,
        input: &Input<'_>,
        activation: Activation,
        residual: Residual<'_>,
        pass: Pass<'_>,
    ) -> Result<Tensor, ModelError> {
        match self {
            Self::Dense(dense) => dense.forward(input, activation, residual, pass),
            Self::Experts(experts) => experts.forward(input, activation, residual.map(|(x, _)| x)),
            Self::Sparse(sparse) => sparse.forward(input, activation, residual, pass),
            Self::Both(both) => both.forward(input, activation, residual, pass),
        }
    }
}

/// Weights of some maps, and bytes they take.
pub(crate) fn size<'a>(linears: impl IntoIterator<Item = &'a Linear>) -> (u64, u64) {
    linears.into_iter().fold((0, 0), |(parameters, bytes), l| {
        (parameters + (l.in_features() * l.out_features()) as u64, bytes + l.bytes())
    })
}
