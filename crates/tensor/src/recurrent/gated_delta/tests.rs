//! Gated DeltaNet and Kimi Delta Attention: cuts, sequences beside each other, and the chunked form.

use super::{
    super::noise::{check_cuts, cut, difference, noise},
    *,
};

const SHAPE: GatedDeltaShape = GatedDeltaShape {
    key_heads: 2,
    value_heads: 4,
    key_dim: 4,
    value_dim: 3,
    kernel: 4,
    decay_per_key: false,
};
const PER_KEY: GatedDeltaShape = GatedDeltaShape { decay_per_key: true, ..SHAPE };

fn params(shape: GatedDeltaShape) -> GatedDeltaParams {
    GatedDeltaParams {
        conv: noise(shape.channels() * shape.kernel, 1),
        a_log: noise(shape.value_heads, 2),
        dt_bias: noise(shape.decays(), 3),
        write: 1.0,
        gate: OutputGate::Silu,
        norm: noise(shape.value_dim, 4),
        norm_eps: 1e-6,
    }
}

fn inputs(shape: GatedDeltaShape, t: usize) -> [Tensor; 4] {
    let widths = [shape.channels(), shape.values(), shape.value_heads, shape.decays()];
    let mut seed = 10;
    widths.map(|width| {
        seed += 1;
        Tensor::from_vec(noise(t * width, seed), &[t, width]).unwrap()
    })
}

fn run(shape: GatedDeltaShape, params: GatedDeltaParams, t: usize) -> Vec<f32> {
    let [qkv, z, b, a] = &inputs(shape, t);
    let mut state = vec![0.0; shape.state_len()];
    let layer = GatedDelta::new(shape, params).unwrap();
    let out: Result<Tensor> =
        layer.forward(GatedDeltaInputs { qkv, z, b, a }, |f| cut(f, &[t], &mut state));
    out.unwrap().to_vec().unwrap()
}

#[test]
fn every_cut_gives_identical_bits() {
    for shape in [SHAPE, PER_KEY] {
        let layer = GatedDelta::new(shape, params(shape)).unwrap();
        check_cuts(shape.state_len(), |t, over| {
            let [qkv, z, b, a] = &inputs(shape, t);
            layer.forward(GatedDeltaInputs { qkv, z, b, a }, over)?.to_vec()
        });
    }
}

/// What is known of a head's token, in 64 bits.
struct Token {
    q: Vec<f64>,
    k: Vec<f64>,
    v: Vec<f64>,
    /// Logarithms of decays, one a key channel.
    g: Vec<f64>,
    beta: f64,
}

