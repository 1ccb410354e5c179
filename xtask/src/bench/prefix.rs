//! `cargo xtask bench prefix`: time to the first token of prompts that begin like an earlier one.

use super::own::OwnArgs;
use anyhow::{Context, Result, ensure};
use std::{path::PathBuf, time::Instant};
use taper_base::{Engine, Event, GenRequest, SamplingParams, StopRules, TokenId};
use taper_engine::{EngineConfig, KvBudget, LocalEngine, channel};
use taper_models::LoadOptions;
use taper_weights::Checkpoint;

/// What to measure.
#[derive(Debug, clap::Args)]
pub(crate) struct PrefixArgs {
    /// A checkpoint.
    model: PathBuf,
    /// Tokens that the prompts have in common.
    #[arg(long, default_value_t = 16_384)]
    tokens: u32,
    /// Tokens of each prompt's own after them.
    #[arg(long, default_value_t = 32)]
    own: u32,
    #[command(flatten)]
    settings: OwnArgs,
}

/// As many as are at most sent together.
const SEQUENCES: u32 = 4;

pub(crate) fn run(args: &PrefixArgs) -> Result<()> {
    args.settings.set_threads()?;
    let precision = args.settings.precision(SEQUENCES as usize)?;
    let length = args.tokens + args.own + 2;
    let weights = Checkpoint::open(&args.model)?;
    let options =
        LoadOptions { max_model_len: Some(length as usize), precision, ..LoadOptions::default() };
    let model = taper_models::load(&weights, options)
        .with_context(|| format!("loading {}", args.model.display()))?;
    let vocab = model.info().vocab as u32;
    let config = EngineConfig {
        max_model_len: Some(length),
        max_num_seqs: SEQUENCES,
        max_num_batched_tokens: args.settings.chunk as u32,
        max_waiting: SEQUENCES,
        scheme: taper_kv_codecs::parse(&args.settings.kv_cache_dtype)?.into(),
        kv_budget: KvBudget::Tokens(2 * u64::from(length)),
        ..EngineConfig::default()
    };
    let engine = LocalEngine::start(model, &config)?;
    // One short prompt: the first step of a process takes memory and starts threads.
    first_token(&engine, (0..64).map(|i| (i * 7 + 3) % vocab).collect())?;
    let prompt = |own: u32| -> Vec<TokenId> {
        let common = (0..args.tokens).map(|i| i.wrapping_mul(2_654_435_761) % vocab);
        common.chain((0..args.own).map(|i| (i * 31 + own * 17 + 5) % vocab)).collect()
    };
    println!(
        "KV cache {}, {} tokens in common and {} of each prompt's own",
        args.settings.kv_cache_dtype, args.tokens, args.own
    );
    let mut first = None;
    for own in 0..3 {
        let (seconds, cached) = first_token(&engine, prompt(own))?;
        let whole = *first.get_or_insert(seconds);
        let share = 100.0 * seconds / whole;
        println!(
            "prompt {}: {cached} tokens reused, first token after {seconds:.3} s ({share:.1} %)",
            own + 1
        );
    }
    Ok(())
}

/// Seconds until the first token, and tokens that were in the cache.
fn first_token(engine: &LocalEngine, prompt: Vec<TokenId>) -> Result<(f64, u32)> {
    let stop = StopRules { max_tokens: Some(1), ignore_eos: true, ..StopRules::default() };
    let sampling = SamplingParams::greedy();
    let (sink, events) = channel();
    let start = Instant::now();
    engine.submit(GenRequest { prompt, sampling, stop, ..GenRequest::default() }, sink)?;
    let (mut seconds, mut cached) = (None, 0);
    for event in events {
        match event {
            Event::Started { cached_tokens } => cached = cached_tokens,
            Event::Token(_) => seconds = Some(start.elapsed().as_secs_f64()),
            Event::Failed(error) => return Err(error.into()),
            Event::Prompt(_) | Event::Drafted { .. } | Event::Finished(_) => {}
        }
    }
    ensure!(seconds.is_some(), "no token came");
    Ok((seconds.unwrap_or_default(), cached))
}
