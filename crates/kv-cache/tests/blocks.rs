//! Who holds which block: room, sharing, eviction, and exact blocks.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use proptest::prelude::*;
use std::collections::HashMap;
use taper_base::{BlockId, SeqId};
use taper_kv_cache::{ExactRoom, ImageSpan, KvCache, KvCacheError, KvConfig, SeqRange};
use taper_kv_codecs::{Exact, KvGeometry};

const BLOCK: usize = 4;

fn config(blocks: usize) -> KvConfig {
    let geometry = KvGeometry { kv_heads: 2, head_dim: 8, block_tokens: BLOCK };
    let codec = taper_kv_codecs::parse("f32").unwrap();
    KvConfig { prefix_caching: true, ..KvConfig::new(codec, 3, geometry, blocks) }
}

fn compressed(blocks: usize, sequences: usize) -> KvConfig {
    let codec = taper_kv_codecs::parse("turbo4").unwrap();
    let tokens = Exact { sink_tokens: 4, recent_tokens: 8 };
    let exact = Some(ExactRoom::for_sequences(tokens, sequences, 16, BLOCK));
    KvConfig { scheme: codec.into(), exact, ..config(blocks) }
}

#[test]
fn blocks_come_and_go_and_bytes_are_exact() {
    let mut c = KvCache::new(config(5));
    assert_eq!(c.usage().bytes_per_block, 3 * 2 * 2 * 4 * 8 * 4);
    assert_eq!((c.config().bytes(), c.usage().used_bytes()), (5 * 3 * 2 * 2 * 4 * 8 * 4, 0));
    c.grow(SeqId(1), 5).unwrap();
    c.grow(SeqId(1), 8).unwrap();
    assert_eq!(c.blocks(SeqId(1)), [BlockId(0), BlockId(1)]);
    c.grow(SeqId(2), 1).unwrap();
    let full = c.grow(SeqId(1), 21).unwrap_err();
    assert!(matches!(full, KvCacheError::Full { needed: 4, free: 2 }));
    assert_eq!(c.blocks(SeqId(1)).len(), 2, "a failed growth changes nothing");
    assert_eq!(c.usage().used_blocks, 3);
    c.release(SeqId(1));
    c.release(SeqId(1));
    c.release(SeqId(2));
    assert_eq!(c.usage().used_blocks, 0);
    c.grow(SeqId(3), 20).unwrap();
}

#[test]
fn a_step_beyond_the_room_is_refused() {
    let mut c = KvCache::new(config(2));
    c.grow(SeqId(1), 4).unwrap();
    let range = SeqRange { seq: SeqId(1), start: 3, len: 2 };
    assert!(matches!(c.session(&[range]), Err(KvCacheError::NoRoom { end: 5, room: 4, .. })));
}

#[test]
fn a_prefix_is_shared_while_it_is_held_and_after() {
    let mut c = KvCache::new(config(6));
    let tokens: Vec<u32> = (0..11).collect();
    c.grow(SeqId(1), 11).unwrap();
    assert_eq!(c.adopt(SeqId(2), &tokens), 0, "nothing is computed yet");
    c.publish(SeqId(1), &tokens);
    assert_eq!(c.adopt(SeqId(1), &tokens), 0, "it holds blocks already");
    assert_eq!(c.adopt(SeqId(2), &tokens), 8, "two full blocks");
    assert_eq!(c.blocks(SeqId(2)), &c.blocks(SeqId(1))[..2]);
    assert_eq!(c.usage().used_blocks, 3, "shared blocks count once");
    c.grow(SeqId(2), 11).unwrap();
    assert_ne!(c.blocks(SeqId(2))[2], c.blocks(SeqId(1))[2], "what is written is nobody else's");
    assert_eq!(c.adopt(SeqId(3), &[0, 1, 2, 3, 9, 9, 9, 9]), 4, "up to the first difference");
    (1..4).for_each(|i| c.release(SeqId(i)));
    assert_eq!((c.usage().used_blocks, c.usage().idle_blocks), (0, 2));
    assert_eq!(c.adopt(SeqId(4), &tokens), 8, "idle blocks are found again");
    assert_eq!(c.usage().idle_blocks, 0);
    assert_eq!(c.adopt(SeqId(5), &tokens[1..]), 0, "another beginning");
}

