//! E5: the choice keeps to its budget, its protected tokens and its positions, whatever the scores.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use proptest::prelude::*;
use taper_triattention::{
    Budget, Complex, HeadStatistics, LayerScores, Rope, Sharing, TriAttention, select,
};

const KV_HEADS: usize = 2;
const HEADS: usize = 4;

fn sharing() -> impl Strategy<Value = Sharing> {
    prop_oneof![Just(Sharing::All), Just(Sharing::KvHead), Just(Sharing::LayerKvHead)]
}

proptest! {
    #[test]
    fn the_budget_is_met_and_what_is_protected_stays(
        n in 1usize..80,
        layers in 1usize..4,
        (keep, prefix, window) in (1usize..40, 0usize..20, 0usize..20),
        seed in any::<u64>(),
        coarse in any::<bool>(),
        sharing in sharing(),
    ) {
        prop_assume!(prefix + window <= keep);
        let budget = Budget { keep, every: 1, prefix, window };
        let mut state = seed | 1;
        let mut bits = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        // Positions of a cache that was thinned out and whose gaps were filled; many equal scores.
        let mut positions: Vec<u32> = (0..n as u32).map(|i| 3 * i + (bits() % 3) as u32).collect();
        for i in (1..n).rev() {
            positions.swap(i, (bits() % (i as u64 + 1)) as usize);
        }
        let mut score = || (bits() % if coarse { 3 } else { 1 << 20 }) as f32;
        let scores: Vec<Vec<f32>> =
            (0..layers).map(|_| (0..HEADS * n).map(|_| score()).collect()).collect();
        let views: Vec<_> =
            scores.iter().map(|s| LayerScores { scores: s, heads: HEADS }).collect();
        let sets = select(&views, &positions, KV_HEADS, budget, sharing).unwrap();
        let expected = match sharing {
            Sharing::All => 1,
            Sharing::KvHead => KV_HEADS,
            Sharing::LayerKvHead => layers * KV_HEADS,
        };
        prop_assert_eq!(sets.len(), expected);
        let newest = positions.iter().max().copied().unwrap() as usize;
        for kept in &sets {
            prop_assert_eq!(kept.rows().len(), keep.min(n));
            prop_assert_eq!(kept.evicted(), n - keep.min(n));
            prop_assert!(kept.rows().windows(2).all(|w| w[0] < w[1]));
            for (row, &position) in positions.iter().enumerate() {
                let p = position as usize;
                if p < prefix || p + window > newest {
                    prop_assert!(kept.rows().contains(&row));
                }
            }
            // Either way to move them, each row that stays is there once, with its own position.
            for moves in [kept.in_order(), kept.filling_gaps()] {
                let mut rows = moves.rows().to_vec();
                rows.sort_unstable();
                prop_assert_eq!(&rows, kept.rows());
                let after = moves.apply(&positions).unwrap();
                prop_assert!(moves.rows().iter().zip(&after).all(|(&row, &p)| positions[row] == p));
                // What is built anew and what is left alone make up the whole.
                let mut built = positions.clone();
                for (block, rows) in moves.changed_blocks(8) {
                    for (i, &row) in rows.iter().enumerate() {
                        built[8 * block + i] = positions[row];
                    }
                }
                prop_assert_eq!(&built[..after.len()], &after[..]);
            }
        }
    }

    #[test]
    fn the_best_maxima_are_what_the_union_of_the_heads_choices_gives(
        scores in prop::collection::vec(-1000i32..1000, 4 * 30),
    ) {
        // Distinct within a head, so that no tie decides.
        let scores: Vec<f32> =
            scores.iter().enumerate().map(|(i, &s)| s as f32 + i as f32 / 1000.0).collect();
        let (n, keep) = (30, 7);
        let budget = Budget { keep, every: 1, prefix: 0, window: 0 };
        let positions: Vec<_> = (0..n as u32).collect();
        let layer = LayerScores { scores: &scores, heads: HEADS };
        let got = select(&[layer], &positions, KV_HEADS, budget, Sharing::All).unwrap();
        prop_assert_eq!(got[0].rows(), union(&scores, n, keep));
    }
}

