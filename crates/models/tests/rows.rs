//! Logits of a few rows are those of all rows: what is not asked for is not computed, and changes nothing.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use taper_base::{Phase, SeqId};
use taper_kv_cache::{KvCache, KvConfig, SeqRange};
use taper_models::{Batch, LoadOptions, Model, load};
use taper_weights::Checkpoint;

const TOKENS: usize = 40;

/// Runs steps of `(end, logits_at)` over one sequence; the logits of each.
fn run(model: &dyn Model, steps: &[(usize, &[u32])]) -> Vec<Vec<Vec<f32>>> {
    let info = model.info();
    let codec = taper_kv_codecs::parse("f32").unwrap();
    let mut cache = KvCache::new(info.cache(codec, KvConfig::BLOCK_TOKENS, 2));
    let (seq, mut start, mut all) = (SeqId(1), 0, Vec::new());
    for &(end, logits_at) in steps {
        cache.grow(seq, end).unwrap();
        let mut session = cache.session(&[SeqRange { seq, start, len: end - start }]).unwrap();
        let tokens: Vec<u32> = (start..end).map(|i| 3 + (i as u32 * 37) % 300).collect();
        let positions: Vec<u32> = (start as u32..end as u32).collect();
        let phase = info.phase(Phase::Prefill);
        let batch =
            Batch { tokens: &tokens, positions: &positions, logits_at, phase, ..Batch::default() };
        let logits = model.forward(&batch, &mut session).unwrap();
        assert_eq!(logits.dims(), [logits_at.len(), info.vocab]);
        all.push(logits.to_vec2().unwrap());
        start = end;
    }
    all
}

#[test]
fn rows_that_nobody_asks_for_change_nothing() {
    let every: Vec<u32> = (0..TOKENS as u32).collect();
    for name in ["qwen3-bf16", "kimi-k2-bf16", "gemma4-text-bf16", "gemma3n-text-f16"] {
        let dir = format!("{}/../../tests/fixtures/parity/{name}", env!("CARGO_MANIFEST_DIR"));
        let checkpoint = Checkpoint::open(Path::new(&dir)).unwrap();
        let model = load(&checkpoint, LoadOptions::default()).unwrap();
        let whole = run(&*model, &[(TOKENS, &every)]).remove(0);
        let few = run(&*model, &[(TOKENS, &[3, 17, 39])]).remove(0);
        assert_eq!(few, [3, 17, 39].map(|row| whole[row].clone()), "{name}");
        let steps = run(&*model, &[(18, &[]), (33, &[0]), (TOKENS, &[6])]);
        assert_eq!(steps[1][0], whole[18], "{name}");
        assert_eq!(steps[2][0], whole[39], "{name}");
    }
}
