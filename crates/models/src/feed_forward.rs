//! What follows attention in a layer: a gated projection, or a choice among many (a mixture of
//! experts, Shazeer et al. 2017), with one beside them that every token goes through or without.

use crate::{LoadOptions, ModelError, config, spec::Spec};
use taper_tensor::{
    Linear, LinearGroup, Phase, Precision, RmsNorm, Tensor,
    gpu::{Routing, StackedExperts},
    ops::{self, Activation, WeightedRows},
};
use taper_weights::Checkpoint;

/// Experts of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExpertSpec {
    pub(crate) experts: usize,
    /// Experts that a token goes through.
    pub(crate) chosen: usize,
    /// Inner size of one.
    pub(crate) intermediate: usize,
    /// Whether the weights of the chosen ones are made to sum to one.
    pub(crate) normalise: bool,
    /// Whether router and experts have biases.
    pub(crate) bias: bool,
    pub(crate) names: ExpertNames,
    /// Inner size of the expert that every token goes through, if there is one. A sigmoid says how much it counts.
    pub(crate) shared: Option<usize>,
}

/// What a checkpoint calls the tensors of experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExpertNames {
    /// What they are below in a layer.
    pub(crate) block: &'static str,
    pub(crate) router: &'static str,
    /// Gate, up and down projection of one expert in a tensor of its own.
    pub(crate) maps: [&'static str; 3],
    /// Whether tensors of all experts have their inputs first, and gate and up interleaved.
    pub(crate) transposed: bool,
}

impl ExpertNames {
    /// Qwen's, and most others'.
    pub(crate) const QWEN: Self = Self {
        block: "mlp",
        router: "gate",
        maps: ["gate_proj", "up_proj", "down_proj"],
        transposed: false,
    };
    pub(crate) const GPT_OSS: Self = Self { router: "router", transposed: true, ..Self::QWEN };
    pub(crate) const MIXTRAL: Self =
        Self { block: "block_sparse_moe", maps: ["w1", "w3", "w2"], ..Self::QWEN };
}

impl ExpertSpec {
    /// Refuses a choice of none, or of more than there are.
    pub(crate) fn check(self, family: &'static str) -> Result<(), ModelError> {
        let Self { experts, chosen, intermediate, .. } = self;
        config::size(family, "num_experts", experts, config::MAX_EXPERTS)?;
        config::size(family, "moe_intermediate_size", intermediate, config::MAX_SIZE)?;
        if let Some(shared) = self.shared {
            config::size(family, "shared_expert_intermediate_size", shared, config::MAX_SIZE)?;
        }
        if chosen > 0 && chosen <= experts {
            return Ok(());
        }
        let (field, value) = ("num_experts_per_tok", format!("{chosen} of {experts}"));
        Err(ModelError::Unsupported { family, field, value })
    }
}

/// `down(activation(gate(x)) * up(x))`.
#[derive(Debug)]
pub(crate) struct Gated {
    pub(crate) gate_up: LinearGroup<2>,
    pub(crate) down: Linear,
}

impl Gated {
    /// Where and as it will run.
    pub(crate) fn placed(self, options: LoadOptions<'_>) -> Result<Self, ModelError> {
        let Self { gate_up, down } = self;
        let place = options.place();
        Ok(Self { gate_up: gate_up.place(place)?, down: down.place(place)? })
    }

    fn linears(&self) -> impl Iterator<Item = &Linear> {
        self.gate_up.parts().iter().chain([&self.down])
    }
}

/// Experts, and what chooses among them. The choice is made in `f32`, whatever the activations: a
/// rounded logit would send a token elsewhere.
#[derive(Debug)]
pub(crate) struct Experts {
    router: Linear,
    experts: Place,
    shared: Option<Shared>,
    spec: ExpertSpec,
}

/// The expert that every token goes through, and what says how much it counts.
#[derive(Debug)]
struct Shared {
    expert: Gated,
    gate: Linear,
}

/// Where experts are.
#[derive(Debug)]
enum Place {
    Host(Vec<Gated>),
    Gpu(StackedExperts),
}

/// What a layer has.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one a layer")]
pub(crate) enum FeedForward {
    Dense(Gated),
    Experts(Experts),
}

