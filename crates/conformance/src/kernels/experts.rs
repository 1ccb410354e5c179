//! Checks of mixtures of experts.

use super::{Pair, data::Rng};
use std::fmt;
use taper_tensor::{
    AffineFormat, Bytes, DType, Linear, Phase, Result, RmsNorm, Tensor, Weight,
    gpu::{ExpertKind, ExpertMaps, ExpertsInput, Gpu, StackedExperts},
    ops::{self, Activation, WeightedRows},
    routing::{Router, Routing, Score},
};

#[derive(Debug, Clone, Copy)]
enum Stored {
    Dense(DType),
    Affine(AffineFormat, DType),
    Mxfp4,
}

/// What a model has beside maps and a softmax.
#[derive(Debug, Clone, Copy)]
struct Extras {
    activation: Activation,
    limit: Option<f32>,
    gated: bool,
    biases: bool,
    weighs_input: bool,
    scale: f32,
    /// Outputs of the router that give back what they read.
    idle: usize,
    /// An expert of every token, and whether it has a gate.
    shared: Option<bool>,
    residual: bool,
    /// What experts read goes through a norm.
    norm: bool,
}

const PLAIN: Extras = Extras {
    activation: Activation::Silu,
    limit: None,
    gated: true,
    biases: false,
    weighs_input: false,
    scale: 1.0,
    idle: 0,
    shared: None,
    residual: true,
    norm: false,
};

/// Whom tokens choose.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Crowd {
    None,
    /// All choose expert 1, and nobody expert 0.
    One,
}

#[derive(Debug, Clone)]
pub(super) struct Case {
    stored: Stored,
    crowd: Crowd,
    tokens: usize,
    hidden: usize,
    inner: usize,
    experts: usize,
    routing: Routing,
    extras: Extras,
    exact: bool,
}

const fn affine(bits: u8, group: usize, scales: DType) -> Stored {
    Stored::Affine(AffineFormat { bits, group }, scales)
}

pub(super) fn cases(quick: bool) -> Vec<Case> {
    let formats = [
        affine(4, 32, DType::BF16),
        Stored::Dense(DType::BF16),
        affine(2, 32, DType::F16),
        affine(3, 64, DType::F32),
        affine(4, 64, DType::F16),
        affine(5, 32, DType::BF16),
        affine(6, 64, DType::F16),
        affine(8, 32, DType::BF16),
        Stored::Dense(DType::F32),
        Stored::Dense(DType::F16),
        Stored::Mxfp4,
    ];
    // Rows of one chunk, of more than a simdgroup's lanes, and tokens that are multiplied by expert.
    let shapes =
        [(1, 64, 192, 8, 2), (5, 128, 1088, 3, 3), (3, 1152, 64, 130, 7), (130, 64, 128, 5, 2)];
    let (mut cases, extras) = (Vec::new(), PLAIN);
    for (i, stored) in formats.into_iter().enumerate() {
        for (j, &(tokens, hidden, inner, experts, chosen)) in shapes.iter().enumerate() {
            if quick && i > 1 && (i + j) % 3 > 0 {
                continue;
            }
            let routing = Routing::softmax(chosen, (i + j) % 2 == 0);
            for exact in [true, false] {
                if exact || tokens == 1 {
                    let sizes = (tokens, hidden, inner, experts);
                    cases.push(Case::new(stored, sizes, routing, extras, exact));
                }
            }
        }
    }
    cases.extend(others());
    cases.extend(tiles(&formats, quick));
    cases
}

