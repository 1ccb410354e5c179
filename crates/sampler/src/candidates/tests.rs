//! The filters against a straightforward reference that sorts the whole row, and known results.

use super::*;
use crate::{
    exp::{mass, moment},
    rng::{draw_bits, redraw},
};
use proptest::prelude::*;
use taper_base::Alone;

/// One thread that takes the parts of three.
struct Three;

impl Threads for Three {
    fn count(&self) -> usize {
        3
    }
    fn for_each<T: Send>(&self, items: &mut [T], task: impl Fn(&mut T) + Sync) {
        Alone.for_each(items, task);
    }
}

/// Ids and masses in the order of the last filter, and how many of them it leaves.
struct Reference {
    order: Vec<(TokenId, u64)>,
    kept: usize,
}

impl Reference {
    fn new(logits: &[f32], params: &SamplingParams) -> Self {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let inv_t = (1.0 / params.temperature).min(f32::MAX);
        let mut all: Vec<(f32, TokenId, f32)> =
            logits.iter().zip(0..).map(|(&x, id)| (x, id, (x - max) * inv_t)).collect();
        all.sort_by(|a, b| b.0.partial_cmp(&a.0).unwrap().then(a.1.cmp(&b.1)));
        all.retain(|c| c.2 >= params.min_p.ln());
        if params.top_k > 0 {
            all.truncate(params.top_k as usize);
        }
        let mut all: Vec<(TokenId, f32, u64)> =
            all.into_iter().map(|(_, id, d)| (id, d, mass(d))).filter(|c| c.2 > 0).collect();
        let prefix = |all: &[(TokenId, f32, u64)], p: f32| {
            let total: u64 = all.iter().map(|c| c.2).sum();
            let share = (f64::from(p) * 2f64.powi(32)).ceil() as u128;
            let target = ((share * u128::from(total)).div_ceil(1 << 32) as u64).clamp(1, total);
            let mut before = 0;
            let reaches = |c: &(TokenId, f32, u64)| {
                before += c.2;
                before >= target
            };
            all.iter().position(reaches).unwrap() + 1
        };
        let mut kept = prefix(&all, params.top_p);
        if params.typical_p < 1.0 {
            all.truncate(kept);
            let total: u64 = all.iter().map(|c| c.2).sum();
            let moments: u64 = all.iter().map(|c| moment(c.1)).sum();
            let mean = mean(moments, total);
            all.sort_by(|a, b| {
                let (x, y) = ((-a.1 - mean).abs(), (-b.1 - mean).abs());
                x.total_cmp(&y).then(a.0.cmp(&b.0))
            });
            kept = prefix(&all, params.typical_p);
        }
        Self { order: all.into_iter().map(|(id, _, m)| (id, m)).collect(), kept }
    }

    fn ids(&self) -> Vec<TokenId> {
        let mut ids: Vec<_> = self.order[..self.kept].iter().map(|c| c.0).collect();
        ids.sort_unstable();
        ids
    }

    /// Of all first, then of what comes before the token drawn, until that is kept.
    fn draw(&self, mut bits: u64) -> TokenId {
        let mut left = &self.order[..];
        loop {
            let token = by_mass(left, bits);
            let at = left.iter().position(|c| c.0 == token).unwrap();
            if at < self.kept {
                return token;
            }
            (left, bits) = (&left[..at], redraw(bits));
        }
    }
}

fn by_mass(tokens: &[(TokenId, u64)], bits: u64) -> TokenId {
    let mut tokens = tokens.to_vec();
    tokens.sort_unstable();
    let total: u128 = tokens.iter().map(|c| u128::from(c.1)).sum();
    let point = (u128::from(bits) * total) >> 64;
    let mut sum = 0u128;
    let passes = |c: &&(TokenId, u64)| {
        sum += u128::from(c.1);
        point < sum
    };
    tokens.iter().find(passes).unwrap().0
}