impl FeedForward {
    /// The experts below `at`.
    pub(crate) fn experts(
        model: &Spec,
        spec: ExpertSpec,
        weights: &Checkpoint,
        at: &str,
    ) -> Result<Self, ModelError> {
        let (hidden, inner, n) = (model.hidden, spec.intermediate, spec.experts);
        let gates = maps(spec, weights, at, "gate_proj", (hidden, inner))?;
        let ups = maps(spec, weights, at, "up_proj", (hidden, inner))?;
        let downs = maps(spec, weights, at, "down_proj", (inner, hidden))?;
        let mut experts = Vec::with_capacity(n);
        for ((gate, up), down) in gates.into_iter().zip(ups).zip(downs) {
            experts.push(Gated { gate_up: LinearGroup::new([gate, up])?, down });
        }
        let router =
            weights.linear(&format!("{at}.{}", spec.names.router), hidden, n, spec.bias)?;
        let shared = |inner| Shared::load(weights, &format!("{at}.shared_expert"), (hidden, inner));
        let shared = spec.shared.map(shared).transpose()?;
        let experts = Place::Host(experts);
        Ok(Self::Experts(Experts { router, experts, shared, spec }))
    }

    /// Where and as it will run.
    pub(crate) fn placed(self, options: LoadOptions<'_>) -> Result<Self, ModelError> {
        match self {
            Self::Dense(gated) => gated.placed(options).map(Self::Dense),
            Self::Experts(experts) => experts.placed(options).map(Self::Experts),
        }
    }

    /// Weights in all, and bytes they take.
    pub(crate) fn size(&self) -> (u64, u64) {
        match self {
            Self::Dense(gated) => size(gated.linears()),
            Self::Experts(Experts { router, experts, shared, .. }) => {
                let shared = shared.iter().flat_map(|s| s.expert.linears().chain([&s.gate]));
                let (parameters, bytes) = size(shared.chain([router]));
                let (more, more_bytes) = match experts {
                    Place::Host(experts) => size(experts.iter().flat_map(Gated::linears)),
                    Place::Gpu(stacked) => (stacked.elements(), stacked.bytes()),
                };
                (parameters + more, bytes + more_bytes)
            }
        }
    }
}

/// One map of every expert: a tensor each, as Hugging Face has most, stacked, as MLX has them, or gate and up of all
/// in one, as transformers writes Qwen 3.5 and gpt-oss.
fn maps(
    spec: ExpertSpec,
    weights: &Checkpoint,
    at: &str,
    name: &str,
    shape: (usize, usize),
) -> Result<Vec<Linear>, ModelError> {
    let ExpertSpec { experts: n, bias, names, .. } = spec;
    for place in ["switch_mlp", "experts"] {
        let prefix = format!("{at}.{place}.{name}");
        if weights.has(&format!("{prefix}.weight")) {
            return Ok(weights.stacked(&prefix, n, shape, bias)?);
        }
    }
    let (fused, part) = match name {
        "gate_proj" => ("gate_up_proj", (0, 2)),
        "up_proj" => ("gate_up_proj", (1, 2)),
        _ => (name, (0, 1)),
    };
    let all = format!("{at}.experts.{fused}");
    if weights.has(&all) {
        return Ok(match names.transposed {
            true => weights.transposed(&all, n, shape, part)?,
            false => weights.fused(&all, n, shape, part)?,
        });
    }
    let [gate, up, down] = names.maps;
    let own = match name {
        "gate_proj" => gate,
        "up_proj" => up,
        _ => down,
    };
    let one = |e| weights.linear(&format!("{at}.experts.{e}.{own}"), shape.0, shape.1, bias);
    Ok((0..n).map(one).collect::<Result<_, _>>()?)
}

/// Weights of some maps, and bytes they take.
pub(crate) fn size<'a>(linears: impl IntoIterator<Item = &'a Linear>) -> (u64, u64) {
    linears.into_iter().fold((0, 0), |(parameters, bytes), l| {
        (parameters + (l.in_features() * l.out_features()) as u64, bytes + l.bytes())
    })
}

impl Experts {
    fn placed(self, options: LoadOptions<'_>) -> Result<Self, ModelError> {
        let Self { router, experts: Place::Host(experts), shared, spec } = self else {
            return Ok(self);
        };
        let shared = shared.map(|shared| shared.placed(options)).transpose()?;
        if let Some(gpu) = options.gpu {
            let exact = options.precision == Precision::F32;
            let maps: Vec<_> = experts.iter().map(|e| (&e.gate_up, &e.down)).collect();
            let experts = Place::Gpu(StackedExperts::new(gpu, &maps, exact)?);
            return Ok(Self { router: router.on(gpu, true)?, experts, shared, spec });
        }
        let placed = experts.into_iter().map(|expert| expert.placed(options));
        let experts = Place::Host(placed.collect::<Result<_, _>>()?);
        Ok(Self { router, experts, shared, spec })
    }

