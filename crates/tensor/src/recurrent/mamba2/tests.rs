//! Mamba 2: cuts, sequences beside each other, and the chunked form.

use super::{
    super::noise::{check_cuts, cut, difference, noise},
    *,
};

const SHAPE: Mamba2Shape = Mamba2Shape { heads: 4, head_dim: 3, groups: 2, state: 5, kernel: 4 };

fn params(norm: Option<bool>) -> Mamba2Params {
    let gains = noise(SHAPE.inner(), 6);
    Mamba2Params {
        conv: noise(SHAPE.channels() * SHAPE.kernel, 1),
        conv_bias: Some(noise(SHAPE.channels(), 2)),
        a_log: noise(SHAPE.heads, 3),
        dt_bias: noise(SHAPE.heads, 4),
        skip: noise(SHAPE.heads, 5),
        time_step: (0.0, f32::INFINITY),
        factors: None,
        norm: norm.map(|before_gate| GatedNorm { gains, eps: 1e-5, before_gate }),
    }
}

fn input(t: usize) -> Tensor {
    Tensor::from_vec(noise(t * SHAPE.projected(), 10), &[t, SHAPE.projected()]).unwrap()
}

fn run(params: Mamba2Params, t: usize) -> Vec<f32> {
    let mut state = vec![0.0; SHAPE.state_len()];
    let out: Result<Tensor> =
        Mamba2::new(SHAPE, params).unwrap().forward(&input(t), |f| cut(f, &[t], &mut state));
    out.unwrap().to_vec().unwrap()
}

#[test]
fn every_cut_gives_identical_bits() {
    for norm in [None, Some(false), Some(true)] {
        let layer = Mamba2::new(SHAPE, params(norm)).unwrap();
        check_cuts(SHAPE.state_len(), |t, over| layer.forward(&input(t), over)?.to_vec());
    }
}

/// The output before gate and norm, in 64 bits, by the chunked form of the paper: chunks of 64 tokens that
/// meet in a state.
fn chunked(t: usize) -> Vec<f64> {
    let Mamba2Shape { heads, head_dim, groups, state, .. } = SHAPE;
    let (inner, p) = (SHAPE.inner(), params(None));
    let projected = input(t).to_vec().unwrap();
    let row = |i: usize| &projected[i * SHAPE.projected()..][..SHAPE.projected()];
    let mixed: Vec<Vec<f64>> = (0..t).map(|i| convolved(&p, i, row)).collect();
    let mut out = vec![0.0; t * inner];
    for h in 0..heads {
        let group = h / (heads / groups) * state;
        let x = |i: usize, d: usize| mixed[i][h * head_dim + d];
        let b = |i: usize, n: usize| mixed[i][inner + group + n];
        let c = |i: usize, n: usize| mixed[i][inner + groups * state + group + n];
        let dt = |i: usize| {
            let x = f64::from(row(i)[inner + SHAPE.channels() + h]) + f64::from(p.dt_bias[h]);
            x.exp().ln_1p()
        };
        let rate = -f64::from(p.a_log[h]).exp();
        let mut before = vec![0.0; head_dim * state];
        for from in (0..t).step_by(64) {
            let to = (from + 64).min(t);
            let mut sums = vec![0.0; to - from + 1];
            for i in from..to {
                sums[i - from + 1] = sums[i - from] + rate * dt(i);
            }
            let sum = |i: usize| sums[i - from + 1];
            for i in from..to {
                for d in 0..head_dim {
                    let own = (from..=i).map(|j| {
                        let read: f64 = (0..state).map(|n| c(i, n) * b(j, n)).sum();
                        read * (sum(i) - sum(j)).exp() * dt(j) * x(j, d)
                    });
                    let earlier = (0..state).map(|n| c(i, n) * before[d * state + n]);
                    out[i * inner + h * head_dim + d] = own.sum::<f64>()
                        + sum(i).exp() * earlier.sum::<f64>()
                        + f64::from(p.skip[h]) * x(i, d);
                }
            }
            for d in 0..head_dim {
                for n in 0..state {
                    let own = (from..to)
                        .map(|j| (sum(to - 1) - sum(j)).exp() * dt(j) * x(j, d) * b(j, n));
                    let at = d * state + n;
                    before[at] = sum(to - 1).exp() * before[at] + own.sum::<f64>();
                }
            }
        }
    }
    out
}

