//! GPTQ over whole models: of every family, and nearer to the floats than rounding.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    fs,
    path::{Path, PathBuf},
};
use taper_base::{Phase, SeqId, TokenId};
use taper_kv_cache::{KvCache, KvConfig, SeqRange};
use taper_models::{Batch, GptqReport, LoadOptions, choose_bits, gptq, load};
use taper_tensor::{AffineFormat, DType, ops};
use taper_weights::{
    Checkpoint, ConvertError, ConvertOptions, Override, TargetFormat, convert, convert_with, survey,
};

fn parity() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/parity"))
}

/// Sequences of tokens of a small vocabulary.
fn text(seed: u32, sequences: usize, length: usize, vocab: u32) -> Vec<Vec<TokenId>> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) % vocab
    };
    (0..sequences).map(|_| (0..length).map(|_| next()).collect()).collect()
}

fn calibrated(
    src: &Path,
    dst: &Path,
    bits: u8,
    text: &[Vec<TokenId>],
) -> Result<GptqReport, ConvertError> {
    let mut report = GptqReport::default();
    let mut steps = Vec::new();
    let options = ConvertOptions::new(AffineFormat { bits, group: 32 });
    convert_with(
        src,
        dst,
        &options,
        &mut |weights, matrices| {
            report = gptq(weights, text, matrices, &mut |done, all| steps.push((done, all)))?;
            Ok(())
        },
        &mut |_, _| {},
    )?;
    assert!(steps.is_sorted() && steps.last().is_none_or(|(done, all)| done == all), "{src:?}");
    Ok(report)
}

/// Logits of a text's tokens.
fn logits(dir: &Path, tokens: &[TokenId]) -> Vec<f32> {
    let model = load(&Checkpoint::open(dir).unwrap(), LoadOptions::EXACT).unwrap();
    let info = model.info();
    let codec = taper_kv_codecs::parse("f32").unwrap();
    let size = KvConfig::BLOCK_TOKENS;
    let config = info.cache(codec, size, tokens.len() / size + 2);
    let mut cache = KvCache::new(KvConfig { recurrent: info.states(1, 0), ..config });
    let positions: Vec<u32> = (0..tokens.len() as u32).collect();
    let (seq, len) = (SeqId(0), tokens.len());
    cache.grow(seq, len).unwrap();
    let mut session = cache.session(&[SeqRange { seq, start: 0, len }]).unwrap();
    let phase = Phase::Decode;
    let batch =
        Batch { tokens, positions: &positions, logits_at: &positions, phase, ..Batch::default() };
    let logits = model.forward(&batch, &mut session).unwrap();
    ops::with_host_f32(&logits, <[f32]>::to_vec).unwrap()
}

fn distance(a: &[f32], b: &[f32]) -> f64 {
    let squares = a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2));
    (squares.sum::<f64>() / a.len() as f64).sqrt()
}

#[test]
fn logits_are_nearer_than_those_of_rounding() {
    let dir = tempfile::tempdir().unwrap();
    let (seen, unseen) = (text(1, 8, 96, 64), text(2, 1, 96, 64).remove(0));
    for name in ["qwen3-bf16", "llama-llama3-bf16", "gemma3-bf16", "phi3-window-bf16"] {
        let src = parity().join(name);
        let truth = logits(&src, &unseen);
        for bits in [3, 4] {
            let at = |method: &str| dir.path().join(format!("{name}-{bits}-{method}"));
            let report = calibrated(&src, &at("gptq"), bits, &seen).unwrap();
            assert_eq!(report.too_few_rows, 0, "{name}");
            let options = ConvertOptions::new(AffineFormat { bits, group: 32 });
            convert(&src, &at("rtn"), &options, &mut |_, _| {}).unwrap();
            let size = |method| Checkpoint::open(&at(method)).unwrap().bytes();
            assert_eq!(size("gptq"), size("rtn"), "{name}");
            let ours = distance(&logits(&at("gptq"), &unseen), &truth);
            let plain = distance(&logits(&at("rtn"), &unseen), &truth);
            assert!(ours < 0.9 * plain, "{name} of {bits} bits: {ours} and {plain}");
        }
    }
}

