//! Mixtures of experts.

use super::{Buffer, Gpu, GpuWeight, Launch, Operand, Product, count, ops, params};
use crate::{Linear, LinearGroup, Result, Tensor, TensorError, ops::Activation, tensor::GpuTensor};

params!(
    /// Parameters of `route`.
    RouteParams { experts: u32, chosen: u32, normalise: u32 }
);
params!(
    /// Parameters of `experts_*`.
    ExpertParams {
        rows: u32,
        cols: u32,
        chosen: u32,
        group_shift: u32,
        scale_type: u32,
        packed: u32,
        gate: u32,
    }
);
params!(
    /// Parameters of `add_experts`.
    AddExpertsParams { n: u32, cols: u32, chosen: u32, placed: u32 }
);

/// Most experts that `route` chooses among.
const MAX_EXPERTS: usize = 1024;
/// Rows that a threadgroup of `experts_*` computes.
const ROWS: usize = 16;
/// From this many tokens on, each expert's tokens are multiplied together.
const GROUP_FROM: usize = 128;

/// How tokens find their experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Routing {
    /// Experts that a token goes through.
    pub chosen: usize,
    /// Whether their weights are made to sum to one.
    pub normalise: bool,
}

/// The experts of a layer on a GPU, their matrices one below the other.
#[derive(Debug, Clone)]
pub struct StackedExperts {
    gate_up: GpuWeight,
    down: GpuWeight,
    experts: usize,
    exact: bool,
}

/// The experts of tokens and their weights, `[tokens, chosen]` by ascending expert.
struct Routes {
    ids: Buffer,
    weights: Buffer,
    pairs: usize,
}

impl StackedExperts {
    /// Copies experts, each its gate and up projections and its down projection, to a GPU. Unless they
    /// are to be `exact`, products of many rows may round weights and activations to f16.
    ///
    /// # Errors
    /// There is none or more than 1024, their formats or shapes differ, a projection has a bias, or there
    /// is no room.
    pub fn new(gpu: &Gpu, experts: &[(&LinearGroup<2>, &Linear)], exact: bool) -> Result<Self> {
        let n = experts.len();
        if n == 0 || n > MAX_EXPERTS {
            return Err(TensorError::shape("experts", "1 to 1024 experts", &[n]));
        }
        let gate_ups = experts.iter().flat_map(|(gate_up, _)| gate_up.parts());
        let gate_up = stack(gpu, &gate_ups.collect::<Vec<_>>(), exact)?;
        let down = stack(gpu, &experts.iter().map(|(_, down)| *down).collect::<Vec<_>>(), exact)?;
        let (hidden, inner) = (gate_up.cols(), down.cols());
        if gate_up.rows() != 2 * n * inner || down.rows() != n * hidden {
            let got = [gate_up.rows(), down.rows()];
            return Err(TensorError::shape("experts", "maps there and back", &got));
        }
        Ok(Self { gate_up, down, experts: n, exact })
    }

    /// Number of weights of all experts.
    #[must_use]
    pub fn elements(&self) -> u64 {
        let of = |w: &GpuWeight| (w.rows() * w.cols()) as u64;
        of(&self.gate_up) + of(&self.down)
    }

