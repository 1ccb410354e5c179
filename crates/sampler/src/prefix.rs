//! The shortest prefix of an order that has a mass.
//!
//! The row is never put in order. A histogram of mass over the order finds the narrow range in which the prefix
//! ends, and only what lies there is put in order.

use crate::{
    candidates::Candidates,
    kept::{ByLikelihood, Order},
    passes::{BUCKETS, Buckets, Edge, edges, histogram},
    threads::Threads,
};
use std::cmp::Ordering;

/// Candidates tried for the likeliest first: peaked distributions, the usual ones, need a handful.
const NUCLEUS_TRY: usize = 64;

/// Tokens that are put in order without looking for a narrower range.
const FEW: usize = 4096;

/// Histograms that look for it: as many as floats have bits for.
const PASSES: usize = 2;

impl<T: Threads> Candidates<'_, T> {
    /// Keeps the likeliest tokens whose mass reaches `target`.
    pub(crate) fn keep_nucleus(&mut self, target: u64) {
        let cut = self.kept.cut;
        let order = ByLikelihood { max: self.row.max, last: cut.logit };
        let mut best = Vec::new();
        if let Some(loose) = self.row.loose_cut(NUCLEUS_TRY) {
            self.row.for_each_at_least(loose.max(cut.logit), |id, logit| {
                let mass = self.kept.mass(logit, id);
                best.push(Edge { key: order.key(logit), id, mass });
            });
        }
        // They begin the order, so that its prefix is theirs if they have the mass.
        match best.iter().map(|e| e.mass).sum::<u64>() >= target {
            true => self.keep_until(order, &mut best, target),
            false => self.keep_prefix(order, target),
        }
    }

    /// Keeps the shortest prefix of an order whose mass reaches `target`.
    pub(crate) fn keep_prefix<O: Order>(&mut self, order: O, target: u64) {
        let mut buckets = Buckets::new(order.keys());
        for pass in 1.. {
            let masses = self.pass(|row, kept, live| histogram(row, kept, (order, buckets), live));
            let (bucket, before) = bucket_of(&masses, target);
            let here = (order, buckets, bucket);
            let mut last = self.pass(|row, kept, live| edges(row, kept, here, live)).concat();
            if last.len() <= FEW || pass == PASSES {
                return self.keep_until(order, &mut last, target - before);
            }
            buckets = buckets.within(bucket);
        }
    }

    /// Keeps what comes before the shortest prefix of `last` whose mass reaches `target`, and that.
    fn keep_until<O: Order>(&mut self, order: O, last: &mut [Edge], target: u64) {
        if let Some(end) = prefix_end(last, target) {
            order.keep(&mut self.kept, end.key, end.id);
            self.weigh();
        }
    }
}

/// The bucket in which a prefix with the mass `target` ends, and the mass before it.
fn bucket_of(masses: &[[u64; BUCKETS]], target: u64) -> (u32, u64) {
    let mass = |bucket| masses.iter().map(|masses| masses[bucket]).sum::<u64>();
    let (mut bucket, mut before) = (0, 0);
    while bucket + 1 < BUCKETS && before + mass(bucket) < target {
        before += mass(bucket);
        bucket += 1;
    }
    (bucket as u32, before)
}

fn by_key(a: &Edge, b: &Edge) -> Ordering {
    // `-0.0 == 0.0` must tie, so not `total_cmp`; no key is NaN.
    a.key.partial_cmp(&b.key).unwrap_or(Ordering::Equal).then(a.id.cmp(&b.id))
}

/// The last of the shortest prefix whose mass reaches `target`. Linear: halves by selection, and follows the
/// half in which the prefix ends.
fn prefix_end(edges: &mut [Edge], mut target: u64) -> Option<Edge> {
    let mut rest = edges;
    while rest.len() > 32 {
        let middle = rest.len() / 2;
        rest.select_nth_unstable_by(middle, by_key);
        let (lower, upper) = rest.split_at_mut(middle);
        let first: u64 = lower.iter().map(|e| e.mass).sum();
        if first >= target {
            rest = lower;
        } else {
            target -= first;
            rest = upper;
        }
    }
    rest.sort_unstable_by(by_key);
    let mut sum = 0;
    let reaches = |e: &&Edge| {
        sum += e.mass;
        sum >= target
    };
    rest.iter().find(reaches).or(rest.last()).copied()
}
