//! Counters that any thread may read while the engine runs.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use taper_base::EngineStats;

#[derive(Debug, Default)]
pub(crate) struct SharedStats {
    pub(crate) running: AtomicU32,
    pub(crate) waiting: AtomicU32,
    pub(crate) kv_blocks_used: AtomicU32,
    pub(crate) kv_blocks_idle: AtomicU32,
    pub(crate) kv_blocks_total: AtomicU32,
    pub(crate) kv_used_bytes: AtomicU64,
    pub(crate) kv_exact_bytes: AtomicU64,
    pub(crate) prompt_tokens: AtomicU64,
    pub(crate) generation_tokens: AtomicU64,
    pub(crate) preemptions: AtomicU64,
    pub(crate) cancelled: AtomicU64,
    pub(crate) steps: AtomicU64,
}

impl SharedStats {
    pub(crate) fn snapshot(&self) -> EngineStats {
        let gauge = |g: &AtomicU32| g.load(Ordering::Relaxed);
        let counter = |c: &AtomicU64| c.load(Ordering::Relaxed);
        EngineStats {
            running: gauge(&self.running),
            waiting: gauge(&self.waiting),
            kv_blocks_used: gauge(&self.kv_blocks_used),
            kv_blocks_idle: gauge(&self.kv_blocks_idle),
            kv_blocks_total: gauge(&self.kv_blocks_total),
            kv_used_bytes: counter(&self.kv_used_bytes),
            kv_exact_bytes: counter(&self.kv_exact_bytes),
            prompt_tokens: counter(&self.prompt_tokens),
            generation_tokens: counter(&self.generation_tokens),
            preemptions: counter(&self.preemptions),
            cancelled: counter(&self.cancelled),
            steps: counter(&self.steps),
        }
    }
}

pub(crate) fn set(gauge: &AtomicU32, value: usize) {
    gauge.store(u32::try_from(value).unwrap_or(u32::MAX), Ordering::Relaxed);
}

pub(crate) fn add(counter: &AtomicU64, n: usize) {
    counter.fetch_add(n as u64, Ordering::Relaxed);
}
