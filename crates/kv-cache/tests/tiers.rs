//! Blocks whose rows are on disk alone: how much stays in memory, and that attention does not notice.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{fs, path::Path, sync::Arc};
use taper_base::{LayerId, SeqId, TokenId};
use taper_kv_cache::{
    DiskTier, ExactRoom, KvCache, KvConfig, KvScheme, Recall, RecallCounts, SeqRange, StateSession,
};
use taper_kv_codecs::{AttnParams, Exact, KvGeometry};
use taper_tensor::{Projected, Tensor, ops};

const BLOCK: usize = 32;
const LAYERS: usize = 3;
const HEADS: usize = 4;
const DIM: usize = 64;
const PROMPT: usize = 1500;
/// Tokens of a step.
const CHUNK: usize = 96;
/// Tokens that the second layer sees.
const NEAR: usize = 100;

fn cache(codec: &str, exact: Option<Exact>) -> KvCache {
    let geometry = KvGeometry { kv_heads: 2, head_dim: DIM, block_tokens: BLOCK };
    let codec = taper_kv_codecs::parse(codec).unwrap();
    let room = |tokens| ExactRoom::for_sequences(tokens, 4, 512, BLOCK);
    KvCache::new(KvConfig {
        exact: exact.map(room),
        prefix_caching: true,
        ..KvConfig::new(
            KvScheme::of_layers(&[codec.clone(), codec.clone(), codec]).unwrap(),
            LAYERS,
            geometry,
            256,
        )
    })
}

fn cold(dir: &Path, codec: &str, exact: Option<Exact>, hot: usize) -> KvCache {
    let tier = Arc::new(DiskTier::open_alone(dir, 1 << 30).unwrap());
    cache(codec, exact).with_disk(tier, "model").with_hot_tokens(hot)
}

fn prompt(salt: u32) -> Vec<TokenId> {
    (0..PROMPT as u32 + 64).map(|i| (i * 7 + salt) % 97).collect()
}

/// One step: rows that depend on their tokens and positions. What each layer gives.
fn step(cache: &mut KvCache, seq: SeqId, tokens: &[TokenId], start: usize) -> Vec<f32> {
    cache.grow(seq, tokens.len()).unwrap();
    let len = tokens.len() - start;
    let mut session = cache.session(&[SeqRange { seq, start, len }]).unwrap();
    let layer = |layer: usize| {
        let rows = |heads: usize, by: f32| {
            let value = |i: usize| {
                let (at, element) = (start + i / (heads * DIM), i % (heads * DIM));
                (tokens[at] as f32 * by + at as f32 * 0.013 + (element * (layer + 1)) as f32 * 0.31)
                    .sin()
            };
            let rows = (0..len * heads * DIM).map(value).collect();
            Tensor::from_vec(rows, &[len, heads * DIM]).unwrap()
        };
        let [q, k, v] = [rows(HEADS, 0.7), rows(2, 0.37), rows(2, 0.11)];
        let rows =
            Projected { q: &q, k: &k, v: &v, head_dim: DIM, norms: None, rope: None, next: None };
        let window = (layer == 1).then_some(NEAR);
        let params = AttnParams { window, ..AttnParams::new(0.2) };
        let out = session.attend(LayerId(layer as u16), &rows, &params);
        ops::with_host_f32(&out.unwrap(), <[f32]>::to_vec).unwrap()
    };
    let out = (0..LAYERS).flat_map(layer).collect();
    cache.publish(seq, tokens);
    out
}

/// A prompt in steps and some tokens after it, each seen by `look`; what the layers gave.
fn run(
    cache: &mut KvCache,
    seq: SeqId,
    tokens: &[TokenId],
    pages: usize,
    mut look: impl FnMut(&KvCache),
) -> Vec<Vec<f32>> {
    cache.set_recall(seq, Some(Recall { pages, prompt_tokens: PROMPT })).unwrap();
    let mut at = cache.adopt(seq, &tokens[..PROMPT - 1]);
    let mut outs = Vec::new();
    while at < tokens.len() {
        let next = if at < PROMPT { (at / CHUNK * CHUNK + CHUNK).min(PROMPT) } else { at + 1 };
        let out = step(cache, seq, &tokens[..next], at);
        look(cache);
        // The last positions are the same whatever came from the cache.
        if at >= PROMPT {
            outs.push(out);
        }
        at = next;
    }
    outs
}

