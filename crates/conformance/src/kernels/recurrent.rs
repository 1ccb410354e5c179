//! Checks of recurrent layers: each sequence alone on the CPU, and several at once on a GPU, in every cut with
//! identical bits.

use super::{Pair, data::Rng};
use std::{fmt, ops::Range};
use taper_tensor::{
    CausalConv, ConvShape, GatedDelta, GatedDeltaInputs, GatedDeltaParams, GatedDeltaShape,
    GatedNorm, HeadGate, Mamba2, Mamba2Params, Mamba2Shape, OutputGate, RecurrentCut, RecurrentRun,
    RecurrentSegment, Result, RgLru, RgLruParams, RgLruShape, RunSegments, Segments, SelectiveScan,
    SelectiveScanInputs, SelectiveScanParams, SelectiveScanShape, ShortConv, Tensor, TensorError,
    gpu::{Gpu, GpuStates, StateRuns, StateSlots},
};

#[derive(Debug, Clone, Copy)]
pub(super) enum Case {
    Delta(GatedDeltaShape, &'static [usize]),
    /// Where the norm is: 0 for none, 1 after the gate, 2 before it.
    Mamba2(Mamba2Shape, u8, &'static [usize]),
    Conv(ConvShape, bool, &'static [usize]),
    ShortConv(ConvShape, &'static [usize]),
    Scan(SelectiveScanShape, &'static [usize]),
    Lru(RgLruShape, &'static [usize]),
    States,
}

/// Lengths of sequences.
const SHORT: &[usize] = &[13, 1, 5];
const LONG: &[usize] = &[300, 21];

pub(super) fn cases() -> Vec<Case> {
    let delta = |heads: [usize; 2], dims: [usize; 2], decay_per_key: bool, lengths| {
        let ([key_heads, value_heads], [key_dim, value_dim]) = (heads, dims);
        let shape = GatedDeltaShape {
            key_heads,
            value_heads,
            key_dim,
            value_dim,
            kernel: 4,
            decay_per_key,
        };
        Case::Delta(shape, lengths)
    };
    let mamba2 = |heads, head_dim, groups, state, norm, lengths| {
        let shape = Mamba2Shape { heads, head_dim, groups, state, kernel: 4 };
        Case::Mamba2(shape, norm, lengths)
    };
    let conv = |channels, kernel| ConvShape { channels, kernel };
    vec![
        delta([1, 2], [128, 128], false, SHORT),
        delta([2, 4], [12, 20], false, LONG),
        delta([1, 1], [200, 40], false, SHORT),
        delta([2, 2], [96, 64], true, SHORT),
        delta([1, 2], [8, 8], true, LONG),
        mamba2(2, 64, 1, 128, 0, SHORT),
        mamba2(4, 20, 2, 16, 1, LONG),
        mamba2(2, 40, 2, 150, 2, SHORT),
        Case::Conv(conv(70, 4), true, SHORT),
        Case::Conv(conv(8, 2), false, LONG),
        Case::Conv(conv(5, 1), false, SHORT),
        Case::ShortConv(conv(33, 3), SHORT),
        Case::Scan(SelectiveScanShape { channels: 70, state: 16 }, SHORT),
        Case::Scan(SelectiveScanShape { channels: 6, state: 5 }, LONG),
        Case::Lru(RgLruShape { heads: 2, head_dim: 40 }, SHORT),
        Case::Lru(RgLruShape { heads: 3, head_dim: 4 }, LONG),
        Case::States,
    ]
}

impl Case {
    pub(super) fn family(self) -> &'static str {
        match self {
            Self::Delta(..) | Self::Mamba2(..) => "heads",
            Self::Conv(..) | Self::ShortConv(..) => "conv",
            Self::Scan(..) | Self::Lru(..) => "scan",
            Self::States => "states",
        }
    }

    pub(super) fn run(self, gpu: &Gpu, rng: &mut Rng) -> Result<Vec<Pair>> {
        match self {
            Self::Delta(shape, lengths) => Layer::delta(shape, rng)?.check(gpu, rng, lengths),
            Self::Mamba2(shape, norm, lengths) => {
                Layer::mamba2(shape, norm, rng)?.check(gpu, rng, lengths)
            }
            Self::Conv(shape, silu, lengths) => {
                Layer::conv(shape, silu, rng)?.check(gpu, rng, lengths)
            }
            Self::ShortConv(shape, lengths) => {
                Layer::short_conv(shape, rng)?.check(gpu, rng, lengths)
            }
            Self::Scan(shape, lengths) => Layer::scan(shape, rng)?.check(gpu, rng, lengths),
            Self::Lru(shape, lengths) => Layer::lru(shape, rng)?.check(gpu, rng, lengths),
            Self::States => states(gpu, rng),
        }
    }
}

/// Calls what it is given with a function that runs segments.
type Over<'a> = &'a mut dyn FnMut(&mut RunSegments<'_>) -> Result<()>;

/// What a layer makes of its inputs.
type Forward = dyn Fn(&[Tensor], Over<'_>) -> Result<Tensor>;

/// A layer between its projections.
struct Layer {
    /// Elements of a row of each input.
    widths: Vec<usize>,
    /// Elements of a row of the output.
    width: usize,
    state_len: usize,
    forward: Box<Forward>,
}

impl Layer {
    fn delta(shape: GatedDeltaShape, rng: &mut Rng) -> Result<Self> {
        let gate = if shape.decay_per_key { OutputGate::Sigmoid } else { OutputGate::Silu };
        let params = GatedDeltaParams {
            conv: rng.vector(shape.channels() * shape.kernel),
            a_log: rng.vector(shape.value_heads),
            dt_bias: rng.vector(shape.decays()),
            write: 1.5,
            gate,
            norm: rng.vector(shape.value_dim),
            norm_eps: 1e-6,
        };
        let layer = GatedDelta::new(shape, params)?;
        let forward = move |x: &[Tensor], over: Over<'_>| match x {
            [qkv, z, b, a] => layer.forward(GatedDeltaInputs { qkv, z, b, a }, |run| over(run)),
            _ => Err(TensorError::shape("check", "four inputs", &[x.len()])),
        };
        Ok(Self {
            widths: vec![shape.channels(), shape.values(), shape.value_heads, shape.decays()],
            width: shape.values(),
            state_len: shape.state_len(),
            forward: Box::new(forward),
        })
    }

    fn mamba2(shape: Mamba2Shape, norm: u8, rng: &mut Rng) -> Result<Self> {
        let gated = |gains| GatedNorm { gains, eps: 1e-5, before_gate: norm == 2 };
        let params = Mamba2Params {
            conv: rng.vector(shape.channels() * shape.kernel),
            conv_bias: Some(rng.vector(shape.channels())),
            a_log: rng.vector(shape.heads),
            dt_bias: rng.vector(shape.heads),
            skip: rng.vector(shape.heads),
            time_step: if norm == 1 { (0.1, 0.5) } else { (0.0, f32::INFINITY) },
            factors: (norm == 2).then_some([0.5, 1.5, 0.7, 1.2, 0.8]),
            norm: (norm > 0).then(|| gated(rng.vector(shape.inner()))),
        };
        let layer = Mamba2::new(shape, params)?;
        Ok(Self {
            widths: vec![shape.projected()],
            width: shape.inner(),
            state_len: shape.state_len(),
            forward: Box::new(move |x, over| layer.forward(&x[0], |run| over(run))),
        })
    }

    fn conv(shape: ConvShape, silu: bool, rng: &mut Rng) -> Result<Self> {
        let ConvShape { channels, kernel } = shape;
        let bias = silu.then(|| rng.vector(channels));
        let layer = CausalConv::new(shape, &rng.vector(channels * kernel), bias, silu)?;
        Ok(Self {
            widths: vec![channels + 3],
            width: channels,
            state_len: shape.state_len(),
            forward: Box::new(move |x, over| {
                layer.forward(&x[0], 2..2 + channels, |run| over(run))
            }),
        })
    }

    fn short_conv(shape: ConvShape, rng: &mut Rng) -> Result<Self> {
        let (weights, n) = (rng.vector(shape.channels * shape.kernel), shape.channels);
        let layer = ShortConv::new(shape, &weights, Some(rng.vector(n)))?;
        Ok(Self {
            widths: vec![3 * n],
            width: n,
            state_len: shape.state_len(),
            forward: Box::new(move |x, over| layer.forward(&x[0], |run| over(run))),
        })
    }

    fn scan(shape: SelectiveScanShape, rng: &mut Rng) -> Result<Self> {
        let SelectiveScanShape { channels: n, state } = shape;
        let params = SelectiveScanParams { a_log: rng.vector(n * state), skip: rng.vector(n) };
        let layer = SelectiveScan::new(shape, params)?;
        let forward = move |x: &[Tensor], over: Over<'_>| match x {
            [x, z, dt, b, c] => {
                layer.forward(SelectiveScanInputs { x, z, dt, b, c }, |run| over(run))
            }
            _ => Err(TensorError::shape("check", "five inputs", &[x.len()])),
        };
        Ok(Self {
            widths: vec![n, n, n, state, state],
            width: n,
            state_len: shape.state_len(),
            forward: Box::new(forward),
        })
    }

    /// On the CPU a sequence is run alone: its first row is its first token.
    fn lru(shape: RgLruShape, rng: &mut Rng) -> Result<Self> {
        let width = shape.width();
        let mut gate =
            || HeadGate { weights: rng.vector(width * shape.head_dim), bias: rng.vector(width) };
        let (input, recurrent) = (gate(), gate());
        let layer = RgLru::new(shape, RgLruParams { input, recurrent, rates: rng.vector(width) })?;
        let forward = move |x: &[Tensor], over: Over<'_>| {
            let first = (0..x[0].dims()[0]).map(|row| row == 0).collect::<Vec<_>>();
            layer.forward(&x[0], &first, |run| over(run))
        };
        Ok(Self { widths: vec![width], width, state_len: width, forward: Box::new(forward) })
    }

    fn check(&self, gpu: &Gpu, rng: &mut Rng, lengths: &[usize]) -> Result<Vec<Pair>> {
        let sequence = |&n: &usize| {
            let rows = self.widths.iter().map(|width| rng.vector(n * width)).collect();
            Sequence { tokens: n, rows }
        };
        let sequences: Vec<_> = lengths.iter().map(sequence).collect();
        let want: Vec<_> = sequences.iter().map(|s| self.alone(s)).collect::<Result<_>>()?;
        let whole = Steps::new(self, gpu, &sequences)?.walk(&[usize::MAX])?;
        let mut pairs: Vec<_> = whole
            .iter()
            .zip(&want)
            .map(|(got, want)| Pair { got: got.clone(), want: want.clone() })
            .collect();
        for steps in [&[1, 1, 9, 2, usize::MAX][..], &[2, 7, 1, 1, 1, 1, usize::MAX]] {
            let cut = Steps::new(self, gpu, &sequences)?.walk(steps)?;
            pairs.push(differing(cut.iter().flatten(), whole.iter().flatten()));
        }
        let mut again = Steps::new(self, gpu, &sequences)?;
        let rest = again.after_snapshot()?;
        let first = whole[0].len() - rest.len();
        pairs.push(differing(rest.iter(), whole[0][first..].iter()));
        Ok(pairs)
    }

    /// A sequence on the CPU.
    fn alone(&self, sequence: &Sequence) -> Result<Vec<f32>> {
        let mut state = vec![0.0; self.state_len];
        let rows = 0..sequence.tokens;
        let x = self.inputs(&[(sequence, rows.clone())])?;
        let over: Over<'_> = &mut |run| {
            let state = &mut state;
            run(Segments::Host(&mut [RecurrentSegment { rows: rows.clone(), state }]))
        };
        (self.forward)(&x, over)?.to_vec()
    }

    /// Inputs of a step of these tokens.
    fn inputs(&self, parts: &[(&Sequence, Range<usize>)]) -> Result<Vec<Tensor>> {
        let tokens = parts.iter().map(|(_, tokens)| tokens.len()).sum();
        let input = |(i, &width): (usize, &usize)| {
            let of = |(sequence, tokens): &(&Sequence, Range<usize>)| {
                sequence.rows[i][tokens.start * width..tokens.end * width].to_vec()
            };
            Tensor::from_vec(parts.iter().flat_map(of).collect(), &[tokens, width])
        };
        self.widths.iter().enumerate().map(input).collect()
    }
}

/// A sequence's tokens: the rows of each input.
struct Sequence {
    tokens: usize,
    rows: Vec<Vec<f32>>,
}

/// How many of the second's elements differ in a bit: none should.
fn differing<'a>(got: impl Iterator<Item = &'a f32>, want: impl Iterator<Item = &'a f32>) -> Pair {
    let differ = got.zip(want).filter(|(got, want)| got.to_bits() != want.to_bits()).count();
    Pair { got: vec![1.0 + differ as f32], want: vec![1.0] }
}

/// Sequences on a GPU, which go on step by step.
struct Steps<'a> {
    layer: &'a Layer,
    gpu: &'a Gpu,
    sequences: &'a [Sequence],
    slots: StateSlots,
    /// Tokens that each has seen.
    at: Vec<usize>,
    out: Vec<Vec<f32>>,
}

/// Elements of another layer before this one's in a slot.
const BEFORE: usize = 3;

impl<'a> Steps<'a> {
    fn new(layer: &'a Layer, gpu: &'a Gpu, sequences: &'a [Sequence]) -> Result<Self> {
        let n = sequences.len();
        let slots = StateSlots::new(gpu, 2 * n + 2, BEFORE + layer.state_len + 2)?;
        Ok(Self { layer, gpu, sequences, slots, at: vec![0; n], out: vec![Vec::new(); n] })
    }

