//! What the tests of recurrent layers share.

use super::{RecurrentSegment, RunSegments, Segments};
use crate::{Result, TensorError};

/// Numbers from -1 to 1.
pub(super) fn noise(n: usize, seed: u32) -> Vec<f32> {
    let mut x = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
    let mut next = || {
        x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (x >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

/// Runs a step of one sequence in segments that end at `cuts`.
pub(super) fn cut(run: &mut RunSegments<'_>, cuts: &[usize], state: &mut [f32]) -> Result<()> {
    let mut from = 0;
    for &to in cuts {
        run(Segments::Host(&mut [RecurrentSegment { rows: from..to, state }]))?;
        from = to;
    }
    Ok::<_, TensorError>(())
}

/// Checks that a layer gives the output and state of one segment in every other cut of 9 tokens, and that
/// two sequences of a step do not touch each other. `run` runs a step of so many tokens over segments, and
/// `len` is the state's length.
pub(super) fn check_cuts(
    len: usize,
    run: impl Fn(usize, &mut dyn FnMut(&mut RunSegments<'_>) -> Result<()>) -> Result<Vec<f32>>,
) {
    let over = |cuts: &[usize]| {
        let mut state = vec![0.0; len];
        let out = run(9, &mut |f| cut(f, cuts, &mut state));
        (out.unwrap(), state)
    };
    let whole = over(&[9]);
    assert!(whole.0.iter().chain(&whole.1).all(|x| x.is_finite()));
    for at in 1..9 {
        assert_eq!(over(&[at, 9]), whole, "cut at {at}");
    }
    assert_eq!(over(&(1..=9).collect::<Vec<_>>()), whole);

    let mut states = [vec![0.0; len], vec![0.0; len]];
    let [first, second] = &mut states;
    let both = run(9, &mut |f| {
        f(Segments::Host(&mut [
            RecurrentSegment { rows: 0..5, state: first },
            RecurrentSegment { rows: 5..9, state: second },
        ]))
    });
    let (both, width) = (both.unwrap(), whole.0.len() / 9);
    assert_eq!(both[..5 * width], whole.0[..5 * width]);
    assert_ne!(both[5 * width..], whole.0[5 * width..], "the second began anew");

    let mut short = vec![0.0; len - 1];
    let one = |f: &mut RunSegments<'_>, rows, state: &mut [f32]| {
        f(Segments::Host(&mut [RecurrentSegment { rows, state }]))
    };
    let refused = run(2, &mut |f| one(f, 0..2, &mut short));
    assert!(matches!(refused, Err(TensorError::Shape { .. })));
    let mut state = vec![0.0; len];
    let refused = run(2, &mut |f| one(f, 1..3, &mut state));
    assert!(matches!(refused, Err(TensorError::Shape { .. })));
}

/// The largest difference of two lists, relative to the largest number of the second.
pub(super) fn difference(got: &[f32], want: &[f64]) -> f64 {
    assert_eq!(got.len(), want.len());
    let pairs = got.iter().zip(want);
    let worst = pairs.map(|(&g, w)| (f64::from(g) - w).abs()).fold(0.0, f64::max);
    worst / want.iter().fold(0.0f64, |max, w| max.max(w.abs()))
}