    /// `x + Σ weight · expert(norm(x))` over the experts of each row, in their order. Prompts have no
    /// arithmetic of their own here: few rows go to an expert.
    pub(crate) fn forward_add(
        &self,
        x: &Tensor,
        norm: &RmsNorm,
        activation: Activation,
    ) -> Result<Tensor, ModelError> {
        let normed = norm.forward(x)?;
        let logits = self.router.forward(&normed, Phase::Decode)?;
        let experts = match &self.experts {
            Place::Gpu(experts) => {
                let ExpertSpec { chosen, normalise, .. } = self.spec;
                let routing = Routing { chosen, normalise };
                return Ok(experts.forward_add(x, &normed, &logits, routing, activation)?);
            }
            Place::Host(experts) => experts,
        };
        let chosen = ops::with_host_f32(&logits, |logits| choose(logits, self.spec))?;
        let mut parts = Vec::new();
        for (expert, (rows, weights)) in experts.iter().zip(chosen) {
            if rows.is_empty() {
                continue;
            }
            let own = ops::take_rows(x, &rows)?;
            let Gated { gate_up, down } = expert;
            let x = gate_up.forward_down(down, &own, norm, activation, None, Phase::Decode)?;
            parts.push(WeightedRows { x, rows, weights });
        }
        if let Some(Shared { expert: Gated { gate_up, down }, gate }) = &self.shared {
            let counts = gate.forward(&normed, Phase::Decode)?;
            let weights = ops::with_host_f32(&counts, |x| x.iter().map(|x| sigmoid(*x)).collect())?;
            let rows = (0..x.dims()[0] as u32).collect();
            let x = gate_up.forward_down(down, x, norm, activation, None, Phase::Decode)?;
            parts.push(WeightedRows { x, rows, weights });
        }
        Ok(ops::add_weighted_rows(x, &parts)?)
    }
}

impl Shared {
    fn load(
        weights: &Checkpoint,
        at: &str,
        (hidden, inner): (usize, usize),
    ) -> Result<Self, ModelError> {
        let one = |name: &str, (inputs, outputs)| {
            weights.linear(&format!("{at}.{name}"), inputs, outputs, false)
        };
        let gate_up = [one("gate_proj", (hidden, inner))?, one("up_proj", (hidden, inner))?];
        let gate_up = LinearGroup::new(gate_up)?;
        let expert = Gated { gate_up, down: one("down_proj", (inner, hidden))? };
        Ok(Self { expert, gate: weights.linear(&format!("{at}_gate"), hidden, 1, false)? })
    }

    fn placed(self, options: LoadOptions<'_>) -> Result<Self, ModelError> {
        Ok(Self { expert: self.expert.placed(options)?, ..self })
    }
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// The rows routed to each expert, and the weights of its outputs. Where logits are equal, the
/// first expert is taken.
fn choose(logits: &[f32], spec: ExpertSpec) -> Vec<(Vec<u32>, Vec<f32>)> {
    let mut chosen = vec![(Vec::new(), Vec::new()); spec.experts];
    let mut order: Vec<usize> = Vec::new();
    for (row, logits) in (0u32..).zip(logits.chunks_exact(spec.experts)) {
        order.clear();
        order.extend(0..spec.experts);
        order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
        let max = logits[order[0]];
        let weight = |e: usize| (logits[e] - max).exp();
        let counted = if spec.normalise { &order[..spec.chosen] } else { &order[..] };
        let total: f32 = counted.iter().map(|&e| weight(e)).sum();
        for &e in &order[..spec.chosen] {
            let (rows, weights) = &mut chosen[e];
            rows.push(row);
            weights.push(weight(e) / total);
        }
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(experts: usize, chosen: usize, normalise: bool) -> ExpertSpec {
        ExpertSpec {
            experts,
            chosen,
            intermediate: 1,
            normalise,
            bias: false,
            names: ExpertNames::QWEN,
            shared: None,
        }
    }

    #[test]
    fn the_largest_logits_are_chosen_and_weighted() {
        let spec = spec(4, 2, false);
        let logits = [0.0, 2f32.ln(), 0.0, 5f32.ln(), 1.0, 1.0, 1.0, 1.0];
        let plain = choose(&logits, spec);
        let rows: Vec<_> = plain.iter().map(|(rows, _)| rows.as_slice()).collect();
        assert_eq!(rows, [&[1u32][..], &[0, 1], &[], &[0]]);
        let near = |got: &[f32], want: &[f32]| {
            got.len() == want.len() && got.iter().zip(want).all(|(g, w)| (g - w).abs() < 1e-6)
        };
        assert!(near(&plain[1].1, &[2.0 / 9.0, 0.25]) && near(&plain[3].1, &[5.0 / 9.0]));
        let summed = choose(&logits, ExpertSpec { normalise: true, ..spec });
        assert!(near(&summed[1].1, &[2.0 / 7.0, 0.5]) && near(&summed[3].1, &[5.0 / 7.0]));
    }

    #[test]
    fn what_is_not_a_number_shows() {
        let spec = spec(3, 1, true);
        let chosen = choose(&[0.0, f32::NAN, 1.0], spec);
        assert!(chosen[1].1[0].is_nan());
    }
}
