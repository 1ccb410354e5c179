//! Recurrent states: one slot per running sequence, and snapshots at which prefixes are taken up again.
//!
//! Keys and values of a prefix can be cut anywhere; a recurrent state is that of its last token alone. So
//! the cache copies states at every multiple of an interval, and a sequence with a known prefix starts at
//! the last of these. Slots of both kinds come from one pool, and running sequences come first: the
//! snapshot that was used longest ago makes room.

mod contents;
mod drafted;

use crate::{KvCacheError, SeqRange, prefix::Node};
use contents::{Contents, Slot};
use drafted::Drafted;
use std::{
    collections::{BTreeMap, HashMap},
    ops::Range,
};
use taper_base::SeqId;
use taper_kv_codecs::KvCodecError;
use taper_tensor::{RecurrentCut, RecurrentRun, RunSegments, gpu::Gpu};

/// Shape of a model's recurrent states.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecurrentConfig {
    /// Elements (f32) that each recurrent layer keeps for a sequence.
    pub layers: Vec<usize>,
    /// States there are, those of running sequences and snapshots together.
    pub slots: usize,
    /// Further ones, for states after tokens that may be taken back: a step verifies as many drafted tokens at most.
    pub draft_slots: usize,
    /// Tokens between two snapshots; the cache rounds it up to whole prefix units.
    pub interval: usize,
}

impl RecurrentConfig {
    /// Bytes of one state over all layers.
    #[must_use]
    pub fn bytes_per_slot(&self) -> u64 {
        4 * self.layers.iter().sum::<usize>() as u64
    }

    /// Bytes of all states.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        (self.slots + self.draft_slots) as u64 * self.bytes_per_slot()
    }
}

/// A snapshot of a step whose blocks are not published yet.
#[derive(Debug)]
struct Pending {
    seq: SeqId,
    /// Tokens that it has seen.
    tokens: usize,
    slot: Slot,
}

/// State of a running sequence.
#[derive(Debug, Clone, Copy)]
struct Held {
    slot: Slot,
    /// Tokens that it has seen.
    tokens: usize,
}

#[derive(Debug)]
pub(crate) struct States {
    /// Elements of each layer in a slot.
    layers: Vec<Range<usize>>,
    /// 0 without snapshots.
    interval: usize,
    slots: usize,
    contents: Contents,
    /// The step that is open, sequence by sequence.
    runs: Vec<RecurrentRun>,
    free: Vec<Slot>,
    /// Free slots for states of tokens that may be taken back.
    spare: Vec<Slot>,
    drafted: HashMap<SeqId, Drafted>,
    held: HashMap<SeqId, Held>,
    /// Snapshots at which sequences without a state begin, and the tokens that these have
    /// processed.
    adopted: HashMap<SeqId, (Node, usize)>,
    pending: Vec<Pending>,
    /// Snapshots by the last block of their prefix.
    snapshots: HashMap<Node, (u64, Slot)>,
    /// Snapshots by when they were last used.
    used: BTreeMap<u64, Node>,
    clock: u64,
}

impl States {
    /// `unit`: tokens of which prefixes are reused a multiple; 0 takes no snapshots. States are where the model runs.
    pub(crate) fn new(config: &RecurrentConfig, unit: usize, gpu: Option<&Gpu>) -> Self {
        let mut end = 0;
        let layer = |&n: &usize| {
            end += n;
            end - n..end
        };
        let layers = config.layers.iter().map(layer).collect();
        let all = config.slots + config.draft_slots;
        let interval = if unit == 0 { 0 } else { config.interval.max(1).next_multiple_of(unit) };
        Self {
            layers,
            interval,
            slots: config.slots,
            contents: Contents::new(all, end, gpu),
            runs: Vec::new(),
            free: (0..config.slots).rev().collect(),
            spare: (config.slots..all).rev().collect(),
            drafted: HashMap::new(),
            held: HashMap::new(),
            adopted: HashMap::new(),
            pending: Vec::new(),
            snapshots: HashMap::new(),
            used: BTreeMap::new(),
            clock: 0,
        }
    }

