//! Which models are loaded, and which of them is given up for another: a table that knows no threads and
//! asks no clock.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// How much may be loaded at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of weights and KV caches of all models together.
    pub memory_bytes: u64,
    /// Models.
    pub max_loaded: usize,
}

/// How long a model stays loaded after its last request; `None` is for good.
pub(crate) type Keep = Option<Duration>;

/// Why a model was unloaded, as the metrics say it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reason {
    /// Another model needed its place.
    Evicted,
    /// Nobody had used it for long enough.
    Idle,
    /// A caller asked.
    Asked,
    /// Its engine had died.
    Failed,
}

impl Reason {
    pub(crate) const ALL: [Self; 4] = [Self::Evicted, Self::Idle, Self::Asked, Self::Failed];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Evicted => "evicted",
            Self::Idle => "idle",
            Self::Asked => "asked",
            Self::Failed => "failed",
        }
    }
}

/// Where a model stands.
#[derive(Debug)]
enum State<T, L> {
    /// `L` tells those who wait how far it is.
    Loading(L),
    Loaded(T),
    /// Its memory is not free yet.
    Unloading,
}

impl<T, L> State<T, L> {
    fn phase(&self) -> Phase {
        match self {
            Self::Loading(_) => Phase::Loading,
            Self::Loaded(_) => Phase::Loaded,
            Self::Unloading => Phase::Unloading,
        }
    }
}

#[derive(Debug)]
struct Slot<T, L> {
    /// Tells a model from one of its name that was loaded before.
    id: u64,
    state: State<T, L>,
    /// Bytes that are kept for it; `None` while it has no place.
    bytes: Option<u64>,
    /// Requests that wait for it or use it.
    uses: usize,
    /// Greater than that of every model whose last use was before.
    turn: u64,
    used: Instant,
    keep: Keep,
    pinned: bool,
    /// It takes no more requests, and goes when the last has ended.
    retired: Option<Reason>,
}

/// What has become of a model since the server started.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counts {
    pub(crate) requests: u64,
    pub(crate) loads: u64,
    pub(crate) failures: u64,
    /// By [`Reason::ALL`].
    pub(crate) unloads: [u64; 4],
}

/// What a request for a model finds.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Entry<T, L> {
    /// It is loaded, and kept for this request until [`Table::leave`].
    Ready(u64, T),
    /// It is being loaded, and kept too.
    Wait(u64, L),
    /// The caller has to load it; it is kept too.
    Load(u64, L),
    /// It is on its way out: ask again.
    Later,
}

/// Whether there is room for a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Room {
    /// There is, and it is kept for the model.
    Here,
    /// There will be when others have gone.
    Wait,
    /// There cannot be: pinned models take too much.
    Never,
}

/// What a model looks like from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Unloaded,
    Loading,
    Loaded,
    Unloading,
}

impl Phase {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Unloaded => "unloaded",
            Self::Loading => "loading",
            Self::Loaded => "loaded",
            Self::Unloading => "unloading",
        }
    }
}

/// A model that has to be unloaded: its name and id, and what it was.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Leaving<T> {
    pub(crate) name: String,
    pub(crate) id: u64,
    pub(crate) model: T,
}

/// What is known of a model that has a slot.
#[derive(Debug, Clone)]
pub(crate) struct Seen<T> {
    pub(crate) phase: Phase,
    pub(crate) model: Option<T>,
    pub(crate) bytes: u64,
    pub(crate) uses: usize,
    pub(crate) turn: u64,
    pub(crate) used: Instant,
    pub(crate) keep: Keep,
    pub(crate) pinned: bool,
}

#[derive(Debug)]
pub(crate) struct Table<T, L> {
    limits: Limits,
    slots: BTreeMap<String, Slot<T, L>>,
    counts: BTreeMap<String, Counts>,
    turn: u64,
    /// The most bytes that were kept at a time.
    peak: u64,
}

impl<T: Clone, L: Clone> Table<T, L> {
    pub(crate) fn new(limits: Limits) -> Self {
        Self { limits, slots: BTreeMap::new(), counts: BTreeMap::new(), turn: 0, peak: 0 }
    }

