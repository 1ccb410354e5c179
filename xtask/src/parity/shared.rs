//! An engine on a GPU, of a model with recurrent layers: sequences that share a prefix say what each says alone.

use anyhow::{Context, Result, bail, ensure};
use std::path::Path;
use taper_base::{Engine, Event, GenRequest, SamplingParams, StopRules, TokenId};
use taper_engine::{EngineConfig, Events, KvBudget, LocalEngine, channel};
use taper_models::{LoadOptions, Model, Precision};
use taper_tensor::gpu::Gpu;
use taper_weights::Checkpoint;

/// Tokens that the sequences share beyond the first snapshot.
const BEYOND: usize = 14;
/// Tokens that each has alone.
const OWN: [usize; 2] = [23, 4];
const ANSWER: usize = 6;

/// Runs it with a checkpoint of the fixtures below a directory.
pub(crate) fn run(fixtures: &Path, name: &str, gpu: Option<&Gpu>) -> Result<()> {
    let dir = fixtures.join(super::PARITY).join(name);
    let prompt = super::read(&dir.join("expected.safetensors"))?.prompt;
    check(&dir, &prompt, gpu.context("a GPU")?)?;
    println!("{name}: two sequences after a prefix say what each says alone: 1 passed");
    Ok(())
}

/// Runs two sequences alone and, once their prefix is known, together.
fn check(dir: &Path, prompt: &[TokenId], gpu: &Gpu) -> Result<()> {
    let (model, config) = (load(dir, gpu)?, config(true, gpu)?);
    let plan = config.plan(model.info())?;
    let states = plan.caches.first().and_then(|cache| cache.recurrent.as_ref());
    let shared = states.context("no states")?.interval + BEYOND;
    let stem: Vec<_> = prompt.iter().copied().cycle().take(shared).collect();
    let requests = OWN.map(|n| request([&stem[..], &prompt[prompt.len() - n..]].concat()));
    let engine = LocalEngine::start(load(dir, gpu)?, &self::config(false, gpu)?)?;
    let mut alone = Vec::new();
    for request in &requests {
        alone.push(answer(submit(&engine, request)?)?.0);
    }
    let engine = LocalEngine::start(model, &config)?;
    answer(submit(&engine, &request(stem))?)?;
    let mut open = Vec::new();
    for request in &requests {
        open.push(submit(&engine, request)?);
    }
    for (events, alone) in open.into_iter().zip(alone) {
        let (tokens, cached) = answer(events)?;
        ensure!(cached > 0, "a known prefix is computed again");
        ensure!(tokens == alone, "{tokens:?} after a shared prefix, and {alone:?} alone");
    }
    Ok(())
}

fn load(dir: &Path, gpu: &Gpu) -> Result<Box<dyn Model>> {
    let weights = Checkpoint::open(dir)?;
    let precision = Precision::F32;
    let options = LoadOptions { precision, gpu: Some(gpu), ..LoadOptions::default() };
    Ok(taper_models::load(&weights, options)?)
}

fn config(prefix_caching: bool, gpu: &Gpu) -> Result<EngineConfig> {
    Ok(EngineConfig {
        max_num_seqs: 4,
        // Cuts that are no snapshots.
        max_num_batched_tokens: 150,
        scheme: taper_kv_codecs::parse_on("f32", gpu)?.into(),
        exact: None,
        prefix_caching,
        kv_budget: KvBudget::Tokens(4096),
        ..EngineConfig::default()
    })
}

fn request(prompt: Vec<TokenId>) -> GenRequest {
    let max_tokens = Some(ANSWER as u32);
    GenRequest {
        prompt,
        sampling: SamplingParams::greedy(),
        stop: StopRules { max_tokens, ignore_eos: true, ..StopRules::default() },
        ..GenRequest::default()
    }
}

fn submit(engine: &LocalEngine, request: &GenRequest) -> Result<Events> {
    let (sink, events) = channel();
    engine.submit(request.clone(), sink).context("a request is refused")?;
    Ok(events)
}

/// An answer's tokens, and how many of its prompt were known.
fn answer(events: Events) -> Result<(Vec<TokenId>, u32)> {
    let (mut tokens, mut cached) = (Vec::new(), 0);
    for event in events {
        match event {
            Event::Started { cached_tokens } => cached = cached_tokens,
            Event::Token(token) => tokens.push(token.id),
            Event::Failed(error) => bail!("an answer failed: {error}"),
            _ => {}
        }
    }
    ensure!(tokens.len() == ANSWER, "{} tokens of {ANSWER}", tokens.len());
    Ok((tokens, cached))
}
