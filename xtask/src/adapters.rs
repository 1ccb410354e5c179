//! Part of `cargo xtask parity`: logits with LoRA adapters against PEFT on transformers and mlx-lm, alone and beside
//! other sequences, on the device that is asked for.

use crate::parity::{TOLERANCE, compare};
use anyhow::{Context, Result, ensure};
use safetensors::SafeTensors;
use std::{fs, path::Path};
use taper_base::{Phase, SeqId, TokenId};
use taper_kv_cache::{KvCache, KvConfig, SeqRange};
use taper_models::{Adapter, Batch, LoadOptions, Model, ModelError, Precision};
use taper_tensor::gpu::Gpu;
use taper_weights::Checkpoint;

/// A sequence and its adapter.
type Sequence<'a> = (&'a [TokenId], Option<&'a Adapter>);

/// Checks the adapters whose names match, and returns how many differ.
pub(crate) fn run(fixtures: &Path, filter: Option<&str>, gpu: Option<&Gpu>) -> Result<usize> {
    let dir = fixtures.join("adapters");
    if !dir.is_dir() {
        return Ok(0);
    }
    let mut names: Vec<_> = fs::read_dir(&dir)
        .with_context(|| format!("listing {}", dir.display()))?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| filter.is_none_or(|f| name.contains(f)))
        .collect();
    names.sort();
    let mut failed = 0;
    for name in &names {
        match check(fixtures, name, gpu) {
            Ok(difference) => println!("{name:<36} {difference:>10.1e}  equal"),
            Err(error) if matches!(error.downcast_ref(), Some(ModelError::CpuOnly { .. })) => {
                println!("{name:<36} left out: {error:#}");
            }
            Err(error) => {
                failed += 1;
                println!("{name:<36} FAILED: {error:#}");
            }
        }
    }
    Ok(failed)
}

fn check(fixtures: &Path, name: &str, gpu: Option<&Gpu>) -> Result<f32> {
    let (base, _) = name.split_once("--").context("adapters are named CHECKPOINT--NAME")?;
    let weights = Checkpoint::open(&fixtures.join("parity").join(base))?;
    let options = LoadOptions { precision: Precision::F32, gpu, ..LoadOptions::default() };
    let model = taper_models::load(&weights, options)?;
    let dir = fixtures.join("adapters").join(name);
    let targets = model.adapter_targets().context("the model takes no adapters")?;
    let adapter = targets.load(&dir, None)?;
    let (ids, want) = expected(&dir.join("expected.safetensors"))?;
    let run = |sequences: &[Sequence<'_>], chunk| steps(&*model, gpu, sequences, chunk);
    let got = run(&[(&ids, Some(&adapter))], ids.len())?.remove(0);
    let plain = run(&[(&ids, None)], ids.len())?.remove(0);
    let difference = compare(&got, &want)?;
    ensure!(difference <= TOLERANCE, "logits differ by {difference:.1e} of their range");
    ensure!(compare(&plain, &want)? > 100.0 * TOLERANCE, "the adapter changes nothing");
    let mixed = run(&[(&ids, None), (&ids, Some(&adapter)), (&ids[2..9], None)], 5)?;
    ensure!(mixed[0] == plain, "a sequence without an adapter has other logits beside one with it");
    ensure!(mixed[1] == got, "a mixed batch gives other logits than the sequence alone");
    Ok(difference)
}

/// Logits of sequences that run together, in steps of so many tokens of each.
fn steps(
    model: &dyn Model,
    gpu: Option<&Gpu>,
    sequences: &[Sequence<'_>],
    chunk: usize,
) -> Result<Vec<Vec<Vec<f32>>>> {
    let info = model.info();
    let codec = match gpu {
        Some(gpu) => taper_kv_codecs::parse_on("f32", gpu)?,
        None => taper_kv_codecs::parse("f32")?,
    };
    let config = info.cache(codec, KvConfig::BLOCK_TOKENS, 4 * sequences.len());
    let recurrent = info.states(sequences.len(), 0);
    let mut cache = KvCache::new(KvConfig { recurrent, ..config });
    let mut all = vec![Vec::new(); sequences.len()];
    let longest = sequences.iter().map(|(tokens, _)| tokens.len()).max().unwrap_or(0);
    for start in (0..longest).step_by(chunk) {
        let (mut tokens, mut positions, mut adapters) = (Vec::new(), Vec::new(), Vec::new());
        let (mut ranges, mut of) = (Vec::new(), Vec::new());
        for (i, &(own, adapter)) in sequences.iter().enumerate() {
            let end = own.len().min(start + chunk);
            if start < end {
                let seq = SeqId(i as u64);
                cache.grow(seq, end)?;
                ranges.push(SeqRange { seq, start, len: end - start });
                tokens.extend_from_slice(&own[start..end]);
                positions.extend(start as u32..end as u32);
                adapters.resize(tokens.len(), adapter);
                of.resize(tokens.len(), i);
            }
        }
        let logits_at: Vec<_> = (0..tokens.len() as u32).collect();
        let mut session = cache.session(&ranges)?;
        let batch = Batch {
            tokens: &tokens,
            positions: &positions,
            logits_at: &logits_at,
            phase: info.phase(Phase::Prefill),
            adapters: &adapters,
            ..Batch::default()
        };
        let logits = model.forward(&batch, &mut session)?.to_vec2()?;
        logits.into_iter().zip(of).for_each(|(row, i)| all[i].push(row));
    }
    Ok(all)
}

fn expected(path: &Path) -> Result<(Vec<TokenId>, Vec<Vec<f32>>)> {
    let bytes = fs::read(path).with_context(|| format!("reading {}", path.display()))?;
    let file = SafeTensors::deserialize(&bytes)?;
    let words =
        |name| Ok::<_, anyhow::Error>(file.tensor(name)?.data().as_chunks::<4>().0.to_vec());
    let ids: Vec<_> = words("input_ids")?.into_iter().map(TokenId::from_le_bytes).collect();
    let logits: Vec<_> = words("logits")?.into_iter().map(f32::from_le_bytes).collect();
    let vocab = logits.len().checked_div(ids.len()).filter(|&n| n > 0).context("no logits")?;
    Ok((ids, logits.chunks(vocab).map(<[f32]>::to_vec).collect()))
}
