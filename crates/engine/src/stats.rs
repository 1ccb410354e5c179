//! Counters that any thread may read while the engine runs.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use taper_base::{EngineStats, MAX_DRAFT_TOKENS, STEP_TOKENS};
use taper_kv_cache::{DiskTier, PAGE_BLOCKS, RecallCounts, Written};

/// Current load of one KV cache and its scheduler.
#[derive(Debug, Default)]
pub(crate) struct Gauges {
    pub(crate) running: AtomicU32,
    pub(crate) waiting: AtomicU32,
    pub(crate) kv_blocks_used: AtomicU32,
    pub(crate) kv_blocks_idle: AtomicU32,
    pub(crate) kv_blocks_total: AtomicU32,
    pub(crate) kv_exact_blocks_used: AtomicU32,
    pub(crate) kv_exact_blocks_total: AtomicU32,
    pub(crate) kv_used_bytes: AtomicU64,
    pub(crate) kv_exact_bytes: AtomicU64,
    pub(crate) step_prompt_tokens: AtomicU32,
    pub(crate) kv_cold_blocks: AtomicU32,
}

/// What caches have done for sequences that leave pages out.
#[derive(Debug, Default)]
pub(crate) struct RecallStats {
    steps: AtomicU64,
    attended_pages: AtomicU64,
    skipped_pages: AtomicU64,
    choices: AtomicU64,
    evicted_blocks: AtomicU64,
    recalled_blocks: AtomicU64,
    streamed_blocks: AtomicU64,
    wait_nanos: AtomicU64,
}

impl RecallStats {
    pub(crate) fn add(&self, counts: &RecallCounts) {
        for (counter, count) in [
            (&self.steps, counts.steps),
            (&self.attended_pages, counts.attended_pages),
            (&self.skipped_pages, counts.skipped_pages),
            (&self.choices, counts.choices),
            (&self.evicted_blocks, counts.evicted_blocks),
            (&self.recalled_blocks, counts.recalled_blocks),
            (&self.streamed_blocks, counts.streamed_blocks),
        ] {
            counter.fetch_add(count, Ordering::Relaxed);
        }
        add_time(&self.wait_nanos, counts.wait);
    }
}

#[derive(Debug, Default)]
pub(crate) struct SharedStats {
    pub(crate) lanes: Vec<Gauges>,
    pub(crate) prompt_tokens: AtomicU64,
    pub(crate) generation_tokens: AtomicU64,
    pub(crate) masked_tokens: AtomicU64,
    pub(crate) forced_tokens: AtomicU64,
    pub(crate) mask_nanos: AtomicU64,
    pub(crate) mask_wait_nanos: AtomicU64,
    pub(crate) preemptions: AtomicU64,
    pub(crate) cancelled: AtomicU64,
    pub(crate) steps: AtomicU64,
    pub(crate) failed_steps: AtomicU64,
    pub(crate) restarts: AtomicU64,
    /// When the step that runs began.
    step: Mutex<Option<Instant>>,
    steps_by_tokens: [AtomicU64; STEP_TOKENS.len() + 1],
    step_tokens: AtomicU64,
    pub(crate) kv_evictions: AtomicU64,
    pub(crate) kv_evicted_tokens: AtomicU64,
    pub(crate) disk_hit_tokens: AtomicU64,
    pub(crate) drafts: AtomicU64,
    pub(crate) draft_tokens: AtomicU64,
    pub(crate) accepted_per_position: [AtomicU64; MAX_DRAFT_TOKENS],
    pub(crate) draft_nanos: AtomicU64,
    pub(crate) recall: RecallStats,
    /// Where prefixes are kept on disk, if they are; it counts what it writes.
    pub(crate) disk: Option<Arc<DiskTier>>,
}

impl SharedStats {
    pub(crate) fn new(lanes: usize, disk: Option<Arc<DiskTier>>) -> Self {
        let lanes = (0..lanes).map(|_| Gauges::default()).collect();
        Self { lanes, disk, ..Self::default() }
    }