fn sigmoid64(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// A head's tokens after the convolution, its SiLU and the norms.
fn tokens(shape: GatedDeltaShape, p: &GatedDeltaParams, t: usize, h: usize) -> Vec<Token> {
    let GatedDeltaShape { key_heads, value_heads, key_dim, value_dim, kernel, .. } = shape;
    let [qkv, _, b, a] = inputs(shape, t).map(|x| x.to_vec().unwrap());
    let convolved = |i: usize, c: usize| {
        let seen = (0..kernel).filter_map(|j| Some((j, (i + j + 1).checked_sub(kernel)?)));
        let term = |(j, at): (usize, usize)| {
            f64::from(p.conv[c * kernel + j]) * f64::from(qkv[at * shape.channels() + c])
        };
        let x: f64 = seen.map(term).sum();
        x * sigmoid64(x)
    };
    let unit = |x: Vec<f64>, scale: f64| {
        let length = (x.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
        x.into_iter().map(|x| x / length * scale).collect::<Vec<_>>()
    };
    let (key, keys) = (h / (value_heads / key_heads) * key_dim, key_heads * key_dim);
    let decay = |i: usize, c: usize| {
        let at = if shape.decay_per_key { h * key_dim + c } else { h };
        let x = f64::from(a[i * shape.decays() + at]) + f64::from(p.dt_bias[at]);
        let rate = f64::from(p.a_log[h]).exp();
        -rate * x.exp().ln_1p()
    };
    let token = |i: usize| {
        let part = |from: usize, n: usize| (0..n).map(|c| convolved(i, from + c)).collect();
        Token {
            q: unit(part(key, key_dim), (key_dim as f64).powf(-0.5)),
            k: unit(part(keys + key, key_dim), 1.0),
            v: part(2 * keys + h * value_dim, value_dim),
            g: (0..key_dim).map(|c| decay(i, c)).collect(),
            beta: f64::from(p.write) * sigmoid64(f64::from(b[i * value_heads + h])),
        }
    };
    (0..t).map(token).collect()
}

/// A head's reads of the state by the chunked form of the papers: in each chunk of 64 tokens a triangular
/// system gives what every token writes.
fn chunked(tokens: &[Token], value_dim: usize) -> Vec<f64> {
    let key_dim = tokens[0].k.len();
    let mut state = vec![0.0; key_dim * value_dim];
    let mut out = Vec::new();
    for chunk in tokens.chunks(64) {
        let mut sums = Vec::<Vec<f64>>::new();
        for token in chunk {
            let before = sums.last().cloned().unwrap_or_else(|| vec![0.0; key_dim]);
            sums.push(before.iter().zip(&token.g).map(|(sum, g)| sum + g).collect());
        }
        // What of `y` at `j` is left at `i`, seen by `x`.
        let seen = |x: &[f64], i: usize, y: &[f64], j: usize| -> f64 {
            (0..key_dim).map(|c| x[c] * y[c] * (sums[i][c] - sums[j][c]).exp()).sum()
        };
        let held = |x: &[f64], i: usize, d: usize| -> f64 {
            (0..key_dim).map(|c| x[c] * sums[i][c].exp() * state[c * value_dim + d]).sum()
        };
        let mut written = Vec::<Vec<f64>>::new();
        for (i, token) in chunk.iter().enumerate() {
            let value = |d: usize| {
                let others = written.iter().enumerate();
                let others = others.map(|(j, w)| seen(&token.k, i, &chunk[j].k, j) * w[d]);
                token.beta * (token.v[d] - held(&token.k, i, d) - others.sum::<f64>())
            };
            let own = (0..value_dim).map(value).collect();
            written.push(own);
            out.extend((0..value_dim).map(|d| {
                let own = written.iter().enumerate();
                let own = own.map(|(j, w)| seen(&token.q, i, &chunk[j].k, j) * w[d]);
                held(&token.q, i, d) + own.sum::<f64>()
            }));
        }
        let last = chunk.len() - 1;
        let mut next = vec![0.0; state.len()];
        for (c, all) in sums[last].iter().enumerate() {
            for d in 0..value_dim {
                let own = chunk
                    .iter()
                    .zip(&written)
                    .enumerate()
                    .map(|(j, (token, w))| token.k[c] * (all - sums[j][c]).exp() * w[d]);
                let at = c * value_dim + d;
                next[at] = all.exp() * state[at] + own.sum::<f64>();
            }
        }
        state = next;
    }
    out
}

/// The layer's output by [`chunked`].
fn by_chunks(shape: GatedDeltaShape, p: &GatedDeltaParams, t: usize) -> Vec<f64> {
    let (n, values) = (shape.value_dim, shape.values());
    let z = inputs(shape, t)[1].to_vec().unwrap();
    let mut out = vec![0.0; t * values];
    for h in 0..shape.value_heads {
        let read = chunked(&tokens(shape, p, t, h), n);
        for (i, row) in read.chunks(n).enumerate() {
            let mean = row.iter().map(|x| x * x).sum::<f64>() / n as f64;
            for (d, x) in row.iter().enumerate() {
                let at = i * values + h * n + d;
                let z = f64::from(z[at]);
                let gate = match p.gate {
                    OutputGate::Silu => z * sigmoid64(z),
                    OutputGate::Sigmoid => sigmoid64(z),
                };
                let normed = x / (mean + f64::from(p.norm_eps)).sqrt();
                out[at] = normed * f64::from(p.norm[d]) * gate;
            }
        }
    }
    out
}

#[test]
fn the_recurrence_is_the_chunked_form() {
    let kimi = GatedDeltaParams { gate: OutputGate::Sigmoid, ..params(PER_KEY) };
    let twice = GatedDeltaParams { write: 2.0, ..params(PER_KEY) };
    for (shape, params) in [(SHAPE, params(SHAPE)), (PER_KEY, kimi), (PER_KEY, twice)] {
        for t in [1, 63, 64, 65, 130, 1000, 4097] {
            let got = run(shape, params.clone(), t);
            let worst = difference(&got, &by_chunks(shape, &params, t));
            assert!(worst <= 1e-5, "{t} tokens differ by {worst}");
        }
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let [qkv, z, b, a] = &inputs(SHAPE, 2);
    let layer = GatedDelta::new(SHAPE, params(SHAPE)).unwrap();
    for wrong in [
        GatedDeltaInputs { qkv: z, z, b, a },
        GatedDeltaInputs { qkv, z: b, b, a },
        GatedDeltaInputs { qkv, z, b, a: z },
    ] {
        let out = layer.forward(wrong, |_| Ok::<_, TensorError>(()));
        assert!(matches!(out, Err(TensorError::Shape { op: OP, .. })));
    }
    assert!(GatedDelta::new(GatedDeltaShape { key_heads: 3, ..SHAPE }, params(SHAPE)).is_err());
    assert!(GatedDelta::new(PER_KEY, params(SHAPE)).is_err());
    assert!(GatedDelta::new(SHAPE, GatedDeltaParams { conv: vec![], ..params(SHAPE) }).is_err());
}
