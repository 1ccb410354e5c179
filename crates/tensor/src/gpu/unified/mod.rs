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

use super::{Backend, Counters, Handle, Launch, Memory, Pages};
use crate::{Bytes, Result, TensorError};
use state::{Slot, State};
use std::{
    fmt,
    ptr::NonNull,
    sync::{Mutex, MutexGuard, PoisonError},
};

#[cfg(any(test, feature = "gpu-host"))]
pub(crate) mod fake;
mod state;
#[cfg(test)]
mod tests;

/// Multiply-adds after which a command buffer is sent off. macOS ends one that takes seconds; so much takes
/// some 50 ms on an M1 when kernels reach an eighth of its speed.
pub(crate) const WORK: u64 = 1 << 33;
/// Bytes of staging buffers that may be in use: from then on they are waited for, so that they go.
const STAGED: usize = 64 << 20;

/// A GPU whose buffers the host sees. Its queue starts command buffers in the order in which they were committed;
/// those that share nothing may be done in another.
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

    /// Does a piece of work whose temporary objects go at its end.
    fn scope<T>(work: impl FnOnce() -> T) -> T {
        work()
    }

    /// Memory of so many bytes. What is kept stays in place while nothing runs.
    fn allocate(&self, bytes: usize, kept: bool) -> Result<Self::Buffer>;

    /// A buffer over whole pages of a file's map, or `None` where the device cannot read them there.
    ///
    /// # Safety
    /// The pages stay mapped as long as the buffer, and nobody writes them.
    unsafe fn adopt(&self, pages: &Pages) -> Result<Option<Self::Buffer>>;

    /// Where the host finds a buffer's bytes.
    fn contents(&self, buffer: &Self::Buffer) -> NonNull<u8>;

    /// The owner lets go of a buffer that no unfinished work uses.
    fn release(&self, buffer: Self::Buffer);

    /// What was allocated and released is to count from now on.
    fn settle(&self) {}

    /// Finds a kernel and compiles it if need be. Called without a lock.
    fn pipeline(&self, launch: &Launch<'_>) -> Result<Self::Pipeline>;

    /// Bytes of a page of memory.
    fn page(&self) -> usize;

    /// Threadgroups of 256 threads that keep it busy.
    fn threadgroups(&self) -> usize;

    /// Multiply-adds after which a command buffer is sent off, and that one launch should not exceed.
    fn work(&self) -> u64 {
        WORK
    }

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

    /// Waits until a committed command buffer has been run.
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

fn failed(what: &'static str, message: impl Into<String>) -> TensorError {
    TensorError::Gpu { what, message: message.into() }
}

/// # Safety
/// So many bytes are there on both sides, and nobody else writes either.
unsafe fn copy(from: NonNull<u8>, to: NonNull<u8>, bytes: usize) {
    // SAFETY: as the caller says; a borrowed slice and memory of a device do not overlap.
    unsafe { to.copy_from_nonoverlapping(from, bytes) };
}

impl<D: Device> Unified<D> {
    pub(crate) fn new(device: D) -> Self {
        Self { device, state: Mutex::new(State::new()) }
    }

    /// Does something with what is known, within a scope of the device.
    fn with<T>(&self, work: impl FnOnce(&D, &mut State<D>) -> T) -> T {
        let lock = || -> MutexGuard<'_, State<D>> {
            self.state.lock().unwrap_or_else(PoisonError::into_inner)
        };
        D::scope(|| work(&self.device, &mut lock()))
    }

    fn new_buffer(&self, bytes: usize, kept: bool) -> Result<Handle> {
        let buffer = D::scope(|| self.device.allocate(bytes, kept))?;
        Ok(self.with(|_, state| state.add(buffer)))
    }

    /// A copy by the GPU, after everything that was asked for before.
    fn copy_there(
        &self,
        state: &mut State<D>,
        (to, offset): (Handle, usize),
        bytes: &[u8],
    ) -> Result<()> {
        let staging = self.device.allocate(bytes.len(), false)?;
        let at = self.device.contents(&staging);
        // SAFETY: the staging buffer has room for them, and nobody else has it yet.
        unsafe { copy(NonNull::from(bytes).cast(), at, bytes.len()) };
        state.end_encoder(&self.device);
        state.open(&self.device)?;
        let target = state.slot(to)?.buffer.clone();
        if let Some(commands) = state.open.as_mut() {
            self.device.copy(commands, &staging, (&target, offset), bytes.len())?;
        }
        state.used(to);
        state.counters.blits += 1;
        state.counters.staged += bytes.len() as u64;
        state.staged += bytes.len();
        if state.all_staged() >= STAGED {
            let number = state.number();
            state.wait_for(&self.device, number);
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
        self.new_buffer(bytes, true)
    }

    fn allocate_scratch(&self, bytes: usize) -> Result<Handle> {
        self.new_buffer(bytes, false)
    }

    fn adopt(&self, bytes: &Bytes) -> Result<Option<(Handle, usize)>> {
        let pages = Pages::around(bytes.as_slice(), self.device.page());
        // SAFETY: these are whole pages of a file's map, which the buffer's owner keeps as long as the
        // buffer; kernels only read them.
        let adopted = D::scope(|| unsafe { self.device.adopt(&pages) })?;
        Ok(adopted.map(|buffer| {
            self.with(|_, state| {
                state.counters.adopted += bytes.len() as u64;
                (state.add(buffer), pages.offset)
            })
        }))
    }

    fn free(&self, handle: Handle) {
        self.with(|device, state| {
            state.settle(device);
            state.remove(device, handle);
            device.settle();
        });
    }

    fn upload(&self, to: Handle, offset: usize, bytes: &[u8]) -> Result<()> {
        self.with(|device, state| {
            state.settle(device);
            // Copies on the GPU are of whole words.
            let words = offset.is_multiple_of(4) && bytes.len().is_multiple_of(4);
            if !state.is_idle(to)? && words {
                return self.copy_there(state, (to, offset), bytes);
            }
            let Slot { buffer, last } = state.slot(to)?;
            let (at, last) = (device.contents(buffer), *last);
            state.wait_for(device, last);
            // SAFETY: `Buffer` has checked that they fit; no work that is not done uses the buffer, and none is
            // asked for under this lock.
            unsafe { copy(NonNull::from(bytes).cast(), at.add(offset), bytes.len()) };
            state.counters.written += bytes.len() as u64;
            Ok(())
        })
    }

    fn download(&self, from: Handle, offset: usize, out: &mut [u8]) -> Result<()> {
        self.with(|device, state| {
            let Slot { buffer, last } = state.slot(from)?;
            let (at, last) = (device.contents(buffer), *last);
            state.wait_for(device, last);
            state.error(device, last)?;
            // SAFETY: `Buffer` has checked that they are there; all work that uses the buffer is done, and none
            // is asked for under this lock.
            unsafe { copy(at.add(offset), NonNull::from(&mut *out).cast(), out.len()) };
            Ok(())
        })
    }

    fn is_idle(&self, handle: Handle) -> bool {
        self.with(|device, state| {
            state.settle(device);
            state.is_idle(handle).unwrap_or(false)
        })
    }

    fn launch(&self, launch: &Launch<'_>, work: u64) -> Result<()> {
        let pipeline = D::scope(|| self.device.pipeline(launch))?;
        self.with(|device, state| {
            self.encode(state, launch, &pipeline)?;
            state.send_if_full(device, work);
            Ok(())
        })
    }

    fn most_work(&self) -> u64 {
        self.device.work()
    }

    fn wait(&self) -> Result<()> {
        self.drain();
        self.with(|device, state| state.new_error(device))
    }

    fn drain(&self) {
        self.with(|device, state| {
            let number = state.number();
            state.wait_for(device, number);
            device.settle();
        });
    }

    fn memory(&self) -> Result<Memory> {
        // Staging buffers would count.
        self.drain();
        D::scope(|| self.device.memory())
    }

    fn threadgroups(&self) -> usize {
        self.device.threadgroups()
    }

    fn counters(&self) -> Counters {
        self.with(|_, state| state.counters)
    }
}

impl<D: Device> Drop for Unified<D> {
    /// An encoder must be ended, and maps must outlive the work that reads them.
    fn drop(&mut self) {
        self.drain();
    }
}
