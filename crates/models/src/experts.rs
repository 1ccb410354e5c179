//! A mixture of experts (Shazeer et al. 2017): each token goes through a few of many feed-forwards, and
//! through one beside them that is every token's, in families that have one.

mod maps;
mod streamed;

pub(crate) use maps::{ExpertSource, expert};

use crate::{
    LoadOptions, ModelError, config,
    feed_forward::{Dense, Gated, Plain, size},
    norms::Input,
    router::Route,
    source::Source,
    spec::Spec,
    streaming::{LayerOfExperts, StreamedLayer},
};
use taper_tensor::{
    Linear, LinearGroup, Phase, Precision, RmsNorm, Tensor,
    gpu::{ExpertKind, ExpertMaps, ExpertsInput, StackedExperts},
    ops::{self, Activation, WeightedRows},
    routing::Router,
};

/// Experts of a layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ExpertSpec {
    pub(crate) experts: usize,
    /// Inner size of one.
    pub(crate) intermediate: usize,
    pub(crate) route: Route,
    /// Whether router and experts have biases.
    pub(crate) bias: bool,
    pub(crate) names: ExpertNames,
    /// The expert that every token goes through, if there is one.
    pub(crate) shared: Option<SharedSpec>,
    /// The sum of all results is multiplied by it.
    pub(crate) scale: f32,
    /// Limits of the activations of one, and of the shared one (Step 3.5).
    pub(crate) limits: [Option<f32>; 2],
    /// The router reads the stream through a norm of its own, and weights have a factor for each expert (Gemma 4).
    pub(crate) scaled_router: bool,
    /// Outputs of the router, after those of the experts, that give back what they read (LongCat).
    pub(crate) idle: usize,
}

/// An expert that every token goes through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SharedSpec {
    /// Its inner size.
    pub(crate) intermediate: usize,
    /// A sigmoid says how much it counts (Qwen 2). Others take it whole.
    pub(crate) gated: bool,
}

/// What a checkpoint calls the tensors of experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExpertNames {
    /// What they are below in a layer.
    pub(crate) block: &'static str,
    pub(crate) router: &'static str,
    /// Gate, up and down projection of one expert in a tensor of its own.
    pub(crate) maps: [&'static str; 3],
    /// How tensors of all experts are.
    pub(crate) fused: Fused,
}

/// Maps of all experts in one tensor, where a checkpoint has them so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fused {
    /// Outputs first, gate's before up's.
    Rows,
    /// Inputs first, gate's outputs before up's (Llama 4).
    Transposed,
    /// Inputs first, outputs of gate and up interleaved.
    Interleaved,
}

impl ExpertNames {
    /// Qwen's, and most others'.
    pub(crate) const QWEN: Self = Self {
        block: "mlp",
        router: "gate",
        maps: ["gate_proj", "up_proj", "down_proj"],
        fused: Fused::Rows,
    };
    pub(crate) const GPT_OSS: Self =
        Self { router: "router", fused: Fused::Interleaved, ..Self::QWEN };
    /// Below the layer itself.
    pub(crate) const GEMMA4: Self = Self { block: "", router: "router.proj", ..Self::QWEN };
    pub(crate) const LONGCAT: Self = Self { router: "router.classifier", ..Self::QWEN };
    pub(crate) const MIXTRAL: Self =
        Self { block: "block_sparse_moe", maps: ["w1", "w3", "w2"], ..Self::QWEN };
}

impl ExpertSpec {
    /// Experts as Qwen names them, and none shared.
    pub(crate) fn new(experts: usize, intermediate: usize, route: Route) -> Self {
        let names = ExpertNames::QWEN;
        Self {
            experts,
            intermediate,
            route,
            bias: false,
            names,
            shared: None,
            scale: 1.0,
            limits: [None; 2],
            scaled_router: false,
            idle: 0,
        }
    }

    /// Refuses sizes that no model has, and a choice that cannot be made.
    pub(crate) fn check(self, family: &'static str) -> Result<(), ModelError> {
        config::size(family, "num_experts", self.experts, config::MAX_EXPERTS)?;
        config::size(family, "moe_intermediate_size", self.intermediate, config::MAX_SIZE)?;
        if let Some(SharedSpec { intermediate, .. }) = self.shared {
            let field = "shared_expert_intermediate_size";
            config::size(family, field, intermediate, config::MAX_SIZE)?;
        }
        config::size(family, "zero_expert_num", self.idle.saturating_add(1), config::MAX_EXPERTS)?;
        self.route.check(family, self.experts + self.idle)
    }
}

