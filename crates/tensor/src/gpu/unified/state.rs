//! What is known of a device's memory and work.

use super::{Device, failed};
use crate::{
    Result,
    gpu::{Counters, Handle, Hazards},
};
use std::{
    collections::{HashMap, VecDeque},
    fmt,
};

/// Launches after which a command buffer is sent off, so that the GPU starts while the host goes on: the
/// first since the host waited, and later ones.
pub(super) const LAUNCHES: [usize; 2] = [16, 512];
/// Command buffers under way from which on it is looked whether some are done. A queue has room for 64.
const MANY: usize = 32;

/// A buffer, and the last command buffer that uses it.
pub(super) struct Slot<B> {
    pub(super) buffer: B,
    pub(super) last: u64,
}

/// A command buffer that was sent off, with the bytes of its staging buffers.
struct Sent<C> {
    commands: C,
    staged: usize,
}

/// An error of a command buffer. What came after it may have read its results, up to what was asked for when
/// somebody was told.
struct Failure {
    from: u64,
    told: Option<u64>,
    message: String,
}

/// Failures that are kept; older ones are of buffers that have been used since, or are gone.
const FAILURES: usize = 16;

/// Command buffers are numbered from one on.
pub(super) struct State<D: Device> {
    pub(super) slots: HashMap<Handle, Slot<D::Buffer>>,
    /// Buffers that were given back and are still used.
    leaving: Vec<Slot<D::Buffer>>,
    last_handle: u64,
    /// What has not been sent off, and is to have the number after `sent`'s last.
    pub(super) open: Option<D::Commands>,
    pub(super) encoding: bool,
    pub(super) hazards: Hazards,
    launches: usize,
    work: u64,
    /// Bytes of the staging buffers of what is open.
    pub(super) staged: usize,
    sent: VecDeque<Sent<D::Commands>>,
    /// Number of the last command buffer that is known to be done, and all before it.
    done: u64,
    failures: VecDeque<Failure>,
    pub(super) counters: Counters,
}

impl<D: Device> State<D> {
    pub(super) fn new() -> Self {
        Self {
            slots: HashMap::new(),
            leaving: Vec::new(),
            last_handle: 0,
            open: None,
            encoding: false,
            hazards: Hazards::default(),
            launches: 0,
            work: 0,
            staged: 0,
            sent: VecDeque::new(),
            done: 0,
            failures: VecDeque::new(),
            counters: Counters::default(),
        }
    }

    /// Number of the command buffer that is open, or is opened next.
    pub(super) fn number(&self) -> u64 {
        self.done + self.sent.len() as u64 + 1
    }

    pub(super) fn add(&mut self, buffer: D::Buffer) -> Handle {
        self.last_handle += 1;
        let handle = Handle(self.last_handle);
        self.slots.insert(handle, Slot { buffer, last: 0 });
        handle
    }

    pub(super) fn slot(&self, handle: Handle) -> Result<&Slot<D::Buffer>> {
        self.slots.get(&handle).ok_or_else(|| failed("find a buffer", "it was given back"))
    }

    /// Lets go of a buffer, once nothing uses it.
    pub(super) fn remove(&mut self, device: &D, handle: Handle) {
        let Some(slot) = self.slots.remove(&handle) else { return };
        if slot.last <= self.done {
            device.release(slot.buffer);
        } else {
            self.leaving.push(slot);
        }
    }

    /// Notes that the open command buffer uses this one.
    pub(super) fn used(&mut self, handle: Handle) {
        let number = self.number();
        if let Some(slot) = self.slots.get_mut(&handle) {
            slot.last = number;
        }
    }

    pub(super) fn open(&mut self, device: &D) -> Result<()> {
        if self.open.is_none() {
            self.open = Some(device.commands()?);
        }
        Ok(())
    }

    pub(super) fn end_encoder(&mut self, device: &D) {
        if let Some(commands) = self.open.as_mut().filter(|_| self.encoding) {
            device.end_encoder(commands);
        }
        self.encoding = false;
        self.hazards.clear();
    }

    fn send(&mut self, device: &D) {
        self.end_encoder(device);
        if let Some(mut commands) = self.open.take() {
            device.commit(&mut commands);
            self.sent.push_back(Sent { commands, staged: std::mem::take(&mut self.staged) });
            self.counters.commits += 1;
        }
        (self.launches, self.work) = (0, 0);
        if self.sent.len() >= MANY {
            self.settle(device);
        }
    }

    /// Sends off, once enough has come together.
    pub(super) fn send_if_full(&mut self, device: &D, work: u64) {
        self.launches += 1;
        self.work = self.work.saturating_add(work);
        let launches = LAUNCHES[usize::from(!self.sent.is_empty())];
        if self.launches >= launches || self.work >= device.work() {
            self.send(device);
        }
    }

    /// Takes note of what is done.
    pub(super) fn settle(&mut self, device: &D) {
        while self.sent.front().is_some_and(|sent| device.is_done(&sent.commands)) {
            self.settle_first(device);
        }
    }

    fn settle_first(&mut self, device: &D) {
        let Some(Sent { commands, .. }) = self.sent.pop_front() else { return };
        self.done += 1;
        if let Some(message) = device.error(&commands) {
            self.failures.push_back(Failure { from: self.done, told: None, message });
            if self.failures.len() > FAILURES {
                self.failures.pop_front();
            }
        }
        for slot in self.leaving.extract_if(.., |slot| slot.last <= self.done) {
            device.release(slot.buffer);
        }
    }

    pub(super) fn is_idle(&self, handle: Handle) -> Result<bool> {
        Ok(self.slot(handle)?.last <= self.done)
    }

    /// Bytes of the staging buffers in use.
    pub(super) fn all_staged(&self) -> usize {
        self.staged + self.sent.iter().map(|sent| sent.staged).sum::<usize>()
    }

    /// Waits until a command buffer is done, and all before it.
    pub(super) fn wait_for(&mut self, device: &D, number: u64) {
        if number == self.number() {
            self.send(device);
        }
        self.settle(device);
        let ahead = number.saturating_sub(self.done).min(self.sent.len() as u64);
        self.counters.waits += u64::from(ahead > 0);
        for _ in 0..ahead {
            // Command buffers that share nothing may be done in another order than they were sent off.
            if let Some(sent) = self.sent.front() {
                device.wait(&sent.commands);
            }
            self.settle_first(device);
        }
    }

    /// The error of a command buffer whose results a buffer may depend on, by its last use.
    pub(super) fn error(&mut self, device: &D, last: u64) -> Result<()> {
        let concerns = |f: &Failure| f.from <= last && f.told.is_none_or(|told| last <= told);
        self.tell(device, concerns)
    }

    /// The first error that nobody has been told of.
    pub(super) fn new_error(&mut self, device: &D) -> Result<()> {
        self.tell(device, |failure| failure.told.is_none())
    }

    /// Whoever is told begins anew: what is asked for from now on is not concerned.
    fn tell(&mut self, device: &D, which: impl Fn(&Failure) -> bool) -> Result<()> {
        let Some(at) = self.failures.iter().position(which) else { return Ok(()) };
        self.send(device);
        let now = self.number() - 1;
        self.failures.iter_mut().for_each(|failure| _ = failure.told.get_or_insert(now));
        Err(failed("run kernels", self.failures[at].message.clone()))
    }
}

impl<D: Device> fmt::Debug for State<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State").field("counters", &self.counters).finish_non_exhaustive()
    }
}
