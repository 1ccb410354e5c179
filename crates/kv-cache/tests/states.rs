//! Recurrent states: one a sequence, snapshots on the way, and prefixes that begin at them.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use taper_base::{LayerId, SeqId, TokenId};
use taper_kv_cache::{KvCache, KvCacheError, KvConfig, RecurrentConfig, SeqRange, StateSession};
use taper_kv_codecs::{AttnParams, KvGeometry};
use taper_tensor::{Projected, Segments, Tensor};

const WIDTH: usize = 8;
const INTERVAL: usize = 8;

fn cache(slots: usize) -> KvCache {
    let geometry = KvGeometry { kv_heads: 1, head_dim: WIDTH, block_tokens: 4 };
    let recurrent =
        RecurrentConfig { layers: vec![2, 3], slots, draft_slots: 5, interval: INTERVAL };
    KvCache::new(KvConfig {
        prefix_caching: true,
        recurrent: Some(recurrent),
        ..KvConfig::new(taper_kv_codecs::parse("f32").unwrap(), 1, geometry, 64)
    })
}

fn range(seq: u64, start: usize, len: usize) -> SeqRange {
    SeqRange { seq: SeqId(seq), start, len }
}

/// A step in which each token adds its number to its state, `bad` instead of one of them. Returns the
/// second layer's states, after the step.
fn step(
    cache: &mut KvCache,
    ranges: &[SeqRange],
    tokens: &[TokenId],
    bad: Option<(usize, f32)>,
) -> Vec<f32> {
    let t: usize = ranges.iter().map(|range| range.len).sum();
    let x = Tensor::from_vec(vec![1.0; t * WIDTH], &[t, WIDTH]).unwrap();
    let rows =
        Projected { q: &x, k: &x, v: &x, head_dim: WIDTH, norms: None, rope: None, next: None };
    let at: Vec<_> = ranges.iter().flat_map(|r| r.start..r.start + r.len).collect();
    let mut session = cache.session(ranges).unwrap();
    let mut last = vec![0.0; ranges.len()];
    for layer in 0..2 {
        let ends = ranges.iter().scan(0, |end, r| {
            *end += r.len;
            Some(*end)
        });
        let ends: Vec<_> = ends.collect();
        session
            .recur(layer, &mut |segments| {
                let Segments::Host(segments) = segments else { panic!("states on the host") };
                for segment in segments {
                    for row in segment.rows.clone() {
                        let add = match bad {
                            Some((token, x)) if token == at[row] => x,
                            _ => tokens[at[row]] as f32,
                        };
                        segment.state.iter_mut().for_each(|s| *s += add);
                    }
                    let of = ends.iter().position(|end| segment.rows.start < *end).unwrap();
                    last[of] = segment.state[0];
                }
                Ok(())
            })
            .unwrap();
    }
    session.attend(LayerId(0), &rows, &AttnParams::new(0.3)).unwrap();
    last
}

/// The tokens of a prompt, and what their state is after so many.
fn prompt(n: usize, first: u32) -> Vec<TokenId> {
    (0..n as u32).map(|i| first + i * i % 17).collect()
}

fn sum(tokens: &[TokenId]) -> f32 {
    tokens.iter().map(|&t| t as f32).sum()
}

#[test]
fn a_known_prefix_starts_at_its_last_snapshot() {
    let mut c = cache(8);
    let tokens = prompt(30, 1);
    c.grow(SeqId(1), 30).unwrap();
    // Cut so that one snapshot is inside a step and one at its end.
    assert_eq!(step(&mut c, &[range(1, 0, 11)], &tokens, None), [sum(&tokens[..11])]);
    c.publish(SeqId(1), &tokens[..11]);
    assert_eq!(step(&mut c, &[range(1, 11, 13)], &tokens, None), [sum(&tokens[..24])]);
    c.publish(SeqId(1), &tokens[..24]);
    assert_eq!((c.usage().states, c.usage().snapshots, c.prefix_tokens()), (1, 3, INTERVAL));
    // 28 tokens alike, of which the last whole block that is published ends at 24.
    let mut other = tokens[..28].to_vec();
    other.extend([90, 91]);
    assert_eq!(c.adopt(SeqId(2), &other), 24);
    c.grow(SeqId(2), 30).unwrap();
    assert_eq!(step(&mut c, &[range(2, 24, 6)], &other, None), [sum(&other)]);
    // Another shares 10 tokens: whole blocks go to 8, where there is a snapshot, too.
    let third = [&tokens[..10], &[50; 5]].concat();
    assert_eq!(c.adopt(SeqId(3), &third), 8);
    c.grow(SeqId(3), 15).unwrap();
    let both =
        step(&mut c, &[range(1, 24, 6), range(3, 8, 7)], &[&third[..], &[7; 15]].concat(), None);
    assert_eq!(both[1], sum(&third));
}