/// Experts, and what chooses among them. The choice is made in `f32`, whatever the activations: a
/// rounded logit would send a token elsewhere.
#[derive(Debug)]
pub(crate) struct Experts {
    router: LinearGroup<1>,
    /// What the router reads the stream through, where that is another norm than the experts'.
    router_norm: Option<RmsNorm>,
    choice: Router,
    experts: Place,
    shared: Option<Shared>,
    spec: ExpertSpec,
    activation: Activation,
}

/// The expert that every token goes through, and what says how much it counts.
#[derive(Debug)]
struct Shared {
    expert: Dense,
    gate: Option<Linear>,
}

/// Rows that chose an expert, and what its results count.
type Chosen = (Vec<u32>, Vec<f32>);

/// What experts read.
struct Rows<'a> {
    input: &'a Input<'a>,
    normed: &'a Tensor,
    activation: Activation,
}

/// Where experts are.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one a layer")]
enum Place {
    Host(Vec<Dense>),
    Gpu(StackedExperts),
    /// On a disk.
    Streamed(StreamedLayer),
}

impl Experts {
    /// The experts below `at`.
    pub(crate) fn load(
        model: &Spec,
        spec: ExpertSpec,
        weights: Source<'_>,
        at: &str,
    ) -> Result<Self, ModelError> {
        let (hidden, n) = (model.hidden, spec.experts);
        let source = ExpertSource::new(model, spec, weights, at)?;
        let router = first_of(weights, at, spec.names.router, ROUTERS, ".weight");
        let router = weights.linear(&router, hidden, n + spec.idle, spec.bias)?;
        let scaled = || {
            let mut gains = weights.vector(&format!("{at}.router.scale"), hidden)?;
            gains.iter_mut().for_each(|gain| *gain *= (hidden as f32).powf(-0.5));
            let factors = weights.vector(&format!("{at}.router.per_expert_scale"), n)?;
            Ok::<_, ModelError>((RmsNorm::new(gains, model.norm_eps), factors))
        };
        let scaled = spec.scaled_router.then(scaled).transpose()?;
        let routed = n + spec.idle;
        let bias = spec.route.bias.map(|name| {
            let name = first_of(weights, at, name, BIASES, "");
            // ERNIE has it as a matrix of one row.
            let row = weights.floats(&name).is_ok_and(|(_, shape, _)| shape.len() == 2);
            if row { weights.array(&name, &[1, routed]) } else { weights.array(&name, &[routed]) }
        });
        let shared = spec.shared.map(|shared| {
            let Shared { expert, gate } = Shared::load(model, shared, weights, at)?;
            Ok::<_, ModelError>(Shared { expert: expert.limited(spec.limits[1]), gate })
        });
        let (bias, shared) = (bias.transpose()?, shared.transpose()?);
        let (router_norm, factors) = scaled.unzip();
        let choice = Router::new(spec.route.routing(), bias, factors);
        let experts = match weights.streams() {
            None => Place::Host(source.all()?),
            Some(streams) => {
                let chosen = spec.route.chosen;
                let (name, router) = (at.to_owned(), router.clone());
                Place::Streamed(streams.add(LayerOfExperts { name, source, chosen, router })?)
            }
        };
        let activation = model.activation;
        let router = LinearGroup::new([router])?;
        Ok(Self { router, router_norm, choice, experts, shared, spec, activation })
    }

    /// Where and as they will run.
    pub(crate) fn placed(self, options: LoadOptions<'_>) -> Result<Self, ModelError> {
        let shared = self.shared.map(|shared| shared.placed(options)).transpose()?;
        let experts = match self.experts {
            Place::Host(experts) => experts,
            experts => return Ok(Self { experts, shared, ..self }),
        };
        if let Some(gpu) = options.gpu {
            let exact = options.precision == Precision::F32;
            let maps: Vec<_> = experts.iter().filter_map(maps_of).collect();
            let ExpertSpec { route, scale, limits: [limit, _], .. } = self.spec;
            let (activation, weighs_input) = (self.activation, route.weighs_input);
            let kind = ExpertKind { activation, limit, weighs_input, scale };
            let experts = Place::Gpu(StackedExperts::new(gpu, &maps, kind, exact)?);
            return Ok(Self { router: self.router.on(gpu, true)?, experts, shared, ..self });
        }
        let placed = experts.into_iter().map(|expert| expert.placed(options));
        let experts = Place::Host(placed.collect::<Result<_, _>>()?);
        Ok(Self { experts, shared, ..self })
    }