/// Blocks of a cache that are in memory.
fn resident(cache: &KvCache) -> usize {
    let usage = cache.usage();
    usage.used_blocks - usage.cold_blocks
}

const CACHES: [(&str, Option<Exact>); 3] = [
    ("f16", None),
    ("taper4", Some(Exact { sink_tokens: 32, recent_tokens: 32 })),
    ("turbo3", Some(Exact { sink_tokens: 64, recent_tokens: 96 })),
];

#[test]
fn memory_is_what_a_step_reads_and_the_hot_tokens() {
    const PAGES: usize = 3;
    for (codec, exact) in CACHES {
        let tokens = prompt(0);
        let want = run(&mut cache(codec, exact), SeqId(1), &tokens, PAGES, |_| {});
        for hot in [0, 160, 640] {
            let dir = tempfile::tempdir().unwrap();
            let mut cold = cold(dir.path(), codec, exact, hot);
            let mut peak = 0;
            let got =
                run(&mut cold, SeqId(1), &tokens, PAGES, |cache| peak = peak.max(resident(cache)));
            assert!(got == want, "{codec}, {hot} tokens hot");
            // Of a prompt a step has its own blocks and those of the step before, which it may begin with; the window's,
            // and those before a unit of a file is whole. Of a decode: pages, 256 recent tokens, and what is no whole
            // page.
            let recent = exact.map_or(BLOCK, |exact| exact.recent_tokens);
            let prompt = (2 * CHUNK + NEAR + 2 * recent).div_ceil(BLOCK) + 2;
            let decode = 2 * PAGES + (64 + 256 + 64 + 64 + recent).div_ceil(BLOCK);
            let most = hot / BLOCK + prompt.max(decode);
            assert!(peak <= most, "{codec}, {hot} tokens hot: {peak} blocks, not {most}");
            assert!(resident(&cold) < cold.usage().used_blocks);
            let RecallCounts { evicted_blocks, recalled_blocks, streamed_blocks, .. } =
                cold.take_recall_counts();
            assert!(evicted_blocks > 0 && recalled_blocks > 0 && streamed_blocks > 0);
            // Another sequence begins with the same tokens, whose blocks are cold.
            cold.release(SeqId(1));
            cold.forget(SeqId(1));
            assert_eq!((cold.usage().used_blocks, cold.usage().cold_blocks), (0, 0));
            assert!(run(&mut cold, SeqId(2), &tokens, PAGES, |_| {}) == want, "{codec}, again");
        }
    }
}

/// Who attends to all pages has them in memory, wherever they were.
#[test]
fn a_sequence_that_leaves_nothing_out_is_in_memory() {
    let (codec, exact) = CACHES[1];
    let (dir, tokens) = (tempfile::tempdir().unwrap(), prompt(3));
    let mut cold = cold(dir.path(), codec, exact, 0);
    run(&mut cold, SeqId(1), &tokens, 2, |_| {});
    assert!(cold.usage().cold_blocks > 0);
    let mut plain = cache(codec, exact);
    let [got, want] = [&mut cold, &mut plain].map(|cache| {
        let found = cache.adopt(SeqId(2), &tokens[..PROMPT - 1]);
        for at in (found..PROMPT).step_by(CHUNK) {
            step(cache, SeqId(2), &tokens[..(at + CHUNK).min(PROMPT)], at);
        }
        let out = step(cache, SeqId(2), &tokens[..PROMPT + 1], PROMPT);
        (out, found > 0)
    });
    let ((got, found), (want, _)) = (got, want);
    assert!(found);
    assert!(got == want);
    assert!(cold.take_lost().is_empty());
}

