//! Tasks beside other work: a worker that has nothing else to do draws them.

use super::{BUSY, Job, Pool, Task, lock};
use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
};

/// Tasks that wait for workers.
#[derive(Default)]
pub(super) struct Beside {
    /// There are tasks that nobody has drawn, as far as one can tell without the lock.
    open: AtomicBool,
    state: Mutex<Option<State>>,
}

struct State {
    /// Borrowed from the caller of `beside`, who waits until nobody uses it.
    job: Job,
    next: usize,
    /// Tasks that workers are running.
    running: usize,
    panic: Option<Box<dyn Any + Send>>,
}

// SAFETY: a job's task is shared by threads, and its caller waits until nobody uses it.
unsafe impl Send for State {}

impl Beside {
    pub(super) fn is_open(&self) -> bool {
        self.open.load(SeqCst)
    }

    /// Runs one task, if one waits.
    pub(super) fn help(&self) -> bool {
        let Some((job, i)) = self.is_open().then(|| self.draw()).flatten() else { return false };
        BUSY.set(true);
        // SAFETY: the task counts as running, for which its caller waits.
        let result = catch_unwind(AssertUnwindSafe(|| unsafe { (*job.task)(i) }));
        BUSY.set(false);
        if let Some(state) = &mut *lock(&self.state) {
            state.running -= 1;
            state.panic = state.panic.take().or(result.err());
        }
        true
    }

    fn draw(&self) -> Option<(Job, usize)> {
        let mut state = lock(&self.state);
        let state = state.as_mut().filter(|state| state.next < state.job.tasks)?;
        let drawn = state.next;
        state.next += 1;
        state.running += 1;
        self.open.store(state.next < state.job.tasks, SeqCst);
        Some((state.job, drawn))
    }

    /// Offers tasks to workers; `None` while another thread's are offered.
    fn offer(&self, job: Job) -> Option<Offer<'_>> {
        let mut state = lock(&self.state);
        if state.is_some() {
            return None;
        }
        *state = Some(State { job, next: 0, running: 0, panic: None });
        self.open.store(true, SeqCst);
        Some(Offer(self))
    }
}

/// Tasks on offer. Dropped, it takes back those that nobody has drawn, and waits for the others.
struct Offer<'a>(&'a Beside);

impl Offer<'_> {
    /// The first task that no worker has drawn, and none will.
    fn withdraw(&self) -> usize {
        self.0.open.store(false, SeqCst);
        let mut state = lock(&self.0.state);
        let Some(state) = state.as_mut() else { return 0 };
        std::mem::replace(&mut state.next, state.job.tasks)
    }

    /// As [`Self::wait`]; another thread may offer tasks from then on.
    fn end(self) -> Option<Box<dyn Any + Send>> {
        let panic = self.wait();
        // Dropped, it would take back the next one's.
        std::mem::forget(self);
        panic
    }

    /// Waits for the workers, and says what a task panicked with.
    fn wait(&self) -> Option<Box<dyn Any + Send>> {
        loop {
            let mut state = lock(&self.0.state);
            if state.as_ref().is_none_or(|state| state.running == 0) {
                return state.take().and_then(|state| state.panic);
            }
            drop(state);
            std::thread::yield_now();
        }
    }
}

impl Drop for Offer<'_> {
    fn drop(&mut self) {
        self.withdraw();
        self.wait();
    }
}

impl Pool {
    pub(super) fn beside<R>(&self, tasks: usize, task: &Task<'_>, main: impl FnOnce() -> R) -> R {
        let shared = &*self.shared;
        // SAFETY: only the lifetime changes, and the offer's end waits for all users.
        let job = unsafe { std::mem::transmute::<&Task<'_>, &'static Task<'static>>(task) };
        let Some(offer) = shared.beside.offer(Job { task: job, tasks }) else {
            let out = main();
            self.run(tasks, task);
            return out;
        };
        if shared.sleepers.load(SeqCst) > 0 {
            drop(lock(&shared.bed));
            shared.bell.notify_all();
        }
        let out = main();
        let first = offer.withdraw();
        match tasks - first {
            0 => {}
            1 => task(first),
            left => self.run(left, &|i| task(first + i)),
        }
        if let Some(panic) = offer.end() {
            resume_unwind(panic);
        }
        out
    }
}