    /// Weights in all, and bytes they take.
    pub(crate) fn size(&self) -> (u64, u64) {
        let mut linears: Vec<_> = self.router.parts().iter().collect();
        if let Some(Shared { expert, gate }) = &self.shared {
            linears.extend(expert.linears());
            linears.extend(gate);
        }
        let (parameters, bytes) = size(linears);
        let (more, more_bytes) = match &self.experts {
            Place::Host(experts) => size(experts.iter().flat_map(Dense::linears)),
            Place::Gpu(stacked) => (stacked.elements(), stacked.bytes()),
            // What is in memory of them is one thing for all layers.
            Place::Streamed(layer) => (layer.parameters(), 0),
        };
        (parameters + more, bytes + more_bytes)
    }

    /// `Σ weight · expert(x)` over the experts of each row, in their order, plus `residual`. Prompts have no
    /// arithmetic of their own here: few rows go to an expert.
    pub(crate) fn forward(
        &self,
        input: &Input<'_>,
        activation: Activation,
        residual: Option<&Tensor>,
    ) -> Result<Tensor, ModelError> {
        let (experts, normed) = match &self.experts {
            Place::Gpu(experts) => return self.on_gpu(experts, input, activation, residual),
            experts => (experts, input.normed()?),
        };
        let read = self.router_norm.as_ref().map(|norm| norm.forward(&input.x)).transpose()?;
        let read = read.as_ref().unwrap_or(&normed);
        let [logits] = self.router.forward_normed(read, None, Phase::Decode)?;
        let mut chosen = ops::with_host_f32(&logits, |logits| self.choose(logits))?;
        let idle = chosen.split_off(self.spec.experts.min(chosen.len()));
        let rows = Rows { input, normed: &normed, activation };
        let (mut parts, shared) = match experts {
            Place::Streamed(layer) => self.streamed(layer, chosen, &rows)?,
            Place::Host(experts) => (self.resident(experts, chosen, &rows)?, self.shared(&rows)?),
            Place::Gpu(_) => Default::default(),
        };
        for (rows, weights) in idle.into_iter().filter(|(rows, _)| !rows.is_empty()) {
            parts.push(WeightedRows { x: ops::take_rows(&normed, &rows)?, rows, weights });
        }
        parts.extend(shared);
        if self.spec.scale != 1.0 {
            let weights = parts.iter_mut().flat_map(|part| &mut part.weights);
            weights.for_each(|weight| *weight *= self.spec.scale);
        }
        match residual {
            Some(x) => Ok(ops::add_weighted_rows(x, &parts)?),
            None => {
                let dims = normed.dims();
                let zeros = Tensor::from_vec(vec![0.0; dims.iter().product()], dims)?;
                Ok(ops::add_weighted_rows(&zeros, &parts)?)
            }
        }
    }

    /// [`Self::forward`] where products apply the norm themselves.
    fn on_gpu(
        &self,
        experts: &StackedExperts,
        input: &Input<'_>,
        activation: Activation,
        residual: Option<&Tensor>,
    ) -> Result<Tensor, ModelError> {
        let norm = self.router_norm.as_ref().or(input.norm);
        let [logits] = self.router.forward_normed(&input.x, norm, Phase::Decode)?;
        let shared = self.shared.as_ref().map(|shared| {
            let x = shared.expert.forward(input, activation, None, Phase::Decode.into())?;
            let counts = match shared.gate {
                Some(_) => shared.counts(&input.normed()?)?,
                None => None,
            };
            Ok::<_, ModelError>((x, counts))
        });
        let shared = shared.transpose()?;
        let shared = shared.as_ref().map(|(x, gate)| (x, gate.as_ref()));
        let (x, norm) = (&input.x, input.norm);
        let input = ExpertsInput { x, norm, logits: &logits, shared, residual };
        Ok(experts.forward(&self.choice, &input)?)
    }

    /// What experts in memory make of the rows that chose them, in the order of experts.
    fn resident(
        &self,
        experts: &[Dense],
        chosen: Vec<Chosen>,
        rows: &Rows<'_>,
    ) -> Result<Vec<WeightedRows>, ModelError> {
        let used = experts.iter().zip(chosen).filter(|(_, (own, _))| !own.is_empty());
        used.map(|(expert, chosen)| self.routed(expert, chosen, rows)).collect()
    }

