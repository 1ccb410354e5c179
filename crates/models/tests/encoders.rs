//! Encoders give the vectors that transformers gives, whatever other texts are computed with them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use safetensors::SafeTensors;
use std::{fs, path::PathBuf};
use taper_models::Encoder;
use taper_weights::Checkpoint;

fn dir(name: &str) -> PathBuf {
    let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/encoders");
    PathBuf::from(fixtures).join(name)
}

/// Tokens, and the vectors that they should have.
fn expected(name: &str) -> Vec<(Vec<u32>, Vec<f32>)> {
    let bytes = fs::read(dir(name).join("expected.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let words = |name: String| tensors.tensor(&name).unwrap().data().to_vec();
    let case = |n| {
        let ids = words(format!("ids.{n}"));
        let ids = ids.chunks_exact(8).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        let hidden = words(format!("hidden.{n}"));
        let hidden = hidden.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        (ids.collect(), hidden.collect())
    };
    [1, 7, 38].map(case).to_vec()
}

#[test]
fn vectors_are_those_of_transformers() {
    for name in ["bert", "xlm-roberta", "modernbert", "modernbert-biases", "nomic_bert"] {
        let encoder = Encoder::load(&Checkpoint::open(&dir(name)).unwrap()).unwrap();
        let cases = expected(name);
        let texts: Vec<_> = cases.iter().map(|(ids, _)| ids.as_slice()).collect();
        let together = encoder.forward(&texts).unwrap();
        for ((ids, want), got) in cases.iter().zip(together) {
            let got = got.to_vec().unwrap();
            let most = got.iter().zip(want).map(|(g, w)| (g - w).abs()).fold(0.0, f32::max);
            assert!(got.len() == want.len() && most < 2e-5, "{name}, {}: {most}", ids.len());
            let alone = encoder.forward(&[ids]).unwrap().remove(0).to_vec().unwrap();
            assert_eq!(alone, got, "{name}: other texts are seen");
        }
    }
}

#[test]
fn texts_that_do_not_fit_are_refused() {
    let encoder = Encoder::load(&Checkpoint::open(&dir("xlm-roberta")).unwrap()).unwrap();
    assert_eq!(encoder.max_tokens(), 38);
    for text in [vec![], vec![5; 39], vec![120]] {
        assert!(encoder.forward(&[&text]).is_err(), "{}", text.len());
    }
}
