//! Slots of memory for experts, and who is in them.
//!
//! A slot is memory that is either free, lent to a reader, or of an expert in memory. An expert is pinned as long as
//! somebody holds a reference to it; memory is written only by who owns it alone, so that no reader can write what
//! a product reads.

use crate::{ExpertKey, Policy, ranks::Ranks};
use std::{collections::HashMap, sync::Arc};
use taper_cpu::AlignedBytes;

/// An expert in memory.
#[derive(Debug)]
struct Entry<T> {
    value: Arc<T>,
    memory: Arc<AlignedBytes>,
    /// Number of the insertion or of the last use, over all experts.
    last: u64,
    /// It came with a prefill that reads more experts than there is room for, and was not used otherwise since.
    scanned: bool,
    /// It was prefetched and not used since.
    unused: bool,
}

/// How an expert came into memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    Demand,
    /// As one of more experts than there is room for.
    Scan,
    Prefetch,
}

#[derive(Debug)]
pub(crate) struct Bank<T> {
    slot_bytes: usize,
    slots: usize,
    /// Slots lent to readers.
    lent: usize,
    free: Vec<AlignedBytes>,
    resident: HashMap<ExpertKey, Entry<T>>,
    policy: Policy,
    tick: u64,
    wasted: u64,
}

impl<T> Bank<T> {
    pub(crate) fn new(slot_bytes: usize, slots: usize, policy: Policy) -> Self {
        let (free, resident) = (Vec::new(), HashMap::new());
        Self { slot_bytes, slots, lent: 0, free, resident, policy, tick: 0, wasted: 0 }
    }

    pub(crate) fn slots(&self) -> usize {
        self.slots
    }

    pub(crate) fn resident(&self) -> usize {
        self.resident.len()
    }

    /// Experts that were prefetched and left before anybody used them.
    pub(crate) fn wasted(&self) -> u64 {
        self.wasted
    }

    pub(crate) fn has(&self, key: ExpertKey) -> bool {
        self.resident.contains_key(&key)
    }

    /// Pins an expert that is in memory; and whether it was prefetched for this.
    pub(crate) fn get(&mut self, key: ExpertKey, scan: bool) -> Option<(Arc<T>, bool)> {
        self.tick += 1;
        let entry = self.resident.get_mut(&key)?;
        entry.last = self.tick;
        entry.scanned &= scan;
        let prefetched = std::mem::take(&mut entry.unused);
        Some((Arc::clone(&entry.value), prefetched))
    }

    /// Lends memory for at most so many records: what is free, what was never taken, and then what experts have
    /// that are worth least and not pinned.
    pub(crate) fn lend(&mut self, most: usize, ranks: &Ranks) -> Vec<AlignedBytes> {
        let mut lent = Vec::with_capacity(most);
        while lent.len() < most {
            if let Some(memory) = self.free.pop() {
                lent.push(memory);
            } else if self.taken() + lent.len() < self.slots {
                lent.push(AlignedBytes::pages(self.slot_bytes));
            } else {
                break;
            }
        }
        if lent.len() < most {
            lent.extend(self.evict(most - lent.len(), ranks));
        }
        self.lent += lent.len();
        lent
    }

    /// Slots with memory.
    fn taken(&self) -> usize {
        self.lent + self.free.len() + self.resident.len()
    }

    /// Memory of at most so many experts, which leave.
    fn evict(&mut self, most: usize, ranks: &Ranks) -> Vec<AlignedBytes> {
        let unpinned = self.resident.iter().filter(|(_, e)| Arc::strong_count(&e.value) == 1);
        let worth = |key: ExpertKey, entry: &Entry<T>| {
            let (class, _) = ranks.worth(self.policy, key);
            // Of experts that a long prompt goes through in order, again and again, the last one is needed the
            // latest.
            let order = if entry.scanned { u64::MAX - entry.last } else { entry.last };
            (class, !entry.scanned, order)
        };
        let mut all: Vec<_> = unpinned.map(|(key, entry)| (worth(*key, entry), *key)).collect();
        if all.len() > most {
            all.select_nth_unstable(most);
            all.truncate(most);
        }
        let victims = all.into_iter().map(|(_, key)| key);
        victims.collect::<Vec<_>>().into_iter().filter_map(|key| self.remove(key)).collect()
    }

