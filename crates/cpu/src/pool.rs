//! Threads for kernels.
//!
//! A layer of a small model takes a few microseconds, and a step has some two hundred parallel
//! parts; waking sleeping threads for each would cost as much as the arithmetic. So workers spin a
//! moment before they sleep, tasks are drawn from one counter, and a worker that the system has
//! put aside is not waited for: it finds the job closed when it comes back.

mod beside;
mod grid;
#[cfg(test)]
mod tests;
mod topology;

pub use grid::{GridCell, grid};

use crate::{Result, TensorError, next};
use beside::Beside;
use std::{
    any::Any,
    cell::{Cell, UnsafeCell},
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError,
        atomic::{
            AtomicU64, AtomicUsize,
            Ordering::{Relaxed, SeqCst},
        },
    },
    time::{Duration, Instant},
};

/// How long an idle worker looks for the next job before it sleeps: longer than what a step does
/// between its parallel parts.
const SPIN: Duration = Duration::from_micros(200);

static POOL: OnceLock<Pool> = OnceLock::new();

thread_local! {
    /// This thread runs a task: what the task starts runs here too, one after the other.
    static BUSY: Cell<bool> = const { Cell::new(false) };
}

/// Sets how many threads kernels use, the calling one included.
///
/// # Errors
/// Zero, or kernels have run already with another number.
pub fn set_threads(threads: usize) -> Result<()> {
    if threads == 0 {
        return Err(TensorError::Threads { asked: threads, running: None });
    }
    let running = POOL.get_or_init(|| Pool::new(threads)).threads;
    if running == threads {
        return Ok(());
    }
    Err(TensorError::Threads { asked: threads, running: Some(running) })
}

/// How many threads kernels use.
#[must_use]
pub fn threads() -> usize {
    pool().threads
}

fn pool() -> &'static Pool {
    POOL.get_or_init(|| Pool::new(topology::default_threads()))
}

/// Runs `task(0)` to `task(tasks - 1)`, each once, in any order, and returns when all are done.
///
/// # Panics
/// When a task panics, after the others have ended.
pub fn run(tasks: usize, task: impl Fn(usize) + Sync) {
    if tasks <= 1 || BUSY.get() {
        (0..tasks).for_each(task);
        return;
    }
    pool().run(tasks, &task);
}

/// Cuts `0..len` into ranges of at least `least` and runs them; a range starts at a multiple of
/// `least`.
pub fn ranges(len: usize, least: usize, task: impl Fn(Range<usize>) + Sync) {
    let least = least.max(1);
    // A few tasks a thread even out what the system does to threads meanwhile.
    let wanted = if len <= least { 1 } else { threads() * 4 };
    let size = len.div_ceil(wanted).div_ceil(least) * least;
    run(len.div_ceil(size.max(1)), |i| task(i * size..((i + 1) * size).min(len)));
}

/// Cuts `0..len` into ranges that become shorter towards the end, down to `least`, and runs them, so that
/// all threads end at about the same time (guided self-scheduling, Polychronopoulos & Kuck 1987).
pub fn guided(len: usize, least: usize, task: impl Fn(Range<usize>) + Sync) {
    let threads = threads();
    let most = len.div_ceil(threads * 4).max(least);
    let (mut cuts, mut at) = (vec![0], 0);
    while at < len {
        at = (at + ((len - at) / (2 * threads)).clamp(least.max(1), most.max(1))).min(len);
        cuts.push(at);
    }
    run(cuts.len() - 1, |i| task(cuts[i]..cuts[i + 1]));
}

/// Cuts `0..parts` into a run for each thread, which goes through it from its start, so that what it prefetches
/// serves its next range; who is done helps the others. A thread's `task` is given its ranges,
/// each half of what is left of a run.
pub fn lanes(parts: usize, task: impl Fn(&mut dyn Iterator<Item = Range<usize>>) + Sync) {
    let threads = threads().min(parts);
    let cut = |i: usize| i * parts / threads;
    let lane = |i: usize| Lane { next: AtomicUsize::new(cut(i)), end: cut(i + 1) };
    let lanes: Vec<_> = (0..threads).map(lane).collect();
    run(threads, |own| {
        let mut order = lanes[own..].iter().chain(&lanes[..own]).peekable();
        task(&mut std::iter::from_fn(|| {
            loop {
                if let Some(range) = order.peek()?.draw() {
                    return Some(range);
                }
                order.next();
            }
        }));
    });
}

