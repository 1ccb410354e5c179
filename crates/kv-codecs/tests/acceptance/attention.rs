//! C13, C14, K1, K3: attention.

use crate::support::{
    ONE_HEAD, Stored, distance, dot, gaussian, near, reference, softmax, square, unit_rows,
};
use taper_kv_codecs::{KvGeometry, PagedCodec, Polar, Rotation, Scale, Scheme};
use taper_tensor::cpu::codes::CodeLevel;

#[test]
fn c13_divergence_follows_the_law() {
    let (d, tokens, deviation) = (128, 4096, 2.0);
    let polar = |bits| Polar::new(Rotation::new(d, 1123).unwrap(), bits);
    for (bits, want, distortion) in [(4, 0.0186, 0.009_24), (3, 0.0693, 0.034_75)] {
        let polar = polar(bits);
        let keys = unit_rows(tokens, d, 30);
        let coded: Vec<_> = keys
            .chunks_exact(d)
            .flat_map(|k| polar.decode(&polar.encode(k, &[1.0]), Scale::Unbiased))
            .collect();
        let (mut total, mut law) = (0.0, 0.0);
        for q in unit_rows(24, d, 31).chunks_exact(d) {
            let logits = |keys: &[f32]| -> Vec<f64> {
                keys.chunks_exact(d).map(|k| deviation * (d as f64).sqrt() * dot(q, k)).collect()
            };
            let (p, r) = (softmax(&logits(&keys)), softmax(&logits(&coded)));
            total += p.iter().zip(&r).map(|(p, r)| p * (p / r).ln()).sum::<f64>() / 24.0;
            let peaks: f64 = p.iter().map(|p| p * p).sum();
            law += 0.5 * deviation * deviation * distortion * (1.0 - peaks) / 24.0;
        }
        near(total, want, 0.10 * want);
        near(total, law, 0.10 * law);
    }
}

#[test]
fn c14_unbiased_values_keep_what_they_share() {
    let (d, tokens) = (128, 4096);
    let shared = gaussian(d, 50);
    let noise = gaussian(tokens * d, 51);
    let values: Vec<_> = noise.iter().enumerate().map(|(i, x)| x + 0.5 * shared[i % d]).collect();
    let weights = |seed| {
        softmax(&gaussian(tokens, seed).iter().map(|x| 0.5 * f64::from(*x)).collect::<Vec<_>>())
    };
    let sum = |p: &[f64], v: &[f32]| -> Vec<f32> {
        let mut out = vec![0.0f64; d];
        for (p, v) in p.iter().zip(v.chunks_exact(d)) {
            out.iter_mut().zip(v).for_each(|(o, v)| *o += p * f64::from(*v));
        }
        out.into_iter().map(|x| x as f32).collect()
    };
    for (bits, most) in [(2, 0.0018), (3, 0.0003)] {
        let polar = Polar::new(Rotation::new(d, 1123).unwrap(), bits);
        let error = |values: &[f32], scale| {
            let coded: Vec<_> = values
                .chunks_exact(d)
                .flat_map(|v| polar.decode(&polar.encode(v, &[1.0]), scale))
                .collect();
            let one = |seed| {
                let p = weights(seed);
                let truth = sum(&p, values);
                distance(&truth, &sum(&p, &coded)) / square(&truth)
            };
            (60..68).map(one).sum::<f64>() / 8.0
        };
        let (unbiased, raw) = (error(&values, Scale::Unbiased), error(&values, Scale::Raw));
        assert!(unbiased <= most, "{bits} bits: {unbiased}");
        assert!(raw >= 5.0 * unbiased, "{bits} bits: {raw} {unbiased}");
        let (unbiased, raw) = (error(&noise, Scale::Unbiased), error(&noise, Scale::Raw));
        near(unbiased / raw, 1.0, 0.15);
    }
}

/// Keys whose logits against [`queries`] have a deviation of 2.
fn sequence(tokens: usize, d: usize) -> (Vec<f32>, Vec<f32>) {
    (gaussian(tokens * d, 70), gaussian(tokens * d, 71))
}

