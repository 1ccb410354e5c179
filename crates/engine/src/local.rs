//! The engine of one process: a thread that owns the model's cache and the scheduler.

use crate::{
    EngineConfig, EngineError, KvDisk, KvIdle, Scheduling,
    adapters::Adapters,
    config::EnginePlan,
    eviction::{Evictor, Rows},
    listener::Listener,
    media,
    open::Open,
    sequence,
    stats::{SharedStats, add},
    step,
    worker::{Command, Idle, Plan, Shared, Submission, Worker},
};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};
use taper_base::{
    AdapterInfo, AdapterRefused, Drafting, Engine, EngineInfo, EngineStats, EventSink, GenRequest,
    SubmitError, TokenSet,
};
use taper_kv_cache::{DiskTier, KvConfig, Recall, ResidentRoom};
use taper_models::{Model, ModelInfo, StreamedExperts};
use taper_scheduler::SchedulerConfig;

/// Runs a model in this process.
#[derive(Debug)]
pub struct LocalEngine {
    info: EngineInfo,
    stats: Arc<SharedStats>,
    experts: Option<StreamedExperts>,
    eos: TokenSet,
    adapters: Adapters,
    /// Why new tokens attend to all pages, if they have to.
    cannot_recall: Option<&'static str>,
    /// What it is, for checks of images.
    model: ModelInfo,
    scheduling: Scheduling,
    /// What bounds a prompt where rows are evicted.
    rows: Option<Rows>,
    /// What bounds a sequence over each cache where not all of it may be in memory.
    resident: Vec<Option<(ResidentRoom, KvConfig)>>,
    /// Requests that have not ended.
    open: Arc<Open>,
    /// The thread has not panicked.
    alive: Arc<AtomicBool>,
    /// `None` once stopping: nothing is sent after [`Command::Stop`], so nothing is left unread.
    commands: RwLock<Option<mpsc::Sender<Command>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl LocalEngine {
    /// Starts the engine's thread.
    ///
    /// # Errors
    /// The lengths asked for do not fit the model or the memory.
    pub fn start(model: Box<dyn Model>, config: &EngineConfig) -> Result<Self, EngineError> {
        let EnginePlan { caches, max_model_len } = config.plan(model.info())?;
        let limits = (config.max_adapters, config.max_adapter_rank);
        let adapters = Adapters::new(model.adapter_targets().cloned(), model.info(), limits);
        config.adapters.iter().try_for_each(|(name, dir)| adapters.load(name, dir))?;
        let model_info = model.info().clone();
        let vocab_size = u32::try_from(model.info().vocab).unwrap_or(u32::MAX);
        let cannot_recall = config.cannot_recall(&caches);
        let sum = |of: &dyn Fn(&KvConfig) -> u64| caches.iter().map(of).sum::<u64>();
        let info = EngineInfo {
            max_model_len,
            vocab_size,
            eos_token_ids: config.eos_token_ids.clone(),
            kv_cache_dtype: config.scheme.to_string(),
            kv_bits: config.kv_bits(),
            kv_capacity_tokens: sum(&|kv| (kv.blocks * kv.geometry.block_tokens) as u64),
            kv_capacity_bytes: sum(&KvConfig::bytes),
            kv_exact_bytes: sum(&|kv| kv.bytes_per_exact_block() * kv.exact_blocks() as u64),
            prefix_caching: config.prefix_caching,
            weight_bytes: model.info().weight_bytes,
            drafting: Drafting::default(),
            kv_recall_pages: config.kv_recall_pages,
        };
        let limits = SchedulerConfig {
            max_num_batched_tokens: config.max_num_batched_tokens,
            max_num_seqs: config.max_num_seqs,
            // `submit` counts every open request; a second limit here would refuse a burst that
            // arrives between two plans, when nothing of it runs yet.
            max_waiting: u32::MAX,
            eviction: config.eviction.as_ref().zip(caches.first()).map(|(e, kv)| e.schedule(kv)),
            ..SchedulerConfig::default()
        };
        let (commands, inbox) = mpsc::channel();
        let open_disk = |disk: &KvDisk| {
            // Pages that are on disk alone must not make room for another server's.
            let open = match config.kv_hot_tokens {
                Some(_) => DiskTier::open_alone,
                None => DiskTier::open,
            };
            let tier = open(&disk.dir, disk.max_bytes)?;
            Ok::<_, EngineError>((Arc::new(tier), disk.model.clone()))
        };
        let disk = config.disk.as_ref().map(open_disk).transpose()?;
        let tier = disk.as_ref().map(|(tier, _)| Arc::clone(tier));
        let stats = Arc::new(SharedStats::new(caches.len(), tier));
        let experts = model.experts();
        let eos: TokenSet = info.eos_token_ids.iter().copied().collect();
        let a_quarter = info.weight_bytes / 4;
        let idle = config.idle.map(|KvIdle { after, keep_bytes }| Idle {
            after,
            keep_bytes: keep_bytes.unwrap_or(a_quarter),
        });
        let gpu = caches.first().and_then(|kv| kv.scheme.codec(0).gpu());
        let evictor = |e| Evictor::new(e, &*model, gpu);
        let evictor = config.eviction.as_ref().map(evictor).transpose()?;
        let rows = limits.eviction.map(|schedule| Rows::new(schedule, &caches));
        let resident: Vec<_> = caches.iter().map(|kv| config.resident(kv, caches.len())).collect();
        let longest = resident.iter().zip(&caches).map(|(room, kv)| Some(((*room)?, kv.clone())));
        let longest = longest.collect();
        let shared = Shared {
            evictor,
            idle,
            hot_tokens: config.kv_hot_tokens,
            resident,
            disk,
            commands: commands.clone(),
            model,
            eos: eos.clone(),
            stats: Arc::clone(&stats),
        };
        let plan = Plan { caches, limits, speculation: config.speculation.clone() };
        let worker = Worker::new(shared, plan);
        let info = EngineInfo { drafting: worker.drafting(), ..info };
        let builder = std::thread::Builder::new().name("taper-engine".into());
        let alive = Arc::new(AtomicBool::new(true));
        let living = Arc::clone(&alive);
        let thread = builder.spawn(move || run(worker, inbox, &living))?;
        Ok(Self {
            info,
            stats,
            experts,
            eos,
            adapters,
            cannot_recall,
            model: model_info,
            scheduling: config.scheduling,
            rows,
            resident: longest,
            open: Arc::new(Open::new(config.max_waiting.saturating_add(config.max_num_seqs))),
            alive,
            commands: RwLock::new(Some(commands)),
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Ends every request with [`GenerationError::ShuttingDown`] and waits for the thread. Requests
    /// submitted later are refused.
    pub fn stop(&self) {
        if let Some(commands) = self.commands.write().unwrap_or_else(PoisonError::into_inner).take()
        {
            // The thread may be gone already.
            let _ = commands.send(Command::Stop);
        }
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if thread.is_some_and(|t| t.join().is_err()) {
            tracing::error!("the engine's thread panicked");
        }
    }

    /// Index of the KV cache that has the bits a request asks for.
    fn lane(&self, request: &GenRequest) -> Result<usize, SubmitError> {
        let Some(asked) = request.kv_bits else { return Ok(0) };
        let found = self.info.kv_bits.iter().find(|offer| offer.bits == asked);
        found.map(|offer| offer.lane).ok_or_else(|| {
            let offered = self.info.kv_bits.iter().map(|offer| offer.bits).collect();
            SubmitError::KvBits { asked, offered }
        })
    }

    /// Which pages the new tokens of a request attend to; all where it is `None`.
    fn recall(&self, request: &GenRequest) -> Result<Option<Recall>, SubmitError> {
        let asked = request.kv_recall_pages.unwrap_or(self.info.kv_recall_pages);
        match self.cannot_recall {
            _ if asked == 0 => Ok(None),
            Some(reason) => Err(SubmitError::NoRecall { asked, reason }),
            None => Ok(Some(Recall { pages: asked as usize, prompt_tokens: request.prompt.len() })),
        }
    }

    /// Tokens of the longest sequence that a request may become over a cache: no more than fit memory.
    fn longest(&self, lane: usize, recall: Option<Recall>) -> u32 {
        let max = self.info.max_model_len;
        let Some(Some((room, kv))) = self.resident.get(lane) else { return max };
        u32::try_from(room.longest(kv, recall)).unwrap_or(u32::MAX).min(max)
    }

    /// Tokens that a request may generate, whose sequence has `max` at most.
    fn max_new(&self, request: &GenRequest, max: u32) -> Result<u32, SubmitError> {
        let vocab = self.info.vocab_size;
        let prompt = u32::try_from(request.prompt.len()).unwrap_or(u32::MAX);
        if prompt == 0 {
            return Err(SubmitError::EmptyPrompt);
        }
        let bad_words = request.bad_words.iter().flatten();
        let tokens = request.prompt.iter().chain(&*request.stop.token_ids).chain(bad_words);
        if let Some(&token) = tokens.into_iter().find(|&&t| t >= vocab) {
            return Err(SubmitError::UnknownToken { token, vocab });
        }
        if let Some(&(token, _)) = request.sampling.logit_bias.iter().find(|(t, _)| *t >= vocab) {
            return Err(SubmitError::UnknownToken { token, vocab });
        }
        request.sampling.validate()?;
        if request.stop.min_tokens > 0
            && sequence::stops(request, &self.eos).len() >= vocab as usize
        {
            return Err(SubmitError::NoCandidate);
        }
        let wanted = request.stop.max_tokens;
        let new = wanted.unwrap_or_else(|| max.saturating_sub(prompt));
        // A full context leaves no room for the first token.
        let least = if wanted.is_none() { new.max(1) } else { new }.max(request.stop.min_tokens);
        if prompt.saturating_add(least) > max {
            let (need, capacity) = (u64::from(prompt) + u64::from(least.max(1)), u64::from(max));
            return Err(match max < self.info.max_model_len {
                true => SubmitError::NeverFits { need, capacity },
                false => SubmitError::TooLong { prompt, new: least.max(1), max },
            });
        }
        match self.rows.as_ref().map_or(Ok(()), |rows| rows.check(prompt, new)) {
            Ok(()) => Ok(new),
            Err((need, capacity)) => Err(SubmitError::NeverFits { need, capacity }),
        }
    }
}

impl Engine for LocalEngine {
    fn submit(&self, request: GenRequest, sink: Box<dyn EventSink>) -> Result<(), SubmitError> {
        if !self.is_alive() {
            return Err(SubmitError::EngineDead);
        }
        if self.scheduling == Scheduling::Fcfs && request.priority != 0 {
            return Err(SubmitError::NoPriorities { asked: request.priority });
        }
        let (lane, recall) = (self.lane(&request)?, self.recall(&request)?);
        let max_new = self.max_new(&request, self.longest(lane, recall))?;
        media::check(&request, &self.model, self.rows.is_some())?;
        let adapter = self.adapters.of(request.adapter.as_ref())?;
        let listener = Listener::new(sink, self.open.enter(request.client)?);
        let submission = Box::new(Submission { request, max_new, listener, adapter, recall });
        let command = Command::Submit { lane, submission };
        let commands = self.commands.read().unwrap_or_else(PoisonError::into_inner);
        let refused = match commands.as_ref() {
            Some(commands) => commands.send(command).err().map(|unsent| unsent.0),
            None => Some(command),
        };
        let Some(command) = refused else { return Ok(()) };
        if let Command::Submit { mut submission, .. } = command {
            submission.listener.dismiss();
        }
        // It may have died since.
        Err(if self.is_alive() { SubmitError::ShuttingDown } else { SubmitError::EngineDead })
    }

    fn info(&self) -> &EngineInfo {
        &self.info
    }

    fn stats(&self) -> EngineStats {
        let experts = self.experts.as_ref().and_then(StreamedExperts::stats);
        EngineStats { experts, ..self.stats.snapshot() }
    }

    fn adapters(&self) -> Vec<AdapterInfo> {
        self.adapters.list()
    }

    fn load_adapter(&self, name: &str, dir: &Path) -> Result<(), AdapterRefused> {
        self.adapters.load(name, dir)
    }

    fn unload_adapter(&self, name: &str) -> Result<(), AdapterRefused> {
        self.adapters.unload(name)
    }

    fn is_alive(&self) -> bool {
        self.alive.load(Ordering::Acquire)
    }
}

/// More restarts than this within [`RESTARTS_WITHIN`] show that another one would not help.
const MOST_RESTARTS: usize = 5;
const RESTARTS_WITHIN: Duration = Duration::from_secs(60);

/// The engine's thread. A panic outside a step leaves the scheduler and the cache in an unknown state:
/// everyone who waits is told, and the engine goes on with empty caches. One that panics again and again is dead.
fn run(mut worker: Worker, inbox: mpsc::Receiver<Command>, alive: &AtomicBool) {
    let mut restarts: Vec<Instant> = Vec::new();
    while let Err(panic) = catch_unwind(AssertUnwindSafe(|| worker.run(&inbox))) {
        let panic = step::panic_text(&*panic);
        restarts.retain(|at| at.elapsed() < RESTARTS_WITHIN);
        restarts.push(Instant::now());
        let mut again = || catch_unwind(AssertUnwindSafe(|| worker.restart())).is_ok();
        if restarts.len() > MOST_RESTARTS || !again() {
            alive.store(false, Ordering::Release);
            tracing::error!(panic, "the engine died");
            break;
        }
        add(&worker.stats().restarts, 1);
        tracing::error!(panic, "the engine failed, and goes on with an empty KV cache");
    }
    // The requests that are left tell their listeners when they are dropped.
    drop((worker, inbox));
}

impl Drop for LocalEngine {
    fn drop(&mut self) {
        self.stop();
    }
}
