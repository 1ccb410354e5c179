//! What follows a layer's mixer: projections with an activation between them, or a choice among many of such.

use crate::{
    LoadOptions, ModelError,
    decoder::parts,
    experts::Experts,
    norms::Input,
    source::Source,
    spec::{MlpSpec, Spec},
};
use taper_tensor::{
    Linear, LinearGroup, Phase, RmsNorm, Tensor,
    ops::{self, Activation},
};

/// What a feed-forward's result is added to, and the norm that reads the sum next.
pub(crate) type Residual<'a> = Option<(&'a Tensor, Option<&'a RmsNorm>)>;

/// `down(activation(gate(x)) * up(x))`.
#[derive(Debug)]
pub(crate) struct Gated {
    pub(crate) gate_up: LinearGroup<2>,
    pub(crate) down: Linear,
    /// What the gate is multiplied by before its activation, and what the result is.
    pub(crate) scales: Option<[f32; 2]>,
}

impl Gated {
    /// Where and as it will run.
    pub(crate) fn placed(self, options: LoadOptions<'_>) -> Result<Self, ModelError> {
        let Self { gate_up, down, scales } = self;
        let place = options.place();
        Ok(Self { gate_up: gate_up.place(place)?, down: down.place(place)?, scales })
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
            return Ok(Self::Plain(Plain { up: LinearGroup::new([up])?, down }));
        }
        let names = [("gate_proj", inner), ("up_proj", inner)];
        let fused = spec.fused_mlp.then_some("gate_up_proj");
        let gate_up = parts(weights, hidden, bias, at, fused, names)?;
        let gate_up = LinearGroup::new(gate_up)?;
        Ok(Self::Gated(Gated { gate_up, down, scales: spec.mlp_scales }))
    }

    /// Where and as it will run.
    pub(crate) fn placed(self, options: LoadOptions<'_>) -> Result<Self, ModelError> {
        match self {
            Self::Gated(gated) => gated.placed(options).map(Self::Gated),
            Self::Plain(plain) => plain.placed(options).map(Self::Plain),
        }
    }

    pub(crate) fn linears(&self) -> Vec<&Linear> {
        match self {
            Self::Gated(gated) => gated.linears().collect(),
            Self::Plain(plain) => plain.linears().collect(),
        }
    }

    /// Its result for the rows, plus `residual`.
    pub(crate) fn forward(
        &self,
        input: &Input<'_>,
        activation: Activation,
        residual: Residual<'_>,
        phase: Phase,
    ) -> Result<Tensor, ModelError> {
        let Input { x, norm } = input;
        match self {
            Self::Gated(Gated { gate_up, down, scales: Some([before, after]) }) => {
                let [gate, up] = gate_up.forward_normed(x, *norm, phase)?;
                let inner = ops::gated(activation, &ops::scale(&gate, *before)?, &up)?;
                let y = ops::scale(&down.forward(&inner, phase)?, *after)?;
                Ok(match residual {
                    Some((residual, _)) => ops::add(residual, &y)?,
                    None => y,
                })
            }
            Self::Gated(Gated { gate_up, down, scales: None }) => {
                Ok(gate_up.forward_down(down, x, *norm, activation, residual, phase)?)
            }
            Self::Plain(Plain { up, down }) => {
                let [inner] = up.forward_normed(x, *norm, phase)?;
                let inner = ops::activate(activation, &inner)?;
                Ok(match residual {
                    Some((residual, next)) => down.forward_add(&inner, residual, next, phase)?,
                    None => down.forward(&inner, phase)?,
                })
            }
        }
    }
}

/// What a layer has.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one a layer")]
pub(crate) enum FeedForward {
    Dense(Dense),
    Experts(Experts),
}

impl FeedForward {
    /// That of the layer below `at`, where and as it will run; `None` of a layer without one.
    pub(crate) fn load(
        spec: &Spec,
        mlp: MlpSpec,
        weights: Source<'_>,
        at: &str,
        options: LoadOptions<'_>,
    ) -> Result<Option<Self>, ModelError> {
        Ok(match mlp {
            MlpSpec::None => None,
            MlpSpec::Dense(inner) => {
                let dense = Dense::load(spec, weights, &format!("{at}.mlp"), inner)?;
                Some(Self::Dense(dense.placed(options)?))
            }
            MlpSpec::Experts(experts) => {
                let block = format!("{at}.{}", experts.names.block);
                let experts = Experts::load(spec, experts, weights, &block)?;
                Some(Self::Experts(experts.placed(options)?))
            }
        })
    }

    /// Weights in all, and bytes they take.
    pub(crate) fn size(&self) -> (u64, u64) {
        match self {
            Self::Dense(dense) => size(dense.linears()),
            Self::Experts(experts) => experts.size(),
        }
    }

    /// Whether its first products apply a norm themselves, so that it may be computed ahead.
    pub(crate) fn reads_normed(&self) -> bool {
        matches!(self, Self::Dense(_))
    }

    /// Its result for the rows, plus `residual`.
    pub(crate) fn forward(
        &self,
        input: &Input<'_>,
        activation: Activation,
        residual: Residual<'_>,
        phase: Phase,
    ) -> Result<Tensor, ModelError> {
        match self {
            Self::Dense(dense) => dense.forward(input, activation, residual, phase),
            Self::Experts(experts) => experts.forward(input, activation, residual.map(|(x, _)| x)),
        }
    }
}

/// Weights of some maps, and bytes they take.
pub(crate) fn size<'a>(linears: impl IntoIterator<Item = &'a Linear>) -> (u64, u64) {
    linears.into_iter().fold((0, 0), |(parameters, bytes), l| {
        (parameters + (l.in_features() * l.out_features()) as u64, bytes + l.bytes())
    })
}