#[test]
fn memory_is_given_back_the_longest_unused_first() {
    let mut c = KvCache::new(compressed(40, 2));
    let prompts = [[1; 8], [2; 8]];
    for (seq, tokens) in (1..).map(SeqId).zip(&prompts) {
        c.grow(seq, 8).unwrap();
        c.session(&[SeqRange { seq, start: 0, len: 8 }]).unwrap();
        c.publish(seq, tokens);
        c.release(seq);
    }
    assert_eq!(c.usage().idle_blocks, 4);
    let one = 2 * c.config().bytes_per_block() + c.config().bytes_per_exact_block();
    c.give_back(one);
    assert_eq!(c.usage().idle_blocks, 2);
    assert_eq!((c.adopt(SeqId(3), &prompts[0]), c.adopt(SeqId(4), &prompts[1])), (0, 8));
    c.give_back(0);
    assert_eq!(c.usage().used_blocks, 2, "what is held stays");
    c.release(SeqId(4));
    c.give_back(0);
    assert_eq!((c.usage().idle_blocks, c.usage().exact_blocks), (0, 0));
    c.grow(SeqId(5), 160).unwrap();
}

#[test]
fn prefixes_of_different_salts_are_not_shared() {
    let mut c = KvCache::new(config(12));
    let tokens = [3; 8];
    let salts = [None, Some("a"), Some("b"), Some("a"), None];
    for (id, salt) in (1..).map(SeqId).zip(salts) {
        c.set_salt(id, salt.map(Into::into));
        let known = c.adopt(id, &tokens);
        let before = salts[..id.0 as usize - 1].contains(&salt);
        assert_eq!(known, if before { 8 } else { 0 }, "{salt:?}");
        c.grow(id, 8).unwrap();
        c.publish(id, &tokens);
    }
}

#[test]
fn blocks_with_images_are_shared_only_where_the_images_are_the_same() {
    let mut c = KvCache::new(config(40));
    let tokens = [3; 16];
    // Of the second block of four, and of the third; `None` is text of the same tokens.
    let prompts = [
        (Some((5..10, 1)), 0),
        (Some((5..10, 1)), 16),
        (Some((5..10, 2)), 4),
        (Some((6..10, 1)), 4),
        (None, 4),
        (Some((12..13, 1)), 12),
        (Some((5..10, 2)), 16),
    ];
    for (id, (image, known)) in (1..).map(SeqId).zip(prompts) {
        let image = image.map(|(tokens, name)| ImageSpan { tokens, hash: [name; 32] });
        c.set_images(id, image.clone().into_iter().collect());
        assert_eq!(c.adopt(id, &tokens), known, "{image:?}");
        c.grow(id, 16).unwrap();
        c.publish(id, &tokens);
        assert_eq!(c.may_share(SeqId(1), id), id.0 <= 2);
    }
    // What is said of a sequence ends with it.
    c.release(SeqId(1));
    c.forget(SeqId(1));
    assert_eq!(c.adopt(SeqId(1), &tokens), 16, "as the text");
}

#[test]
fn without_prefix_caching_nothing_is_found() {
    let mut c = KvCache::new(KvConfig { prefix_caching: false, ..config(6) });
    c.grow(SeqId(1), 8).unwrap();
    c.publish(SeqId(1), &[1; 8]);
    assert_eq!((c.adopt(SeqId(2), &[1; 8]), c.prefix_tokens()), (0, 0));
    c.release(SeqId(1));
    assert_eq!(c.usage().idle_blocks, 0);
}

#[test]
fn the_longest_unused_goes_first_and_ends_go_before_beginnings() {
    let mut c = KvCache::new(config(5));
    let (a, b) = ([1; 8], [2; 12]);
    for (seq, tokens) in [(1, &a[..]), (2, &b[..])] {
        c.grow(SeqId(seq), tokens.len()).unwrap();
        c.publish(SeqId(seq), tokens);
    }
    c.release(SeqId(2));
    c.release(SeqId(1));
    // Everything idle; a new sequence takes the end of `b`, which was released first.
    c.grow(SeqId(3), 4).unwrap();
    assert_eq!((c.adopt(SeqId(4), &b), c.adopt(SeqId(5), &a)), (8, 8));
    assert!(matches!(c.grow(SeqId(6), 4), Err(KvCacheError::Full { needed: 1, free: 0 })));
}