    /// Tokens between two snapshots; 0 without.
    pub(crate) fn interval(&self) -> usize {
        self.interval
    }

    /// States of running sequences.
    pub(crate) fn running(&self) -> usize {
        self.held.len()
    }

    /// Snapshots that can be met again.
    pub(crate) fn snapshots(&self) -> usize {
        self.snapshots.len()
    }

    fn len(&self) -> usize {
        self.layers.last().map_or(0, |layer| layer.end)
    }

    /// A free slot; the snapshot that was used longest ago makes room.
    fn take(&mut self) -> Option<Slot> {
        self.free.pop().or_else(|| self.evict())
    }

    fn evict(&mut self) -> Option<Slot> {
        let (_, node) = self.used.pop_first()?;
        self.snapshots.remove(&node).map(|(_, slot)| slot)
    }

    /// Whether [`Self::start`] would find room.
    pub(crate) fn check_start(&self, seq: SeqId) -> Result<(), KvCacheError> {
        let known = |(node, _): &(Node, usize)| self.snapshots.contains_key(node);
        let room = !self.free.is_empty() || !self.snapshots.is_empty();
        let can =
            self.held.contains_key(&seq) || (room && self.adopted.get(&seq).is_none_or(known));
        can.then_some(()).ok_or(KvCacheError::NoState { states: self.slots })
    }

    /// A state for a sequence that has none: a copy of the snapshot that it adopted, or zeros.
    pub(crate) fn start(&mut self, seq: SeqId) -> Result<(), KvCacheError> {
        if self.held.contains_key(&seq) {
            return Ok(());
        }
        let none = KvCacheError::NoState { states: self.slots };
        let adopted = match self.adopted.get(&seq) {
            Some((node, tokens)) => match self.snapshots.get(node) {
                Some(&(_, slot)) => Some((slot, *tokens)),
                None => return Err(none),
            },
            None => None,
        };
        let slot = self.take().ok_or(none)?;
        // The snapshot may be the one that made room.
        if let Some((from, _)) = adopted.filter(|&(from, _)| from != slot) {
            self.contents.copy(from, slot).map_err(|error| {
                self.free.push(slot);
                KvCodecError::from(error)
            })?;
        }
        let tokens = adopted.map_or(0, |(_, tokens)| tokens);
        self.adopted.remove(&seq);
        self.held.insert(seq, Held { slot, tokens });
        Ok(())
    }

    /// Tokens of the longest prefix with a snapshot, of one whose blocks have these nodes.
    pub(crate) fn longest(&self, nodes: &[Node], block_tokens: usize) -> usize {
        let step = self.interval / block_tokens.max(1);
        let known = |&n: &usize| self.snapshots.contains_key(&nodes[n * step - 1]);
        let found = (1..=nodes.len().checked_div(step).unwrap_or(0)).rev().find(known);
        found.unwrap_or(0) * self.interval
    }

    /// A sequence without a state is to begin at the snapshot after so many tokens. It is copied when the
    /// sequence starts: one that waits for room asks again and again.
    pub(crate) fn adopt(&mut self, seq: SeqId, last: Node, tokens: usize) {
        self.touch(last);
        self.adopted.insert(seq, (last, tokens));
    }

    fn touch(&mut self, node: Node) {
        self.clock += 1;
        if let Some((since, _)) = self.snapshots.get_mut(&node) {
            self.used.remove(since);
            *since = self.clock;
            self.used.insert(self.clock, node);
        }
    }

    /// Gives a sequence's state back.
    pub(crate) fn release(&mut self, seq: SeqId) {
        self.free.extend(self.held.remove(&seq).map(|held| held.slot));
        self.adopted.remove(&seq);
        self.drop_pending(seq);
        self.drop_drafted(seq);
    }