    /// The memory of an expert, which leaves.
    fn remove(&mut self, key: ExpertKey) -> Option<AlignedBytes> {
        let Entry { value, memory, unused, .. } = self.resident.remove(&key)?;
        self.wasted += u64::from(unused);
        drop(value);
        // Whoever still holds a part of it keeps it; the slot gets other memory.
        Some(Arc::into_inner(memory).unwrap_or_else(|| AlignedBytes::pages(self.slot_bytes)))
    }

    /// Takes back memory that was lent.
    pub(crate) fn give_back(&mut self, memory: AlignedBytes) {
        self.lent = self.lent.saturating_sub(1);
        if self.taken() < self.slots {
            self.free.push(memory);
        }
    }

    /// Keeps an expert that was read into memory that was lent.
    pub(crate) fn insert(
        &mut self,
        key: ExpertKey,
        value: Arc<T>,
        memory: Arc<AlignedBytes>,
        origin: Origin,
    ) {
        self.lent = self.lent.saturating_sub(1);
        self.tick += 1;
        let (scanned, unused) = (origin == Origin::Scan, origin == Origin::Prefetch);
        let entry = Entry { value, memory, last: self.tick, scanned, unused };
        self.resident.insert(key, entry);
    }

    /// Has so many slots from now on; memory beyond goes back to the system as far as it is not in use.
    pub(crate) fn resize(&mut self, slots: usize, ranks: &Ranks) {
        self.slots = slots;
        while self.taken() > slots && self.free.pop().is_some() {}
        let excess = self.taken().saturating_sub(slots);
        drop(self.evict(excess, ranks));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(expert: u32) -> ExpertKey {
        ExpertKey { layer: 0, expert }
    }

    fn put(bank: &mut Bank<u32>, ranks: &Ranks, expert: u32, origin: Origin) {
        let memory = bank.lend(1, ranks).pop().unwrap();
        bank.insert(key(expert), Arc::new(expert), Arc::new(memory), origin);
    }

    #[test]
    fn pinned_experts_stay_and_the_least_worth_leaves() {
        let mut ranks = Ranks::new(&[8]);
        let mut bank = Bank::new(100, 3, Policy::ClassLru);
        for expert in 0..3 {
            put(&mut bank, &ranks, expert, Origin::Demand);
        }
        ranks.advance(0, 8);
        ranks.touch(key(0), 8, 8);
        let pin = bank.get(key(1), false).unwrap().0;
        assert_eq!(bank.lend(5, &ranks).len(), 2, "all but the pinned one");
        assert!(bank.has(key(1)) && bank.resident() == 1);
        drop(pin);
        (0..2).for_each(|_| bank.give_back(AlignedBytes::pages(100)));
        put(&mut bank, &ranks, 0, Origin::Demand);
        put(&mut bank, &ranks, 4, Origin::Demand);
        // 0 is used often, 1 the longest ago.
        put(&mut bank, &ranks, 5, Origin::Demand);
        assert!(bank.has(key(0)) && !bank.has(key(1)) && bank.has(key(4)));
        assert_eq!((bank.resident(), bank.slots()), (3, 3));
    }

    #[test]
    fn a_scan_that_does_not_fit_leaves_most_of_the_bank_alone() {
        let ranks = Ranks::new(&[100]);
        let mut bank = Bank::new(64, 10, Policy::ClassLru);
        let mut hits = 0;
        for _ in 0..3 {
            for expert in 0..20 {
                match bank.get(key(expert), true) {
                    Some(_) => hits += 1,
                    None => put(&mut bank, &ranks, expert, Origin::Scan),
                }
            }
        }
        assert!(hits >= 2 * 9, "{hits}");
        assert_eq!(bank.resident(), 10);
    }

    #[test]
    fn banks_shrink_and_count_what_was_prefetched_in_vain() {
        let ranks = Ranks::new(&[8]);
        let mut bank = Bank::new(64, 4, Policy::ClassLru);
        for expert in 0..4 {
            put(&mut bank, &ranks, expert, Origin::Prefetch);
        }
        assert!(bank.get(key(3), false).unwrap().1);
        assert!(!bank.get(key(3), false).unwrap().1);
        bank.resize(1, &ranks);
        assert_eq!((bank.resident(), bank.wasted()), (1, 3));
        assert!(bank.has(key(3)));
    }
}