    /// A request for a model comes. `load` is what tells of a load, if this is the first.
    pub(crate) fn enter(&mut self, name: &str, keep: Keep, now: Instant, load: L) -> Entry<T, L> {
        self.turn += 1;
        let turn = self.turn;
        let Some(slot) = self.slots.get_mut(name) else {
            let slot = Slot {
                id: turn,
                state: State::Loading(load.clone()),
                bytes: None,
                uses: 1,
                turn,
                used: now,
                keep,
                pinned: false,
                retired: None,
            };
            self.slots.insert(name.to_owned(), slot);
            self.count(name).requests += 1;
            return Entry::Load(turn, load);
        };
        let entry = match &slot.state {
            State::Loading(load) => Entry::Wait(slot.id, load.clone()),
            State::Loaded(model) if slot.retired.is_none() => Entry::Ready(slot.id, model.clone()),
            State::Loaded(_) | State::Unloading => return Entry::Later,
        };
        (slot.uses, slot.turn, slot.used, slot.keep) = (slot.uses + 1, turn, now, keep);
        self.count(name).requests += 1;
        entry
    }

    fn count(&mut self, name: &str) -> &mut Counts {
        self.counts.entry(name.to_owned()).or_default()
    }

    fn slot(&mut self, name: &str, id: u64) -> Option<&mut Slot<T, L>> {
        self.slots.get_mut(name).filter(|slot| slot.id == id)
    }

    /// A request has ended.
    pub(crate) fn leave(&mut self, name: &str, id: u64, now: Instant) {
        self.turn += 1;
        let turn = self.turn;
        if let Some(slot) = self.slot(name, id) {
            (slot.uses, slot.turn, slot.used) = (slot.uses.saturating_sub(1), turn, now);
        }
    }

    /// The model that a request waited for.
    pub(crate) fn model(&mut self, name: &str, id: u64) -> Option<T> {
        match &self.slot(name, id)?.state {
            State::Loaded(model) => Some(model.clone()),
            State::Loading(_) | State::Unloading => None,
        }
    }

    /// What tells of a load.
    pub(crate) fn load_of(&self, name: &str) -> Option<L> {
        match &self.slots.get(name)?.state {
            State::Loading(load) => Some(load.clone()),
            State::Loaded(_) | State::Unloading => None,
        }
    }

    /// Asks for a place of so many bytes. Where there is none, the model that was not used for the
    /// longest time is retired; models that are in use come last.
    pub(crate) fn room(&mut self, name: &str, id: u64, bytes: u64) -> Room {
        let fits = |taken: u64, models: usize, limits: &Limits| {
            taken.saturating_add(bytes) <= limits.memory_bytes && models < limits.max_loaded
        };
        let others = || self.slots.iter().filter(|(_, slot)| slot.id != id);
        let sum = |pinned: bool| {
            let placed = others().filter_map(|(_, s)| Some((s, s.bytes?)));
            let counted = placed.filter(|(s, _)| s.pinned || !pinned);
            counted.fold((0, 0), |(bytes, n), (_, own)| (bytes + own, n + 1))
        };
        let ((taken, models), (fixed, pinned)) = (sum(false), sum(true));
        if fits(taken, models, &self.limits) {
            if let Some(slot) = self.slot(name, id) {
                slot.bytes = Some(bytes);
            }
            self.peak = self.peak.max(taken + bytes);
            return Room::Here;
        }
        if !fits(fixed, pinned, &self.limits) {
            return Room::Never;
        }
        let going =
            |slot: &Slot<T, L>| slot.retired.is_some() || matches!(slot.state, State::Unloading);
        if self.slots.values().any(going) {
            return Room::Wait;
        }
        let loaded =
            |slot: &&mut Slot<T, L>| matches!(slot.state, State::Loaded(_)) && !slot.pinned;
        let victims = self.slots.values_mut().filter(loaded);
        if let Some(victim) = victims.min_by_key(|slot| (slot.uses > 0, slot.turn)) {
            victim.retired = Some(Reason::Evicted);
        }
        Room::Wait
    }