/// As the authors write it: each head's best, and of those the ones with the best maxima.
fn union(scores: &[f32], n: usize, keep: usize) -> Vec<usize> {
    let z = |head: &[f32]| -> Vec<f64> {
        let mean = head.iter().map(|&s| f64::from(s)).sum::<f64>() / n as f64;
        let var = head.iter().map(|&s| (f64::from(s) - mean).powi(2)).sum::<f64>() / n as f64;
        head.iter().map(|&s| (f64::from(s) - mean) / var.sqrt().max(1e-6)).collect()
    };
    let heads: Vec<_> = scores.chunks(n).map(z).collect();
    let best = |values: &[f64], among: Vec<usize>| {
        let mut among = among;
        among.sort_by(|&a, &b| values[b].total_cmp(&values[a]));
        among.truncate(keep);
        among.sort_unstable();
        among
    };
    let mut all: Vec<_> = heads.iter().flat_map(|h| best(h, (0..n).collect())).collect();
    all.sort_unstable();
    all.dedup();
    let maxima: Vec<_> =
        (0..n).map(|i| heads.iter().map(|h| h[i]).fold(f64::MIN, f64::max)).collect();
    best(&maxima, all)
}

fn policy(budget: Budget) -> TriAttention {
    let head =
        HeadStatistics { mean: vec![Complex { re: 1.0, im: 0.0 }; 2], modulus: vec![1.0; 2] };
    let rope = Rope::new(4, 1e4).unwrap();
    TriAttention::new(rope, vec![vec![head; 2]; 3], 1, budget, Sharing::All).unwrap()
}

#[test]
fn evictions_come_when_they_are_due_and_are_counted() {
    let mut policy = policy(Budget { keep: 16, every: 8, prefix: 2, window: 4 });
    let (mut positions, mut lengths): (Vec<u32>, _) = (Vec::new(), Vec::new());
    for next in 0..50 {
        positions.push(next);
        if policy.is_due(positions.len()) {
            let scorers = policy.scorers(next + 1).unwrap();
            assert_eq!((scorers.len(), scorers[0].heads(), scorers[0].head_dim()), (3, 2, 4));
            let scores = vec![vec![0.5; 2 * positions.len()]; 3];
            let kept = policy.select(&scores, &positions).unwrap();
            lengths.push((positions.len(), kept[0].rows().len()));
            positions = kept[0].filling_gaps().apply(&positions).unwrap();
        }
    }
    assert_eq!(lengths, [(24, 16); 4]);
    assert_eq!((policy.evictions().rounds, policy.evictions().tokens), (4, 32));
    assert!([0, 1].iter().all(|p| positions.contains(p)), "the prefix");
}

#[test]
fn a_budget_that_is_never_reached_evicts_nothing() {
    let mut policy = policy(Budget { keep: 64, every: 8, prefix: 0, window: 0 });
    assert!((0..72).all(|n| !policy.is_due(n)) && policy.is_due(72));
    let positions: Vec<_> = (0..50).collect();
    let kept = policy.select(&vec![vec![1.0; 100]; 3], &positions).unwrap();
    assert_eq!(kept[0].filling_gaps().changed_blocks(32).count(), 0);
    assert_eq!(policy.evictions(), taper_triattention::Evictions::default());
}

#[test]
fn a_policy_that_cannot_be_is_refused() {
    let head = HeadStatistics { mean: vec![Complex::default(); 2], modulus: vec![1.0; 2] };
    let budget = Budget { keep: 8, every: 1, prefix: 0, window: 0 };
    let make = |layers, kv_heads| {
        TriAttention::new(Rope::new(4, 1e4).unwrap(), layers, kv_heads, budget, Sharing::All)
    };
    assert!(make(vec![vec![head.clone(); 4]], 2).is_ok());
    assert!(make(vec![vec![head.clone(); 4]], 3).is_err());
    assert!(make(vec![], 1).is_err() && make(vec![vec![]], 1).is_err());
    assert!(make(vec![vec![head.clone(); 4], vec![head.clone(); 2]], 2).is_err());
    let short = HeadStatistics { mean: vec![], ..head.clone() };
    assert!(make(vec![vec![short]], 1).is_err());
    let mut one = make(vec![vec![head]], 1).unwrap();
    assert!(one.select::<Vec<f32>>(&[], &[]).is_err(), "scores of no layer");
}