#[test]
fn running_sequences_come_before_snapshots() {
    let mut c = cache(3);
    let tokens = prompt(24, 1);
    c.grow(SeqId(1), 24).unwrap();
    step(&mut c, &[range(1, 0, 24)], &tokens, None);
    c.publish(SeqId(1), &tokens);
    // One state runs; of three snapshots the last two have room.
    assert_eq!((c.usage().states, c.usage().snapshots), (1, 2));
    c.grow(SeqId(2), 4).unwrap();
    assert_eq!((c.usage().states, c.usage().snapshots), (2, 1));
    c.grow(SeqId(3), 4).unwrap();
    assert_eq!((c.usage().states, c.usage().snapshots), (3, 0));
    let before = c.usage();
    assert!(matches!(c.grow(SeqId(4), 4), Err(KvCacheError::NoState { states: 3 })));
    assert_eq!(c.usage(), before, "a refusal changes nothing");
    c.release(SeqId(2));
    c.grow(SeqId(4), 4).unwrap();
    assert_eq!(step(&mut c, &[range(4, 0, 2)], &[5, 6], None), [11.0], "a state starts at zero");
}

#[test]
fn the_only_snapshot_can_be_adopted_into_its_own_room() {
    let mut c = cache(2);
    let tokens = prompt(12, 1);
    c.grow(SeqId(1), 12).unwrap();
    step(&mut c, &[range(1, 0, 12)], &tokens, None);
    c.publish(SeqId(1), &tokens);
    assert_eq!(c.adopt(SeqId(2), &tokens), 8);
    c.grow(SeqId(2), 12).unwrap();
    assert_eq!((c.usage().states, c.usage().snapshots), (2, 0));
    assert_eq!(step(&mut c, &[range(2, 8, 4)], &tokens, None), [sum(&tokens)]);
}

/// A sequence that waits for blocks adopts and lets go before every step: nothing is copied for that.
#[test]
fn a_prefix_that_is_adopted_and_let_go_takes_no_state() {
    let mut c = cache(3);
    let tokens = prompt(12, 1);
    c.grow(SeqId(1), 12).unwrap();
    step(&mut c, &[range(1, 0, 12)], &tokens, None);
    c.publish(SeqId(1), &tokens);
    for _ in 0..3 {
        assert_eq!(c.adopt(SeqId(2), &tokens), 8);
        assert_eq!((c.usage().states, c.usage().snapshots), (1, 1));
        c.release(SeqId(2));
    }
    c.grow(SeqId(2), 12).unwrap();
    assert_eq!(step(&mut c, &[range(2, 0, 4)], &tokens, None), [sum(&tokens[..4])], "from zero");
}

#[test]
fn a_state_that_is_not_finite_is_no_snapshot() {
    let mut c = cache(8);
    let tokens = prompt(24, 1);
    c.grow(SeqId(1), 24).unwrap();
    step(&mut c, &[range(1, 0, 24)], &tokens, Some((9, f32::NAN)));
    c.publish(SeqId(1), &tokens);
    assert_eq!(c.usage().snapshots, 1);
    assert_eq!(c.adopt(SeqId(2), &tokens), 8);
}

#[test]
fn a_step_that_was_not_published_leaves_no_snapshot() {
    let mut c = cache(4);
    let tokens = prompt(24, 1);
    c.grow(SeqId(1), 24).unwrap();
    step(&mut c, &[range(1, 0, 16)], &tokens, None);
    c.release(SeqId(1));
    assert_eq!((c.usage().states, c.usage().snapshots), (0, 0));
    for seq in 2..6 {
        c.grow(SeqId(seq), 4).unwrap();
    }
    assert!(c.grow(SeqId(6), 4).is_err(), "all four slots came back, and no more");
}

