//! taper-models: the logits of a checkpoint, without engine, sampler or text.

use anyhow::Result;
use std::path::Path;
use taper_base::{Phase, SeqId};
use taper_kv_cache::{KvCache, KvConfig, SeqRange};
use taper_kv_codecs::KvGeometry;
use taper_models::{Batch, LoadOptions, StepImages, model_types};
use taper_tensor::ops;
use taper_weights::Checkpoint;

const DIR: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/parity/gemma3-bf16");

fn main() -> Result<()> {
    println!("families: {}", model_types().collect::<Vec<_>>().join(", "));
    let model = taper_models::load(&Checkpoint::open(Path::new(DIR))?, LoadOptions::default())?;
    let info = model.info();
    println!("{}: {} layers, {} parameters", info.family, info.layers, info.parameters);

    let geometry = KvGeometry {
        kv_heads: info.kv_heads,
        head_dim: info.head_dim,
        block_tokens: KvConfig::BLOCK_TOKENS,
    };
    let codec = taper_kv_codecs::parse("f32")?;
    let mut cache = KvCache::new(KvConfig::new(codec, info.layers, geometry, 4));
    let seq = SeqId(0);

    // A prompt, then four greedy steps of one token.
    let mut tokens = vec![3, 141, 59, 26, 53, 58];
    let mut start = 0;
    for _ in 0..5 {
        let len = tokens.len() - start;
        cache.grow(seq, tokens.len())?;
        let positions: Vec<u32> = (start as u32..tokens.len() as u32).collect();
        let last = [len as u32 - 1];
        let phase = info.phase(if start == 0 { Phase::Prefill } else { Phase::Decode });
        let batch = Batch {
            tokens: &tokens[start..],
            positions: &positions,
            logits_at: &last,
            phase,
            adapters: &[],
            images: StepImages::default(),
        };
        let mut session = cache.session(&[SeqRange { seq, start, len }])?;
        let logits = model.forward(&batch, &mut session)?;
        let best = ops::with_host_f32(&logits, |row| {
            let best = row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
            best.map_or((0, 0.0), |(token, logit)| (token as u32, *logit))
        })?;
        println!("after {:>2} tokens: token {:>3}, logit {:.3}", tokens.len(), best.0, best.1);
        start = tokens.len();
        tokens.push(best.0);
    }
    Ok(())
}

#[test]
fn runs() -> Result<()> {
    main()
}
