//! `cargo xtask ppl`: likelihood of held-out text, window by window, against transformers', and the
//! divergence from the `f32` forward of the same weights.

use crate::{
    kv::divergence,
    runner::Piece,
    subject::{Subject, read_json},
};
use anyhow::{Context, Result, ensure};
use indicatif::ProgressBar;
use serde::Deserialize;
use std::{collections::BTreeMap, fs, path::Path, time::Instant};
use taper_base::TokenId;
use taper_models::{Precision, Rounding};
use taper_tensor::pool;

/// Largest difference of the perplexity, in percent, where the cache holds halves at least.
const TOLERANCE_PERCENT: f64 = 0.1;

/// Largest mean KL divergence from the `f32` forward of the same weights, in nats, for such caches too; and
/// where activations have 8 bits in every product with quantized weights.
const TOLERANCE_KL: f64 = 1e-4;
const EIGHT_BITS_KL: f64 = 1e-3;

/// Tokens of a step: their logits are held at once.
const STEP: usize = 512;

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    subject: Subject,
    /// Compute the text in the arithmetic of decode instead of prefill.
    #[arg(long)]
    answers: bool,
}

#[derive(Deserialize)]
struct Fixture {
    context: usize,
    text_sha256: String,
    models: BTreeMap<String, Reference>,
}

#[derive(Deserialize)]
struct Reference {
    tokens: usize,
    scored: usize,
    nll: f64,
    ppl: f64,
    window_nll: Vec<f64>,
}

pub(crate) fn run(root: &Path, Options { subject, answers }: &Options) -> Result<()> {
    let fixtures = root.join("tests/fixtures");
    let mut fixture: Fixture = serde_json::from_value(read_json(&fixtures.join("ppl.json"))?)?;
    let name = subject.reference(root)?;
    let reference = fixture.models.remove(&name).with_context(|| {
        let known: Vec<_> = fixture.models.keys().map(String::as_str).collect();
        format!("ppl.json has no {name}; --reference takes one of {}", known.join(", "))
    })?;
    let text = fs::read_to_string(fixtures.join("heldout.txt")).context("reading heldout.txt")?;
    ensure!(crate::niah::sha256(&text) == fixture.text_sha256, "heldout.txt is another text");
    let ids = subject.tokenizer(root)?.encode(&text, false)?;
    ensure!(ids.len() == reference.tokens, "{} tokens, not {}", ids.len(), reference.tokens);

    let start = Instant::now();
    let mut runner = subject.runner(root, fixture.context)?;
    let mut exact = subject.exact_runner(root, fixture.context)?;
    let mut kl = 0.0;
    let windows = ids.chunks(fixture.context);
    let bar = ProgressBar::new(ids.len() as u64);
    let mut rows = Vec::new();
    for (window, theirs) in windows.zip(&reference.window_nll) {
        let mut nll = 0.0;
        for at in (0..window.len()).step_by(STEP) {
            let tokens = &window[at..(at + STEP).min(window.len())];
            let piece = if *answers { Piece::answer } else { Piece::prompt };
            let piece = [piece(0, at, tokens)];
            let logits = runner.step(&piece, false)?;
            if let Some(exact) = &mut exact {
                let truth = exact.step(&piece, false)?;
                kl += pool::map(truth.len(), |i| divergence(&wide(&truth[i]), &wide(&logits[i])))
                    .iter()
                    .sum::<f64>();
            }
            let next = &window[at + 1..];
            let rows = logits.len().min(next.len());
            nll += pool::map(rows, |i| surprise(&logits[i], next[i])).iter().sum::<f64>();
            bar.inc(tokens.len() as u64);
        }
        runner.release(0);
        exact.iter_mut().for_each(|exact| exact.release(0));
        rows.push((window.len() - 1, nll, *theirs));
    }
    bar.finish_and_clear();

    println!("{:>8} {:>7} {:>14} {:>14} {:>12}", "window", "scored", name, "taper", "difference");
    for (i, &(scored, ours, theirs)) in rows.iter().enumerate() {
        println!(
            "{i:>8} {scored:>7} {theirs:>14.3} {ours:>14.3} {:>10.4} %",
            percent(ours, theirs)
        );
    }
    let scored: usize = rows.iter().map(|r| r.0).sum();
    ensure!(scored == reference.scored, "{scored} tokens scored, not {}", reference.scored);
    let nll: f64 = rows.iter().map(|r| r.1).sum();
    let ppl = (nll / scored as f64).exp();
    let (nll_off, ppl_off) = (percent(nll, reference.nll), percent(ppl, reference.ppl));
    println!("{:>8} {scored:>7} {:>14.3} {nll:>14.3} {nll_off:>10.4} %", "nll", reference.nll);
    println!("{:>8} {:>7} {:>14.4} {ppl:>14.4} {ppl_off:>10.4} %", "ppl", "", reference.ppl);
    let kl = kl / ids.len() as f64;
    if exact.is_some() {
        println!("mean KL of the f32 forward of the same weights to this one: {kl:.2e}");
    }
    println!("{:.1} s, {}", start.elapsed().as_secs_f64(), subject.settings());
    if subject.compresses() {
        return Ok(()); // What a codec costs is for the reader to judge.
    }
    ensure!(
        ppl_off.abs() <= TOLERANCE_PERCENT,
        "the perplexity differs by more than {TOLERANCE_PERCENT} %"
    );
    let eight = match subject.precision()? {
        Precision::Int8 => true,
        Precision::Mixed { decode: Rounding::Int8 } => *answers,
        _ => false,
    };
    let most = if eight { EIGHT_BITS_KL } else { TOLERANCE_KL };
    ensure!(kl <= most, "a KL of more than {most:e}");
    Ok(())
}

pub(crate) fn wide(row: &[f32]) -> Vec<f64> {
    row.iter().copied().map(f64::from).collect()
}

fn percent(ours: f64, theirs: f64) -> f64 {
    (ours / theirs - 1.0) * 100.0
}

/// Negative log likelihood of a token in nats.
pub(crate) fn surprise(logits: &[f32], id: TokenId) -> f64 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&x| f64::from(x - max).exp()).sum();
    sum.ln() - f64::from(logits[id as usize] - max)
}