/// Tiles of every size, in every format.
fn tiles(formats: &[Stored], quick: bool) -> Vec<Case> {
    let fast = [4, 8].into_iter().flat_map(|bits| {
        [(32, DType::BF16), (64, DType::F16), (128, DType::BF16)]
            .map(|(group, scales)| affine(bits, group, scales))
    });
    // Formats without kernels of their own, and a part of a block of rows and of columns; and whole ones.
    let any = [(9, 64, 96, 5, 2), (40, 128, 160, 5, 2)];
    let whole =
        [(6, 128, 384, 4, 2), (19, 256, 128, 5, 2), (40, 128, 128, 5, 2), (70, 128, 256, 5, 2)];
    let any = formats.iter().flat_map(|&stored| {
        // Rows of groups of 64 have whole ones.
        let groups = matches!(stored, Stored::Affine(AffineFormat { group: 64, .. }, _));
        let wider = if groups { 32 } else { 0 };
        any.map(|(t, hidden, inner, n, chosen)| (stored, (t, hidden, inner + wider, n, chosen)))
    });
    let whole = fast.flat_map(|stored| whole.map(|shape| (stored, shape)));
    let many = [(affine(4, 64, DType::BF16), (40, 64, 64, 1024, 8))];
    let all = any.chain(whole).enumerate().filter(|(i, _)| !quick || i % 3 == 0);
    let all = all.map(|(_, case)| case).chain(many.into_iter().filter(|_| !quick));
    let case = |(i, (stored, (t, hidden, inner, experts, chosen)))| {
        let routing = Routing::softmax(chosen, true);
        let crowd = if i % 2 == 0 { Crowd::One } else { Crowd::None };
        // Rows of a residual may be a hundred times as large, and errors as small beside them.
        let extras = Extras { residual: false, ..PLAIN };
        Case { crowd, ..Case::new(stored, (t, hidden, inner, experts), routing, extras, false) }
    };
    all.enumerate().map(case).collect()
}

/// What families have beside a plain softmax and SwiGLU.
fn others() -> Vec<Case> {
    let sigmoid = Routing { score: Score::Sigmoid, ..Routing::softmax(2, false) };
    let gpt_oss =
        Extras { activation: Activation::SwigluOai, biases: true, residual: false, ..PLAIN };
    let step = Extras { limit: Some(0.4), shared: Some(false), scale: 2.5, ..PLAIN };
    let (relu, gelu) = (Activation::Relu2, Activation::GeluTanh);
    let nemotron = Extras { activation: relu, gated: false, residual: false, ..PLAIN };
    let llama = Extras { weighs_input: true, shared: Some(false), residual: false, ..PLAIN };
    let all = [
        (Stored::Mxfp4, 96, Routing::softmax(2, true), gpt_oss),
        (affine(4, 32, DType::BF16), 96, sigmoid, step),
        (
            affine(4, 64, DType::BF16),
            128,
            sigmoid,
            Extras { biases: true, residual: false, ..step },
        ),
        (Stored::Dense(DType::BF16), 96, sigmoid, nemotron),
        (Stored::Dense(DType::F16), 48, sigmoid, Extras { biases: true, ..nemotron }),
        (Stored::Dense(DType::F16), 24, sigmoid, llama),
        (affine(8, 32, DType::F16), 128, sigmoid, Extras { biases: true, idle: 3, ..llama }),
        (affine(8, 32, DType::F16), 64, sigmoid, nemotron),
        (Stored::Dense(DType::F32), 64, Routing::softmax(3, false), Extras { idle: 4, ..PLAIN }),
        (Stored::Dense(DType::F32), 64, sigmoid, Extras { shared: Some(true), ..PLAIN }),
        (
            Stored::Dense(DType::F32),
            64,
            sigmoid,
            Extras { shared: Some(true), residual: false, ..PLAIN },
        ),
        (Stored::Mxfp4, 64, sigmoid, Extras { activation: gelu, residual: false, ..PLAIN }),
        (affine(4, 64, DType::F16), 64, sigmoid, Extras { norm: true, residual: false, ..PLAIN }),
        (Stored::Dense(DType::BF16), 96, sigmoid, Extras { norm: true, residual: false, ..PLAIN }),
        (
            Stored::Dense(DType::BF16),
            96,
            Routing::softmax(9, true),
            Extras { norm: true, idle: 4, ..PLAIN },
        ),
    ];
    let each = |(stored, inner, routing, extras): (_, _, _, Extras)| {
        // A sum of squares is of more than one simdgroup.
        let hidden = if extras.norm { 320 } else { 64 };
        [(3, true), (130, false)]
            .map(|(t, exact)| Case::new(stored, (t, hidden, inner, 6), routing, extras, exact))
    };
    all.into_iter().flat_map(each).collect()
}

