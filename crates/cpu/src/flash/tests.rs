//! Every level against f64, and rows alone against rows in a batch.

use super::*;

pub(super) fn noise(n: usize, seed: u64) -> Vec<f32> {
    let f = |i: usize| ((i as f64 + 1.3) * (seed as f64 + 0.7) * 12.9898).sin() * 43_758.545;
    (0..n).map(|i| (f(i) - f(i).floor()) as f32 * 4.0 - 2.0).collect()
}

/// Softmax attention of one row in f64.
pub(super) fn dense(
    q: &[f32],
    k: &[f32],
    v: &[f32],
    d: usize,
    soft_cap: Option<f32>,
    seen: Range<usize>,
) -> Vec<f64> {
    let dk = q.len();
    let dot =
        |j: usize| -> f64 { (0..dk).map(|p| f64::from(q[p]) * f64::from(k[j * dk + p])).sum() };
    let cap = |s: f64| soft_cap.map_or(s, |cap| f64::from(cap) * (s / f64::from(cap)).tanh());
    let logits: Vec<_> = seen.clone().map(|j| cap(dot(j))).collect();
    let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let total: f64 = logits.iter().map(|l| (l - max).exp()).sum();
    let mut out = vec![0.0; d];
    for (l, j) in logits.iter().zip(seen) {
        for (e, o) in out.iter_mut().enumerate() {
            *o += (l - max).exp() / total * f64::from(v[j * d + e]);
        }
    }
    out
}

#[test]
fn pages_add_up_to_softmax_attention_on_every_level() {
    let (rows, n, dk, d, page) = (6, 75, 24, 20, 16);
    let (q, k, v) = (noise(rows * dk, 1), noise(n * dk, 2), noise(n * d, 3));
    let seen = |row: usize| (row * 9).saturating_sub(20)..(row * 13 + 5).min(n);
    for level in Level::available() {
        let mut tile = FlashTile::default();
        tile.force_level(level);
        tile.start(&q, rows, d, None, Arithmetic::Exact);
        let mut total = Attended::default();
        total.clear(rows, d);
        for start in (0..n).step_by(2 * page) {
            let end = (start + 2 * page).min(n);
            let pages: Vec<_> = (start..end)
                .step_by(page)
                .map(|at| {
                    let to = (at + page).min(n);
                    (Floats::F32(&k[at * dk..to * dk]), Floats::F32(&v[at * d..to * d]))
                })
                .collect();
            tile.step(&pages, [None; 2], |row| {
                let clamp = |x: usize| x.clamp(start, end) - start;
                clamp(seen(row).start)..clamp(seen(row).end)
            });
            if start > 0 {
                total.merge(tile.state());
                tile.restart();
            }
        }
        total.merge(tile.state());
        for row in 0..rows {
            let mut got = vec![0.0; d];
            total.finish(row, None, &mut got);
            let want = dense(&q[row * dk..][..dk], &k, &v, d, None, seen(row));
            for (g, w) in got.iter().zip(want) {
                assert!((f64::from(*g) - w).abs() < 2e-5, "{level:?} row {row}: {g} {w}");
            }
        }
    }
}

#[test]
fn a_sink_takes_weight_and_gives_nothing() {
    let mut tile = FlashTile::default();
    tile.start(&[1.0], 1, 1, None, Arithmetic::Exact);
    tile.step(&[(Floats::F32(&[0.0]), Floats::F32(&[6.0]))], [None; 2], |_| 0..1);
    let mut out = [0.0];
    for (sink, want) in
        [(Some(2f32.ln()), 2.0), (Some(-200.0), 6.0), (Some(200.0), 0.0), (None, 6.0)]
    {
        tile.state().finish(0, sink, &mut out);
        assert!((out[0] - want).abs() < 1e-6, "{sink:?}: {out:?}");
    }
    tile.start(&[1.0], 1, 1, None, Arithmetic::Exact);
    tile.state().finish(0, Some(-1.0), &mut out);
    assert_eq!(out, [0.0], "nothing was seen");
}

#[test]
fn a_row_alone_and_rows_in_company_agree_to_the_bit() {
    let (most, n, d) = (37, 50, 40);
    let (q, k, v) = (noise(most * d, 4), noise(n * d, 5), noise(n * d, 6));
    let half = |x: &[f32]| x.iter().copied().map(half::f16::from_f32).collect::<Vec<_>>();
    let (k16, v16) = (half(&k), half(&v));
    let pages = [(Floats::F32(&k), Floats::F16(&v16)), (Floats::F16(&k16), Floats::F32(&v))];
    let attend = |level, rows: Range<usize>| {
        let mut tile = FlashTile::default();
        tile.force_level(level);
        let q = &q[rows.start * d..rows.end * d];
        tile.start(q, rows.len(), d, Some(3.0), Arithmetic::Exact);
        tile.step(&pages[..1], [None; 2], |row| 0..((rows.start + row) * 3).min(n));
        tile.step(&pages, [None; 2], |row| rows.start + row..2 * n - rows.start - row);
        let mut out = vec![0.0; rows.len() * d];
        out.chunks_mut(d).enumerate().for_each(|(row, out)| tile.state().finish(row, None, out));
        out
    };
    for level in Level::available() {
        let alone: Vec<_> = (0..most).flat_map(|row| attend(level, row..row + 1)).collect();
        for rows in [9, 16, most] {
            assert_eq!(attend(level, 0..rows), alone[..rows * d], "{level:?}, {rows} rows");
        }
    }
}
