//! A device that does what Metal may do: it runs work late, runs launches between two barriers in any
//! order, tells of what is done when it likes, fails, and has only so much memory. It counts its bytes.
//!
//! Kernels run on the host runner where a library of them is given; else nothing runs, and only the
//! decisions about work and memory are seen.

#[cfg(feature = "gpu-host")]
use super::super::host::Runner;
use super::{Device, Launch, Memory, Pages, Unified, WORK, failed};
use crate::{Result, gpu::Gpu};
#[cfg(feature = "gpu-host")]
use std::path::Path;
use std::{
    collections::{BTreeMap, HashSet},
    fmt, mem,
    ptr::NonNull,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

/// What a [`Fake`] is like.
#[derive(Debug, Clone, Copy)]
pub struct FakeOptions {
    /// Decides the order of launches and when work is done.
    pub seed: u64,
    /// Bytes of memory.
    pub memory: u64,
    /// Number of the command buffer that fails, from one on.
    pub fails: Option<u64>,
    /// Whether bytes of a file's map may be read where they lie.
    pub adopts: bool,
    /// Multiply-adds of a command buffer.
    pub work: u64,
}

impl Default for FakeOptions {
    fn default() -> Self {
        Self { seed: 1, memory: 64 << 30, fails: None, adopts: true, work: WORK }
    }
}

/// What a fake device has seen.
#[derive(Debug, Clone, Default)]
pub struct FakeUse(Arc<Seen>);

#[derive(Debug, Default)]
struct Seen {
    bytes: AtomicU64,
    most: AtomicU64,
    faults: Mutex<Vec<String>>,
    kernels: Mutex<BTreeMap<String, u32>>,
}

impl FakeUse {
    /// Bytes of buffers that are in use now.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.0.bytes.load(Ordering::Relaxed)
    }

    /// The most bytes that were in use at a time.
    #[must_use]
    pub fn most_bytes(&self) -> u64 {
        self.0.most.load(Ordering::Relaxed)
    }

    /// Kernels that were launched, each with the most threads of a threadgroup.
    #[must_use]
    pub fn kernels(&self) -> BTreeMap<String, u32> {
        lock(&self.0.kernels).clone()
    }

    /// What Metal would have ended the process for.
    #[must_use]
    pub fn faults(&self) -> Vec<String> {
        lock(&self.0.faults).clone()
    }

    fn fault(&self, what: &str) {
        lock(&self.0.faults).push(what.to_owned());
    }
}

impl Gpu {
    /// A fake device whose kernels are those of a library for the host runner, or do nothing.
    ///
    /// # Errors
    /// The library cannot be loaded.
    #[cfg(feature = "gpu-host")]
    pub fn fake(library: Option<&Path>, options: FakeOptions) -> Result<(Self, FakeUse)> {
        let runner = library.map(Runner::open).transpose()?;
        let kernels: Box<Kernels> = match runner {
            None => Box::new(|_, _, _| Ok(())),
            Some(runner) => Box::new(move |run, at, seed| {
                runner.run(&run.kernel, (run.grid, run.threads), at, &run.params, seed)
            }),
        };
        Ok(with_kernels(kernels, options))
    }
}

/// Runs a kernel: the launch, where its operands begin, and a seed for the order of threads.
type Kernels = dyn Fn(&Run, &[*mut u8], u64) -> std::result::Result<(), String> + Send + Sync;

pub(super) fn with_kernels(kernels: Box<Kernels>, options: FakeOptions) -> (Gpu, FakeUse) {
    let seen = FakeUse::default();
    let queue = Queue { random: options.seed | 1, ..Queue::default() };
    let fake = Fake { kernels, options, seen: seen.clone(), queue: Mutex::new(queue) };
    (Gpu::new(Box::new(Unified::new(fake))), seen)
}

/// The device.
struct Fake {
    kernels: Box<Kernels>,
    options: FakeOptions,
    seen: FakeUse,
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: Vec<Commands>,
    /// Command buffers that were committed.
    committed: u64,
    random: u64,
}

