//! The engine of one process: a thread that owns the model's cache and the scheduler.

use crate::{
    EngineConfig, EngineError,
    sequence::Sequence,
    stats::{SharedStats, add, set},
    step::{self, Outcome},
};
use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicU32, Ordering},
        mpsc,
    },
    thread::JoinHandle,
};
use taper_base::{
    Engine, EngineInfo, EngineStats, Event, EventSink, GenRequest, GenerationError, SeqId,
    SubmitError, TokenId,
};
use taper_kv_cache::KvCache;
use taper_models::Model;
use taper_scheduler::{
    Admission, BlockPool, NoRoom, Scheduler, SchedulerConfig, SeqOutcome, StepPlan,
};

/// Runs a model in this process.
#[derive(Debug)]
pub struct LocalEngine {
    info: EngineInfo,
    stats: Arc<SharedStats>,
    /// Requests that have not ended.
    open: Arc<AtomicU32>,
    max_open: u32,
    /// `None` once stopping: nothing is sent after [`Command::Stop`], so nothing is left unread.
    commands: RwLock<Option<mpsc::Sender<Command>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

enum Command {
    Submit { request: GenRequest, max_new: u32, sink: Box<dyn EventSink> },
    Stop,
}

impl LocalEngine {
    /// Starts the engine's thread.
    ///
    /// # Errors
    /// The lengths asked for do not fit the model or the memory.
    pub fn start(model: Box<dyn Model>, config: &EngineConfig) -> Result<Self, EngineError> {
        let (kv, max_model_len) = config.plan(model.info())?;
        let vocab_size = u32::try_from(model.info().vocab).unwrap_or(u32::MAX);
        let info = EngineInfo {
            max_model_len,
            vocab_size,
            eos_token_ids: config.eos_token_ids.clone(),
            kv_cache_dtype: kv.scheme.to_string(),
            kv_capacity_tokens: (kv.blocks * kv.geometry.block_tokens) as u64,
            kv_capacity_bytes: kv.bytes(),
            kv_exact_bytes: kv.bytes_per_exact_block() * kv.exact_blocks() as u64,
            prefix_caching: kv.prefix_caching,
            weight_bytes: model.info().weight_bytes,
        };
        let stats = Arc::new(SharedStats::default());
        set(&stats.kv_blocks_total, kv.blocks);
        let open = Arc::new(AtomicU32::new(0));
        let scheduler = Scheduler::new(SchedulerConfig {
            max_num_batched_tokens: config.max_num_batched_tokens,
            max_num_seqs: config.max_num_seqs,
            // `submit` counts every open request; a second limit here would refuse a burst that
            // arrives between two plans, when nothing of it runs yet.
            max_waiting: u32::MAX,
            ..SchedulerConfig::default()
        });
        let (commands, inbox) = mpsc::channel();
        let worker = Worker {
            model,
            cache: KvCache::new(kv),
            scheduler,
            sequences: HashMap::new(),
            next: 0,
            eos: info.eos_token_ids.clone(),
            stats: Arc::clone(&stats),
            open: Arc::clone(&open),
        };
        let builder = std::thread::Builder::new().name("taper-engine".into());
        let thread = builder.spawn(move || worker.run(&inbox))?;
        Ok(Self {
            info,
            stats,
            open,
            max_open: config.max_waiting.saturating_add(config.max_num_seqs),
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

    /// Tokens that a request may generate.
    fn max_new(&self, request: &GenRequest) -> Result<u32, SubmitError> {
        let EngineInfo { max_model_len: max, vocab_size: vocab, .. } = self.info;
        let prompt = u32::try_from(request.prompt.len()).unwrap_or(u32::MAX);
        if prompt == 0 {
            return Err(SubmitError::EmptyPrompt);
        }
        let tokens = request.prompt.iter().chain(&request.stop.token_ids);
        if let Some(&token) = tokens.into_iter().find(|&&t| t >= vocab) {
            return Err(SubmitError::UnknownToken { token, vocab });
        }
        if let Some(&(token, _)) = request.sampling.logit_bias.iter().find(|(t, _)| *t >= vocab) {
            return Err(SubmitError::UnknownToken { token, vocab });
        }
        request.sampling.validate()?;
        let wanted = request.stop.max_tokens;
        let new = wanted.unwrap_or_else(|| max.saturating_sub(prompt));
        // A full context leaves no room for the first token.
        let needed = prompt.saturating_add(if wanted.is_none() { new.max(1) } else { new });
        if needed > max {
            return Err(SubmitError::TooLong { prompt, new: new.max(1), max });
        }
        Ok(new)
    }
}

impl Engine for LocalEngine {
    fn submit(&self, request: GenRequest, sink: Box<dyn EventSink>) -> Result<(), SubmitError> {
        let max_new = self.max_new(&request)?;
        if self.open.fetch_add(1, Ordering::Relaxed) >= self.max_open {
            self.open.fetch_sub(1, Ordering::Relaxed);
            return Err(SubmitError::QueueFull { limit: self.max_open });
        }
        let commands = self.commands.read().unwrap_or_else(PoisonError::into_inner);
        let command = Command::Submit { request, max_new, sink };
        if commands.as_ref().is_some_and(|c| c.send(command).is_ok()) {
            return Ok(());
        }
        self.open.fetch_sub(1, Ordering::Relaxed);
        Err(SubmitError::ShuttingDown)
    }

    fn info(&self) -> &EngineInfo {
        &self.info
    }

    fn stats(&self) -> EngineStats {
        self.stats.snapshot()
    }
}

impl Drop for LocalEngine {
    fn drop(&mut self) {
        self.stop();
    }
}

/// What the thread owns.
struct Worker {
    model: Box<dyn Model>,
    cache: KvCache,
    scheduler: Scheduler,
    sequences: HashMap<SeqId, Sequence>,
    next: u64,
    eos: Vec<u32>,
    stats: Arc<SharedStats>,
    open: Arc<AtomicU32>,
}

impl Worker {
    fn run(mut self, inbox: &mpsc::Receiver<Command>) {
        while self.take_commands(inbox) {
            self.cancel_closed();
            let plan = self.scheduler.plan(&mut Pool(&mut self.cache));
            self.announce(&plan);
            self.update_gauges();
            if !plan.is_empty() {
                self.step(&plan);
                self.update_gauges();
            }
        }
        for id in self.sequences.keys().copied().collect::<Vec<_>>() {
            self.end(id, Some(Event::Failed(GenerationError::ShuttingDown)));
        }
        self.update_gauges();
    }

    /// Waits for a command when there is nothing else to do; `false` ends the thread.
    fn take_commands(&mut self, inbox: &mpsc::Receiver<Command>) -> bool {
        loop {
            let command = if self.sequences.is_empty() {
                inbox.recv().map_err(|_| mpsc::TryRecvError::Disconnected)
            } else {
                inbox.try_recv()
            };
            match command {
                Ok(Command::Submit { request, max_new, sink }) => {
                    self.admit(request, max_new, sink);
                }
                Ok(Command::Stop) | Err(mpsc::TryRecvError::Disconnected) => return false,
                Err(mpsc::TryRecvError::Empty) => return true,
            }
        }
    }

    fn admit(&mut self, request: GenRequest, max_new: u32, sink: Box<dyn EventSink>) {
        let id = SeqId(self.next);
        self.next += 1;
        let prompt = request.prompt.clone();
        let vocab = u32::try_from(self.model.info().vocab).unwrap_or(u32::MAX);
        let mut sequence = Sequence::new(request, max_new, &self.eos, vocab, sink);
        let all_logits = sequence.wants_prompt_logprobs();
        let admission = Admission { id, prompt, max_new, all_logits };
        match self.scheduler.admit(admission, &Pool(&mut self.cache)) {
            Ok(()) => {
                self.sequences.insert(id, sequence);
            }
            // `submit` has checked what the scheduler checks; this is for a rule it lacks.
            Err(error) => {
                let source = Arc::new(error);
                sequence.send(Event::Failed(GenerationError::Step { source }));
                self.open.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    fn cancel_closed(&mut self) {
        let closed = self.sequences.iter().filter(|(_, s)| s.is_closed());
        for id in closed.map(|(&id, _)| id).collect::<Vec<_>>() {
            add(&self.stats.cancelled, 1);
            self.end(id, None);
        }
    }

    /// Forgets a sequence that the scheduler may still know. Its last event goes out when nothing
    /// of it is left: who has read it finds the room free and the gauges settled.
    fn end(&mut self, id: SeqId, last: Option<Event>) {
        self.scheduler.cancel(id, &mut Pool(&mut self.cache));
        if let Some(mut sequence) = self.sequences.remove(&id) {
            self.open.fetch_sub(1, Ordering::Relaxed);
            if let Some(event) = last {
                self.update_gauges();
                sequence.send(event);
            }
        }
    }

    fn announce(&mut self, plan: &StepPlan) {
        add(&self.stats.preemptions, plan.preempted.len());
        for admitted in plan.admitted.iter().filter(|a| !a.resumed) {
            if let Some(sequence) = self.sequences.get_mut(&admitted.id) {
                sequence.send(Event::Started { cached_tokens: admitted.cached_tokens });
            }
        }
    }

    fn step(&mut self, plan: &StepPlan) {
        let results =
            step::run(&*self.model, &mut self.cache, &mut self.sequences, plan, &self.stats);
        let mut outcomes = Vec::new();
        let mut ended = Vec::new();
        for (work, outcome) in results {
            let Some(sequence) = self.sequences.get_mut(&work.id) else { continue };
            add(&self.stats.prompt_tokens, sequence.prompt_tokens(work.start, work.end()));
            if !matches!(outcome, Outcome::Failed(_)) {
                // Rows of a failed step may not be there.
                self.cache.publish(work.id, &sequence.tokens()[..work.end() as usize]);
            }
            let (new_token, last) = match outcome {
                Outcome::Continues => continue,
                Outcome::PromptOnly => {
                    sequence.prompt_done();
                    (None, Some(Event::Finished(step::PROMPT_ONLY)))
                }
                Outcome::Failed(error) => (None, Some(Event::Failed(error))),
                Outcome::Token { choice } => {
                    add(&self.stats.generation_tokens, 1);
                    sequence.prompt_done();
                    let token = choice.token;
                    (Some(token), sequence.accept(choice).map(Event::Finished))
                }
            };
            outcomes.push(SeqOutcome { id: work.id, new_token, finished: last.is_some() });
            ended.extend(last.map(|event| (work.id, event)));
        }
        self.scheduler.commit(&outcomes, &mut Pool(&mut self.cache));
        ended.into_iter().for_each(|(id, event)| self.end(id, Some(event)));
    }

    fn update_gauges(&self) {
        set(&self.stats.running, self.scheduler.running());
        set(&self.stats.waiting, self.scheduler.waiting());
        let usage = self.cache.usage();
        set(&self.stats.kv_blocks_used, usage.used_blocks);
        set(&self.stats.kv_blocks_idle, usage.idle_blocks);
        let exact = usage.exact_blocks as u64 * usage.bytes_per_exact_block;
        self.stats.kv_exact_bytes.store(exact, Ordering::Relaxed);
        self.stats.kv_used_bytes.store(usage.used_bytes(), Ordering::Relaxed);
    }
}

/// The cache as the scheduler sees it.
struct Pool<'a>(&'a mut KvCache);

impl BlockPool for Pool<'_> {
    fn total(&self) -> u32 {
        blocks(self.0.usage().total_blocks)
    }

    fn free(&self) -> u32 {
        let usage = self.0.usage();
        blocks(usage.total_blocks - usage.used_blocks)
    }

    fn block_tokens(&self) -> u32 {
        blocks(self.0.config().geometry.block_tokens)
    }

    fn grow(&mut self, id: SeqId, tokens: u32) -> Result<(), NoRoom> {
        self.0.grow(id, tokens as usize).map_err(|_| NoRoom)
    }

    fn release(&mut self, id: SeqId) {
        self.0.release(id);
    }

    fn prefix_tokens(&self) -> u32 {
        blocks(self.0.prefix_tokens())
    }

    fn adopt_prefix(&mut self, id: SeqId, tokens: &[TokenId]) -> u32 {
        blocks(self.0.adopt(id, tokens))
    }
}

fn blocks(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
