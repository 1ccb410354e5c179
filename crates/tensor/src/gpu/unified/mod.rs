//! GPUs that share the host's memory: when work is sent off, what the host waits for, whose error
//! counts, and how bytes come in and go out.
//!
//! A [`Device`] is what Metal offers, and little more. All decisions are here, in plain code, and are
//! tested on any machine with a device that finishes work late and in an odd order (`fake`).
//!
//! - Launches of a step go into one command buffer, through one concurrent encoder. A barrier stands
//!   before a launch that reads what an earlier one writes, or writes what an earlier one uses.
//! - A command buffer is sent off after a few launches, or when it holds enough work.
//! - Bytes go straight into a buffer that no unfinished work uses. Only for others there is a staging
//!   buffer and a copy on the GPU, which ends the encoder.
//! - Bytes are read where they lie, once the work that uses their buffer is done.

use super::{Backend, Counters, Handle, Hazards, Launch, Memory, Pages};
use crate::{Bytes, Result, TensorError};
use std::{
    collections::{HashMap, VecDeque},
    fmt,
    ptr::NonNull,
    sync::{Mutex, MutexGuard, PoisonError},
};

#[cfg(any(test, feature = "gpu-host"))]
pub(crate) mod fake;
#[cfg(test)]
mod tests;

/// Launches after which a command buffer is sent off, so that the GPU starts while the host goes on: the
/// first since the host waited, and later ones.
const LAUNCHES: [usize; 2] = [16, 512];
/// Multiply-adds after which it is sent off. macOS ends a command buffer that takes seconds; so much takes
/// some 50 ms on an M1 when kernels reach an eighth of its speed.
const WORK: u64 = 1 << 33;
/// Bytes of staging buffers that may be in use: from then on they are waited for, so that they go.
const STAGED: usize = 64 << 20;

/// A GPU whose buffers the host sees. A queue runs command buffers in the order in which they were committed.
pub(crate) trait Device: Send + Sync + fmt::Debug {
    /// Memory, counted by its owners: this, and each command buffer that uses it.
    type Buffer: Clone + Send;
    /// A command buffer, open or committed.
    type Commands: Send;
    /// A kernel, compiled.
    type Pipeline;

    /// The device's name.
    fn name(&self) -> String;

    /// Memory there is.
    fn memory(&self) -> Result<Memory>;

    /// Memory of so many bytes, at least one.
    fn allocate(&self, bytes: usize) -> Result<Self::Buffer>;

    /// A buffer over whole pages of a file's map, or `None` where the device cannot read them there.
    ///
    /// # Safety
    /// The pages stay mapped as long as the buffer, and nobody writes them.
    unsafe fn adopt(&self, pages: &Pages) -> Result<Option<Self::Buffer>>;

    /// Where the host finds a buffer's bytes.
    fn contents(&self, buffer: &Self::Buffer) -> NonNull<u8>;

    /// The owner lets go of a buffer. Command buffers hold on to those that they use.
    fn release(&self, buffer: Self::Buffer);

    /// Finds a kernel and compiles it if need be. Called without a lock.
    fn pipeline(&self, launch: &Launch<'_>) -> Result<Self::Pipeline>;

    /// Bytes of a page of memory.
    fn page(&self) -> usize;

    /// Threadgroups of 256 threads that keep it busy.
    fn threadgroups(&self) -> usize;

    /// Opens a command buffer.
    fn commands(&self) -> Result<Self::Commands>;

    /// Opens the encoder of launches, which run side by side but for barriers.
    fn open_encoder(&self, commands: &mut Self::Commands) -> Result<()>;

    /// What comes later in the encoder waits for what is there.
    fn barrier(&self, commands: &mut Self::Commands);

    /// Encodes a launch. The operands come with the byte at which each begins.
    fn encode(
        &self,
        commands: &mut Self::Commands,
        pipeline: &Self::Pipeline,
        launch: &Launch<'_>,
        operands: &[(&Self::Buffer, usize)],
    );

    /// Ends the encoder. What comes after it waits for it.
    fn end_encoder(&self, commands: &mut Self::Commands);

    /// Copies on the GPU, outside of an encoder of launches.
    fn copy(
        &self,
        commands: &mut Self::Commands,
        from: &Self::Buffer,
        to: (&Self::Buffer, usize),
        bytes: usize,
    ) -> Result<()>;

    /// Sends a command buffer off. No encoder is open.
    fn commit(&self, commands: &mut Self::Commands);

    /// Whether a committed command buffer has been run.
    fn is_done(&self, commands: &Self::Commands) -> bool;

    /// Waits until a committed command buffer has been run, and all before it.
    fn wait(&self, commands: &Self::Commands);

    /// What went wrong in a command buffer that has been run.
    fn error(&self, commands: &Self::Commands) -> Option<String>;
}

/// A [`Backend`] over a [`Device`].
#[derive(Debug)]
pub(crate) struct Unified<D: Device> {
    device: D,
    state: Mutex<State<D>>,
}

/// A buffer, and the last command buffer that uses it.
struct Slot<B> {
    buffer: B,
    last: u64,
}

/// What is known of memory and of work. Command buffers are numbered from one on.
struct State<D: Device> {
    slots: HashMap<Handle, Slot<D::Buffer>>,
    last_handle: u64,
    /// What has not been sent off, and is to have the number after `sent`'s last.
    open: Option<D::Commands>,
    encoding: bool,
    hazards: Hazards,
    launches: usize,
    work: u64,
    /// Bytes of the staging buffers since the host last waited.
    staged: usize,
    sent: VecDeque<D::Commands>,
    /// Number of the last command buffer that is known to be done.
    done: u64,
    /// The first error that nobody has been told of.
    error: Option<String>,
    counters: Counters,
}

fn failed(what: &'static str, message: impl Into<String>) -> TensorError {
    TensorError::Gpu { what, message: message.into() }
}

impl<D: Device> State<D> {
    fn new() -> Self {
        Self {
            slots: HashMap::new(),
            last_handle: 0,
            open: None,
            encoding: false,
            hazards: Hazards::default(),
            launches: 0,
            work: 0,
            staged: 0,
            sent: VecDeque::new(),
            done: 0,
            error: None,
            counters: Counters::default(),
        }
    }