/// What the convolution and its SiLU make of a token.
fn convolved<'a>(p: &Mamba2Params, i: usize, row: impl Fn(usize) -> &'a [f32]) -> Vec<f64> {
    let kernel = SHAPE.kernel;
    let channel = |c: usize| {
        let seen = (0..kernel).filter_map(|j| Some((j, (i + j + 1).checked_sub(kernel)?)));
        let term = |(j, at): (usize, usize)| {
            f64::from(p.conv[c * kernel + j]) * f64::from(row(at)[SHAPE.inner() + c])
        };
        let bias = p.conv_bias.as_ref().map_or(0.0, |bias| f64::from(bias[c]));
        let x = bias + seen.map(term).sum::<f64>();
        x / (1.0 + (-x).exp())
    };
    (0..SHAPE.channels()).map(channel).collect()
}

#[test]
fn the_recurrence_is_the_chunked_form() {
    for t in [1, 63, 64, 65, 130, 1000, 4097] {
        let want = chunked(t);
        let inputs = input(t).to_vec().unwrap();
        let z = |i: usize| {
            let (row, d) = (i / SHAPE.inner(), i % SHAPE.inner());
            f64::from(inputs[row * SHAPE.projected() + d])
        };
        let projected: Vec<f64> = (0..want.len()).map(z).collect();
        let gated: Vec<f64> =
            want.iter().zip(projected).map(|(y, z)| y * z / (1.0 + (-z).exp())).collect();
        let worst = difference(&run(params(None), t), &gated);
        assert!(worst <= 1e-5, "{t} tokens differ by {worst}");
    }
}

#[test]
fn norms_are_over_groups_before_or_after_the_gate() {
    let layer = |before| Mamba2::new(SHAPE, params(Some(before))).unwrap();
    let (z, y) = (noise(SHAPE.inner(), 20), noise(SHAPE.inner(), 21));
    let silu = |z: f32| z / (1.0 + (-z).exp());
    let gains = noise(SHAPE.inner(), 6);
    for before in [false, true] {
        let got = layer(before).gate(&z, &y);
        let gate = |i: usize| if before { 1.0 } else { silu(z[i]) };
        let (size, mut want) = (SHAPE.inner() / SHAPE.groups, Vec::new());
        for i in 0..SHAPE.inner() {
            let group = i / size * size..(i / size + 1) * size;
            let squares: f32 = group.map(|j| (y[j] * gate(j)).powi(2)).sum();
            let normed = y[i] * gate(i) / (squares / size as f32 + 1e-5).sqrt() * gains[i];
            want.push(f64::from(if before { normed * silu(z[i]) } else { normed }));
        }
        assert!(difference(&got, &want) < 1e-6);
    }
}

#[test]
fn factors_multiply_what_is_projected() {
    let factors = [2.0, 0.5, -1.0, 3.0, 0.25];
    let widths = [SHAPE.inner(), SHAPE.inner(), 10, 10, SHAPE.heads];
    let row = factors.iter().zip(widths).flat_map(|(f, n)| std::iter::repeat_n(*f, n));
    let row: Vec<f32> = row.collect();
    let data = input(5).to_vec().unwrap();
    let scaled: Vec<f32> = data.iter().zip(row.iter().cycle()).map(|(x, f)| x * f).collect();
    let scaled = Tensor::from_vec(scaled, &[5, SHAPE.projected()]).unwrap();
    let mut state = vec![0.0; SHAPE.state_len()];
    let plain = Mamba2::new(SHAPE, params(None)).unwrap();
    let want: Result<Tensor> = plain.forward(&scaled, |f| cut(f, &[5], &mut state));
    let got = run(Mamba2Params { factors: Some(factors), ..params(None) }, 5);
    assert_eq!(got, want.unwrap().to_vec().unwrap());
}

#[test]
fn time_steps_stay_in_their_range() {
    let limited = |time_step| run(Mamba2Params { time_step, ..params(None) }, 5);
    assert_ne!(limited((0.0, 0.5)), limited((0.0, f32::INFINITY)));
    assert_ne!(limited((0.7, 9.0)), limited((0.0, f32::INFINITY)));
}

#[test]
fn what_does_not_fit_is_refused() {
    let wrong = Tensor::from_vec(vec![0.0; 8], &[2, 4]).unwrap();
    let layer = Mamba2::new(SHAPE, params(None)).unwrap();
    let out = layer.forward(&wrong, |_| Ok::<_, TensorError>(()));
    assert!(matches!(out, Err(TensorError::Shape { op: OP, .. })));
    assert!(Mamba2::new(Mamba2Shape { groups: 3, ..SHAPE }, params(None)).is_err());
    assert!(Mamba2::new(Mamba2Shape { heads: 0, ..SHAPE }, params(None)).is_err());
    let short = Mamba2Params { skip: vec![1.0], ..params(None) };
    assert!(Mamba2::new(SHAPE, short).is_err());
    let backwards = Mamba2Params { time_step: (2.0, 1.0), ..params(None) };
    assert!(Mamba2::new(SHAPE, backwards).is_err());
}
