//! The engine's thread: takes commands, and runs a step of every KV cache in order.

use crate::{
    adapters::AdapterUse, eviction::Evictor, lane::Lane, listener::Listener,
    speculation::Speculation, stats::SharedStats,
};
use std::{
    sync::{Arc, mpsc},
    time::{Duration, Instant},
};
use taper_base::{Drafting, Event, GenRequest, GenerationError, SeqId, TokenSet};
use taper_kv_cache::{DiskTier, KvConfig, Recall, ResidentRoom, UnitName, UnitRows, Unread};
use taper_models::Model;
use taper_scheduler::SchedulerConfig;

/// How long commands are taken before the next step.
const COMMANDS_TIME: Duration = Duration::from_millis(5);

/// Commands to the thread.
pub(crate) enum Command {
    /// Runs a request over one of the KV caches.
    Submit { lane: usize, submission: Box<Submission> },
    /// The disk has read a unit for a request that waits for it.
    Loaded { lane: usize, id: SeqId, unit: (usize, UnitName), rows: Result<UnitRows, Unread> },
    /// Ends the thread.
    Stop,
}

/// A request that was checked.
pub(crate) struct Submission {
    pub(crate) request: GenRequest,
    /// Tokens that it may generate.
    pub(crate) max_new: u32,
    pub(crate) listener: Listener,
    pub(crate) adapter: Option<AdapterUse>,
    /// Which pages its tokens attend to; all where it is `None`.
    pub(crate) recall: Option<Recall>,
}

/// What the schedulers of all KV caches share.
pub(crate) struct Shared {
    pub(crate) model: Box<dyn Model>,
    /// The model's own end-of-sequence tokens.
    pub(crate) eos: TokenSet,
    pub(crate) stats: Arc<SharedStats>,
    /// Evicts rows of sequences while they run.
    pub(crate) evictor: Option<Evictor>,
    /// Where prefixes are kept, and what names the model there.
    pub(crate) disk: Option<(Arc<DiskTier>, String)>,
    /// Tokens of blocks that no step attends to which stay in memory, where the others lie on disk alone.
    pub(crate) hot_tokens: Option<usize>,
    /// What of each cache may be in memory at a time.
    pub(crate) resident: Vec<Option<ResidentRoom>>,
    /// When memory is returned to the system, and how much is kept.
    pub(crate) idle: Option<Idle>,
    /// For what other threads have to tell this one.
    pub(crate) commands: mpsc::Sender<Command>,
}

/// What an engine without requests does with its memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Idle {
    pub(crate) after: Duration,
    pub(crate) keep_bytes: u64,
}

/// What lanes are made of.
pub(crate) struct Plan {
    pub(crate) caches: Vec<KvConfig>,
    pub(crate) limits: SchedulerConfig,
    pub(crate) speculation: Option<Speculation>,
}

impl Plan {
    fn lanes(&self, shared: &Shared) -> Vec<Lane> {
        let Self { caches, limits, speculation } = self;
        let lane = |(index, kv): (usize, &KvConfig)| {
            Lane::new(index, kv.clone(), *limits, speculation.as_ref(), shared)
        };
        caches.iter().enumerate().map(lane).collect()
    }
}

/// What the thread owns.
pub(crate) struct Worker {
    shared: Shared,
    plan: Plan,
    /// One per KV scheme. Their steps alternate.
    lanes: Vec<Lane>,
    next: u64,
}

impl Worker {
    pub(crate) fn new(shared: Shared, plan: Plan) -> Self {
        let lanes = plan.lanes(&shared);
        Self { shared, plan, lanes, next: 0 }
    }

    /// Whether tokens are drafted.
    pub(crate) fn drafting(&self) -> Drafting {
        self.lanes.first().map(Lane::drafting).unwrap_or_default()
    }

    /// After a panic that may have left anything half done: every request ends, and empty caches take the place
    /// of those there were.
    pub(crate) fn restart(&mut self) {
        let failed = |lane: &mut Lane| {
            lane.end_all(&Event::Failed(GenerationError::Restarted), &self.shared);
        };
        self.lanes.iter_mut().for_each(failed);
        // Memory for both may not be there.
        self.lanes.clear();
        self.lanes = self.plan.lanes(&self.shared);
    }

    pub(crate) fn stats(&self) -> &SharedStats {
        &self.shared.stats
    }

    pub(crate) fn run(&mut self, inbox: &mpsc::Receiver<Command>) {
        while self.take_commands(inbox) {
            self.lanes.iter_mut().for_each(|lane| lane.turn(&self.shared));
        }
        let last = Event::Failed(GenerationError::ShuttingDown);
        self.lanes.iter_mut().for_each(|lane| lane.end_all(&last, &self.shared));
    }

    /// Waits for a command, or until a step is due.
    fn wait(&self, inbox: &mpsc::Receiver<Command>) -> Result<Command, mpsc::TryRecvError> {
        match self.lanes.iter().filter_map(|lane| lane.next_turn(&self.shared)).min() {
            None => inbox.recv().map_err(|_| mpsc::TryRecvError::Disconnected),
            Some(time) => inbox.recv_timeout(time).map_err(|error| match error {
                mpsc::RecvTimeoutError::Timeout => mpsc::TryRecvError::Empty,
                mpsc::RecvTimeoutError::Disconnected => mpsc::TryRecvError::Disconnected,
            }),
        }
    }

    /// Waits for a command when there is nothing else to do; `false` ends the thread.
    fn take_commands(&mut self, inbox: &mpsc::Receiver<Command>) -> bool {
        let mut first = None;
        loop {
            let command = match self.lanes.iter().all(Lane::is_idle) {
                true => self.wait(inbox),
                // While a prefix is read from disk there may always be one more.
                false if first.is_some_and(|at: Instant| at.elapsed() >= COMMANDS_TIME) => {
                    return true;
                }
                false => inbox.try_recv(),
            };
            first.get_or_insert_with(Instant::now);
            match command {
                Ok(Command::Submit { lane, submission }) => {
                    let id = SeqId(self.next);
                    self.next += 1;
                    self.lanes[lane].admit(id, *submission, &self.shared);
                }
                Ok(Command::Loaded { lane, id, unit, rows }) => {
                    self.lanes[lane].loaded(id, unit, rows, &self.shared);
                }
                Ok(Command::Stop) | Err(mpsc::TryRecvError::Disconnected) => return false,
                Err(mpsc::TryRecvError::Empty) => return true,
            }
        }
    }
}