    /// Number of the command buffer that is open, or is opened next.
    fn number(&self) -> u64 {
        self.done + self.sent.len() as u64 + 1
    }

    fn add(&mut self, buffer: D::Buffer) -> Handle {
        self.last_handle += 1;
        let handle = Handle(self.last_handle);
        self.slots.insert(handle, Slot { buffer, last: 0 });
        handle
    }

    fn slot(&self, handle: Handle) -> Result<&Slot<D::Buffer>> {
        self.slots.get(&handle).ok_or_else(|| failed("find a buffer", "it was given back"))
    }

    /// Notes that the open command buffer uses this one.
    fn used(&mut self, handle: Handle) {
        let number = self.number();
        if let Some(slot) = self.slots.get_mut(&handle) {
            slot.last = number;
        }
    }

    fn open(&mut self, device: &D) -> Result<()> {
        if self.open.is_none() {
            self.open = Some(device.commands()?);
        }
        Ok(())
    }

    fn end_encoder(&mut self, device: &D) {
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
            self.sent.push_back(commands);
            self.counters.commits += 1;
        }
        (self.launches, self.work) = (0, 0);
    }

    /// Sends off, once enough has come together.
    fn send_if_full(&mut self, device: &D, work: u64) {
        self.launches += 1;
        self.work = self.work.saturating_add(work);
        let launches = LAUNCHES[usize::from(!self.sent.is_empty())];
        if self.launches >= launches || self.work >= WORK {
            self.send(device);
        }
    }

    /// Takes note of what is done.
    fn settle(&mut self, device: &D) {
        while self.sent.front().is_some_and(|commands| device.is_done(commands)) {
            self.settle_first(device);
        }
    }

    fn settle_first(&mut self, device: &D) {
        let Some(commands) = self.sent.pop_front() else { return };
        self.done += 1;
        if self.error.is_none() {
            self.error = device.error(&commands);
        }
    }

    fn is_idle(&self, handle: Handle) -> Result<bool> {
        Ok(self.slot(handle)?.last <= self.done)
    }

    /// Waits until a command buffer is done. The first error since the host was last told of one is told
    /// now: what came after it may have read its results.
    fn wait_for(&mut self, device: &D, number: u64) -> Result<()> {
        if number == self.number() {
            self.send(device);
        }
        self.settle(device);
        let ahead = number.saturating_sub(self.done).min(self.sent.len() as u64);
        if ahead > 0 {
            self.counters.waits += 1;
            device.wait(&self.sent[ahead as usize - 1]);
            (0..ahead).for_each(|_| self.settle_first(device));
        }
        if self.sent.is_empty() && self.open.is_none() {
            self.staged = 0;
        }
        self.error.take().map_or(Ok(()), |message| Err(failed("run kernels", message)))
    }
}

impl<D: Device> Unified<D> {
    pub(crate) fn new(device: D) -> Self {
        Self { device, state: Mutex::new(State::new()) }
    }