    /// Bytes of the weights of all experts.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.gate_up.bytes() + self.down.bytes()
    }

    /// `x + Σ weight · expert(normed)` over the experts of each row that `logits` choose, by ascending
    /// expert. Of equal logits the first is taken.
    ///
    /// # Shapes
    /// `x` and `normed [t, hidden]`, `logits [t, experts]` -> `[t, hidden]`.
    ///
    /// # Errors
    /// Another shape, more experts chosen than there are, or a tensor that is not on the GPU.
    pub fn forward_add(
        &self,
        x: &Tensor,
        normed: &Tensor,
        logits: &Tensor,
        routing: Routing,
        activation: Activation,
    ) -> Result<Tensor> {
        let (t, n) = crate::host::dims2("experts", logits)?;
        let want = [t, self.gate_up.cols()];
        if n != self.experts || routing.chosen == 0 || routing.chosen > n {
            let expected = format!("[t, {}], and at most as many chosen", self.experts);
            return Err(TensorError::shape("experts", expected, &[t, n, routing.chosen]));
        }
        if *x.dims() != want || *normed.dims() != want {
            return Err(TensorError::shape("experts", format!("{want:?}"), normed.dims()));
        }
        let there = |x: &Tensor| match x.on_gpu() {
            Some(x) if x.gpu().is(self.gate_up.gpu()) => Ok(x.clone()),
            _ => Err(TensorError::Device { op: "experts", device: "cpu".into() }),
        };
        let (x, normed, logits) = (there(x)?, there(normed)?, there(logits)?);
        let routes = route(&logits, routing)?;
        let chosen = routing.chosen;
        let (y, places) = if self.exact || t < GROUP_FROM {
            let inner =
                product(&self.gate_up, self.experts, &normed, &routes, chosen, Some(activation))?;
            (product(&self.down, self.experts, &inner, &routes, 1, None)?, None)
        } else {
            self.grouped(&normed, &routes, chosen, activation)?
        };
        add(&x, &y, &routes, places.as_ref(), chosen).map(Tensor::from)
    }

    /// The path for many tokens: each expert's tokens are multiplied together. The host has to know how many
    /// each has.
    fn grouped(
        &self,
        x: &GpuTensor,
        routes: &Routes,
        chosen: usize,
        activation: Activation,
    ) -> Result<(GpuTensor, Option<Buffer>)> {
        let gpu = self.gate_up.gpu();
        let ids: Vec<u32> = routes.ids.read(0, routes.pairs)?;
        let Groups { tokens, places, ends } = group(&ids, chosen, self.experts);
        let x = ops::take_rows(x, &tokens)?;
        let (hidden, width) = (self.gate_up.cols(), self.down.cols());
        let inner = GpuTensor::new(gpu, &[routes.pairs, width])?;
        let y = GpuTensor::new(gpu, &[routes.pairs, hidden])?;
        let mut first = 0;
        for (expert, end) in ends.into_iter().enumerate() {
            if first < end {
                let gate_up = self.gate_up.part(expert * 2 * width, 2 * width);
                let gated = Product { gate: Some(activation), ..Product::default() };
                let own = rows(&inner, first..end);
                gate_up.multiply_to(
                    &rows(&x, first..end),
                    gated,
                    &[2 * width],
                    std::slice::from_ref(&own),
                )?;
                let down = self.down.part(expert * hidden, hidden);
                down.multiply_to(&own, Product::default(), &[hidden], &[rows(&y, first..end)])?;
            }
            first = end;
        }
        Ok((y, Some(gpu.upload(&places)?)))
    }
}

fn stack(gpu: &Gpu, linears: &[&Linear], exact: bool) -> Result<GpuWeight> {
    let weights: Vec<_> = linears.iter().filter_map(|l| l.plain()).collect();
    let stacked =
        if weights.len() == linears.len() { GpuWeight::stack(gpu, &weights, exact)? } else { None };
    let expected = "matrices of one format, without biases";
    stacked.ok_or_else(|| TensorError::shape("experts", expected, &[linears.len()]))
}

/// Some rows, over the same memory.
fn rows(x: &GpuTensor, range: std::ops::Range<usize>) -> GpuTensor {
    let cols = x.dims[1];
    GpuTensor {
        offset: x.offset + 4 * cols * range.start,
        dims: vec![range.len(), cols],
        prepared: None,
        ..x.clone()
    }
}

/// Pairs of tokens and experts, ordered by expert.
struct Groups {
    /// The token of each.
    tokens: Vec<u32>,
    /// Where each pair went.
    places: Vec<u32>,
    /// Where each expert's end.
    ends: Vec<usize>,
}

/// `ids` are below `experts`, `chosen` a token.
fn group(ids: &[u32], chosen: usize, experts: usize) -> Groups {
    let mut next = vec![0; experts];
    ids.iter().for_each(|&id| next[id as usize] += 1);
    let mut first = 0;
    for n in &mut next {
        first += std::mem::replace(n, first);
    }
    let mut groups = Groups {
        tokens: vec![0; ids.len()],
        places: Vec::with_capacity(ids.len()),
        ends: Vec::new(),
    };
    for (pair, &id) in ids.iter().enumerate() {
        let place = &mut next[id as usize];
        groups.tokens[*place] = (pair / chosen) as u32;
        groups.places.push(*place as u32);
        *place += 1;
    }
    groups.ends = next;
    groups
}

