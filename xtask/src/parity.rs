//! `cargo xtask parity`: logits against transformers, and every way of cutting a prompt into steps
//! against every other.

pub(crate) mod shared;

use crate::{
    adapters,
    runner::{Piece, Runner, argmax},
};
use anyhow::{Context, Result, bail, ensure};
use safetensors::SafeTensors;
use std::{collections::BTreeSet, fs, path::Path};
use taper_base::TokenId;
use taper_models::{LoadOptions, ModelError, Precision, Rounding};
use taper_tensor::gpu::Gpu;
use taper_weights::Checkpoint;

/// Where the checkpoints are.
const FIXTURES: &str = "tests/fixtures";
const PARITY: &str = "parity";
/// Largest difference of a logit, relative to the range of the reference's logits, in `f32`.
pub(crate) const TOLERANCE: f32 = 1e-4;
/// [`TOLERANCE`] as served, with activations rounded to 8 bits a group or to `bf16`. What it guards
/// against is a wrong kernel; `cargo xtask ppl` says what rounding costs a trained model.
const SERVED_TOLERANCE: f32 = 0.1;
/// [`SERVED_TOLERANCE`] of recurrent layers, whose states carry roundings on from token to token: 0.13 was
/// measured on a processor with AVX-512 BF16 (Zen 4).
const RECURRENT_TOLERANCE: f32 = 0.2;

/// Files of other formats that say what checkpoints of the same names say.
const GGUF: &str = "gguf";

struct Expected {
    prompt: Vec<TokenId>,
    logits: Vec<Vec<f32>>,
    greedy: Vec<TokenId>,
}

/// The checkpoint of this name, or those whose names contain it, in order.
fn names(fixtures: &Path, filter: Option<&str>) -> Result<Vec<String>> {
    let whole = filter.is_some_and(|name| fixtures.join(PARITY).join(name).is_dir());
    let wanted = |name: &str, filter: &str| name == filter || !whole && name.contains(filter);
    let mut names = Vec::new();
    for dir in [PARITY, GGUF].map(|dir| fixtures.join(dir)).iter().filter(|dir| dir.is_dir()) {
        let listed = fs::read_dir(dir).with_context(|| format!("listing {}", dir.display()))?;
        let found = listed.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        names.extend(found.filter(|name| filter.is_none_or(|filter| wanted(name, filter))));
    }
    names.sort();
    ensure!(!names.is_empty(), "no fixture matches");
    Ok(names)
}

/// The first checkpoint of each `model_type`.
pub(crate) fn one_of_each_family(root: &Path) -> Result<Vec<String>> {
    let fixtures = root.join(FIXTURES);
    let mut seen = BTreeSet::new();
    let mut first = Vec::new();
    for name in names(&fixtures, None)? {
        let dir = fixtures.join(PARITY).join(&name);
        if !dir.join("config.json").is_file() {
            continue;
        }
        if seen.insert(Checkpoint::open(&dir)?.config()["model_type"].to_string()) {
            first.push(name);
        }
    }
    Ok(first)
}

/// The checkpoints below `fixtures` whose names contain the filter.
pub(crate) fn run(fixtures: &Path, filter: Option<&str>, gpu: Option<&Gpu>) -> Result<()> {
    let names = names(fixtures, filter)?;
    let columns = ("checkpoint", "tokens", "f32", "as served");
    println!("{:<28} {:>7} {:>10} {:>10}  steps", columns.0, columns.1, columns.2, columns.3);
    let (mut failed, mut left_out) = (0, 0);
    for name in &names {
        match check(fixtures, name, gpu) {
            Ok((tokens, exact, served)) => {
                let served = served.map_or("-".to_owned(), |s| format!("{s:.1e}"));
                println!("{name:<28} {tokens:>7} {exact:>10.1e} {served:>10}  equal");
            }
            Err(error) if matches!(error.downcast_ref(), Some(ModelError::CpuOnly { .. })) => {
                left_out += 1;
                println!("{name:<28} left out: {error:#}");
            }
            Err(error) => {
                failed += 1;
                println!("{name:<28} FAILED: {error:#}");
            }
        }
    }
    let passed = names.len() - failed - left_out;
    println!("{passed} passed, {failed} failed, {left_out} left out");
    let adapters = adapters::run(fixtures, filter, gpu)?;
    if failed > 0 || adapters > 0 {
        bail!("{failed} of {} checkpoints and {adapters} adapters differ", names.len());
    }
    Ok(())
}

/// Returns the prompt's length and the relative difference of its logits, in `f32` and as they are
/// served: from repacked weights, activations rounded as the machine's kernels want them. A GPU keeps
/// weights as stored.
fn check(fixtures: &Path, name: &str, gpu: Option<&Gpu>) -> Result<(usize, f32, Option<f32>)> {
    // What llama.cpp's converter made of a checkpoint is to say what that one says.
    let stem = name.strip_suffix(".gguf");
    let expected = fixtures.join(PARITY).join(stem.unwrap_or(name)).join("expected.safetensors");
    let expected = read(&expected)?;
    let place = fixtures.join(if stem.is_some() { GGUF } else { PARITY }).join(name);
    let exact = check_with(&place, &expected, Precision::F32, gpu)?;
    let served = match gpu {
        Some(_) => None,
        None => Some(served(&place, &expected).context("as served")?),
    };
    Ok((expected.prompt.len(), exact, served))
}