/// What is left of a thread's parts, in a pair of cache lines of its own.
#[repr(align(128))]
struct Lane {
    next: AtomicUsize,
    end: usize,
}

impl Lane {
    /// Half of what is left, at least one.
    fn draw(&self) -> Option<Range<usize>> {
        let half = |at: usize| at + (self.end - at).div_ceil(2);
        let more = |at: usize| (at < self.end).then(|| half(at));
        let at = self.next.fetch_update(Relaxed, Relaxed, more).ok()?;
        Some(at..half(at))
    }
}

/// Items that are shared out among tasks.
struct Items<T>(*mut T);

// SAFETY: each item is handed to one task only.
unsafe impl<T: Send> Sync for Items<T> {}

impl<T> Items<T> {
    fn at(&self, index: usize) -> *mut T {
        self.0.wrapping_add(index)
    }
}

/// Runs `task(index, item)` for every item.
pub fn for_each<T: Send>(items: &mut [T], task: impl Fn(usize, &mut T) + Sync) {
    let (len, items) = (items.len(), Items(items.as_mut_ptr()));
    run(len, |i| {
        // SAFETY: `i` is below the length, and no other task has it.
        task(i, unsafe { &mut *items.at(i) });
    });
}

/// Runs `main` here, and `task(index, item)` for every item beside it: on workers that have nothing else
/// to do, and when `main` has returned, on all threads. Returns when everything is done.
///
/// # Panics
/// When `main` or a task panics, after the others have ended.
pub fn beside<T: Send, R>(
    items: &mut [T],
    task: impl Fn(usize, &mut T) + Sync,
    main: impl FnOnce() -> R,
) -> R {
    if items.is_empty() || BUSY.get() {
        let out = main();
        items.iter_mut().enumerate().for_each(|(i, item)| task(i, item));
        return out;
    }
    let (len, items) = (items.len(), Items(items.as_mut_ptr()));
    // SAFETY: `i` is below the length, and no other task has it.
    pool().beside(len, &|i| task(i, unsafe { &mut *items.at(i) }), main)
}

/// `task(0)` to `task(tasks - 1)`, in order.
pub fn map<T: Send>(tasks: usize, task: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let mut results: Vec<Option<T>> = (0..tasks).map(|_| None).collect();
    for_each(&mut results, |i, slot| *slot = Some(task(i)));
    results.into_iter().flatten().collect()
}

/// The threads of kernels, for a sampler; in a task of theirs, the thread alone.
#[derive(Debug, Clone, Copy, Default)]
pub struct Kernels;

impl taper_base::Threads for Kernels {
    fn count(&self) -> usize {
        if BUSY.get() { 1 } else { threads() }
    }
    fn for_each<T: Send>(&self, items: &mut [T], task: impl Fn(&mut T) + Sync) {
        for_each(items, |_, item| task(item));
    }
}

type Task<'a> = dyn Fn(usize) + Sync + 'a;

#[derive(Clone, Copy)]
struct Job {
    /// Borrowed from the caller of `run`, who waits until nobody uses it.
    task: *const Task<'static>,
    tasks: usize,
}

struct Pool {
    threads: usize,
    shared: Arc<Shared>,
    /// Held by the thread whose job runs.
    turn: Mutex<()>,
}

struct Shared {
    /// Odd while a job is open; every opening has a number of its own.
    gate: AtomicU64,
    /// The next task to draw.
    next: AtomicUsize,
    /// Workers that may look at the job.
    active: AtomicUsize,
    job: UnsafeCell<Option<Job>>,
    /// What a worker's task panicked with.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    /// What workers do when there is no job.
    beside: Beside,
    sleepers: AtomicUsize,
    bed: Mutex<()>,
    bell: Condvar,
}

// SAFETY: `job` is written while the gate is closed and nobody is active, and read by workers that
// have made themselves active and then found the gate open.
unsafe impl Send for Shared {}
// SAFETY: `job` is written while the gate is closed and nobody is active, and read by workers that
// have made themselves active and then found the gate open.
unsafe impl Sync for Shared {}

impl Pool {
    fn new(threads: usize) -> Self {
        let shared = Arc::new(Shared {
            gate: AtomicU64::new(0),
            next: AtomicUsize::new(0),
            active: AtomicUsize::new(0),
            job: UnsafeCell::new(None),
            panic: Mutex::new(None),
            beside: Beside::default(),
            sleepers: AtomicUsize::new(0),
            bed: Mutex::new(()),
            bell: Condvar::new(),
        });
        let mut started = 1;
        for i in 1..threads {
            let shared = Arc::clone(&shared);
            let builder = std::thread::Builder::new().name(format!("taper-{i}"));
            // A system that gives no more threads leaves fewer workers, not none of the work done.
            started += usize::from(builder.spawn(move || shared.work()).is_ok());
        }
        Self { threads: started, shared, turn: Mutex::new(()) }
    }

