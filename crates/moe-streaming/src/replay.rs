//! Policies by replay of a trace.

use crate::{ExpertKey, Policy, ranks::Ranks};
use std::collections::{HashMap, HashSet};

/// A step's use of a layer: the experts that its tokens were routed to, with the rows of each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Touch {
    /// The layer.
    pub layer: u32,
    /// Tokens of the step.
    pub tokens: u32,
    /// Experts, each once, and their rows.
    pub experts: Vec<(u32, u32)>,
    /// Experts that were expected before, those that were the most likely first; none where nobody asked.
    pub expected: Vec<u32>,
}

/// Touches in the order in which they came.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Trace {
    /// The touches.
    pub touches: Vec<Touch>,
}

/// What a policy made of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Replay {
    /// Experts that were in a slot.
    pub hits: u64,
    /// Experts that had to be read.
    pub misses: u64,
}

impl Replay {
    /// Hits of all.
    #[must_use]
    pub fn hit_rate(&self) -> f64 {
        self.hits as f64 / (self.hits + self.misses).max(1) as f64
    }
}

impl Trace {
    /// A line a touch: layer, tokens, `expert:rows` each, and the numbers of those that were expected.
    #[must_use]
    pub fn to_text(&self) -> String {
        let line = |t: &Touch| {
            let used = t.experts.iter().map(|(e, n)| format!("{e}:{n}"));
            let words: Vec<_> = used.chain(t.expected.iter().map(u32::to_string)).collect();
            format!("{} {} {}\n", t.layer, t.tokens, words.join(" "))
        };
        self.touches.iter().map(line).collect()
    }

    /// Reads what [`Self::to_text`] writes; `None` of anything else.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let touch = |line: &str| {
            let mut words = line.split_ascii_whitespace();
            let (layer, tokens) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
            let mut touch = Touch { layer, tokens, experts: Vec::new(), expected: Vec::new() };
            for word in words {
                match word.split_once(':') {
                    Some((expert, rows)) => {
                        touch.experts.push((expert.parse().ok()?, rows.parse().ok()?));
                    }
                    None => touch.expected.push(word.parse().ok()?),
                }
            }
            Some(touch)
        };
        let touches = text.lines().map(touch).collect::<Option<_>>()?;
        Some(Self { touches })
    }

    /// For the experts that were expected first, second and so on: the share that was used, and the share of used ones
    /// that were expected so early. Touches of one token count, before which something was expected.
    #[must_use]
    pub fn foresight(&self) -> Vec<(f64, f64)> {
        let one = |t: &&Touch| t.tokens == 1 && !t.expected.is_empty();
        let touches: Vec<_> = self.touches.iter().filter(one).collect();
        let used: usize = touches.iter().map(|t| t.experts.len()).sum();
        let ranks = touches.iter().map(|t| t.expected.len()).min().unwrap_or(0);
        let mut all = 0;
        (0..ranks)
            .map(|rank| {
                let right = |t: &&&Touch| t.experts.iter().any(|(e, _)| *e == t.expected[rank]);
                let right = touches.iter().filter(right).count();
                all += right;
                (right as f64 / touches.len() as f64, all as f64 / used.max(1) as f64)
            })
            .collect()
    }

    /// Experts of each layer that the trace names.
    fn experts(&self) -> Vec<usize> {
        let mut experts = Vec::new();
        for touch in &self.touches {
            let layer = touch.layer as usize;
            if experts.len() <= layer {
                experts.resize(layer + 1, 0);
            }
            let most = touch.experts.iter().map(|(e, _)| *e as usize + 1).max();
            experts[layer] = experts[layer].max(most.unwrap_or(0));
        }
        experts
    }
}

/// Replays a trace over so many slots. What a touch needs is never evicted for it; a trace that needs more at once
/// counts what does not fit as missed.
#[must_use]
pub fn replay(trace: &Trace, slots: usize, policy: Policy) -> Replay {
    let mut ranks = Ranks::new(&trace.experts());
    let mut next = NextUses::new(trace);
    let mut resident: HashSet<ExpertKey> = HashSet::new();
    let mut out = Replay::default();
    for touch in &trace.touches {
        let key = |expert| ExpertKey { layer: touch.layer, expert };
        ranks.advance(touch.layer, touch.tokens.into());
        let wanted: HashSet<_> = touch.experts.iter().map(|&(e, _)| key(e)).collect();
        for &(expert, rows) in &touch.experts {
            ranks.touch(key(expert), rows.into(), touch.tokens.into());
            next.pass(key(expert));
            if resident.contains(&key(expert)) {
                out.hits += 1;
                continue;
            }
            out.misses += 1;
            if resident.len() >= slots {
                let others = resident.iter().filter(|key| !wanted.contains(key));
                let victim = match policy {
                    Policy::Belady => others.max_by_key(|key| (next.at(**key), **key)),
                    _ => others.min_by_key(|key| (ranks.worth(policy, **key), **key)),
                };
                let Some(victim) = victim.copied() else { continue };
                resident.remove(&victim);
            }
            resident.insert(key(expert));
        }
    }
    out
}

