//! One schedule, and what must hold after each of its steps.

mod rules;

use super::{
    super::Lane,
    model::{Adder, EOS, Fault, Script, VOCAB, reference},
    request::{Client, Ear, Numbers, Request},
};
use crate::{
    listener::Listener,
    open::Open,
    pool::blocks,
    speculation::Speculation,
    stats::SharedStats,
    worker::{Command, Idle, Shared, Submission},
};
use std::{
    collections::{BTreeMap, VecDeque},
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, Mutex, atomic::Ordering, mpsc},
    time::Duration,
};
use taper_base::{FinishReason, GenRequest, SamplingParams, SeqId, StopRules, TokenId, TokenSet};
use taper_kv_cache::{DiskTier, KvConfig, UnitName, UnitRows, Unread};
use taper_kv_codecs::KvGeometry;
use taper_models::Model;
use taper_scheduler::SchedulerConfig;
use tempfile::TempDir;

/// A unit that the disk has read, or has not, for a request.
type Come = (SeqId, (usize, UnitName), Result<UnitRows, Unread>);

pub(super) struct World {
    numbers: Numbers,
    lane: Lane,
    shared: Shared,
    script: Arc<Mutex<Script>>,
    inbox: mpsc::Receiver<Command>,
    dir: Option<TempDir>,
    open: Arc<Open>,
    live: BTreeMap<SeqId, Request>,
    /// Beginnings that prompts share.
    families: Vec<Vec<TokenId>>,
    next: u64,
    arrivals: u64,
    /// Units that were read and not delivered yet.
    read: VecDeque<Come>,
    /// Faults of numbers that no request has failed of yet.
    owed: usize,
    /// Whose turn it is to start, since how many steps, and in how many it must.
    first: (Option<SeqId>, usize, usize),
    trace: DefaultHasher,
}

impl World {
    pub(super) fn has_disk(schedule: u64) -> bool {
        schedule % 8 == 7
    }

    /// Plays a schedule to its end, and returns a hash of all that happened.
    pub(super) fn play(schedule: u64) -> u64 {
        let mut world = Self::new(schedule);
        for _ in 0..world.numbers.within(5, 40) {
            match world.numbers.within(0, 11) {
                0..=3 => world.arrive(),
                4 => world.leave(),
                5 => world.plant(),
                6 => world.harm_disk(),
                n => (0..=n - 7).for_each(|_| world.turn(false)),
            }
        }
        world.finish();
        world.trace.finish()
    }

    fn new(schedule: u64) -> Self {
        let mut numbers = Numbers(schedule);
        let script = Arc::new(Mutex::new(Script::default()));
        let model = Adder::new(Arc::clone(&script));
        let block_tokens = 1 << numbers.within(0, 3);
        let codec = taper_kv_codecs::parse("f32").unwrap();
        let info = model.info();
        let geometry = KvGeometry { kv_heads: 1, head_dim: info.head_dim, block_tokens };
        let blocks = numbers.within(4, 160) as usize / block_tokens + 4;
        let has_disk = Self::has_disk(schedule);
        let prefix_caching = has_disk || !numbers.one_in(4);
        let kv = KvConfig { prefix_caching, ..KvConfig::new(codec, info.layers, geometry, blocks) };
        let limits = SchedulerConfig {
            // So few that steps do not depend on how long they take.
            max_num_batched_tokens: numbers.within(1, 48),
            max_num_seqs: numbers.within(1, 10),
            max_logit_rows: numbers.within(1, 24),
            max_waiting: u32::MAX,
            eviction: None,
        };
        let dir = has_disk.then(|| tempfile::tempdir().unwrap());
        let most = if numbers.one_in(2) { 1 << 20 } else { 9000 };
        let disk = dir
            .as_ref()
            .map(|dir| (Arc::new(DiskTier::open(dir.path(), most).unwrap()), "m".into()));
        let (commands, inbox) = mpsc::channel();
        let keep_bytes = u64::from(numbers.within(0, 4000));
        let shared = Shared {
            model: Box::new(model),
            eos: TokenSet::from_iter([EOS]),
            stats: Arc::new(SharedStats::new(1, disk.as_ref().map(|(tier, _)| Arc::clone(tier)))),
            evictor: None,
            disk,
            hot_tokens: None,
            resident: vec![None],
            idle: numbers.one_in(2).then_some(Idle { after: Duration::ZERO, keep_bytes }),
            commands,
        };
        let drafts = Speculation::suffix().most(numbers.within(1, 8)).steady();
        let drafts = numbers.one_in(2).then_some(drafts);
        let lane = Lane::new(0, kv, limits, drafts.as_ref(), &shared);
        let families = (0..3).map(|_| (0..48).map(|_| numbers.within(0, VOCAB - 1)).collect());
        let families = families.collect();
        Self {
            lane,
            shared,
            script,
            inbox,
            dir,
            families,
            numbers,
            open: Arc::new(Open::new(1000)),
            live: BTreeMap::new(),
            next: 0,
            arrivals: 0,
            read: VecDeque::new(),
            owed: 0,
            first: (None, 0, 0),
            trace: DefaultHasher::new(),
        }
    }