/// The tokens of which [`Candidates::choose`] draws, by ascending id.
fn kept(logits: &[f32], params: &SamplingParams) -> Vec<TokenId> {
    let row = Scanned::new(logits, &Three).unwrap();
    let mut left = Candidates::select(&row, params, &Three);
    let prefix = left.prefix(params);
    let mut ids: Vec<_> = (0..logits.len() as TokenId).collect();
    ids.retain(|&id| {
        prefix.is_none_or(|prefix| {
            let mut before = left.part(left.kept.cut);
            before.keep_before(prefix.order, id);
            before.total() < prefix.target
        }) && left.kept.mass(logits[id as usize], id) > 0
    });
    ids
}

fn rows() -> impl Strategy<Value = Vec<f32>> {
    let logit = prop_oneof![
        8 => -12f32..12.0,
        // Many equals.
        4 => (-3i8..4).prop_map(f32::from),
        1 => Just(f32::NEG_INFINITY),
    ];
    let huge = prop_oneof![Just(1e30f32), Just(-1e30), Just(f32::MAX), Just(f32::MIN), -1f32..1.0];
    prop_oneof![
        6 => prop::collection::vec(logit, 1..400),
        // Long enough for the way by chunk maxima.
        3 => (any::<u64>(), 4_000usize..9_000, 0.01f32..4.0).prop_map(|(seed, n, scale)| {
            (0..n).map(|i| (draw_bits(seed, i as u64) >> 40) as f32 / 1e6 * scale).collect()
        }),
        1 => prop::collection::vec(huge, 1..40),
    ]
    .prop_filter("one is finite", |r: &Vec<f32>| r.iter().any(|x| x.is_finite()))
}