    fn lock(&self) -> MutexGuard<'_, State<D>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A copy by the GPU, after everything that was asked for before.
    fn copy_there(
        &self,
        state: &mut State<D>,
        (to, offset): (Handle, usize),
        bytes: &[u8],
    ) -> Result<()> {
        let staging = self.device.allocate(bytes.len())?;
        let at = self.device.contents(&staging);
        // SAFETY: the staging buffer has room for them, and nobody else has it yet.
        unsafe { at.as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        state.end_encoder(&self.device);
        state.open(&self.device)?;
        let target = state.slot(to)?.buffer.clone();
        let copied = match state.open.as_mut() {
            Some(commands) => self.device.copy(commands, &staging, (&target, offset), bytes.len()),
            None => Ok(()),
        };
        self.device.release(staging);
        copied?;
        state.used(to);
        state.counters.blits += 1;
        state.counters.staged += bytes.len() as u64;
        state.staged += bytes.len();
        if state.staged >= STAGED {
            let number = state.number();
            return state.wait_for(&self.device, number);
        }
        Ok(())
    }

    fn encode(
        &self,
        state: &mut State<D>,
        launch: &Launch<'_>,
        pipeline: &D::Pipeline,
    ) -> Result<()> {
        state.open(&self.device)?;
        let number = state.number();
        let State { open, encoding, hazards, slots, counters, .. } = state;
        let Some(commands) = open.as_mut() else { return Ok(()) };
        let mut operands = Vec::with_capacity(launch.operands.len());
        for operand in launch.operands {
            let slot = slots.get(&operand.buffer().handle());
            let slot = slot.ok_or_else(|| failed("find a buffer", "it was given back"))?;
            operands.push((&slot.buffer, operand.offset()));
        }
        if !*encoding {
            self.device.open_encoder(commands)?;
            *encoding = true;
            counters.encoders += 1;
        }
        let uses = launch.operands.iter().map(|o| (o.buffer().handle().0, o.is_written()));
        if hazards.before(uses) {
            self.device.barrier(commands);
            counters.barriers += 1;
        }
        self.device.encode(commands, pipeline, launch, &operands);
        counters.launches += 1;
        for operand in launch.operands {
            if let Some(slot) = slots.get_mut(&operand.buffer().handle()) {
                slot.last = number;
            }
        }
        Ok(())
    }
}

impl<D: Device> Backend for Unified<D> {
    fn name(&self) -> String {
        self.device.name()
    }

    fn allocate(&self, bytes: usize) -> Result<Handle> {
        let buffer = self.device.allocate(bytes)?;
        Ok(self.lock().add(buffer))
    }

    fn adopt(&self, bytes: &Bytes) -> Result<Option<(Handle, usize)>> {
        let pages = Pages::around(bytes.as_slice(), self.device.page());
        // SAFETY: these are whole pages of a file's map, which the buffer's owner keeps as long as the
        // buffer; kernels only read them.
        let Some(buffer) = (unsafe { self.device.adopt(&pages) })? else { return Ok(None) };
        let mut state = self.lock();
        state.counters.adopted += bytes.len() as u64;
        Ok(Some((state.add(buffer), pages.offset)))
    }

    fn free(&self, handle: Handle) {
        let slot = self.lock().slots.remove(&handle);
        if let Some(slot) = slot {
            self.device.release(slot.buffer);
        }
    }

    fn upload(&self, to: Handle, offset: usize, bytes: &[u8]) -> Result<()> {
        let mut state = self.lock();
        state.settle(&self.device);
        if !state.is_idle(to)? {
            return self.copy_there(&mut state, (to, offset), bytes);
        }
        let at = self.device.contents(&state.slot(to)?.buffer);
        // SAFETY: `Buffer` has checked that they fit; no work that is not done uses the buffer, and none is
        // asked for under this lock.
        unsafe { at.as_ptr().add(offset).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        state.counters.written += bytes.len() as u64;
        Ok(())
    }

    fn download(&self, from: Handle, offset: usize, out: &mut [u8]) -> Result<()> {
        let mut state = self.lock();
        let last = state.slot(from)?.last;
        state.wait_for(&self.device, last)?;
        let at = self.device.contents(&state.slot(from)?.buffer);
        // SAFETY: `Buffer` has checked that they are there; all work that uses the buffer is done, and none is
        // asked for under this lock.
        unsafe { at.as_ptr().add(offset).copy_to_nonoverlapping(out.as_mut_ptr(), out.len()) };
        Ok(())
    }

    fn is_idle(&self, handle: Handle) -> bool {
        let mut state = self.lock();
        state.settle(&self.device);
        state.is_idle(handle).unwrap_or(false)
    }

    fn launch(&self, launch: &Launch<'_>, work: u64) -> Result<()> {
        let pipeline = self.device.pipeline(launch)?;
        let mut state = self.lock();
        self.encode(&mut state, launch, &pipeline)?;
        state.send_if_full(&self.device, work);
        Ok(())
    }

    fn wait(&self) -> Result<()> {
        let mut state = self.lock();
        let number = state.number();
        state.wait_for(&self.device, number)
    }

    fn memory(&self) -> Result<Memory> {
        // Staging buffers would count.
        self.wait()?;
        self.device.memory()
    }

    fn threadgroups(&self) -> usize {
        self.device.threadgroups()
    }

    fn counters(&self) -> Counters {
        self.lock().counters
    }
}

impl<D: Device> Drop for Unified<D> {
    /// An encoder must be ended, and maps must outlive the work that reads them.
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let number = state.number();
        // Whoever asked for the work is gone.
        let _ = state.wait_for(&self.device, number);
    }
}

impl<D: Device> fmt::Debug for State<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State").field("counters", &self.counters).finish_non_exhaustive()
    }
}