    fn run(&self, tasks: usize, task: &Task<'_>) {
        // Another thread's job is running: waiting for it would take longer than doing it here.
        let turn = match self.turn.try_lock() {
            Ok(turn) => turn,
            // It guards no data, so a thread that died with it has left nothing half done.
            Err(TryLockError::Poisoned(turn)) => turn.into_inner(),
            Err(TryLockError::WouldBlock) => {
                (0..tasks).for_each(task);
                return;
            }
        };
        let shared = &*self.shared;
        // SAFETY: only the lifetime changes, and `close` waits for all users.
        let task = unsafe { std::mem::transmute::<&Task<'_>, &'static Task<'static>>(task) };
        let job = Job { task, tasks };
        // SAFETY: the gate is closed, nobody is active, and this thread holds the lock.
        unsafe { *shared.job.get() = Some(job) };
        shared.next.store(0, SeqCst);
        shared.gate.fetch_add(1, SeqCst);
        if shared.sleepers.load(SeqCst) > 0 {
            drop(lock(&shared.bed));
            shared.bell.notify_all();
        }
        let own = catch_unwind(AssertUnwindSafe(|| shared.draw(job)));
        if own.is_err() {
            // Nobody draws another task.
            shared.next.store(tasks, SeqCst);
        }
        shared.close();
        let theirs = lock(&shared.panic).take();
        // A guard that is dropped while its thread panics poisons the lock.
        drop(turn);
        if let Some(payload) = own.err().or(theirs) {
            resume_unwind(payload);
        }
    }
}

impl Shared {
    /// Runs tasks until none is left.
    fn draw(&self, job: Job) {
        // SAFETY: the job is open, or closing and waiting for this thread.
        let task = unsafe { &*job.task };
        BUSY.set(true);
        // So that a panic leaves the mark as it was.
        struct Free;
        impl Drop for Free {
            fn drop(&mut self) {
                BUSY.set(false);
            }
        }
        let _free = Free;
        loop {
            let i = self.next.fetch_add(1, SeqCst);
            if i >= job.tasks {
                break;
            }
            task(i);
        }
    }

    /// Lets nobody in any more and waits until all are out.
    fn close(&self) {
        self.gate.fetch_add(1, SeqCst);
        let mut spins = 0u32;
        while self.active.load(SeqCst) != 0 {
            spins += 1;
            next::wait();
            if spins < 2000 { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
    }

    /// A worker's life.
    fn work(&self) {
        let mut seen = 0;
        loop {
            let gate = self.next_opening(seen);
            seen = gate;
            self.active.fetch_add(1, SeqCst);
            // Between the two loads the job may have been closed, and even another opened.
            if self.gate.load(SeqCst) == gate {
                // SAFETY: open, and it cannot close while this thread is active.
                if let Some(job) = unsafe { *self.job.get() }
                    && let Err(payload) = catch_unwind(AssertUnwindSafe(|| self.draw(job)))
                {
                    *lock(&self.panic) = Some(payload);
                    self.next.store(job.tasks, SeqCst);
                }
            }
            self.active.fetch_sub(1, SeqCst);
        }
    }

    /// Waits for an opening other than `seen`, and does meanwhile what is to be done beside jobs.
    fn next_opening(&self, seen: u64) -> u64 {
        let open = || Some(self.gate.load(SeqCst)).filter(|g| g % 2 == 1 && *g != seen);
        let mut start = Instant::now();
        loop {
            if self.beside.help() {
                start = Instant::now();
            }
            for _ in 0..64 {
                if let Some(gate) = open() {
                    return gate;
                }
                next::wait();
                std::hint::spin_loop();
            }
            if start.elapsed() > SPIN {
                self.sleep(|| open().is_some() || self.beside.is_open());
                start = Instant::now();
            }
        }
    }

    /// Sleeps until there is something to do.
    fn sleep(&self, due: impl Fn() -> bool) {
        let mut bed = lock(&self.bed);
        self.sleepers.fetch_add(1, SeqCst);
        while !due() {
            bed = self.bell.wait(bed).unwrap_or_else(PoisonError::into_inner);
        }
        self.sleepers.fetch_sub(1, SeqCst);
    }
}

/// No code panics while it holds one of these locks.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
