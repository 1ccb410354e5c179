//! Counters that any thread may read while the engine runs.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};
use taper_base::{EngineStats, MAX_DRAFT_TOKENS};
use taper_kv_cache::{DiskTier, Written};

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
    pub(crate) kv_cold_pages: AtomicU32,
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
    pub(crate) kv_evictions: AtomicU64,
    pub(crate) kv_evicted_tokens: AtomicU64,
    pub(crate) disk_hit_tokens: AtomicU64,
    pub(crate) drafts: AtomicU64,
    pub(crate) draft_tokens: AtomicU64,
    pub(crate) accepted_per_position: [AtomicU64; MAX_DRAFT_TOKENS],
    pub(crate) draft_nanos: AtomicU64,
    pub(crate) recall: [AtomicU64; 6],
    pub(crate) recall_wait_nanos: AtomicU64,
    /// Where prefixes are kept on disk, if they are; it counts what it writes.
    pub(crate) disk: Option<Arc<DiskTier>>,
}

impl SharedStats {
    pub(crate) fn new(lanes: usize, disk: Option<Arc<DiskTier>>) -> Self {
        let lanes = (0..lanes).map(|_| Gauges::default()).collect();
        Self { lanes, disk, ..Self::default() }
    }

    pub(crate) fn snapshot(&self) -> EngineStats {
        let sum = |of: fn(&Gauges) -> &AtomicU32| {
            self.lanes.iter().map(|lane| of(lane).load(Ordering::Relaxed)).sum()
        };
        let bytes = |of: fn(&Gauges) -> &AtomicU64| {
            self.lanes.iter().map(|lane| of(lane).load(Ordering::Relaxed)).sum()
        };
        let counter = |c: &AtomicU64| c.load(Ordering::Relaxed);
        let accepted = std::array::from_fn(|i| counter(&self.accepted_per_position[i]));
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
            recall_steps: counter(&self.recall[0]),
            recall_attended_pages: counter(&self.recall[1]),
            recall_skipped_pages: counter(&self.recall[2]),
            recall_choices: counter(&self.recall[3]),
            kv_cold_pages: sum(|lane| &lane.kv_cold_pages),
            kv_evicted_pages: counter(&self.recall[4]),
            kv_recalled_pages: counter(&self.recall[5]),
            kv_recall_wait: Duration::from_nanos(counter(&self.recall_wait_nanos)),
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