impl Queue {
    /// A number below `n`.
    fn below(&mut self, n: usize) -> usize {
        // xorshift64.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random % n.max(1) as u64) as usize
    }
}

/// Memory that goes with its last owner.
#[derive(Debug, Clone)]
pub(crate) struct FakeBuffer(Arc<Bytes>);

#[derive(Debug)]
struct Bytes {
    at: NonNull<u8>,
    len: usize,
    /// What was allocated; nothing of a file's map.
    owned: Option<(std::alloc::Layout, FakeUse)>,
}

// SAFETY: it is used through raw pointers, as the backend orders it.
unsafe impl Send for Bytes {}
// SAFETY: it is used through raw pointers, as the backend orders it.
unsafe impl Sync for Bytes {}

impl Drop for Bytes {
    fn drop(&mut self) {
        if let Some((layout, seen)) = &self.owned {
            // SAFETY: it was allocated so, and this is its last owner.
            unsafe { std::alloc::dealloc(self.at.as_ptr(), *layout) };
            seen.0.bytes.fetch_sub(layout.size() as u64, Ordering::Relaxed);
        }
    }
}

/// A launch as it was encoded.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) kernel: String,
    pub(crate) grid: [u32; 3],
    pub(crate) threads: u32,
    pub(crate) params: Vec<u8>,
    /// With the byte at which each begins, and whether it is written.
    operands: Vec<(FakeBuffer, usize, bool)>,
}

#[derive(Debug)]
enum Step {
    Run(Run),
    /// What comes later waits for what is there.
    Barrier,
    Copy(FakeBuffer, FakeBuffer, usize, usize),
}

#[derive(Debug)]
struct Recorded {
    steps: Vec<Step>,
    encoding: bool,
    /// In the order in which they were committed, from one on.
    number: u64,
    done: bool,
    error: Option<String>,
    seen: FakeUse,
}

/// Addresses of buffers that are read, and of those that are written.
#[derive(Debug, Default)]
struct Uses([HashSet<usize>; 2]);

impl Uses {
    fn add(&mut self, buffer: &FakeBuffer, written: bool) {
        self.0[usize::from(written)].insert(buffer.0.at.as_ptr() as usize);
    }

    /// Whether one writes what the other uses.
    fn clash(&self, other: &Self) -> bool {
        let Self([read, written]) = self;
        let Self([other_read, other_written]) = other;
        !written.is_disjoint(other_written)
            || !written.is_disjoint(other_read)
            || !read.is_disjoint(other_written)
    }

    fn extend(&mut self, other: Self) {
        self.0.iter_mut().zip(other.0).for_each(|(own, other)| own.extend(other));
    }
}

impl Recorded {
    fn uses(&self) -> Uses {
        let mut uses = Uses::default();
        for step in &self.steps {
            match step {
                Step::Run(run) => {
                    run.operands.iter().for_each(|(b, _, written)| uses.add(b, *written));
                }
                Step::Copy(from, to, ..) => {
                    uses.add(from, false);
                    uses.add(to, true);
                }
                Step::Barrier => {}
            }
        }
        uses
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        if self.encoding {
            self.seen.fault("command encoder released without endEncoding");
        }
    }
}

/// A command buffer.
#[derive(Debug, Clone)]
pub(crate) struct Commands(Arc<Mutex<Recorded>>);