    /// A step of so many tokens begins.
    pub(crate) fn step_begins(&self, tokens: u32) {
        let at = STEP_TOKENS.partition_point(|&most| most < tokens);
        add(&self.steps_by_tokens[at], 1);
        add(&self.step_tokens, tokens as usize);
        *self.step.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// It has ended, well or not.
    pub(crate) fn step_ends(&self) {
        add(&self.steps, 1);
        *self.step.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    pub(crate) fn snapshot(&self) -> EngineStats {
        let sum = |of: fn(&Gauges) -> &AtomicU32| -> u32 {
            self.lanes.iter().map(|lane| of(lane).load(Ordering::Relaxed)).sum()
        };
        let bytes = |of: fn(&Gauges) -> &AtomicU64| {
            self.lanes.iter().map(|lane| of(lane).load(Ordering::Relaxed)).sum()
        };
        let counter = |c: &AtomicU64| c.load(Ordering::Relaxed);
        let pages = |blocks: &AtomicU64| counter(blocks).div_ceil(PAGE_BLOCKS as u64);
        let accepted = std::array::from_fn(|i| counter(&self.accepted_per_position[i]));
        let step = *self.step.lock().unwrap_or_else(PoisonError::into_inner);
        let written = self.disk.as_ref().map_or(Written::default(), |disk| disk.written());
        EngineStats {
            running: sum(|lane| &lane.running),
            waiting: sum(|lane| &lane.waiting),
            kv_blocks_used: sum(|lane| &lane.kv_blocks_used),
            kv_blocks_idle: sum(|lane| &lane.kv_blocks_idle),
            kv_blocks_total: sum(|lane| &lane.kv_blocks_total),
            kv_exact_blocks_used: sum(|lane| &lane.kv_exact_blocks_used),
            kv_exact_blocks_total: sum(|lane| &lane.kv_exact_blocks_total),
            kv_used_bytes: bytes(|lane| &lane.kv_used_bytes),
            kv_exact_bytes: bytes(|lane| &lane.kv_exact_bytes),
            step_prompt_tokens: sum(|lane| &lane.step_prompt_tokens),
            prompt_tokens: counter(&self.prompt_tokens),
            generation_tokens: counter(&self.generation_tokens),
            masked_tokens: counter(&self.masked_tokens),
            forced_tokens: counter(&self.forced_tokens),
            mask_time: Duration::from_nanos(counter(&self.mask_nanos)),
            mask_wait: Duration::from_nanos(counter(&self.mask_wait_nanos)),
            preemptions: counter(&self.preemptions),
            cancelled: counter(&self.cancelled),
            steps: counter(&self.steps),
            failed_steps: counter(&self.failed_steps),
            restarts: counter(&self.restarts),
            step_time: step.map_or(Duration::ZERO, |since| since.elapsed()),
            steps_by_tokens: std::array::from_fn(|i| counter(&self.steps_by_tokens[i])),
            step_tokens: counter(&self.step_tokens),
            kv_evictions: counter(&self.kv_evictions),
            kv_evicted_tokens: counter(&self.kv_evicted_tokens),
            disk_written_blocks: written.blocks,
            disk_written_bytes: written.bytes,
            disk_hit_tokens: counter(&self.disk_hit_tokens),
            drafts: counter(&self.drafts),
            draft_tokens: counter(&self.draft_tokens),
            accepted_draft_tokens: accepted.iter().sum(),
            accepted_per_position: accepted,
            draft_time: Duration::from_nanos(counter(&self.draft_nanos)),
            recall_steps: counter(&self.recall.steps),
            recall_attended_pages: counter(&self.recall.attended_pages),
            recall_skipped_pages: counter(&self.recall.skipped_pages),
            recall_choices: counter(&self.recall.choices),
            kv_cold_pages: sum(|lane| &lane.kv_cold_blocks).div_ceil(PAGE_BLOCKS as u32),
            kv_evicted_pages: pages(&self.recall.evicted_blocks),
            kv_recalled_pages: pages(&self.recall.recalled_blocks),
            kv_streamed_pages: pages(&self.recall.streamed_blocks),
            kv_recall_wait: Duration::from_nanos(counter(&self.recall.wait_nanos)),
            experts: None,
        }
    }
}

pub(crate) fn set(gauge: &AtomicU32, value: usize) {
    gauge.store(u32::try_from(value).unwrap_or(u32::MAX), Ordering::Relaxed);
}

pub(crate) fn add_time(counter: &AtomicU64, time: Duration) {
    counter.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
}

pub(crate) fn add(counter: &AtomicU64, n: usize) {
    counter.fetch_add(n as u64, Ordering::Relaxed);
}
