//! The score against its definition, its authors, and the logits that it foretells.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use taper_base::BlockId;
use taper_kv_codecs::{KvGeometry, LayerPages, parse};
use taper_tensor::Tensor;
use taper_triattention::{
    Complex, HeadStatistics, OFFSETS, QueryStatistics, Rope, key_scorer,
    reference::{norm_weights, score_cached, score_unrotated, synthetic_query},
};

/// About normal, from splitmix64.
struct Noise(u64);

impl Noise {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn normal(&mut self) -> f64 {
        (0..12).map(|_| (self.bits() >> 11) as f64 / (1u64 << 53) as f64).sum::<f64>() - 6.0
    }

    fn row(&mut self, n: usize) -> Vec<f64> {
        (0..n).map(|_| self.normal()).collect()
    }
}

/// Queries about a centre of their own, and their statistics.
fn queries(noise: &mut Noise, d: usize, n: usize, spread: f64) -> (Vec<Vec<f64>>, HeadStatistics) {
    let centre = noise.row(d);
    let one = |noise: &mut Noise| centre.iter().map(|c| c + spread * noise.normal()).collect();
    let rows: Vec<Vec<f64>> = (0..n).map(|_| one(noise)).collect();
    let mut gathered = QueryStatistics::new(1, d).unwrap();
    let flat: Vec<f32> = rows.iter().flatten().map(|&x| x as f32).collect();
    gathered.observe(&flat).unwrap();
    (rows, gathered.finish().unwrap().remove(0))
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn moduli(rope: &Rope, key: &[f64]) -> Vec<f64> {
    rope.complex(key).unwrap().iter().map(|k| k.abs()).collect()
}

/// E1.
#[test]
fn three_forms_of_the_score_are_equal() {
    let mut noise = Noise(1);
    let plain = Rope::new(128, 1e6).unwrap();
    let scaled = Rope::of_frequencies(plain.frequencies().to_vec(), 1.35).unwrap();
    for rope in [plain, scaled] {
        for (position, now) in [(0, 1), (17, 5000), (31_000, 31_001), (70_000, 130_000)] {
            let (_, head) = queries(&mut noise, 128, 50, 0.7);
            let key = noise.row(128);
            let want =
                score_unrotated(&rope, &head, &key, f64::from(position), f64::from(now)).unwrap();
            let cached = rope.rotate(&key, f64::from(position)).unwrap();
            let terms: f64 =
                head.modulus.iter().zip(moduli(&rope, &cached)).map(|(q, k)| q * k).sum();
            let near = |got: f64, bound: f64| (got - want).abs() <= bound * terms;
            assert!(near(score_cached(&rope, &head, &cached, f64::from(now)).unwrap(), 1e-10));
            let query = synthetic_query(&rope, &head, f64::from(now)).unwrap();
            let weights = norm_weights(&rope, &head).unwrap();
            assert!(near(dot(&query, &cached) + dot(&weights, &moduli(&rope, &cached)), 1e-10));

            let scorer = key_scorer(&rope, &[head], now).unwrap();
            let key: Vec<f32> = cached.iter().map(|&x| x as f32).collect();
            let mut got = [0.0];
            scorer.score(&key, 1, &mut got, 0).unwrap();
            assert!(near(f64::from(got[0]), 1e-4), "{got:?} {want}");
        }
    }
}

/// E2: and S_norm is nothing.
#[test]
fn queries_without_variance_score_their_true_logits() {
    let mut noise = Noise(2);
    let rope =
        Rope::of_frequencies(Rope::new(64, 1e4).unwrap().frequencies().to_vec(), 1.2).unwrap();
    for _ in 0..20 {
        let (rows, head) = queries(&mut noise, 64, 3, 0.0);
        let (key, position, now) = (noise.row(64), 40.0, 900.0);
        let cached = rope.rotate(&key, position).unwrap();
        let logit =
            |offset: &u32| dot(&rope.rotate(&rows[0], now + f64::from(*offset)).unwrap(), &cached);
        let want = OFFSETS.iter().map(logit).sum::<f64>() / OFFSETS.len() as f64;
        let got = score_cached(&rope, &head, &cached, now).unwrap();
        assert!((got - want).abs() <= 1e-5 * want.abs().max(1.0), "{got} {want}");
        assert!(norm_weights(&rope, &head).unwrap().iter().all(|w| w.abs() < 1e-6));
    }
}

/// The mean logit of queries that vary is S_trig, within what their number allows.
#[test]
fn the_turning_part_is_the_expected_logit() {
    let mut noise = Noise(3);
    let rope = Rope::new(64, 1e6).unwrap();
    let (rows, head) = queries(&mut noise, 64, 4000, 0.5);
    let cached = rope.rotate(&noise.row(64), 10.0).unwrap();
    let now = 600.0;
    let want = dot(&synthetic_query(&rope, &head, now).unwrap(), &cached);
    let logit = |(i, q): (usize, &Vec<f64>)| {
        let offset = f64::from(OFFSETS[i % OFFSETS.len()]);
        dot(&rope.rotate(q, now + offset).unwrap(), &cached)
    };
    let whole = rows.len() / OFFSETS.len() * OFFSETS.len();
    let logits: Vec<_> = rows[..whole].iter().enumerate().map(logit).collect();
    let mean = logits.iter().sum::<f64>() / whole as f64;
    let deviation = (logits.iter().map(|l| (l - mean).powi(2)).sum::<f64>() / whole as f64).sqrt();
    assert!((mean - want).abs() < 5.0 * deviation / (whole as f64).sqrt(), "{mean} {want}");
}

/// E3: high scores are what attention will look at. A port that sorts the other way fails here.
#[test]
fn the_best_tenth_has_higher_logits_than_the_worst() {
    let mut noise = Noise(4);
    let (rope, now, n) = (Rope::new(128, 1e6).unwrap(), 2000.0, 1000);
    let (rows, head) = queries(&mut noise, 128, 64, 0.4);
    let keys: Vec<_> =
        (0..n).map(|p| rope.rotate(&noise.row(128), f64::from(p)).unwrap()).collect();
    let later = |i: usize| rope.rotate(&rows[i], now + f64::from(OFFSETS[i % 17])).unwrap();
    let later: Vec<_> = (0..rows.len()).map(later).collect();
    let logit =
        |key: &Vec<f64>| later.iter().map(|q| dot(q, key)).sum::<f64>() / later.len() as f64;
    let mut ranked: Vec<_> =
        keys.iter().map(|k| (score_cached(&rope, &head, k, now).unwrap(), logit(k))).collect();
    ranked.sort_by(|a, b| b.0.total_cmp(&a.0));
    let mean = |part: &[(f64, f64)]| part.iter().map(|r| r.1).sum::<f64>() / part.len() as f64;
    let (best, all, worst) = (mean(&ranked[..100]), mean(&ranked), mean(&ranked[900..]));
    assert!(best > all + 1.0 && all > worst + 1.0, "{best} {all} {worst}");
}

/// E4.
#[test]
fn without_a_mean_only_moduli_count() {
    let mut noise = Noise(5);
    let rope = Rope::new(32, 1e4).unwrap();
    let modulus: Vec<_> = noise.row(16).iter().map(|x| x.abs()).collect();
    let head = HeadStatistics { mean: vec![Complex::default(); 16], modulus };
    for position in 0..50 {
        let key = rope.rotate(&noise.row(32), f64::from(position)).unwrap();
        let want = dot(&head.modulus, &moduli(&rope, &key));
        for now in [60.0, 4000.0] {
            let got = score_cached(&rope, &head, &key, now).unwrap();
            assert!((got - want).abs() < 1e-12 * want);
        }
    }
}

fn ranks(x: &[f32]) -> Vec<f64> {
    let mut order: Vec<_> = (0..x.len()).collect();
    order.sort_by(|&a, &b| x[a].total_cmp(&x[b]));
    let mut ranks = vec![0.0; x.len()];
    order.iter().enumerate().for_each(|(rank, &i)| ranks[i] = rank as f64);
    ranks
}

fn spearman(a: &[f32], b: &[f32]) -> f64 {
    let (a, b, n) = (ranks(a), ranks(b), a.len() as f64);
    let squares: f64 = a.iter().zip(&b).map(|(a, b)| (a - b).powi(2)).sum();
    1.0 - 6.0 * squares / (n * (n * n - 1.0))
}

/// E6: over a codec's pages, block by block.
#[test]
fn scores_of_four_bit_keys_rank_as_exact_ones() {
    let g = KvGeometry { kv_heads: 2, head_dim: 128, block_tokens: 32 };
    let (rope, n) = (Rope::new(128, 1e6).unwrap(), 500);
    for name in ["turbo4", "taper4"] {
        let mut noise = Noise(6);
        let heads: Vec<_> = (0..4).map(|_| queries(&mut noise, 128, 40, 0.5).1).collect();
        let scorer = key_scorer(&rope, &heads, 600).unwrap();
        let keys: Vec<f32> = (0..2 * n)
            .flat_map(|i| rope.rotate(&noise.row(128), f64::from(i / 2)).unwrap())
            .map(|x| x as f32)
            .collect();
        let mut exact = vec![0.0; 4 * n as usize];
        scorer.score(&keys, 2, &mut exact, 0).unwrap();

        let codec = parse(name).unwrap();
        let blocks: Vec<_> = (0..16).rev().map(BlockId).collect();
        let mut pages = LayerPages::zeroed(codec.block_bytes(g), blocks.len());
        let slots: Vec<_> =
            (0..n as usize).map(|i| blocks[i / 32].0 as usize * 32 + i % 32).collect();
        let rows = Tensor::from_vec(keys, &[n as usize, 2, 128]).unwrap();
        codec.encode(g, &rows, &rows, &slots, &mut pages).unwrap();
        let got = codec.key_scores(g, &scorer, &pages, (&blocks, n as usize)).unwrap();
        for (got, exact) in got.chunks(n as usize).zip(exact.chunks(n as usize)) {
            assert!(spearman(got, exact) >= 0.99, "{name}: {}", spearman(got, exact));
        }
        let few = codec.key_scores(g, &scorer, &pages, (&blocks[..3], 97));
        assert!(few.is_err(), "fewer blocks than tokens");
    }
}

/// E7 on some heads of the authors' statistics, and their scores of keys: `make_triattention.py`.
#[test]
fn the_authors_statistics_and_scores_are_met() {
    let text = include_str!("../../../tests/fixtures/triattention.json");
    let all: serde_json::Value = serde_json::from_str(text).unwrap();
    let list = |v: &serde_json::Value| -> Vec<f64> {
        v.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
    };
    let keys: Vec<_> = all["keys"].as_array().unwrap().iter().map(list).collect();
    let (step, now) = (all["step"].as_f64().unwrap(), all["now"].as_f64().unwrap());
    let models = all["models"].as_object().unwrap();
    assert_eq!(models.len(), 3);
    for model in models.values() {
        let rope = Rope::new(128, model["theta"].as_f64().unwrap()).unwrap();
        let heads: Vec<_> = model["heads"].as_array().unwrap().iter().collect();
        let mut sums = [0.0; 4];
        for theirs in &heads {
            let pairs = list(&theirs["re"]).into_iter().zip(list(&theirs["im"]));
            let mean = pairs.map(|(re, im)| Complex { re, im }).collect();
            let head = HeadStatistics { mean, modulus: list(&theirs["modulus"]) };
            let c = head.concentration();
            let four = [c.bands, c.weighted, c.dominant, c.energy];
            sums.iter_mut().zip(four).for_each(|(sum, x)| *sum += x / heads.len() as f64);
            for ((i, key), want) in keys.iter().enumerate().zip(list(&theirs["scores"])) {
                let got = score_unrotated(&rope, &head, key, step * i as f64, now).unwrap();
                let terms = dot(&head.modulus, &moduli(&rope, key));
                // Theirs are sums in f32 in part.
                assert!((got - want).abs() < 1e-6 * terms, "{got} {want}");
            }
        }
        for (name, got) in ["bands", "weighted", "dominant", "energy"].into_iter().zip(sums) {
            let want = model["concentration"][name].as_f64().unwrap();
            assert!((got - want).abs() < 1e-6, "{name}: {got} {want}");
        }
    }
}