impl Commands {
    fn record(&self, step: Step) {
        lock(&self.0).steps.push(step);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Fake {
    /// Runs the command buffer at a place of the queue, and before it those that it has to do with.
    fn run(&self, queue: &mut Queue, place: usize) {
        let (mut uses, mut wanted) = (Uses::default(), vec![false; place + 1]);
        for at in (0..=place).rev() {
            let own = lock(&queue.waiting[at].0).uses();
            wanted[at] = at == place || uses.clash(&own);
            if wanted[at] {
                uses.extend(own);
            }
        }
        let mut wanted = wanted.into_iter();
        let mut take = |_: &mut Commands| wanted.next().unwrap_or(false);
        let taken: Vec<_> = queue.waiting.extract_if(.., &mut take).collect();
        taken.iter().for_each(|commands| self.finish(queue, commands));
    }

    fn finish(&self, queue: &mut Queue, commands: &Commands) {
        let mut recorded = lock(&commands.0);
        let steps = mem::take(&mut recorded.steps);
        recorded.done = true;
        recorded.error = match self.options.fails == Some(recorded.number) {
            true => Some(format!("command buffer {} failed", recorded.number)),
            false => self.steps(queue, steps).err(),
        };
    }

    fn steps(&self, queue: &mut Queue, steps: Vec<Step>) -> std::result::Result<(), String> {
        let mut together = Vec::new();
        for step in steps {
            match step {
                Step::Run(run) => together.push(run),
                Step::Barrier => self.shuffled(queue, &mut together)?,
                Step::Copy(from, to, offset, n) => {
                    self.shuffled(queue, &mut together)?;
                    // SAFETY: the backend has checked that the bytes fit, and owners keep both buffers.
                    unsafe { to.0.at.add(offset).copy_from_nonoverlapping(from.0.at, n) };
                }
            }
        }
        self.shuffled(queue, &mut together)
    }

    /// Runs what no barrier orders, in any order.
    fn shuffled(&self, queue: &mut Queue, runs: &mut Vec<Run>) -> std::result::Result<(), String> {
        while !runs.is_empty() {
            let run = runs.swap_remove(queue.below(runs.len()));
            // SAFETY: operands begin inside their buffers.
            let at = |(buffer, offset, _): &(FakeBuffer, usize, bool)| unsafe {
                buffer.0.at.add(*offset).as_ptr()
            };
            let operands: Vec<_> = run.operands.iter().map(at).collect();
            (self.kernels)(&run, &operands, queue.random)?;
        }
        Ok(())
    }
}

impl Device for Fake {
    type Buffer = FakeBuffer;
    type Commands = Commands;
    type Pipeline = ();

    fn name(&self) -> String {
        "fake device".into()
    }

    fn memory(&self) -> Result<Memory> {
        let total = self.options.memory;
        Ok(Memory { free: total.saturating_sub(self.seen.bytes()), total })
    }

    fn allocate(&self, bytes: usize, _: bool) -> Result<FakeBuffer> {
        let none = || failed("allocate memory", format!("no {bytes} bytes"));
        let layout = std::alloc::Layout::from_size_align(bytes.max(1), 256).map_err(|_| none())?;
        let size = layout.size() as u64;
        let used = self.seen.0.bytes.fetch_add(size, Ordering::Relaxed) + size;
        // SAFETY: the layout is not empty.
        let at = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) });
        let Some(at) = at.filter(|_| used <= self.options.memory) else {
            self.seen.0.bytes.fetch_sub(size, Ordering::Relaxed);
            return Err(none());
        };
        self.seen.0.most.fetch_max(used, Ordering::Relaxed);
        let owned = Some((layout, self.seen.clone()));
        Ok(FakeBuffer(Arc::new(Bytes { at, len: bytes, owned })))
    }

    unsafe fn adopt(&self, pages: &Pages) -> Result<Option<FakeBuffer>> {
        let at = NonNull::new(pages.start as *mut u8).filter(|_| self.options.adopts);
        Ok(at.map(|at| FakeBuffer(Arc::new(Bytes { at, len: pages.len, owned: None }))))
    }

    fn contents(&self, buffer: &FakeBuffer) -> NonNull<u8> {
        buffer.0.at
    }

    fn release(&self, buffer: FakeBuffer) {
        drop(buffer);
    }

    fn pipeline(&self, launch: &Launch<'_>) -> Result<()> {
        let mut kernels = lock(&self.seen.0.kernels);
        let threads = kernels.entry(launch.kernel.to_owned()).or_default();
        *threads = launch.threads.max(*threads);
        Ok(())
    }

    fn page(&self) -> usize {
        16 << 10
    }

    fn threadgroups(&self) -> usize {
        40
    }

    fn work(&self) -> u64 {
        self.options.work
    }

    fn commands(&self) -> Result<Commands> {
        let (steps, seen) = (Vec::new(), self.seen.clone());
        let recorded =
            Recorded { steps, encoding: false, number: 0, done: false, error: None, seen };
        Ok(Commands(Arc::new(Mutex::new(recorded))))
    }

    fn open_encoder(&self, commands: &mut Commands) -> Result<()> {
        if mem::replace(&mut lock(&commands.0).encoding, true) {
            self.seen.fault("an encoder is open already");
        }
        Ok(())
    }

    fn barrier(&self, commands: &mut Commands) {
        commands.record(Step::Barrier);
    }

    fn encode(
        &self,
        commands: &mut Commands,
        (): &(),
        launch: &Launch<'_>,
        operands: &[(&FakeBuffer, usize)],
    ) {
        if !lock(&commands.0).encoding {
            self.seen.fault("a launch outside of an encoder");
        }
        // Metal's validation wants room for what the kernel's argument points to.
        if operands.iter().any(|&(buffer, at)| at + 4 > buffer.0.len) {
            self.seen.fault(&format!("{}: an operand without room for a word", launch.kernel));
        }
        commands.record(Step::Run(Run {
            kernel: launch.kernel.to_owned(),
            grid: launch.grid,
            threads: launch.threads,
            params: launch.params.to_vec(),
            operands: launch
                .operands
                .iter()
                .zip(operands)
                .map(|(operand, &(buffer, at))| (buffer.clone(), at, operand.is_written()))
                .collect(),
        }));
    }

    fn end_encoder(&self, commands: &mut Commands) {
        commands.record(Step::Barrier);
        if !mem::take(&mut lock(&commands.0).encoding) {
            self.seen.fault("no encoder to end");
        }
    }

    fn copy(
        &self,
        commands: &mut Commands,
        from: &FakeBuffer,
        (to, offset): (&FakeBuffer, usize),
        bytes: usize,
    ) -> Result<()> {
        if lock(&commands.0).encoding {
            self.seen.fault("a copy inside of an encoder of launches");
        }
        commands.record(Step::Copy(from.clone(), to.clone(), offset, bytes));
        Ok(())
    }

    fn commit(&self, commands: &mut Commands) {
        if lock(&commands.0).encoding {
            self.seen.fault("commit while an encoder is open");
        }
        let mut queue = lock(&self.queue);
        queue.committed += 1;
        lock(&commands.0).number = queue.committed;
        queue.waiting.push(commands.clone());
    }

    /// Now and then it runs some of what waits, this or not.
    fn is_done(&self, commands: &Commands) -> bool {
        let mut queue = lock(&self.queue);
        let waiting = queue.waiting.len();
        if waiting > 0 && queue.below(2) == 0 {
            let place = queue.below(waiting);
            self.run(&mut queue, place);
        }
        lock(&commands.0).done
    }

    fn wait(&self, commands: &Commands) {
        let mut queue = lock(&self.queue);
        let place = queue.waiting.iter().position(|c| Arc::ptr_eq(&c.0, &commands.0));
        if let Some(place) = place {
            self.run(&mut queue, place);
        } else if !lock(&commands.0).done {
            self.seen.fault("waits for what was never committed");
        }
    }

    fn error(&self, commands: &Commands) -> Option<String> {
        lock(&commands.0).error.clone()
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        if !lock(&self.queue).waiting.is_empty() {
            self.seen.fault("maps may go while work reads them");
        }
    }
}

impl fmt::Debug for Fake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fake").field("options", &self.options).finish_non_exhaustive()
    }
}