    /// A sequence's slot: not in their order.
    fn slot(&self, sequence: usize) -> usize {
        2 * (self.sequences.len() - sequence)
    }

    /// Takes so many tokens of each sequence a step, where it has them; the outputs of each.
    fn walk(mut self, steps: &[usize]) -> Result<Vec<Vec<f32>>> {
        for &step in steps {
            let tokens: Vec<_> = (0..self.at.len())
                .map(|i| self.at[i]..self.sequences[i].tokens.min(self.at[i].saturating_add(step)))
                .collect();
            self.step(&tokens, None)?;
        }
        Ok(self.out)
    }

    /// Outputs of the first sequence's tokens after a snapshot, when it begins there again.
    fn after_snapshot(&mut self) -> Result<Vec<f32>> {
        let (at, all) = (4, self.sequences[0].tokens);
        let none = |first: Range<usize>| {
            let mut tokens = vec![0..0; self.at.len()];
            tokens[0] = first;
            tokens
        };
        let (before, rest) = (none(0..all - 2), none(at..all));
        self.step(&before, Some(at))?;
        self.slots.copy(1, self.slot(0))?;
        (self.at[0], self.out[0]) = (at, Vec::new());
        self.step(&rest, None)?;
        Ok(std::mem::take(&mut self.out[0]))
    }

