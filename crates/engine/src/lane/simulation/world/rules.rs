//! What must hold after every step.

use super::{Request, World};
use crate::lane::Lane;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    hash::Hash,
};
use taper_base::{BlockId, Event, GenerationError, SeqId, SubmitError, TokenId};

impl World {
    /// Who is preempted stands behind all who are not, and who decodes goes on. `decoding` are those that were to, with
    /// their tokens before the step, and `held` those that held blocks.
    pub(super) fn check_order(
        &self,
        held: &[SeqId],
        decoding: &BTreeMap<SeqId, usize>,
        broken: bool,
    ) {
        let held = held.iter().filter(|id| self.lane.sequences.contains_key(*id));
        let (stayed, preempted): (Vec<_>, Vec<_>) = held.partition(|id| self.holds(**id));
        let place = |id: &&SeqId| self.live[*id].place.expect("it is in the queue");
        let last = stayed.iter().map(place).max();
        for id in preempted {
            assert!(last.is_none_or(|last| place(&id) > last), "{id:?} is preempted before others");
        }
        for id in stayed.into_iter().filter(|_| !broken) {
            let more = |before: &usize| self.live[id].tokens().len() > *before;
            assert!(decoding.get(id).is_none_or(more), "{id:?} stalls");
        }
    }

    /// Takes in the ends of requests.
    pub(super) fn end(&mut self, broken: bool) {
        let Lane { sequences, loading, .. } = &self.lane;
        let over = |id: &SeqId| !sequences.contains_key(id) && !loading.contains_key(id);
        let over: Vec<_> = self.live.keys().copied().filter(over).collect();
        for (id, request) in &self.live {
            let tokens = request.tokens();
            assert!(request.expected.0.starts_with(&tokens), "{id:?} has other tokens: {tokens:?}");
        }
        for id in over {
            let request = self.live.remove(&id).unwrap();
            let tokens = request.tokens();
            tokens.hash(&mut self.trace);
            let events = request.client.events.lock().unwrap();
            match events.last() {
                Some(Event::Finished(reason)) => {
                    assert_eq!((&tokens, reason), (&request.expected.0, &request.expected.1));
                }
                Some(Event::Failed(GenerationError::NotAdmitted(SubmitError::NeverFits {
                    ..
                }))) => {
                    let config = self.lane.cache.config();
                    assert!(request.longest > config.blocks * config.geometry.block_tokens);
                }
                Some(Event::Failed(GenerationError::Step { .. })) => {
                    assert!(broken, "{id:?} fails without a fault");
                }
                Some(Event::Failed(GenerationError::NonFiniteLogits { .. })) => {
                    assert!(self.owed > 0, "{id:?} has another's numbers");
                    self.owed -= 1;
                }
                other => assert!(request.is_gone(), "{id:?} ends with {other:?}"),
            }
            let is_last = |event: &&Event| matches!(event, Event::Finished(_) | Event::Failed(_));
            assert!(events.iter().filter(is_last).count() <= 1, "{id:?} ends twice");
        }
    }

    /// Whoever is the next to start waits no longer than the others have something to compute.
    pub(super) fn check_starts(&mut self) {
        let waiting = self.lane.sequences.keys().filter(|&&id| !self.holds(id));
        let first = waiting.min_by_key(|id| self.live[*id].place).copied();
        let (before, since, until) = self.first;
        self.first = match first.is_some() && first == before {
            true => (first, since + 1, until),
            // What is computed again after a preemption is not counted one by one.
            false => (first, 0, self.live.values().map(|r| 4 * (r.longest + 2)).sum()),
        };
        assert!(self.first.1 <= self.first.2, "{first:?} starves");
        let limits = self.lane.scheduler.config();
        assert!(self.lane.scheduler.running() <= limits.max_num_seqs as usize);
    }

    /// Every block is held by those who know it, and shared by those whose tokens it has.
    pub(super) fn check_blocks(&self) {
        let cache = &self.lane.cache;
        let size = cache.config().geometry.block_tokens;
        let mut holders: HashMap<BlockId, (usize, &Request, Vec<TokenId>)> = HashMap::new();
        let mut all = BTreeSet::new();
        for id in self.lane.sequences.keys() {
            let request = &self.live[id];
            let tokens = [&request.prompt[..], &request.tokens()].concat();
            for (at, &block) in cache.blocks(*id).iter().enumerate() {
                all.insert(block);
                let Some((index, other, others)) = holders.get(&block) else {
                    holders.insert(block, (at, request, tokens.clone()));
                    continue;
                };
                let end = (at + 1) * size;
                assert_eq!(*index, at, "a block at two places");
                assert_eq!(other.salt, request.salt, "a block of two salts");
                assert_eq!(tokens.get(..end), others.get(..end), "a block of other tokens");
                assert!(end < tokens.len() + 1, "a block that is not full is shared");
            }
        }
        let usage = cache.usage();
        assert_eq!(usage.used_blocks, all.len(), "blocks of nobody");
        assert!(usage.used_blocks + usage.idle_blocks <= usage.total_blocks);
        let holding = self.lane.sequences.keys().filter(|&&id| self.holds(id)).count();
        assert_eq!(self.lane.scheduler.running(), holding);
    }
}