#[test]
fn a_step_that_does_not_go_on_where_the_state_is_is_refused() {
    let mut c = cache(4);
    c.grow(SeqId(1), 24).unwrap();
    step(&mut c, &[range(1, 0, 3)], &prompt(24, 1), None);
    for start in [0, 2, 4] {
        let error = c.session(&[range(1, start, 1)]).unwrap_err();
        assert!(matches!(error, KvCacheError::StateAt { at: 3, .. }), "{error}");
    }
    let mut session = c.session(&[range(1, 3, 1)]).unwrap();
    let error = session.recur(2, &mut |_| Ok(())).unwrap_err();
    assert!(matches!(error, KvCacheError::Recurrent { layer: 2, layers: 2 }), "{error}");
}

#[test]
fn memory_of_snapshots_is_given_back() {
    let mut c = cache(8);
    let tokens = prompt(24, 1);
    c.grow(SeqId(1), 24).unwrap();
    step(&mut c, &[range(1, 0, 24)], &tokens, None);
    c.publish(SeqId(1), &tokens);
    c.release(SeqId(1));
    c.give_back(2 * c.usage().bytes_per_state);
    assert_eq!(c.usage().snapshots, 2);
    c.give_back(0);
    assert_eq!(c.usage().snapshots, 0);
    c.grow(SeqId(2), 4).unwrap();
    assert_eq!(step(&mut c, &[range(2, 0, 2)], &[5, 6], None), [11.0]);
}

/// Whatever part of its drafts stays, a state and its snapshots are those of the tokens that stay, and every slot comes
/// back.
#[test]
fn tokens_that_are_taken_back_leave_no_trace() {
    for drafts in 1..=5 {
        let mut c = cache(8);
        let (tokens, id) = (prompt(40, 1), SeqId(1));
        c.grow(id, 48).unwrap();
        step(&mut c, &[range(1, 0, 5)], &tokens, None);
        c.publish(id, &tokens[..5]);
        let (mut at, mut turn) = (5, 0);
        while at + drafts < 40 {
            let stays = 1 + turn % (drafts + 1);
            let mut guessed = tokens.clone();
            guessed[at + stays..].fill(1000);
            assert_eq!(c.draft_room(), Some(5));
            c.may_rewind(id, at + 1);
            let end = at + 1 + drafts;
            let computed = step(&mut c, &[range(1, at, 1 + drafts)], &guessed, None);
            assert_eq!(computed, [sum(&guessed[..end])]);
            at += stays;
            c.rewind(id, at).unwrap();
            c.publish(id, &tokens[..at]);
            turn += 1;
        }
        assert_eq!(step(&mut c, &[range(1, at, 40 - at)], &tokens, None), [sum(&tokens)]);
        c.publish(id, &tokens);
        assert_eq!(c.usage().snapshots, 5, "{drafts} drafts");
        for known in [8, 16, 24, 32] {
            let (id, other) = (SeqId(known as u64), [&tokens[..known], &[90; 4]].concat());
            assert_eq!(c.adopt(id, &other), known);
            c.grow(id, known + 4).unwrap();
            let computed = step(&mut c, &[range(known as u64, known, 4)], &other, None);
            assert_eq!(computed, [sum(&other)], "{drafts} drafts, the snapshot at {known}");
            c.release(id);
        }
    }
}

#[test]
fn more_drafts_than_there_are_slots_for_cannot_be_taken_back() {
    let mut c = cache(4);
    let (tokens, id) = (prompt(16, 1), SeqId(1));
    c.grow(id, 16).unwrap();
    c.may_rewind(id, 1);
    step(&mut c, &[range(1, 0, 9)], &tokens, None);
    assert_eq!(c.draft_room(), Some(0));
    let error = c.rewind(id, 7).unwrap_err();
    assert!(matches!(error, KvCacheError::StateAt { at: 9, start: 7, .. }), "{error}");
    assert_eq!(c.draft_room(), Some(5));
    // One that ends in the middle of a step gives its slots back too.
    c.may_rewind(id, 10);
    step(&mut c, &[range(1, 9, 3)], &tokens, None);
    assert_eq!(c.draft_room(), Some(3));
    c.release(id);
    assert_eq!(c.draft_room(), Some(5));
}