    fn drop_pending(&mut self, seq: SeqId) {
        for pending in self.pending.extract_if(.., |pending| pending.seq == seq) {
            self.free.push(pending.slot);
        }
    }

    /// Begins a step: states move on by these ranges, and there are slots for the snapshots on their way,
    /// as far as there is room.
    pub(crate) fn begin(&mut self, ranges: &[SeqRange]) -> Result<(), KvCacheError> {
        for &SeqRange { seq, start, .. } in ranges {
            let at = self.held.get(&seq).map_or(0, |held| held.tokens);
            if !self.held.contains_key(&seq) || at != start {
                return Err(KvCacheError::StateAt { seq, at, start });
            }
        }
        self.runs.clear();
        let mut row = 0;
        for range in ranges.iter().filter(|range| range.len > 0) {
            self.drop_pending(range.seq);
            let run = self.open(range, row);
            self.runs.extend(run);
            row += range.len;
        }
        Ok(self.contents.begin(&self.runs, self.len()).map_err(KvCodecError::from)?)
    }

    /// Moves a sequence's state on by a range of rows, with snapshots on their way.
    fn open(&mut self, range: &SeqRange, row: usize) -> Option<RecurrentRun> {
        let &SeqRange { seq, start, len } = range;
        let end = start + len;
        let mut cuts = self.draft_cuts(seq, start, end);
        let held = self.held.get_mut(&seq)?;
        held.tokens = end;
        let own = held.slot;
        let due = start.checked_div(self.interval).map_or(0, |before| before + 1);
        // The last ones first: they are more likely to be of use.
        for n in (due..=end.checked_div(self.interval).unwrap_or(0)).rev().take_while(|&n| n > 0) {
            let Some(slot) = self.take() else { break };
            let tokens = n * self.interval;
            cuts.push(RecurrentCut { rows: tokens - start, slot });
            self.pending.push(Pending { seq, tokens, slot });
        }
        cuts.sort_by_key(|cut| cut.rows);
        cuts.push(RecurrentCut { rows: len, slot: own });
        // A state that has seen nothing is zero.
        let from = (start > 0).then_some(own);
        Some(RecurrentRun { rows: row..row + len, from, cuts })
    }

    /// Runs a layer over the step's tokens.
    pub(crate) fn run(
        &mut self,
        layer: usize,
        f: &mut RunSegments<'_>,
    ) -> Result<(), KvCacheError> {
        let Some(own) = self.layers.get(layer) else {
            return Err(KvCacheError::Recurrent { layer, layers: self.layers.len() });
        };
        Ok(self.contents.run(own, &self.runs, f).map_err(KvCodecError::from)?)
    }

    /// Makes the snapshots of a sequence's last step known, as far as its blocks are: `nodes` are those of
    /// its leading blocks. One that is not finite is dropped.
    pub(crate) fn publish(&mut self, seq: SeqId, nodes: &[Node], block_tokens: usize) {
        let own: Vec<_> = self.pending.extract_if(.., |pending| pending.seq == seq).collect();
        for Pending { tokens, slot, .. } in own {
            let last = (tokens / block_tokens).checked_sub(1);
            let node = last.and_then(|last| nodes.get(last)).copied();
            let finite = self.contents.is_finite(slot);
            match node.filter(|node| finite && !self.snapshots.contains_key(node)) {
                Some(node) => {
                    self.clock += 1;
                    self.snapshots.insert(node, (self.clock, slot));
                    self.used.insert(self.clock, node);
                }
                None => self.free.push(slot),
            }
        }
    }

    /// Gives memory back: of slots that are free, and of snapshots until they take `keep` bytes at most.
    pub(crate) fn give_back(&mut self, keep: u64) {
        let bytes = 4 * self.len() as u64;
        while self.snapshots.len() as u64 * bytes > keep {
            let Some(slot) = self.evict() else { break };
            self.free.push(slot);
        }
        for &slot in self.free.iter().chain(&self.spare) {
            self.contents.discard(slot);
        }
    }
}