#[test]
fn k01_attention_equals_softmax_over_the_decoded_rows() {
    let d = 128;
    let scale = 2.0 / (d as f32).sqrt();
    for name in ["turbo4", "turbo4v2", "turbo3", "taper4", "taper3", "taper2", "turbo1", "turbo5"] {
        for tokens in [1, 63, 64, 65, 4097] {
            let (k, v) = sequence(tokens, d);
            let stored = Stored::new(name, ONE_HEAD, &k, &v);
            let (k, v) = stored.decode();
            for group in [1, 2, 4, 7, 8, 16] {
                let q = gaussian(group * d, 72);
                let want = reference(&q, &k, &v, d, scale);
                let error = distance(&want, &stored.attend(&q, scale)) / square(&want);
                assert!(error <= 1e-3, "{name}, {tokens} tokens, group {group}: {error}");
                if group >= 8 && tokens > 100 {
                    continue;
                }
                // Every level gives the same integers; only the softmax is summed in floats.
                let portable = PagedCodec::new(name, Scheme::parse(name).unwrap())
                    .with_level(CodeLevel::Portable);
                assert_eq!(stored.attend(&q, scale), stored.attend_with(&portable, &q, scale));
            }
        }
    }
}

#[test]
fn k01_float_and_affine_sides_are_exact() {
    let d = 128;
    let scale = 2.0 / (d as f32).sqrt();
    // Affine codes are multiplied with queries and weights of 15 bits.
    let sides = [("turbo0v0", 1e-5), ("turbo0v8", 3e-4), ("turbo8v0", 3e-4), ("affine4", 3e-4)];
    for (name, most) in sides {
        for tokens in [1, 63, 64, 65, 4097] {
            let (k, v) = sequence(tokens, d);
            let stored = Stored::new(name, ONE_HEAD, &k, &v);
            let (k, v) = stored.decode();
            for group in [1, 4, 7] {
                let q = gaussian(group * d, 72);
                let want = reference(&q, &k, &v, d, scale);
                let got = stored.attend(&q, scale);
                let error = (distance(&want, &got) / square(&want)).sqrt();
                assert!(error <= most, "{name}, {tokens} tokens, group {group}: {error}");
                let portable = PagedCodec::new(name, Scheme::parse(name).unwrap())
                    .with_level(CodeLevel::Portable);
                assert_eq!(got, stored.attend_with(&portable, &q, scale), "{name}");
            }
        }
    }
}

#[test]
fn k01_cuts_of_long_sequences_do_not_show() {
    let g = KvGeometry { kv_heads: 1, head_dim: 64, block_tokens: 64 };
    let tokens = 20_000;
    let (k, v) = sequence(tokens, 64);
    let stored = Stored::new("turbo0v0", g, &k, &v);
    let (k, v) = stored.decode();
    let q = gaussian(2 * 64, 72);
    let want = reference(&q, &k, &v, 64, 0.25);
    let error = (distance(&want, &stored.attend(&q, 0.25)) / square(&want)).sqrt();
    assert!(error <= 1e-5, "{error}");
}

#[test]
fn k03_skipped_values_do_not_show() {
    let d = 128;
    // Peaked attention: most blocks hold nothing.
    let scale = 12.0 / (d as f32).sqrt();
    let (k, v) = sequence(4096, d);
    for name in ["turbo4", "taper3"] {
        let stored = Stored::new(name, ONE_HEAD, &k, &v);
        let with = |threshold| {
            PagedCodec::new(name, Scheme::parse(name).unwrap()).with_sparse_v(threshold)
        };
        for seed in 0..8 {
            let q = gaussian(4 * d, 80 + seed);
            let exact = stored.attend_with(&with(0.0), &q, scale);
            let error = |threshold| {
                let other = stored.attend_with(&with(threshold), &q, scale);
                (distance(&exact, &other) / square(&exact)).sqrt()
            };
            assert!(error(1e-6) <= 1e-5, "{name}: {}", error(1e-6));
            assert_eq!(error(0.0), 0.0);
            // And it does skip.
            assert!(error(0.3) > 0.0, "{name}");
        }
    }
}