    /// What an expert makes of the rows that chose it.
    fn routed(
        &self,
        expert: &Dense,
        (own, weights): Chosen,
        rows: &Rows<'_>,
    ) -> Result<WeightedRows, ModelError> {
        let (input, weights) = match self.spec.route.weighs_input {
            true => {
                let x = ops::scale_rows(&ops::take_rows(rows.normed, &own)?, &weights)?;
                (Input { x, norm: None }, vec![1.0; own.len()])
            }
            false => {
                let x = ops::take_rows(&rows.input.x, &own)?;
                (Input { x, norm: rows.input.norm }, weights)
            }
        };
        let x = expert.forward(&input, rows.activation, None, Phase::Decode.into())?;
        Ok(WeightedRows { x, rows: own, weights })
    }

    /// What the expert makes that all rows go through.
    fn shared(&self, rows: &Rows<'_>) -> Result<Option<WeightedRows>, ModelError> {
        let shared = self.shared.as_ref();
        shared.map(|own| own.forward(rows.input, rows.normed, rows.activation)).transpose()
    }

    /// The rows routed to each expert, and the weights of its outputs.
    fn choose(&self, logits: &[f32]) -> Vec<Chosen> {
        let n = self.spec.experts + self.spec.idle;
        let mut chosen = vec![(Vec::new(), Vec::new()); n];
        for (row, logits) in (0u32..).zip(logits.chunks_exact(n)) {
            for (expert, weight) in self.choice.choose(logits) {
                let (rows, weights) = &mut chosen[expert];
                rows.push(row);
                weights.push(weight);
            }
        }
        chosen
    }
}

/// What MLX calls routers of some families, below the block, and what it calls biases of the choice.
const ROUTERS: &[&str] = &["gate.gate_proj", "gate.proj"];
const BIASES: &[&str] = &["gate.e_score_correction_bias"];

/// The first of these names that a file has, or `name`.
fn first_of(weights: Source<'_>, at: &str, name: &str, others: &[&str], suffix: &str) -> String {
    let own = format!("{at}.{name}");
    let mut names = std::iter::once(own.clone()).chain(others.iter().map(|o| format!("{at}.{o}")));
    names.find(|name| weights.has(&format!("{name}{suffix}"))).unwrap_or(own)
}

/// The maps of an expert; none has a norm or numbers of its own between them.
fn maps_of(expert: &Dense) -> Option<ExpertMaps<'_>> {
    match expert {
        Dense::Gated(Gated { gate_up, down, .. }) => {
            Some(ExpertMaps { first: gate_up.parts(), down })
        }
        Dense::Plain(Plain { up, down }) => Some(ExpertMaps { first: up.parts(), down }),
        Dense::Normed(..) | Dense::Xielu(..) => None,
    }
}

impl Shared {
    /// That of the experts below `at`.
    fn load(
        model: &Spec,
        spec: SharedSpec,
        weights: Source<'_>,
        at: &str,
    ) -> Result<Self, ModelError> {
        let at = format!("{at}.shared_expert");
        let expert = Dense::load(model, weights, &at, spec.intermediate)?;
        let gate = || weights.linear(&format!("{at}_gate"), model.hidden, 1, false);
        Ok(Self { expert, gate: spec.gated.then(gate).transpose()? })
    }

    fn placed(self, options: LoadOptions<'_>) -> Result<Self, ModelError> {
        let there = |gate: Linear| match options.gpu {
            Some(gpu) => gate.on(gpu, true),
            None => Ok(gate),
        };
        let gate = self.gate.map(there).transpose()?;
        Ok(Self { expert: self.expert.placed(options)?, gate })
    }

    /// What a sigmoid makes of is how much it counts, `[t, 1]`, if it does not count whole.
    fn counts(&self, normed: &Tensor) -> Result<Option<Tensor>, ModelError> {
        let gate = self.gate.as_ref();
        Ok(gate.map(|gate| gate.forward(normed, Phase::Decode)).transpose()?)
    }

    fn forward(
        &self,
        input: &Input<'_>,
        normed: &Tensor,
        activation: Activation,
    ) -> Result<WeightedRows, ModelError> {
        let rows: Vec<u32> = (0..normed.dims()[0] as u32).collect();
        let weights = match self.counts(normed)? {
            Some(counts) => {
                ops::with_host_f32(&counts, |x| x.iter().map(|x| sigmoid(*x)).collect())?
            }
            None => vec![1.0; rows.len()],
        };
        let x = self.expert.forward(input, activation, None, Phase::Decode.into())?;
        Ok(WeightedRows { x, rows, weights })
    }
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}
