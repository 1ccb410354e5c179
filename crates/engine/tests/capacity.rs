//! How many sequences a cache of some bytes holds at once, and what happens beyond that.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail the test")]

mod common;

use common::{Mock, Numbers, collect, config, greedy, next_token, settled, submit};
use std::thread;
use taper_base::{Engine, SeqId};
use taper_engine::{EngineConfig, KvBudget};
use taper_kv_cache::{KvCache, KvCacheError, SeqRange};
use taper_kv_codecs::Exact;

/// A model with the cache of the demo model: 8 layers of 2 KV heads of 128.
fn demo() -> Mock {
    let mut mock = Mock::new(|batch| Ok(Mock::rows(batch, next_token)));
    let info = mock.info_mut();
    (info.layers, info.kv_heads, info.head_dim) = (8, 2, 128);
    mock
}

fn sized(codec: &str, bytes: u64, exact: Exact) -> EngineConfig {
    EngineConfig {
        max_num_seqs: 512,
        max_num_batched_tokens: 512,
        max_waiting: 1024,
        scheme: taper_kv_codecs::parse(codec).unwrap().into(),
        exact: Some(exact),
        prefix_caching: true,
        kv_budget: KvBudget::Bytes(bytes),
        ..config()
    }
}

/// Computes sequences of 1,000 tokens until there is no room for another.
fn at_once(codec: &str, bytes: u64) -> u64 {
    let plan = sized(codec, bytes, Exact::DEFAULT).plan(&demo().info_mut().clone()).unwrap();
    assert!(plan.caches[0].bytes() <= bytes, "{codec}");
    let mut cache = KvCache::new(plan.caches[0].clone());
    for seq in (0..).map(SeqId) {
        match cache.grow(seq, 1000) {
            Ok(()) => {}
            Err(KvCacheError::Full { .. } | KvCacheError::NoExact { .. }) => {
                assert!(cache.usage().used_bytes() <= bytes, "{codec}");
                (0..seq.0).for_each(|other| cache.release(SeqId(other)));
                let usage = cache.usage();
                assert_eq!((usage.used_bytes(), usage.promised_exact_blocks), (0, 0), "{codec}");
                return seq.0;
            }
            Err(error) => panic!("{codec}: {error}"),
        }
        let step = |start: usize| SeqRange { seq, start, len: (1000 - start).min(256) };
        for start in (0..1000).step_by(256) {
            cache.session(&[step(start)]).unwrap();
        }
        cache.grow(seq, 1001).unwrap();
        cache.session(&[SeqRange { seq, start: 1000, len: 1 }]).unwrap();
    }
    unreachable!()
}

#[test]
fn four_bits_hold_three_times_as_many_sequences_of_1000_tokens_as_f16() {
    // Four of f16 fill 32 MiB to the byte; what is set apart for a step weighs more in a small cache.
    assert!(at_once("taper4", 32 << 20) >= 11 && at_once("turbo4", 32 << 20) >= 11);
    for mib in [256, 1024] {
        let f16 = at_once("f16", mib << 20);
        for codec in ["taper4", "turbo4"] {
            let got = at_once(codec, mib << 20);
            assert!(got >= 3 * f16, "{codec}, {mib} MiB: {got} against {f16}");
        }
    }
}

/// Requests beyond the room wait or are preempted; none fails, and nothing is left afterwards.
#[test]
fn short_of_exact_blocks_requests_wait() {
    for exact in [Exact::DEFAULT, Exact { sink_tokens: 32, recent_tokens: 128 }] {
        let engine = demo().start(&sized("turbo4", 4 << 20, exact));
        let mut numbers = Numbers(7);
        let open: Vec<_> = (0..40)
            .map(|i| submit(&engine, greedy(&numbers.prompt(20 + 5 * i, Mock::VOCAB), 150)))
            .collect();
        let answers: Vec<_> = open.into_iter().map(|o| thread::spawn(|| collect(o))).collect();
        for answer in answers {
            assert_eq!(answer.join().unwrap().tokens.len(), 150, "{exact:?}");
        }
        settled(&engine);
        let stats = engine.stats();
        assert!(stats.preemptions > 0, "the cache was meant to be too small");
        let left = (stats.running, stats.waiting, stats.kv_blocks_used, stats.kv_used_bytes);
        assert_eq!((left, stats.kv_exact_blocks_used), ((0, 0, 0, 0), 0), "{exact:?}");
    }
}