fn route(logits: &GpuTensor, routing: Routing) -> Result<Routes> {
    let (tokens, experts) = (logits.dims[0], logits.dims[1]);
    let pairs = tokens * routing.chosen;
    let (ids, weights) = (logits.gpu().temporary(4 * pairs)?, logits.gpu().temporary(4 * pairs)?);
    let params = RouteParams {
        experts: count("route", experts)?,
        chosen: count("route", routing.chosen)?,
        normalise: u32::from(routing.normalise),
    };
    logits.gpu().launch(&Launch {
        family: "experts",
        kernel: "route",
        grid: [count("route", tokens)?, 1, 1],
        threads: 128,
        operands: &[
            Operand::In(&logits.buffer, logits.offset),
            Operand::Out(&ids, 0),
            Operand::Out(&weights, 0),
        ],
        params: bytemuck::bytes_of(&params),
    })?;
    Ok(Routes { ids, weights, pairs })
}

/// Each pair's row of `x`, `share` pairs a row, with its expert's matrix.
fn product(
    weight: &GpuWeight,
    experts: usize,
    x: &GpuTensor,
    routes: &Routes,
    share: usize,
    gate: Option<Activation>,
) -> Result<GpuTensor> {
    let rows = weight.rows() / experts;
    let (width, block) = if gate.is_some() { (rows / 2, ROWS / 2) } else { (rows, ROWS) };
    let out = GpuTensor::new(x.gpu(), &[routes.pairs, width])?;
    let params = ExpertParams {
        rows: count("experts", rows)?,
        cols: count("experts", weight.cols())?,
        chosen: count("experts", share)?,
        group_shift: weight.group_shift(),
        scale_type: weight.scale_type,
        packed: u32::from(weight.packed),
        gate: ops::gate(gate)?,
    };
    let [data, scales] = weight.operands();
    let launch = Launch {
        family: "experts",
        kernel: &format!("experts_{}", weight.kernel().0),
        grid: [count("experts", routes.pairs)?, count("experts", width.div_ceil(block))?, 1],
        threads: 128,
        operands: &[
            data,
            scales,
            Operand::In(&x.buffer, x.offset),
            Operand::In(&routes.ids, 0),
            Operand::Out(&out.buffer, 0),
        ],
        params: bytemuck::bytes_of(&params),
    };
    x.gpu().launch_work(&launch, routes.pairs * rows * weight.cols())?;
    Ok(out)
}

/// `x` plus the weighted rows of `y`: row `places[i]` for pair `i`, or row `i`.
fn add(
    x: &GpuTensor,
    y: &GpuTensor,
    routes: &Routes,
    places: Option<&Buffer>,
    chosen: usize,
) -> Result<GpuTensor> {
    let out = GpuTensor::new(x.gpu(), &x.dims)?;
    let params = AddExpertsParams {
        n: count("add_experts", x.len())?,
        cols: count("add_experts", x.dims[1])?,
        chosen: count("add_experts", chosen)?,
        placed: u32::from(places.is_some()),
    };
    x.gpu().launch(&Launch {
        family: "experts",
        kernel: "add_experts",
        grid: [params.n.div_ceil(256), 1, 1],
        threads: 256,
        operands: &[
            Operand::In(&x.buffer, x.offset),
            Operand::In(&y.buffer, y.offset),
            Operand::In(&routes.weights, 0),
            // Not read where there are none.
            Operand::In(places.unwrap_or(&routes.ids), 0),
            Operand::Out(&out.buffer, 0),
        ],
        params: bytemuck::bytes_of(&params),
    })?;
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_grouped_by_expert_and_found_again() {
        // Two experts a token, of four; nobody wants expert 2.
        let ids = [1, 3, 0, 1, 1, 3];
        let groups = group(&ids, 2, 4);
        assert_eq!(groups.ends, [1, 4, 4, 6]);
        assert_eq!(groups.tokens, [1, 0, 1, 2, 0, 2]);
        assert_eq!(groups.places, [1, 4, 0, 2, 3, 5]);
    }
}
