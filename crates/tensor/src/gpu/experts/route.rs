//! The choice of experts on a GPU.

use crate::{
    Result, Tensor, TensorError,
    gpu::{Buffer, Launch, Operand, Resident, count, params},
    routing::{Groups, Router, Routing, Score},
    tensor::GpuTensor,
};

params!(
    /// Parameters of `route`.
    RouteParams { experts: u32, chosen: u32, normalise: u32 }
);
params!(
    /// Parameters of `route_scored`.
    ScoredParams {
        experts: u32,
        chosen: u32,
        score: u32,
        normalise: u32,
        biased: u32,
        groups: u32,
        kept: u32,
        best: u32,
        factored: u32,
        more: f32,
        least: f32,
        scale: f32,
        spread: f32,
        soft_cap: f32,
    }
);

const FAMILY: &str = "route";
const THREADS: u32 = 128;

/// The experts of tokens and their weights, `[tokens, chosen]` by ascending expert.
pub(super) struct Routes {
    pub(super) ids: Buffer,
    pub(super) weights: Buffer,
    pub(super) pairs: usize,
}

impl Router {
    /// What [`Router::choose`] gives of each row, by ascending expert, chosen on the GPU that has the logits.
    ///
    /// # Shapes
    /// `logits [t, experts]` -> `t` rows.
    ///
    /// # Errors
    /// Another shape, or logits on the host.
    pub fn choose_there(&self, logits: &Tensor) -> Result<Vec<Vec<(usize, f32)>>> {
        crate::host::dims2("route", logits)?;
        let cpu = || TensorError::Device { op: "route", device: "cpu".into() };
        let routes = route(logits.on_gpu().ok_or_else(cpu)?, self)?;
        let ids: Vec<u32> = routes.ids.read(0, routes.pairs)?;
        let weights: Vec<f32> = routes.weights.read(0, routes.pairs)?;
        let pairs: Vec<_> = ids.into_iter().map(|id| id as usize).zip(weights).collect();
        Ok(pairs.chunks(self.routing.chosen).map(<[_]>::to_vec).collect())
    }
}

/// Chooses by rows of logits `[tokens, experts]`.
///
/// # Errors
/// None or more experts are chosen than there are, groups do not divide them, or there are other numbers of biases
/// or factors.
pub(super) fn route(logits: &GpuTensor, router: &Router) -> Result<Routes> {
    let (gpu, tokens, experts) = (logits.gpu(), logits.dims[0], logits.dims[1]);
    check(router, experts)?;
    let pairs = tokens * router.routing.chosen;
    let routes =
        Routes { ids: gpu.temporary(4 * pairs)?, weights: gpu.temporary(4 * pairs)?, pairs };
    let grid = [count("route", tokens)?, 1, 1];
    let logits_in = logits.input();
    let [ids, weights] = [&routes.ids, &routes.weights].map(|out| Operand::Out(out, 0));
    if router.is_plain() {
        let params = RouteParams {
            experts: count("route", experts)?,
            chosen: count("route", router.routing.chosen)?,
            normalise: u32::from(router.routing.normalise.is_some()),
        };
        gpu.launch(&Launch {
            family: FAMILY,
            kernel: "route",
            grid,
            threads: THREADS,
            operands: &[logits_in, ids, weights],
            params: bytemuck::bytes_of(&params),
        })?;
        return Ok(routes);
    }
    let there = |values: &Option<Resident>| values.as_ref().map(|v| v.on(gpu)).transpose();
    let (bias, factors) = (there(&router.bias)?, there(&router.factors)?);
    gpu.launch(&Launch {
        family: FAMILY,
        kernel: "route_scored",
        grid,
        threads: THREADS,
        // What is not there is never read.
        operands: &[
            logits_in,
            bias.as_deref().map_or(logits_in, |b| Operand::In(b, 0)),
            factors.as_deref().map_or(logits_in, |b| Operand::In(b, 0)),
            ids,
            weights,
        ],
        params: bytemuck::bytes_of(&scored(router, experts)?),
    })?;
    Ok(routes)
}

fn scored(router: &Router, experts: usize) -> Result<ScoredParams> {
    let Routing { chosen, score, normalise, least, scale, groups, soft_cap } = router.routing;
    let (score, spread) = match score {
        Score::Softmax => (0, 0.0),
        Score::Sigmoid => (1, 0.0),
        Score::SparseMixer { spread } => (2, spread),
    };
    let of = |n: fn(Groups) -> usize| groups.map_or(Ok(0), |groups| count("route", n(groups)));
    Ok(ScoredParams {
        experts: count("route", experts)?,
        chosen: count("route", chosen)?,
        score,
        normalise: u32::from(normalise.is_some()),
        biased: u32::from(router.bias.is_some()),
        groups: of(|groups| groups.count)?,
        kept: of(|groups| groups.kept)?,
        best: of(|groups| groups.best)?,
        factored: u32::from(router.factors.is_some()),
        more: normalise.unwrap_or(0.0),
        least,
        scale,
        spread,
        soft_cap: soft_cap.unwrap_or(0.0),
    })
}

fn check(router: &Router, experts: usize) -> Result<()> {
    let Routing { chosen, groups, .. } = router.routing;
    let as_many = |values: &Option<Resident>| {
        values.as_ref().is_none_or(|values| values.host().len() == experts)
    };
    let divide = |groups: Groups| {
        groups.count > 0
            && experts.is_multiple_of(groups.count)
            && groups.best <= experts / groups.count
    };
    let fits = chosen > 0
        && chosen <= experts
        && groups.is_none_or(divide)
        && as_many(&router.bias)
        && as_many(&router.factors);
    if fits {
        return Ok(());
    }
    let expected = "at most as many chosen as there are, groups that divide them, and a bias and a factor each";
    Err(TensorError::shape("route", expected, &[chosen, experts]))
}
