//! Requests whose prefixes are read from disk before they run.

use super::Lane;
use crate::{
    sequence::Sequence,
    stats::add,
    worker::{Command, Shared},
};
use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};
use taper_base::SeqId;
use taper_kv_cache::{NotRestored, Restoring, UnitName, UnitRows, Unread};
use taper_scheduler::Admission;

/// A unit that the disk has not read after so long is computed instead.
const DISK_DEADLINE: Duration = Duration::from_secs(3);

/// A request that waits for the disk.
pub(super) struct Loading {
    pub(super) sequence: Sequence,
    admission: Admission,
    /// Units that are still to be requested.
    units: VecDeque<(usize, UnitName)>,
    /// The last one.
    last: usize,
    so_far: Restoring,
    /// When it began to wait.
    since: Instant,
}

impl Loading {
    pub(super) fn new(
        sequence: Sequence,
        admission: Admission,
        units: VecDeque<(usize, UnitName)>,
        last: usize,
    ) -> Self {
        let (so_far, since) = (Restoring::default(), Instant::now());
        Self { sequence, admission, units, last, so_far, since }
    }
}

impl Lane {
    /// Ends those who no longer wait for the disk, and lets those run that have waited too long.
    pub(super) fn check_loading(&mut self, shared: &Shared) {
        // One thread reads for all, in the order of their requests: whoever waits for others waits for a disk that works.
        let silent = self.disk_answered.elapsed() >= DISK_DEADLINE;
        let late = |l: &Loading| silent && l.since.elapsed() >= DISK_DEADLINE;
        let over = |l: &Loading| l.sequence.is_closed() || late(l);
        let over: Vec<_> =
            self.loading.iter().filter(|(_, l)| over(l)).map(|(&id, _)| id).collect();
        for id in over {
            if self.loading.get(&id).is_some_and(|loading| !loading.sequence.is_closed()) {
                tracing::warn!("the disk does not answer; a kept KV prefix is computed again");
            }
            self.loading_ends(id, shared);
        }
    }

    /// A request that waited for the disk runs, unless nobody listens any more.
    fn loading_ends(&mut self, id: SeqId, shared: &Shared) {
        let Some(loading) = self.loading.remove(&id) else { return };
        let Loading { mut sequence, admission, so_far, .. } = loading;
        self.cache.restored(&so_far);
        if sequence.is_closed() {
            self.cache.forget(id);
            add(&shared.stats.cancelled, 1);
            sequence.end(None);
        } else {
            self.queue(sequence, admission);
        }
        self.update_gauges(shared);
    }

    /// Requests units for the requests that wait for the disk, the first ones first: as many as may be in memory before
    /// a step ends and they are taken.
    pub(super) fn load_more(&mut self, shared: &Shared) {
        while self.flying < self.cache.loads_ahead() {
            let waiting = self.loading.iter_mut().filter(|(_, loading)| !loading.units.is_empty());
            let first = waiting.min_by_key(|(id, _)| id.0).map(|(id, loading)| (*id, loading));
            let Some((id, unit)) = first.and_then(|(id, l)| Some((id, l.units.pop_front()?)))
            else {
                return;
            };
            self.flying += 1;
            let (lane, commands) = (self.index, shared.commands.clone());
            self.cache.load(unit.1, move |rows| {
                // Nobody listens once the engine has stopped.
                let _ = commands.send(Command::Loaded { lane, id, unit, rows });
            });
        }
    }

    /// Takes a unit from the disk. After the last one, or one that cannot be used, the request runs.
    pub(crate) fn loaded(
        &mut self,
        id: SeqId,
        unit: (usize, UnitName),
        rows: Result<UnitRows, Unread>,
        shared: &Shared,
    ) {
        self.flying -= 1;
        self.disk_answered = Instant::now();
        self.take_in(id, unit, rows, shared);
        self.load_more(shared);
    }

    fn take_in(
        &mut self,
        id: SeqId,
        unit: (usize, UnitName),
        rows: Result<UnitRows, Unread>,
        shared: &Shared,
    ) {
        let Some(loading) = self.loading.get_mut(&id) else { return };
        (self.busy, self.holds_memory) = (self.disk_answered, true);
        let tokens = &loading.admission.prompt;
        let closed = loading.sequence.is_closed();
        let restored = match rows {
            _ if closed => return self.loading_ends(id, shared),
            Ok(rows) => {
                let restored = self.cache.restore(id, tokens, unit, (&rows, &mut loading.so_far));
                restored.map_err(|why| why == NotRestored::Unfit)
            }
            Err(why) => Err(why == Unread::Gone),
        };
        match restored {
            Ok(()) => {
                add(&shared.stats.disk_hit_tokens, self.cache.prefix_tokens());
                if unit.0 != loading.last {
                    return;
                }
            }
            // Were others damaged too, each would be found by a request of its own.
            Err(true) => {
                let rest = loading.units.drain(..).map(|(_, name)| name);
                self.cache.forget_units(std::iter::once(unit.1).chain(rest));
            }
            // What is on disk is good, and serves another time.
            Err(false) => {}
        }
        self.loading_ends(id, shared);
    }
}