    /// A request comes, with one choice or several.
    fn arrive(&mut self) {
        self.wait_for_writes();
        let n = &mut self.numbers;
        let family = &self.families[n.within(0, 2) as usize];
        let mut prompt = family[..n.within(0, 40) as usize].to_vec();
        for _ in 0..n.within(u32::from(prompt.is_empty()), 5) {
            prompt.push(n.within(0, VOCAB - 1));
        }
        let max_new = n.within(0, 30);
        let ignore_eos = !n.one_in(3);
        let mut tokens = reference(&prompt, max_new as usize);
        let stop = tokens.iter().position(|&t| t == EOS).filter(|_| !ignore_eos);
        let reason = if stop.is_some() { FinishReason::Stop } else { FinishReason::Length };
        tokens.truncate(stop.map_or(tokens.len(), |at| at + 1));
        let right = n.within(0, 30) as usize;
        let prediction = tokens.iter().copied().skip(1).take(right).collect();
        let salt = n.one_in(5).then(|| Arc::from("apart"));
        let who = (!n.one_in(2)).then(|| u64::from(n.within(1, 2)));
        let priority = if n.one_in(3) { n.within(0, 2) as i32 - 1 } else { 0 };
        let request = GenRequest {
            sampling: SamplingParams::greedy(),
            stop: StopRules { max_tokens: Some(max_new), ignore_eos, ..StopRules::default() },
            prompt_logprobs: n.one_in(8).then_some(0),
            client: who,
            cache_salt: salt.clone(),
            priority,
            max_draft_tokens: n.one_in(4).then_some(0),
            prediction,
            prompt: prompt.clone(),
            ..GenRequest::default()
        };
        for _ in 0..if n.one_in(4) { n.within(2, 4) } else { 1 } {
            let Ok(ticket) = self.open.enter(who) else { return };
            let client = Arc::new(Client::default());
            let listener = Listener::new(Box::new(Ear(Arc::clone(&client))), ticket);
            let request = request.clone();
            let id = SeqId(self.next);
            self.next += 1;
            let expected = (tokens.clone(), reason);
            let (prompt, longest) = (prompt.clone(), prompt.len() + max_new as usize);
            let (salt, place) = (salt.clone(), None);
            self.lane.cache.set_salt(id, salt.clone());
            let known = Request { prompt, expected, longest, salt, who, priority, place, client };
            // It may go before those that wait.
            self.first.2 += 4 * (longest + 2);
            self.live.insert(id, known);
            let submission =
                Box::new(Submission { request, max_new, listener, adapter: None, recall: None });
            self.lane.admit(id, *submission, &self.shared);
            self.look();
        }
    }

    /// A client goes.
    fn leave(&mut self) {
        let all = self.live.len() as u32;
        if all > 0 {
            let hit = self.numbers.within(0, all - 1) as usize;
            if let Some(request) = self.live.values().nth(hit) {
                request.client.gone.store(true, Ordering::Relaxed);
            }
        }
    }

    fn plant(&mut self) {
        let faults = [Fault::Error, Fault::Panic, Fault::Logits, Fault::Rows];
        let fault = faults[self.numbers.within(0, 3) as usize];
        self.script.lock().unwrap().fault = Some(fault);
    }

    /// Files that are cut, changed or gone, or all of them with their directory. Memory keeps nothing that nobody holds,
    /// so that files are asked for.
    fn harm_disk(&mut self) {
        let Some(dir) = &self.dir else { return };
        self.wait_for_writes();
        self.lane.cache.give_back(0);
        if self.numbers.one_in(8) {
            let _ = fs::remove_dir_all(dir.path());
            return;
        }
        let files = fs::read_dir(dir.path()).into_iter().flatten().filter_map(Result::ok);
        let mut files: Vec<_> = files.map(|file| file.path()).collect();
        files.sort();
        for file in &files {
            if !self.numbers.one_in(2) {
                continue;
            }
            // A file that was found damaged is removed some time later.
            let Ok(mut bytes) = fs::read(file) else { continue };
            // Nothing is left to harm of a file that was cut before.
            let Some(last) = (bytes.len() as u32).checked_sub(1) else { continue };
            let at = self.numbers.within(0, last) as usize;
            match self.numbers.within(0, 3) {
                0 => drop(fs::remove_file(file)),
                1 => fs::write(file, &bytes[..at]).unwrap(),
                // So much that rows of it make other tokens; one bit is often too little for that.
                _ => {
                    let bit = 1 << self.numbers.within(0, 7);
                    bytes[at..].iter_mut().for_each(|byte| *byte ^= bit);
                    fs::write(file, bytes).unwrap();
                }
            }
        }
    }

