//! A GPU, its memory, and what runs on it.

use super::{Counters, Launch, Operand};
use crate::{Bytes, Result, TensorError};
use std::{
    collections::{BTreeSet, HashMap},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// A buffer as its backend knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Handle(pub(crate) u64);

/// Bytes of a GPU's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// Bytes that nobody uses.
    pub free: u64,
    /// Bytes of memory in all.
    pub total: u64,
}

/// What runs kernels. Work is done in the order it was asked for; only `download` and `wait` wait.
pub(crate) trait Backend: Send + Sync + fmt::Debug {
    /// The device's name.
    fn name(&self) -> String;

    /// Memory of exactly so many bytes; its contents are anything.
    fn allocate(&self, bytes: usize) -> Result<Handle>;

    /// As [`Self::allocate`], for what is of use while a step runs.
    fn allocate_scratch(&self, bytes: usize) -> Result<Handle> {
        self.allocate(bytes)
    }

    /// A buffer over bytes of a file's map where they lie, and its byte at which they begin, if the
    /// device reads them there. They are never written, and stay as long as the buffer.
    fn adopt(&self, _bytes: &Bytes) -> Result<Option<(Handle, usize)>> {
        Ok(None)
    }

    /// Gives memory back. Work that was asked for may still read it.
    fn free(&self, handle: Handle);

    /// Copies bytes in, after what was asked for before.
    fn upload(&self, to: Handle, offset: usize, bytes: &[u8]) -> Result<()>;

    /// Copies bytes out, after what was asked for before.
    fn download(&self, from: Handle, offset: usize, out: &mut [u8]) -> Result<()>;

    /// Whether no work that is not done uses a buffer, where that makes a difference to `upload`.
    fn is_idle(&self, _handle: Handle) -> bool {
        true
    }