#[test]
fn exact_blocks_follow_the_recent_tokens() {
    let mut c = KvCache::new(compressed(16, 2));
    let bytes = c.config().bytes_per_exact_block();
    assert_eq!(bytes, 3 * 2 * 2 * 4 * 8 * 2);
    // Two sequences of a sink, eight recent tokens and a block begun, and a step of sixteen.
    assert_eq!(c.config().exact_blocks(), 2 * (1 + 2 + 1) + 4);
    c.grow(SeqId(1), 30).unwrap();
    let mut step = |start, len| {
        c.session(&[SeqRange { seq: SeqId(1), start, len }]).unwrap();
        c.usage().exact_blocks
    };
    assert_eq!(step(0, 16), 4, "all of the step's blocks");
    assert_eq!(step(16, 3), 1 + 1, "the sink, and one since token 16");
    assert_eq!(step(19, 1), 1 + 1);
    assert_eq!(step(20, 4), 1 + 2);
    assert_eq!(step(24, 1), 1 + 1);
    assert_eq!(c.usage().used_bytes(), 8 * c.config().bytes_per_block() + 2 * bytes);
    c.release(SeqId(1));
    assert_eq!(c.usage().exact_blocks, 0);
}

#[test]
fn sinks_stay_with_a_prefix_and_reuse_is_by_whole_recent_parts() {
    let mut c = KvCache::new(compressed(16, 3));
    let tokens: Vec<u32> = (0..23).collect();
    c.grow(SeqId(1), 23).unwrap();
    for start in [0, 16] {
        let len = (tokens.len() - start).min(16);
        c.session(&[SeqRange { seq: SeqId(1), start, len }]).unwrap();
    }
    c.publish(SeqId(1), &tokens);
    c.release(SeqId(1));
    assert_eq!((c.usage().idle_blocks, c.usage().exact_blocks), (5, 0), "nobody holds the sink's");
    assert_eq!(c.prefix_tokens(), 8);
    assert_eq!(c.adopt(SeqId(2), &tokens), 16, "twenty are known");
    c.grow(SeqId(2), 23).unwrap();
    c.session(&[SeqRange { seq: SeqId(2), start: 16, len: 7 }]).unwrap();
    assert_eq!(c.usage().exact_blocks, 1 + 2);
}

#[test]
fn exact_blocks_are_promised_by_need() {
    let mut c = KvCache::new(compressed(40, 2));
    // Eight can be promised: a prompt gets a sink, its recent tokens and a block begun.
    c.grow(SeqId(1), 23).unwrap();
    c.grow(SeqId(2), 23).unwrap();
    assert_eq!((c.usage().promised_exact_blocks, c.usage().total_exact_blocks), (8, 8));
    let full = c.grow(SeqId(3), 4).unwrap_err();
    assert!(matches!(full, KvCacheError::NoExact { needed: 1, free: 0 }), "{full}");
    assert_eq!(c.blocks(SeqId(3)), [], "nothing has changed");
    // Once the prompt is computed it holds less.
    for (start, len) in [(0, 16), (16, 7)] {
        c.session(&[SeqRange { seq: SeqId(1), start, len }]).unwrap();
    }
    c.grow(SeqId(1), 24).unwrap();
    assert_eq!(c.usage().promised_exact_blocks, 8 - 1);
    c.grow(SeqId(3), 4).unwrap();
    (1..4).for_each(|i| c.release(SeqId(i)));
    assert_eq!((c.usage().promised_exact_blocks, c.usage().used_bytes()), (0, 0));
}

#[test]
fn idle_sinks_make_room_for_exact_rows() {
    let mut c = KvCache::new(compressed(40, 1));
    for seq in 0..20 {
        let tokens = [seq as u32; 8];
        c.grow(SeqId(seq), 8).unwrap();
        c.session(&[SeqRange { seq: SeqId(seq), start: 0, len: 8 }]).unwrap();
        c.publish(SeqId(seq), &tokens);
        c.release(SeqId(seq));
    }
    assert!(c.usage().exact_blocks <= c.config().exact_blocks());
    assert_eq!(c.adopt(SeqId(50), &[19; 8]), 8, "the latest stayed");
    assert_eq!(c.adopt(SeqId(51), &[0; 8]), 0, "the first made room");
}