    /// What is to be written is written, and what had to make room is gone.
    fn wait_for_writes(&self) {
        while self.shared.disk.as_ref().is_some_and(|(tier, _)| !tier.takes(1 << 40)) {
            std::thread::yield_now();
        }
    }

    /// Waits until the disk has done what it was asked to, and delivers some of it.
    fn hear_disk(&mut self, all: bool) {
        if self.dir.is_none() {
            return;
        }
        self.wait_for_writes();
        loop {
            // Units for requests that are gone come too, and others wait behind them.
            while self.lane.flying > self.read.len() {
                let Ok(Command::Loaded { id, unit, rows, .. }) = self.inbox.recv() else {
                    panic!("the disk asks for something");
                };
                self.read.push_back((id, unit, rows));
            }
            if !all && self.numbers.one_in(3) {
                return;
            }
            let Some((id, unit, mut rows)) = self.read.pop_front() else { return };
            if self.numbers.one_in(16) {
                rows = Err(Unread::Gone);
            } else if self.numbers.one_in(16) {
                rows.iter_mut().flatten().for_each(|part| part.truncate(3));
            }
            self.lane.loaded(id, unit, rows, &self.shared);
            self.look();
        }
    }

    /// A step.
    fn turn(&mut self, all: bool) {
        self.hear_disk(all);
        let fault = self.script.lock().unwrap().fault;
        let here = |id: &SeqId| !self.live[id].is_gone();
        let held = self.lane.sequences.keys().copied().filter(|id| self.holds(*id) && here(id));
        let held: Vec<_> = held.collect();
        let decoding = self.lane.scheduler.decoding().filter(here);
        let decoding = decoding.map(|id| (id, self.live[&id].tokens().len())).collect();
        let gone: Vec<_> =
            self.live.iter().filter(|(_, r)| r.is_gone()).map(|(&id, _)| id).collect();
        self.lane.turn(&self.shared);
        let steps = std::mem::take(&mut self.script.lock().unwrap().steps);
        assert!(steps.len() <= 1);
        let stepped = !steps.is_empty();
        if stepped {
            self.owed += usize::from(matches!(fault, Some(Fault::Logits | Fault::Rows)));
        }
        for (tokens, positions, logits_at) in steps {
            let limits = self.lane.scheduler.config();
            assert!(tokens.len() <= limits.max_num_batched_tokens as usize, "tokens of a step");
            assert!(logits_at.len() <= limits.max_logit_rows as usize, "logits of a step");
            (tokens, positions).hash(&mut self.trace);
        }
        let broken = stepped && matches!(fault, Some(Fault::Error | Fault::Panic));
        let stays = |id: &SeqId| self.lane.sequences.contains_key(id);
        assert!(!gone.iter().any(stays), "who has gone stays");
        self.check_order(&held, &decoding, broken);
        self.end(broken);
        self.check_starts();
        self.check_blocks();
    }

    fn holds(&self, id: SeqId) -> bool {
        !self.lane.cache.blocks(id).is_empty()
    }

    /// Gives places to those that have come to the queue.
    fn look(&mut self) {
        let new = self
            .live
            .iter()
            .filter(|(id, r)| r.place.is_none() && self.lane.sequences.contains_key(*id));
        let new: Vec<_> = new.map(|(&id, r)| (id, r.who, r.priority)).collect();
        for (id, who, priority) in new {
            let same =
                |other: &&SeqId| **other != id && who.is_some() && self.live[*other].who == who;
            let open = self.lane.sequences.keys().filter(same).count() as u64;
            let place = (priority, self.arrivals + 256 * open, self.arrivals);
            self.arrivals += 1;
            self.live.get_mut(&id).unwrap().place = Some(place);
        }
        self.end(false);
    }

    /// No one new comes: all end, and nothing is left.
    fn finish(&mut self) {
        let work: usize = self.live.values().map(|r| r.longest + 4).sum();
        let bound = work * (self.live.len() + 1) + 1000;
        for _ in 0..bound {
            if self.live.is_empty() {
                break;
            }
            self.turn(true);
        }
        assert!(self.live.is_empty(), "{} requests never end", self.live.len());
        self.lane.turn(&self.shared);
        self.lane.update_gauges(&self.shared);
        let stats = self.shared.stats.snapshot();
        assert_eq!((stats.running, stats.waiting, stats.kv_blocks_used), (0, 0, 0));
        assert!(self.lane.scheduler.is_idle());
        self.lane.cache.give_back(0);
        let usage = self.lane.cache.usage();
        assert_eq!((usage.used_blocks, usage.idle_blocks), (0, 0), "blocks that are never free");
        let capacity = blocks(usage.total_blocks);
        assert_eq!(stats.kv_blocks_total, capacity);
        let seats: Vec<_> = (0..1000).map_while(|_| self.open.enter(None).ok()).collect();
        assert_eq!(seats.len(), 1000, "places in the queue that are never free");
    }
}