    /// Runs a kernel of about so many multiply-adds; 0 where they are few.
    fn launch(&self, launch: &Launch<'_>, work: u64) -> Result<()>;

    /// Runs a kernel of little work whose results nobody waits for: it may run beside later launches, but for
    /// those that have one of the guarded buffers.
    fn launch_aside(&self, launch: &Launch<'_>, _guarded: &[Handle]) -> Result<()> {
        self.launch(launch, 0)
    }

    /// Multiply-adds that one launch should not exceed, so that the device is not taken for stuck.
    fn most_work(&self) -> u64 {
        u64::MAX
    }

    /// Waits until everything that was asked for is done.
    fn wait(&self) -> Result<()>;

    /// As [`Self::wait`]; an error is left to who asks for it.
    fn drain(&self) {
        // Where errors stay, whoever waits next is told.
        let _ = self.wait();
    }

    /// Memory there is.
    fn memory(&self) -> Result<Memory>;

    /// Bytes a second that the memory gives by its clock and width, where the driver knows them.
    fn peak_bandwidth(&self) -> Result<Option<u64>> {
        Ok(None)
    }

    /// What it has done.
    fn counters(&self) -> Counters {
        Counters::default()
    }

    /// Whether memory of steps may be larger than asked for and used again without being cleared;
    /// not where accesses are checked.
    fn may_pool(&self) -> bool {
        true
    }

    /// Threadgroups of 256 threads that keep it busy: so many an H100 runs at a time.
    fn threadgroups(&self) -> usize {
        512
    }

    /// Whether the matrix units are so fast that even one row of activations is better multiplied
    /// there.
    fn has_fast_tiles(&self) -> bool {
        false
    }

    /// Whether four simdgroups multiply together as `taper/wide.h` has it.
    fn has_wide_tiles(&self) -> bool {
        false
    }

    /// Whether these are worth their while for attention of prompts.
    fn has_prompt_tiles(&self) -> bool {
        self.has_wide_tiles()
    }

    /// Whether there is a library for [`Self::matmul`].
    fn has_matmul(&self) -> bool {
        false
    }

    /// A library's product of f16 matrices with f32 sums: `out [m, n] = x [m, k] w [n, k]ᵀ`.
    fn matmul(&self, _operands: MatmulOperands<'_>) -> Result<()> {
        Err(TensorError::Device { op: "matmul", device: self.name() })
    }
}

/// What [`Backend::matmul`] multiplies.
#[derive(Debug, Clone, Copy)]
#[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "only CUDA has a library"))]
pub(crate) struct MatmulOperands<'a> {
    /// A buffer, from a byte on.
    pub(crate) x: (&'a Buffer, usize),
    pub(crate) w: (&'a Buffer, usize),
    pub(crate) out: (&'a Buffer, usize),
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
}

/// A GPU. Cheap to clone.
#[derive(Clone)]
pub struct Gpu(Arc<Shared>);

struct Shared {
    backend: Arc<dyn Backend>,
    /// Whether it is treated as if its matrix units were slow.
    slow: bool,
    /// Buffers of finished temporaries, by size. The lowest is taken, so that a step which does what
    /// the one before it did has the same memory for it.
    pool: Mutex<HashMap<usize, BTreeSet<Handle>>>,
}

impl Gpu {
    #[allow(dead_code, reason = "each backend is a feature")]
    pub(crate) fn new(backend: Box<dyn Backend>) -> Self {
        Self(Arc::new(Shared { backend: backend.into(), slow: false, pool: Mutex::default() }))
    }

    /// The GPU with the kernels that are launched where matrix units are slow, as on Apple's: for checks of
    /// these.
    #[must_use]
    pub fn with_slow_tiles(&self) -> Self {
        let backend = Arc::clone(&self.0.backend);
        Self(Arc::new(Shared { backend, slow: true, pool: Mutex::default() }))
    }

    /// Name of the device.
    #[must_use]
    pub fn name(&self) -> String {
        self.0.backend.name()
    }

    /// Memory there is.
    ///
    /// # Errors
    /// The driver does not say.
    pub fn memory(&self) -> Result<Memory> {
        self.0.backend.memory()
    }

    /// Bytes a second that its memory gives by its clock and width, as a datasheet counts; `None` where the
    /// driver does not know them.
    ///
    /// # Errors
    /// The driver does not say.
    pub fn peak_bandwidth(&self) -> Result<Option<u64>> {
        self.0.backend.peak_bandwidth()
    }

    /// Waits for everything that was launched.
    ///
    /// # Errors
    /// A kernel failed.
    pub fn wait(&self) -> Result<()> {
        self.0.backend.wait()
    }

    /// Memory that lives long: weights and caches. Exactly so many bytes, never pooled.
    ///
    /// # Errors
    /// There is not so much memory.
    pub fn allocate(&self, bytes: usize) -> Result<Buffer> {
        // Kernels may take what they never read, and are given a few bytes for it.
        let handle = self.or_trimmed(|backend| backend.allocate(bytes.max(16)))?;
        Ok(Buffer { gpu: self.clone(), handle, bytes, pooled: None, map: None })
    }

    /// Memory; where there is not enough, once more without what the pool holds.
    fn or_trimmed(&self, allocate: impl Fn(&dyn Backend) -> Result<Handle>) -> Result<Handle> {
        allocate(&*self.0.backend).or_else(|error| {
            let pool = std::mem::take(&mut *self.pool());
            if pool.values().all(BTreeSet::is_empty) {
                return Err(error);
            }
            self.0.backend.drain();
            pool.into_values().flatten().for_each(|handle| self.0.backend.free(handle));
            allocate(&*self.0.backend)
        })
    }

    /// Bytes of a file's map as a buffer, without a copy, and its byte at which they begin. `None` where
    /// the device cannot read them there, or kernels could not: they read 16 bytes at a time.
    pub(crate) fn adopt(&self, bytes: &Bytes) -> Result<Option<(Buffer, usize)>> {
        let at = bytes.as_slice().as_ptr() as usize;
        if !bytes.is_mapped() || bytes.is_empty() || !at.is_multiple_of(16) {
            return Ok(None);
        }
        let adopted = self.0.backend.adopt(bytes)?;
        Ok(adopted.map(|(handle, offset)| {
            let (gpu, map) = (self.clone(), Some(bytes.clone()));
            (Buffer { gpu, handle, bytes: offset + bytes.len(), pooled: None, map }, offset)
        }))
    }

    /// Memory for a result within a step; it returns to a pool.
    pub(crate) fn temporary(&self, bytes: usize) -> Result<Buffer> {
        if !self.0.backend.may_pool() {
            return self.allocate(bytes);
        }
        let size = bytes.max(256).next_power_of_two();
        let handle = self.pool().get_mut(&size).and_then(BTreeSet::pop_first);
        self.pooled(handle, bytes, size)
    }

    /// Memory for bytes that the host is about to write: no work that is not done uses it.
    fn temporary_to_write(&self, bytes: usize) -> Result<Buffer> {
        if !self.0.backend.may_pool() {
            return self.allocate(bytes);
        }
        let size = bytes.max(256).next_power_of_two();
        let mut pool = self.pool();
        let handles = pool.entry(size).or_default();
        let handle = handles.iter().copied().find(|&handle| self.0.backend.is_idle(handle));
        handle.map(|handle| handles.remove(&handle));
        drop(pool);
        self.pooled(handle, bytes, size)
    }

    /// A buffer of the pool, or a new one for it.
    fn pooled(&self, handle: Option<Handle>, bytes: usize, size: usize) -> Result<Buffer> {
        let handle = match handle {
            Some(handle) => handle,
            None => self.or_trimmed(|backend| backend.allocate_scratch(size))?,
        };
        Ok(Buffer { gpu: self.clone(), handle, bytes, pooled: Some(size), map: None })
    }

    fn pool(&self) -> MutexGuard<'_, HashMap<usize, BTreeSet<Handle>>> {
        self.0.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A temporary with these contents.
    ///
    /// # Errors
    /// There is not so much memory.
    pub fn upload<T: bytemuck::Pod>(&self, data: &[T]) -> Result<Buffer> {
        let bytes: &[u8] = bytemuck::cast_slice(data);
        let buffer = self.temporary_to_write(bytes.len())?;
        buffer.write(0, bytes)?;
        Ok(buffer)
    }

    /// Runs a kernel of little work.
    pub(crate) fn launch(&self, launch: &Launch<'_>) -> Result<()> {
        self.launch_work(launch, 0)
    }

    /// Runs a kernel of about so many multiply-adds.
    pub(crate) fn launch_work(&self, launch: &Launch<'_>, work: usize) -> Result<()> {
        match self.can_run(launch)? {
            true => self.0.backend.launch(launch, work as u64),
            false => Ok(()),
        }
    }

    /// Runs a kernel of little work, maybe beside later launches that have none of these buffers.
    pub(crate) fn launch_aside(&self, launch: &Launch<'_>, guarded: &[&Buffer]) -> Result<()> {
        let guarded: Vec<_> = guarded.iter().map(|buffer| buffer.handle()).collect();
        match self.can_run(launch)? {
            true => self.0.backend.launch_aside(launch, &guarded),
            false => Ok(()),
        }
    }

    /// Whether there is anything to run.
    fn can_run(&self, launch: &Launch<'_>) -> Result<bool> {
        if launch.grid.contains(&0) {
            return Ok(false);
        }
        let ours = |o: &Operand<'_>| Arc::ptr_eq(&o.buffer().gpu.0.backend, &self.0.backend);
        if !launch.operands.iter().all(ours) {
            let message = format!("{}: an operand is on another GPU", launch.kernel);
            return Err(TensorError::Gpu { what: "run kernel", message });
        }
        Ok(true)
    }

    /// Multiply-adds that one launch should not exceed.
    pub(crate) fn most_work(&self) -> u64 {
        self.0.backend.most_work()
    }

    /// What its backend has done.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.0.backend.counters()
    }

    pub(crate) fn threadgroups(&self) -> usize {
        self.0.backend.threadgroups()
    }

    /// Whether there are matrix units, and kernels for them.
    #[must_use]
    pub fn has_fast_tiles(&self) -> bool {
        !self.0.slow && self.0.backend.has_fast_tiles()
    }

    /// Whether there are matrix units for four simdgroups together.
    #[must_use]
    pub fn has_wide_tiles(&self) -> bool {
        !self.0.slow && self.0.backend.has_wide_tiles()
    }

    /// Whether attention of prompts runs on matrix units.
    #[must_use]
    pub fn has_prompt_tiles(&self) -> bool {
        !self.0.slow && self.0.backend.has_prompt_tiles()
    }

    pub(crate) fn has_matmul(&self) -> bool {
        !self.0.slow && self.0.backend.has_matmul()
    }

    pub(crate) fn matmul(&self, operands: MatmulOperands<'_>) -> Result<()> {
        self.0.backend.matmul(operands)
    }

    /// Whether two handles are one GPU.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Gpu").field(&self.name()).finish()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let pool = self.pool.get_mut().unwrap_or_else(PoisonError::into_inner);
        for handle in pool.drain().flat_map(|(_, handles)| handles) {
            self.backend.free(handle);
        }
    }
}

/// Memory of a GPU.
pub struct Buffer {
    gpu: Gpu,
    handle: Handle,
    bytes: usize,
    /// The size under which it goes back to the pool.
    pooled: Option<usize>,
    /// What it lies over, if that is not the device's own memory.
    map: Option<Bytes>,
}

impl Buffer {
    /// GPU that the memory is on.
    #[must_use]
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    pub(crate) fn handle(&self) -> Handle {
        self.handle
    }