#[test]
fn every_family_that_converts_is_calibrated() {
    let dir = tempfile::tempdir().unwrap();
    let (mut calibrated_models, mut seldom) = (0, 0);
    let mut sources: Vec<_> = fs::read_dir(parity()).unwrap().map(|e| e.unwrap().path()).collect();
    sources.sort();
    for src in sources {
        let Ok(weights) = Checkpoint::open(&src) else { continue };
        if load(&weights, LoadOptions::EXACT).is_err() {
            continue;
        }
        let name = src.file_name().unwrap().to_str().unwrap();
        let dst = dir.path().join(name);
        let seen = text(3, 2, 40, 32);
        let report = match calibrated(&src, &dst, 4, &seen) {
            Ok(report) => report,
            // Layouts that cannot be converted at all, with any method.
            Err(ConvertError::Layout { .. } | ConvertError::NothingToQuantize { .. }) => continue,
            Err(e) => panic!("{name}: {e}"),
        };
        assert!(report.compensated > 0, "{name}");
        seldom += report.too_few_rows;
        calibrated_models += 1;
        fs::remove_dir_all(&dst).unwrap();
    }
    assert!(calibrated_models >= 150, "{calibrated_models} models");
    assert!(seldom > 0, "no expert of any model is seldom chosen");
}

#[test]
fn experts_are_calibrated_with_their_own_rows() {
    let dir = tempfile::tempdir().unwrap();
    let src = parity().join("qwen3-moe-bf16");
    // With few tokens all experts of all layers fall back, and with many hardly any.
    let few = calibrated(&src, &dir.path().join("few"), 4, &text(4, 1, 4, 64)).unwrap();
    let many = calibrated(&src, &dir.path().join("many"), 4, &text(4, 8, 120, 64)).unwrap();
    assert!(few.too_few_rows > many.too_few_rows, "{few:?} {many:?}");
    assert_eq!(few.too_few_rows + few.compensated, many.too_few_rows + many.compensated);
    let tokens = text(5, 1, 64, 64).remove(0);
    let truth = logits(&src, &tokens);
    let options = ConvertOptions::new(AffineFormat { bits: 4, group: 32 });
    convert(&src, &dir.path().join("rtn"), &options, &mut |_, _| {}).unwrap();
    let off = |name: &str| distance(&logits(&dir.path().join(name), &tokens), &truth);
    assert!(off("many") < off("rtn"), "{} {}", off("many"), off("rtn"));
}

#[test]
fn bits_go_where_they_count() {
    let dir = tempfile::tempdir().unwrap();
    let src = parity().join("qwen3-bf16");
    let (seen, tokens) = (text(6, 1, 64, 64), text(7, 1, 64, 64).remove(0));
    let format = AffineFormat { bits: 4, group: 32 };
    let mut options = ConvertOptions::new(format);
    let chosen = |target: f64| {
        let mut layers = Vec::new();
        let mut done = 0;
        survey(&src, &options, &mut |weights, matrices| {
            layers = choose_bits(weights, &seen, matrices, target, &mut |now, _| done = now)?;
            Ok(())
        })
        .map(|()| {
            assert_eq!(done as usize, layers.len());
            layers
        })
    };
    let layers = chosen(5.5).unwrap();
    assert!(layers.iter().all(|l| l.kl > 0.0 && l.kl.is_finite() && l.probed == 4));
    let widths: Vec<u8> = layers.iter().map(|l| l.bits).collect();
    assert!(widths.iter().min() < widths.iter().max(), "{widths:?}");
    let e = chosen(0.5).unwrap_err();
    assert!(
        matches!(&e, ConvertError::Calibration { source } if source.to_string().contains("0.5 bits")),
        "{e}"
    );
    options.overrides = layers
        .iter()
        .map(|l| Override {
            pattern: l.layer.clone(),
            format: Some(AffineFormat { bits: l.bits, ..format }),
        })
        .collect();
    let report = convert(&src, &dir.path().join("mixed"), &options, &mut |_, _| {}).unwrap();
    assert!((5.0..=5.5).contains(&report.bits_per_weight()), "{}", report.bits_per_weight());
    options.overrides.clear();
    convert(&src, &dir.path().join("even"), &options, &mut |_, _| {}).unwrap();
    let truth = logits(&src, &tokens);
    let off = |name: &str| distance(&logits(&dir.path().join(name), &tokens), &truth);
    assert!(off("mixed") < off("even"), "{} {}", off("mixed"), off("even"));
}

#[test]
fn a_text_of_no_tokens_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let src = parity().join("qwen3-bf16");
    for text in [vec![], vec![Vec::new()]] {
        let e = calibrated(&src, &dir.path().join("m"), 4, &text).unwrap_err();
        assert!(e.to_string().contains("no tokens"), "{e}");
    }
    let e = calibrated(&src, &dir.path().join("m"), 4, &[vec![1 << 30]]).unwrap_err();
    assert!(matches!(e, ConvertError::Calibration { .. }), "{e}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    let plain = ConvertOptions::with_target(TargetFormat::Dense(DType::F16));
    let none = survey(&src, &plain, &mut |_, matrices| {
        assert_eq!(matrices.names().count(), 0);
        Ok(())
    });
    assert!(none.is_ok());
}