fn params() -> impl Strategy<Value = SamplingParams> {
    let or_off = |off: f32, s: prop::strategy::BoxedStrategy<f32>| prop_oneof![Just(off), s];
    (
        prop_oneof![Just(1f32), 0.05f32..2.0, Just(1e-6)],
        prop_oneof![Just(0u32), 1u32..6, 1u32..500, Just(u32::MAX)],
        or_off(1.0, prop_oneof![0.01f32..1.0, Just(1e-9), 0.95f32..1.0].boxed()),
        or_off(0.0, prop_oneof![0f32..1.0, Just(1.0), 1e-8f32..1e-2].boxed()),
        or_off(1.0, (0.01f32..1.0).boxed()),
    )
        .prop_map(|(temperature, top_k, top_p, min_p, typical_p)| SamplingParams {
            temperature,
            top_k,
            top_p,
            min_p,
            typical_p,
            ..SamplingParams::default()
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn same_set_and_same_draw_as_the_full_sort(
        logits in rows(),
        params in params(),
        bits in prop::collection::vec(any::<u64>(), 4),
    ) {
        let want = Reference::new(&logits, &params);
        let row = Scanned::new(&logits, &Three).unwrap();
        for bits in bits.into_iter().chain([0, u64::MAX]) {
            let got = Candidates::select(&row, &params, &Alone).choose(&params, bits);
            prop_assert_eq!(got, want.draw(bits));
        }
        if logits.len() < 400 {
            prop_assert_eq!(kept(&logits, &params), want.ids());
        }
    }
}

/// Hardly any two logits are the same, and all of them are.
#[test]
fn close_rows() {
    for steps in [1, 3, 1 << 20] {
        let near = |i| (draw_bits(7, i) % steps) as f32 * (1e-3 / steps as f32);
        let logits: Vec<f32> = (0..20_000).map(near).collect();
        let row = Scanned::new(&logits, &Three).unwrap();
        for p in [1e-3, 0.3, 0.9] {
            for (top_p, typical_p) in [(p, 1.0), (1.0, p), (0.8, p)] {
                let params = SamplingParams { top_p, typical_p, ..SamplingParams::default() };
                let want = Reference::new(&logits, &params);
                for bits in (0..40).map(|i| draw_bits(1, i)) {
                    let got = Candidates::select(&row, &params, &Three).choose(&params, bits);
                    assert_eq!(got, want.draw(bits), "{params:?}");
                }
            }
        }
    }
}

fn logs<const N: usize>(probabilities: [f32; N]) -> [f32; N] {
    probabilities.map(f32::ln)
}

/// The cases of `test_top_p_dist_warper` and `test_typical_dist_warper` in transformers.
#[test]
fn transformers_cases() {
    let params = SamplingParams { top_p: 0.79, ..SamplingParams::default() };
    assert_eq!(kept(&logs([0.3, 0.1, 0.1, 0.5]), &params), [0, 3]);
    assert_eq!(kept(&logs([0.15, 0.3, 0.3, 0.25]), &params), [1, 2, 3]);
    let params = SamplingParams { typical_p: 0.5, ..SamplingParams::default() };
    assert_eq!(kept(&logs([0.97, 0.01, 0.01, 0.01]), &params), [0]);
    assert_eq!(kept(&logs([0.4, 0.2, 0.2, 0.2]), &params), [1, 2, 3]);
}

/// The mean of distances is the entropy less the likeliest token's surprise, and the order of tokens
/// that of transformers' logarithms wherever these tell them apart.
#[test]
fn typical_is_by_distance_from_the_entropy() {
    for seed in 0..50u64 {
        let row: Vec<f32> =
            (0..700).map(|i| (draw_bits(seed, i) >> 40) as f32 / 1e6 * (seed % 7) as f32).collect();
        let best = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let p: Vec<f64> = row.iter().map(|x| f64::from(x - best).exp()).collect();
        let total: f64 = p.iter().sum();
        let surprise = |i: usize| (total / p[i]).ln();
        let entropy: f64 = (0..row.len()).map(|i| p[i] / total * surprise(i)).sum();
        let sum = |f: fn(f32) -> u64| row.iter().map(|x| f(x - best)).sum::<u64>();
        let got = f64::from(mean(sum(moment), sum(mass)));
        assert!((got - (entropy - total.ln())).abs() < 1e-5, "{got} {entropy}");
        let params = SamplingParams { typical_p: 0.6, ..SamplingParams::default() };
        let kept = kept(&row, &params);
        let distance = |i: &usize| (surprise(*i) - entropy).abs();
        let (inside, outside): (Vec<_>, Vec<_>) =
            (0..row.len()).partition(|&i| kept.contains(&(i as TokenId)));
        let farthest = inside.iter().map(distance).fold(0.0, f64::max);
        assert!(outside.iter().map(distance).all(|x| x > farthest - 1e-5), "seed {seed}");
        let mass: f64 = inside.iter().map(|&i| p[i] / total).sum();
        assert!(mass > 0.6 - 1e-6, "{mass}");
    }
}

/// Each filter sees what the one before it left, renormalised.
#[test]
fn filters_compose() {
    let row = logs([0.4, 0.3, 0.2, 0.1]);
    // Of all, 0.4 + 0.3 reach 0.55; after top_k 2 the first alone has 0.57.
    let p = SamplingParams { top_p: 0.55, ..SamplingParams::default() };
    assert_eq!(kept(&row, &p), [0, 1]);
    assert_eq!(kept(&row, &SamplingParams { top_k: 2, ..p.clone() }), [0]);
    // min_p 0.6 keeps 0.4 and 0.3 too.
    assert_eq!(kept(&row, &SamplingParams { min_p: 0.6, ..p }), [0]);
}

#[test]
fn edges() {
    let d = SamplingParams::default;
    let row = [1.0, 3.0, 3.0, 2.0];
    assert_eq!(kept(&row, &SamplingParams { top_p: 1e-9, ..d() }), [1]);
    assert_eq!(kept(&row, &SamplingParams { min_p: 1.0, ..d() }), [1, 2]);
    assert_eq!(kept(&row, &SamplingParams { top_k: 1, ..d() }), [1]);
    assert_eq!(kept(&row, &SamplingParams { typical_p: 1e-9, ..d() }).len(), 1);
    assert_eq!(kept(&row, &SamplingParams { temperature: 1e-6, ..d() }), [1, 2]);
    assert_eq!(kept(&row, &SamplingParams { temperature: 1e-45, ..d() }), [1, 2]);
    let one = [f32::NEG_INFINITY, -1e30, f32::NEG_INFINITY];
    for p in [d(), SamplingParams { top_k: 2, top_p: 0.5, typical_p: 0.5, ..d() }] {
        assert_eq!(kept(&one, &p), [1]);
    }
}