/// An expert's maps: a gate, if it has one, and up; and the way back.
struct Maps {
    first: Vec<Linear>,
    down: Linear,
}

impl Case {
    fn new(
        stored: Stored,
        (tokens, hidden, inner, experts): (usize, usize, usize, usize),
        routing: Routing,
        extras: Extras,
        exact: bool,
    ) -> Self {
        let crowd = Crowd::None;
        Self { stored, crowd, tokens, hidden, inner, experts, routing, extras, exact }
    }

    /// The file with the products, where matrix units are fast or not; or that with the sum, of all results in places
    /// and of an expert with a gate.
    pub(super) fn family(&self, fast: bool, wide: bool) -> &'static str {
        let whole = [self.hidden, self.inner].iter().all(|n| n.is_multiple_of(64));
        match self.stored {
            _ if self.exact || self.tokens == 1 || self.extras.shared == Some(true) => "experts",
            Stored::Affine(AffineFormat { bits, .. }, scales)
                if fast && whole && scales != DType::F32 && [4, 8].contains(&bits) =>
            {
                // Tiles of 64 pairs.
                let many = self.tokens * self.routing.chosen > 24 * self.experts;
                if wide && many && bits == 4 { "experts_wide" } else { "experts_tile" }
            }
            _ => "experts_matmul",
        }
    }

    pub(super) fn tolerance(&self) -> f64 {
        if self.exact { 2e-5 } else { 4e-3 }
    }

    fn linear(&self, rng: &mut Rng, rows: usize, cols: usize) -> Result<Linear> {
        let weight: Weight = match self.stored {
            Stored::Dense(dtype) => rng.dense(dtype, rows, cols)?,
            Stored::Affine(format, scales) => rng.affine(format, scales, rows, cols)?,
            Stored::Mxfp4 => rng.mxfp4(rows, cols)?,
        };
        let linear = Linear::new(weight);
        if !self.extras.biases {
            return Ok(linear);
        }
        let bytes = rng.vector(rows).iter().flat_map(|x| x.to_le_bytes()).collect();
        linear.with_bias(DType::F32, Bytes::from_vec(bytes))
    }

    pub(super) fn run(&self, gpu: &Gpu, rng: &mut Rng) -> Result<Vec<Pair>> {
        let Self { tokens: t, hidden, inner, extras, .. } = *self;
        let firsts = if extras.gated { 2 } else { 1 };
        let mut experts = Vec::new();
        for _ in 0..self.experts {
            let one = |_| self.linear(rng, inner, hidden);
            let first = (0..firsts).map(one).collect::<Result<_>>()?;
            experts.push(Maps { first, down: self.linear(rng, hidden, inner)? });
        }
        let residual = rng.tensor(&[t, hidden])?;
        let x = Tensor::from_vec(rng.vector(t * hidden), &[t, hidden])?;
        let shared = Tensor::from_vec(rng.vector(t * hidden), &[t, hidden])?;
        let gate = Tensor::from_vec(rng.vector(t), &[t, 1])?;
        // Quarters, so that there are equal ones.
        let outputs = self.experts + extras.idle;
        let logits = (0..t * outputs).map(|_| (rng.normal() * 4.0).round() / 4.0);
        let mut logits: Vec<f32> = logits.collect();
        if self.crowd == Crowd::One {
            logits.chunks_mut(outputs).for_each(|row| (row[0], row[1]) = (-50.0, 5.0));
        }
        let logits = Tensor::from_vec(logits, &[t, outputs])?;
        let router = Router::new(self.routing, None, None);
        let norm = RmsNorm::new(rng.vector(hidden), 1e-5);
        let norm = extras.norm.then_some(&norm);
        let normed = norm.map_or(Ok(x.clone()), |norm| norm.forward(&x))?;
        let want = self.want(&experts, &router, [&normed, &logits, &shared, &gate, &residual])?;
        let maps: Vec<_> = experts
            .iter()
            .map(|maps| ExpertMaps { first: &maps.first, down: &maps.down })
            .collect();
        let Extras { activation, limit, weighs_input, scale, .. } = extras;
        let kind = ExpertKind { activation, limit, weighs_input, scale };
        let stacked = StackedExperts::new(gpu, &maps, kind, self.exact)?;
        let there = |x: &Tensor| x.to_gpu(gpu);
        let (x, logits, residual) = (there(&x)?, there(&logits)?, there(&residual)?);
        let (shared, gate) = (there(&shared)?, there(&gate)?);
        let input = ExpertsInput {
            x: &x,
            norm,
            logits: &logits,
            shared: extras.shared.map(|gated| (&shared, gated.then_some(&gate))),
            residual: extras.residual.then_some(&residual),
        };
        Ok(vec![Pair::of(&stacked.forward(&router, &input)?, &want)?])
    }

    /// What the host makes of it.
    fn want(
        &self,
        experts: &[Maps],
        router: &Router,
        [x, logits, shared, gate, residual]: [&Tensor; 5],
    ) -> Result<Tensor> {
        let (t, extras) = (self.tokens, self.extras);
        let mut of_expert = vec![(Vec::new(), Vec::new()); self.experts + extras.idle];
        for (row, logits) in (0u32..).zip(logits.to_vec2()?) {
            for (expert, weight) in router.choose(&logits) {
                of_expert[expert].0.push(row);
                of_expert[expert].1.push(weight);
            }
        }
        let mut parts = Vec::new();
        for (expert, (rows, weights)) in of_expert.into_iter().enumerate() {
            if rows.is_empty() {
                continue;
            }
            let own = ops::take_rows(x, &rows)?;
            parts.push(match experts.get(expert) {
                None => WeightedRows { x: own, rows, weights },
                Some(maps) if extras.weighs_input => {
                    let x = self.expert(maps, &ops::scale_rows(&own, &weights)?)?;
                    WeightedRows { x, weights: vec![1.0; rows.len()], rows }
                }
                Some(maps) => WeightedRows { x: self.expert(maps, &own)?, rows, weights },
            });
        }
        if let Some(gated) = extras.shared {
            let weights = match gated {
                true => gate.to_vec()?.iter().map(|g| 1.0 / (1.0 + (-g).exp())).collect(),
                false => vec![1.0; t],
            };
            parts.push(WeightedRows { x: shared.clone(), rows: (0..t as u32).collect(), weights });
        }
        let weights = parts.iter_mut().flat_map(|part| &mut part.weights);
        weights.for_each(|weight| *weight *= extras.scale);
        let zeros = ops::scale(residual, 0.0)?;
        ops::add_weighted_rows(if extras.residual { residual } else { &zeros }, &parts)
    }

    /// One expert's result.
    fn expert(&self, maps: &Maps, x: &Tensor) -> Result<Tensor> {
        let Extras { activation, limit, .. } = self.extras;
        let firsts = maps
            .first
            .iter()
            .map(|map| map.forward(x, Phase::Decode))
            .collect::<Result<Vec<_>>>()?;
        let inner = match (&firsts[..], limit) {
            ([gate, up], Some(limit)) => ops::clamped_swiglu(gate, up, limit)?,
            ([gate, up], None) => ops::gated(activation, gate, up)?,
            (all, _) => ops::activate(activation, &all[0])?,
        };
        maps.down.forward(&inner, Phase::Decode)
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.stored {
            Stored::Dense(dtype) => write!(f, "{}", dtype.as_str())?,
            Stored::Affine(a, s) => write!(f, "{}-bit g{} {}", a.bits, a.group, s.as_str())?,
            Stored::Mxfp4 => write!(f, "mxfp4")?,
        }
        let (rounded, r) = (if self.exact { "" } else { " f16" }, self.routing);
        let sum = if r.normalise.is_some() { "normalised " } else { "" };
        write!(f, "{rounded} {}x{}x{}", self.tokens, self.hidden, self.inner)?;
        let Extras { activation, gated, idle, shared, .. } = self.extras;
        write!(f, ", {sum}{} of {}, {activation:?}", r.chosen, self.experts)?;
        write!(f, " gated {gated}, idle {idle}, shared {shared:?}, crowd {:?}", self.crowd)
    }
}