    /// Nobody needs the place of another any more.
    pub(crate) fn spare(&mut self) {
        let evicted = |slot: &&mut Slot<T, L>| slot.retired == Some(Reason::Evicted);
        self.slots.values_mut().filter(evicted).for_each(|slot| slot.retired = None);
    }

    /// A load has ended well. The model may take fewer bytes than were kept for it, and no more count.
    pub(crate) fn loaded(&mut self, name: &str, id: u64, model: T, bytes: u64, pinned: bool) {
        if let Some(slot) = self.slot(name, id) {
            slot.state = State::Loaded(model);
            slot.bytes = Some(bytes);
            slot.pinned = pinned;
            self.count(name).loads += 1;
        }
    }

    /// A load has failed.
    pub(crate) fn failed(&mut self, name: &str, id: u64) {
        if self.slot(name, id).is_some() {
            self.slots.remove(name);
            self.count(name).failures += 1;
        }
    }

    /// Retires a model; `false` if none is loaded by that name.
    pub(crate) fn retire(&mut self, name: &str, reason: Reason) -> bool {
        match self.slots.get_mut(name) {
            Some(slot) if matches!(slot.state, State::Loaded(_)) => {
                slot.retired.get_or_insert(reason);
                true
            }
            _ => false,
        }
    }

    /// Whether the memory of a model has been given back, or was never taken.
    pub(crate) fn is_gone(&self, name: &str) -> bool {
        self.phase(name) == Phase::Unloaded
    }

    /// Where a model stands.
    pub(crate) fn phase(&self, name: &str) -> Phase {
        self.slots.get(name).map_or(Phase::Unloaded, |slot| slot.state.phase())
    }

    /// The models that have to be unloaded now. `idle` says whether one computes nothing: a response may
    /// be written in the background without a request.
    pub(crate) fn settle(&mut self, now: Instant, idle: impl Fn(&T) -> bool) -> Vec<Leaving<T>> {
        let mut leaving = Vec::new();
        for (name, slot) in &mut self.slots {
            let State::Loaded(model) = &slot.state else { continue };
            if slot.uses > 0 || !idle(model) {
                continue;
            }
            let stays = |keep: Duration| now.saturating_duration_since(slot.used) < keep;
            let expired = !slot.pinned && slot.keep.is_some_and(|keep| !stays(keep));
            let Some(reason) = slot.retired.or(expired.then_some(Reason::Idle)) else { continue };
            leaving.push(Leaving { name: name.clone(), id: slot.id, model: model.clone() });
            slot.state = State::Unloading;
            let counts = self.counts.entry(name.clone()).or_default();
            let index = Reason::ALL.iter().position(|r| *r == reason).unwrap_or_default();
            counts.unloads[index] += 1;
        }
        leaving
    }

    /// The memory of a model has been given back.
    pub(crate) fn removed(&mut self, name: &str, id: u64) {
        if self.slot(name, id).is_some() {
            self.slots.remove(name);
        }
    }

    /// What has a slot, by name.
    pub(crate) fn seen(&self) -> BTreeMap<String, Seen<T>> {
        let one = |(name, slot): (&String, &Slot<T, L>)| {
            let model = match &slot.state {
                State::Loaded(model) => Some(model.clone()),
                State::Loading(_) | State::Unloading => None,
            };
            let phase = slot.state.phase();
            let Slot { bytes, uses, turn, used, keep, pinned, .. } = *slot;
            let bytes = bytes.unwrap_or(0);
            (name.clone(), Seen { phase, model, bytes, uses, turn, used, keep, pinned })
        };
        self.slots.iter().map(one).collect()
    }

    pub(crate) fn counts(&self) -> BTreeMap<String, Counts> {
        self.counts.clone()
    }

    /// Bytes that are kept, and the most that were.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        (self.slots.values().filter_map(|slot| slot.bytes).sum(), self.peak)
    }
}

#[cfg(test)]
mod tests;