/// What a random user of the cache does.
#[derive(Debug, Clone)]
enum Act {
    /// Start a sequence of some tokens, of few kinds so that many begin alike.
    Start {
        len: usize,
        kind: u32,
    },
    /// Compute some more of a running sequence.
    Step {
        which: usize,
        len: usize,
    },
    End {
        which: usize,
    },
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        (1usize..50, 0u32..4).prop_map(|(len, kind)| Act::Start { len, kind }),
        (any::<usize>(), 1usize..16).prop_map(|(which, len)| Act::Step { which, len }),
        any::<usize>().prop_map(|which| Act::End { which }),
    ]
}

/// Sequences of a kind differ from some token on, so that prefixes branch.
fn tokens(len: usize, kind: u32) -> Vec<u32> {
    (0..len as u32).map(|i| if i < 10 * kind { i } else { 100 * kind + i }).collect()
}

proptest! {
    /// A model of what each block holds: reused blocks hold what was written into them for these
    /// very tokens, nothing is written into a block that two sequences hold, and no block is lost.
    #[test]
    fn blocks_always_hold_what_they_are_taken_for(
        acts in prop::collection::vec(act(), 1..80),
        exact in any::<bool>(),
    ) {
        let mut c = KvCache::new(if exact { compressed(24, 4) } else { config(24) });
        let mut contents: HashMap<BlockId, Vec<u32>> = HashMap::new();
        let mut running: Vec<(SeqId, Vec<u32>, usize)> = Vec::new();
        for (next, act) in acts.into_iter().enumerate() {
            match act {
                Act::Start { len, kind } => {
                    let (id, tokens) = (SeqId(next as u64), tokens(len, kind));
                    let cached = c.adopt(id, &tokens[..len - 1]);
                    prop_assert!(cached < len && cached.is_multiple_of(BLOCK));
                    for (tokens, block) in tokens[..cached].chunks(BLOCK).zip(c.blocks(id)) {
                        prop_assert_eq!(&contents[block], tokens);
                    }
                    if c.grow(id, len).is_ok() {
                        running.push((id, tokens, cached));
                    } else {
                        c.release(id);
                    }
                }
                Act::Step { which, len } if !running.is_empty() => {
                    let at = which % running.len();
                    let (id, tokens, done) = running[at].clone();
                    let end = (done + len).min(tokens.len());
                    if end == done {
                        continue;
                    }
                    c.session(&[SeqRange { seq: id, start: done, len: end - done }]).unwrap();
                    for (i, &token) in tokens.iter().enumerate().take(end).skip(done) {
                        let block = c.blocks(id)[i / BLOCK];
                        let others = running.iter().filter(|(other, ..)| *other != id);
                        let shared = others.filter(|(o, ..)| c.blocks(*o).contains(&block)).count();
                        prop_assert_eq!(shared, 0, "a write into a shared block");
                        let rows = contents.entry(block).or_default();
                        rows.truncate(i % BLOCK);
                        prop_assert_eq!(rows.len(), i % BLOCK);
                        rows.push(token);
                    }
                    running[at].2 = end;
                    c.publish(id, &tokens[..end]);
                }
                Act::End { which } if !running.is_empty() => {
                    let (id, ..) = running.swap_remove(which % running.len());
                    c.release(id);
                }
                _ => {}
            }
            let mut held: Vec<_> = running.iter().flat_map(|(id, ..)| c.blocks(*id)).collect();
            held.sort_by_key(|b| b.0);
            held.dedup();
            prop_assert_eq!(c.usage().used_blocks, held.len());
            let usage = c.usage();
            prop_assert!(usage.promised_exact_blocks <= usage.total_exact_blocks);
        }
        running.iter().for_each(|(id, ..)| c.release(*id));
        prop_assert_eq!((c.usage().used_bytes(), c.usage().promised_exact_blocks), (0, 0));
        c.grow(SeqId(9999), 24 * BLOCK).unwrap();
        prop_assert_eq!((c.usage().idle_blocks, c.usage().exact_blocks), (0, 0));
    }
}