/// A unit that cannot be read: its sequence is told of, others are not, and nobody finds its blocks any more.
#[test]
fn a_lost_unit_is_its_sequences_alone() {
    let (codec, exact) = CACHES[1];
    let (dir, tokens, other) = (tempfile::tempdir().unwrap(), prompt(5), prompt(6));
    let mut cold = cold(dir.path(), codec, exact, 0);
    let want = run(&mut cold, SeqId(1), &tokens, 2, |_| {});
    assert!(cold.take_lost().is_empty());
    for file in fs::read_dir(dir.path()).unwrap() {
        fs::remove_file(file.unwrap().path()).unwrap();
    }
    run(&mut cold, SeqId(2), &other, 2, |_| {});
    assert!(cold.take_lost().is_empty(), "it has nothing to do with them");
    cold.release(SeqId(1));
    cold.set_recall(SeqId(1), Some(Recall { pages: 2, prompt_tokens: PROMPT })).unwrap();
    let found = cold.adopt(SeqId(1), &tokens[..PROMPT - 1]);
    assert!(found > PROMPT / 2);
    step(&mut cold, SeqId(1), &tokens[..PROMPT], found);
    assert_eq!(cold.take_lost().into_iter().collect::<Vec<_>>(), [SeqId(1)]);
    // A file that nobody has missed yet is missed later.
    for _ in 0..PROMPT / BLOCK {
        cold.release(SeqId(1));
        let got = run(&mut cold, SeqId(1), &tokens, 2, |_| {});
        if cold.take_lost().is_empty() {
            assert!(got == want);
            return;
        }
    }
    panic!("it is lost again and again");
}

/// A disk that does not answer for a moment: when it does again, pages leave memory again.
#[test]
fn after_a_disk_has_failed_for_a_while_pages_leave_memory_again() {
    let (codec, exact) = CACHES[0];
    let (dir, tokens) = (tempfile::tempdir().unwrap(), prompt(7));
    let mut cold = cold(dir.path(), codec, exact, 0);
    let want = run(&mut cold, SeqId(1), &tokens, 2, |_| {});
    let cooled = cold.usage().cold_blocks;
    assert!(cooled > 0);
    let away = |from: &str, to: &str| {
        for file in fs::read_dir(dir.path()).unwrap() {
            let path = file.unwrap().path();
            if path.extension().is_some_and(|e| e == from) {
                fs::rename(&path, path.with_extension(to)).unwrap();
            }
        }
    };
    // Directories in their places cannot be read.
    away("kv", "away");
    for file in fs::read_dir(dir.path()).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_some_and(|e| e == "away") {
            fs::create_dir(path.with_extension("kv")).unwrap();
        }
    }
    cold.release(SeqId(1));
    cold.set_recall(SeqId(1), Some(Recall { pages: 2, prompt_tokens: PROMPT })).unwrap();
    let found = cold.adopt(SeqId(1), &tokens[..PROMPT - 1]);
    step(&mut cold, SeqId(1), &tokens[..PROMPT], found);
    assert_eq!(cold.take_lost().len(), 1);
    cold.release(SeqId(1));
    for file in fs::read_dir(dir.path()).unwrap() {
        let path = file.unwrap().path();
        if path.is_dir() {
            fs::remove_dir(path).unwrap();
        }
    }
    away("away", "kv");
    // Computed again, the pages are not trusted to the disk at once, and then they are.
    let before = run(&mut cold, SeqId(1), &tokens, 2, |_| {});
    assert!(before == want);
    assert!(cold.usage().cold_blocks < cooled, "it is not trusted yet");
    let mut steps = 0;
    for _ in 0..20 {
        cold.release(SeqId(1));
        assert!(run(&mut cold, SeqId(1), &tokens, 2, |_| steps += 1) == want);
        if cold.usage().cold_blocks == cooled {
            break;
        }
    }
    assert!(cold.take_lost().is_empty());
    assert_eq!(cold.usage().cold_blocks, cooled, "after {steps} steps");
}