    /// Number of bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// They do not fit.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        self.check(offset, bytes.len())?;
        if bytes.is_empty() {
            Ok(())
        } else {
            self.gpu.0.backend.upload(self.handle, offset, bytes)
        }
    }

    /// Copies elements out, after everything that was launched before.
    ///
    /// # Errors
    /// There are not so many, or a kernel failed.
    pub fn read<T: bytemuck::Pod>(&self, offset: usize, n: usize) -> Result<Vec<T>> {
        let mut out = vec![T::zeroed(); n];
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut out);
        self.check(offset, bytes.len())?;
        if !bytes.is_empty() {
            self.gpu.0.backend.download(self.handle, offset, bytes)?;
        }
        Ok(out)
    }

    fn check(&self, offset: usize, n: usize) -> Result<()> {
        match offset.checked_add(n) {
            Some(end) if end <= self.bytes => Ok(()),
            _ => Err(TensorError::Bytes {
                what: "gpu buffer",
                expected: self.bytes,
                got: offset + n,
            }),
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.map.is_some() {
            // What was launched may read the map, which is about to go.
            self.gpu.0.backend.drain();
        }
        let Some(size) = self.pooled else { return self.gpu.0.backend.free(self.handle) };
        self.gpu.pool().entry(size).or_default().insert(self.handle);
    }
}