/// The larger of both arithmetics' differences.
fn served(dir: &Path, expected: &Expected) -> Result<f32> {
    let [one, many] = [Rounding::Int16, Rounding::Int8]
        .map(|decode| check_with(dir, expected, Precision::Mixed { decode }, None));
    Ok(one?.max(many?))
}

fn check_with(
    dir: &Path,
    expected: &Expected,
    precision: Precision,
    gpu: Option<&Gpu>,
) -> Result<f32> {
    let exact = precision == Precision::F32;
    let room = expected.prompt.len() + expected.greedy.len();
    let options = LoadOptions { precision, gpu, ..LoadOptions::default() };
    let mut runner = Runner::load(dir, "f32", None, room, options)?;
    let prompt = expected.prompt.as_slice();

    let whole = runner.step(&[Piece::prompt(0, 0, prompt)], false)?;
    let difference = compare(&whole, &expected.logits)?;
    let tolerance = match (exact, runner.info().recurrent.is_empty()) {
        (true, _) => TOLERANCE,
        (false, true) => SERVED_TOLERANCE,
        (false, false) => RECURRENT_TOLERANCE,
    };
    ensure!(difference <= tolerance, "logits differ by {difference:.1e} of their range");

    let mut last = whole[prompt.len() - 1].clone();
    for (i, want) in expected.greedy.iter().enumerate() {
        let got = argmax(&last);
        ensure!(!exact || got == *want, "greedy token {i} is {got}, and transformers' is {want}");
        let piece = Piece::answer(0, prompt.len() + i, std::slice::from_ref(want));
        last = runner.step(&[piece], true)?.remove(0);
    }
    runner.release(0);

    for size in [1, 7, 33] {
        let mut got = Vec::new();
        for (i, tokens) in prompt.chunks(size).enumerate() {
            got.extend(runner.step(&[Piece::prompt(1, i * size, tokens)], false)?);
        }
        runner.release(1);
        ensure!(got == whole, "steps of {size} tokens give other logits than one step");
    }
    let last = runner.step(&[Piece::prompt(2, 0, prompt)], true)?;
    runner.release(2);
    ensure!(last.first() == whole.last(), "logits of the last token alone are other ones");
    mixed(&mut runner, prompt, &whole)?;
    Ok(difference)
}

/// Several sequences with prefixes of the prompt, each cut at another position, in shared steps.
fn mixed(runner: &mut Runner, prompt: &[TokenId], whole: &[Vec<f32>]) -> Result<()> {
    let sizes = [1usize, 5, 17, 40];
    let mut done = [0usize; 4];
    while done.iter().any(|&d| d < prompt.len()) {
        let active: Vec<_> = (0..sizes.len()).filter(|&s| done[s] < prompt.len()).collect();
        let piece = |&s: &usize| {
            let end = (done[s] + sizes[s]).min(prompt.len());
            Piece::prompt(10 + s as u64, done[s], &prompt[done[s]..end])
        };
        let pieces: Vec<_> = active.iter().map(piece).collect();
        let mut rows = runner.step(&pieces, false)?.into_iter();
        for (&s, piece) in active.iter().zip(&pieces) {
            for want in &whole[piece.start..piece.start + piece.tokens.len()] {
                let got = rows.next().context("a row of logits is missing")?;
                ensure!(&got == want, "a mixed batch gives other logits than one alone");
            }
            done[s] = piece.start + piece.tokens.len();
        }
    }
    (0..4).for_each(|s| runner.release(10 + s));
    Ok(())
}

pub(crate) fn compare(got: &[Vec<f32>], want: &[Vec<f32>]) -> Result<f32> {
    ensure!(got.len() == want.len(), "as many rows of logits");
    let all = || want.iter().flatten().copied();
    let range = all().fold(f32::MIN, f32::max) - all().fold(f32::MAX, f32::min);
    let pairs = got.iter().flatten().zip(all());
    let worst = pairs.map(|(g, w)| (g - w).abs()).fold(0.0, f32::max);
    ensure!(got.iter().flatten().all(|x| x.is_finite()), "logits are finite");
    Ok(worst / range)
}

fn read(path: &Path) -> Result<Expected> {
    let bytes = fs::read(path).with_context(|| format!("reading {}", path.display()))?;
    let file = SafeTensors::deserialize(&bytes)?;
    let ids = |name| -> Result<Vec<TokenId>> {
        let data = file.tensor(name)?.data().to_vec();
        let ids = data.as_chunks::<8>().0.iter().map(|b| i64::from_le_bytes(*b));
        Ok(ids.map(TokenId::try_from).collect::<Result<_, _>>()?)
    };
    let logits = file.tensor("logits")?;
    let vocab = *logits.shape().last().context("logits have two dimensions")?;
    let floats = logits.data().as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b));
    let logits = floats.collect::<Vec<_>>().chunks(vocab).map(<[f32]>::to_vec).collect();
    Ok(Expected { prompt: ids("input_ids")?, logits, greedy: ids("greedy")? })
}