    /// Runs these tokens of each sequence; the state of the first after `snapshot` tokens goes to slot 1, too.
    fn step(&mut self, tokens: &[Range<usize>], snapshot: Option<usize>) -> Result<()> {
        let (mut runs, mut parts, mut row) = (Vec::new(), Vec::new(), 0);
        for (i, tokens) in tokens.iter().enumerate().filter(|(_, tokens)| !tokens.is_empty()) {
            let (slot, rows) = (self.slot(i), tokens.len());
            let snapshot = snapshot.filter(|_| i == 0).map(|rows| RecurrentCut { rows, slot: 1 });
            runs.push(RecurrentRun {
                rows: row..row + rows,
                from: (tokens.start > 0).then_some(slot),
                cuts: snapshot.into_iter().chain([RecurrentCut { rows, slot }]).collect(),
            });
            parts.push((i, tokens.clone()));
            row += rows;
        }
        let runs = StateRuns::new(&self.slots, &runs)?;
        let of: Vec<_> =
            parts.iter().map(|(i, tokens)| (&self.sequences[*i], tokens.clone())).collect();
        let x = self.layer.inputs(&of)?;
        let x: Vec<_> = x.iter().map(|x| x.to_gpu(self.gpu)).collect::<Result<_>>()?;
        let states = GpuStates::new(&self.slots, &runs, BEFORE..BEFORE + self.layer.state_len)?;
        let out = (self.layer.forward)(&x, &mut |run| run(Segments::Gpu(states)))?.to_vec()?;
        let mut out = out.chunks_exact(self.layer.width);
        for (i, tokens) in parts {
            self.at[i] = tokens.end;
            self.out[i].extend(out.by_ref().take(tokens.len()).flatten());
        }
        Ok(())
    }
}

/// Copies of states, and which are finite.
fn states(gpu: &Gpu, rng: &mut Rng) -> Result<Vec<Pair>> {
    let shape = ConvShape { channels: 300, kernel: 5 };
    let layer = Layer::conv(shape, false, rng)?;
    let mut rows = rng.vector(9 * layer.widths[0]);
    rows[8 * layer.widths[0] + 2 + rng.below(300)] = f32::NAN;
    let sequences = [Sequence { tokens: 9, rows: vec![rows] }];
    let slots = StateSlots::new(gpu, 4, layer.state_len)?;
    let (mut got, run) = (Vec::new(), |from: Option<usize>, rows, slot| {
        let cuts = vec![RecurrentCut { rows, slot }];
        StateRuns::new(&slots, &[RecurrentRun { rows: 0..rows, from, cuts }])
    });
    for (from, tokens) in [(None, 0..8), (Some(2), 8..9)] {
        let runs = run(from, tokens.len(), 2)?;
        let x = layer.inputs(&[(&sequences[0], tokens)])?[0].to_gpu(gpu)?;
        let states = GpuStates::new(&slots, &runs, 0..layer.state_len)?;
        (layer.forward)(&[x], &mut |run| run(Segments::Gpu(states)))?;
        if from.is_none() {
            slots.copy(2, 1)?;
        }
        got.extend([2, 1].map(|slot| slots.is_finite(slot)));
    }
    let number = |finite: Result<bool>| Ok(f32::from(u8::from(finite?)));
    let got = got.into_iter().map(number).collect::<Result<_>>()?;
    Ok(vec![Pair { got, want: vec![1.0, 1.0, 0.0, 1.0] }])
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Delta(shape, lengths) => {
                let GatedDeltaShape { key_heads, value_heads, key_dim, value_dim, .. } = shape;
                let name = if shape.decay_per_key { "kda" } else { "gated delta" };
                write!(f, "{name} {key_heads}x{key_dim} {value_heads}x{value_dim} {lengths:?}")
            }
            Self::Mamba2(shape, norm, lengths) => {
                let Mamba2Shape { heads, head_dim, groups, state, .. } = shape;
                let norm = ["", " normed", " normed first"][usize::from(*norm)];
                write!(f, "mamba 2{norm} {heads}x{head_dim} {groups}x{state} {lengths:?}")
            }
            Self::Conv(shape, silu, lengths) => {
                let silu = if *silu { " silu" } else { "" };
                write!(f, "conv{silu} {}x{} {lengths:?}", shape.channels, shape.kernel)
            }
            Self::ShortConv(shape, lengths) => {
                write!(f, "short conv {}x{} {lengths:?}", shape.channels, shape.kernel)
            }
            Self::Scan(shape, lengths) => {
                write!(f, "scan {}x{} {lengths:?}", shape.channels, shape.state)
            }
            Self::Lru(shape, lengths) => {
                write!(f, "rg-lru {}x{} {lengths:?}", shape.heads, shape.head_dim)
            }
            Self::States => write!(f, "copies of states"),
        }
    }
}