/// When each expert is used next.
struct NextUses(HashMap<ExpertKey, std::vec::IntoIter<usize>>);

impl NextUses {
    fn new(trace: &Trace) -> Self {
        let mut uses: HashMap<ExpertKey, Vec<usize>> = HashMap::new();
        for (at, touch) in trace.touches.iter().enumerate() {
            for &(expert, _) in &touch.experts {
                uses.entry(ExpertKey { layer: touch.layer, expert }).or_default().push(at);
            }
        }
        Self(uses.into_iter().map(|(key, uses)| (key, uses.into_iter())).collect())
    }

    fn pass(&mut self, key: ExpertKey) {
        self.0.get_mut(&key).and_then(Iterator::next);
    }

    fn at(&self, key: ExpertKey) -> usize {
        self.0.get(&key).and_then(|uses| uses.as_slice().first()).copied().unwrap_or(usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn trace(of: &[&[u32]]) -> Trace {
        let touch = |experts: &&[u32]| Touch {
            layer: 0,
            tokens: 1,
            experts: experts.iter().map(|&e| (e, 1)).collect(),
            expected: Vec::new(),
        };
        Trace { touches: of.iter().map(touch).collect() }
    }

    #[test]
    fn below_the_working_set_lru_hits_nothing_and_others_do() {
        let cycle: Vec<&[u32]> = (0..300).map(|i| [&[0u32][..], &[1], &[2], &[3]][i % 4]).collect();
        let cycle = trace(&cycle);
        assert_eq!(replay(&cycle, 3, Policy::Lru).hits, 0);
        assert!(replay(&cycle, 3, Policy::Belady).hit_rate() > 0.6);
        assert_eq!(replay(&cycle, 4, Policy::Lru).misses, 4);
        // One expert is used every other time: frequency keeps it, recency does not.
        let hot: Vec<Vec<u32>> = (0..600).map(|i| vec![if i % 2 == 0 { 0 } else { i }]).collect();
        let hot = trace(&hot.iter().map(Vec::as_slice).collect::<Vec<_>>());
        assert_eq!(replay(&hot, 1, Policy::Lru).hits, 0);
        assert_eq!(replay(&hot, 2, Policy::ClassLru).hits, 299);
    }

    #[test]
    fn traces_are_text() {
        let mut trace = trace(&[&[1, 5], &[], &[2]]);
        trace.touches[2].expected = vec![7, 2];
        assert_eq!(trace.to_text(), "0 1 1:1 5:1\n0 1 \n0 1 2:1 7 2\n");
        assert_eq!(Trace::parse(&trace.to_text()), Some(trace));
        assert_eq!(Trace::parse("0 x"), None);
        assert_eq!(Trace::parse("0 1 5:"), None);
    }

    #[test]
    fn expectations_are_counted_by_rank() {
        let mut trace = trace(&[&[1, 5], &[2, 3], &[4]]);
        trace.touches[0].expected = vec![5, 9];
        trace.touches[1].expected = vec![2, 3];
        // Both first ones were right, one second one; of four that were used, two and three were named.
        assert_eq!(trace.foresight(), [(1.0, 0.5), (0.5, 0.75)]);
        assert!(Trace::default().foresight().is_empty());
    }

    proptest! {
        /// Nobody who does not see the future does better than who does.
        #[test]
        fn belady_is_a_bound(uses in prop::collection::vec(0u32..12, 1..200), slots in 1usize..12) {
            let steps: Vec<_> = uses.iter().map(std::slice::from_ref).collect();
            let trace = trace(&steps);
            let best = replay(&trace, slots, Policy::Belady);
            for policy in Policy::ALL {
                let got = replay(&trace, slots, policy);
                prop_assert!(got.hits <= best.hits, "{policy}");
                prop_assert_eq!(got.hits + got.misses, uses.len() as u64);
            }
        }
    }
}
