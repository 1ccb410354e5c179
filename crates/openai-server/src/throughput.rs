//! A line in the log every ten seconds while anything runs.

use crate::state::AppState;
use std::time::Duration;
use taper_base::EngineStats;
use tokio::time::{Instant, interval_at};

const PERIOD: Duration = Duration::from_secs(10);

/// Reports for as long as it is polled.
pub(crate) async fn report(state: AppState) {
    let engine = &state.0.engine;
    let mut ticks = interval_at(Instant::now() + PERIOD, PERIOD);
    let mut before = engine.stats();
    loop {
        ticks.tick().await;
        let now = engine.stats();
        if let Some(line) = line(&before, &now, PERIOD) {
            tracing::info!("{line}");
        }
        before = now;
    }
}

/// What happened between two looks at the engine; `None` if nothing did.
fn line(before: &EngineStats, now: &EngineStats, period: Duration) -> Option<String> {
    let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / period.as_secs_f64();
    let prompt = rate(now.prompt_tokens, before.prompt_tokens);
    let generation = rate(now.generation_tokens, before.generation_tokens);
    let (running, waiting) = (now.running, now.waiting);
    if prompt + generation == 0.0 && running + waiting == 0 {
        return None;
    }
    let usage = f64::from(now.kv_blocks_used) / f64::from(now.kv_blocks_total.max(1)) * 100.0;
    Some(format!(
        "prompt throughput {prompt:.1} tokens/s, generation throughput {generation:.1} tokens/s, \
         {running} running, {waiting} waiting, KV cache usage {usage:.1}%"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_only_while_something_runs() {
        let idle = EngineStats { prompt_tokens: 50, kv_blocks_total: 8, ..EngineStats::default() };
        assert_eq!(line(&idle, &idle, PERIOD), None);
        let busy = EngineStats {
            running: 2,
            prompt_tokens: 150,
            generation_tokens: 5,
            kv_blocks_used: 2,
            ..idle
        };
        let expected = "prompt throughput 10.0 tokens/s, generation throughput 0.5 tokens/s, \
                        2 running, 0 waiting, KV cache usage 25.0%";
        assert_eq!(line(&idle, &busy, PERIOD).as_deref(), Some(expected));
        let stuck = EngineStats { waiting: 1, ..idle };
        assert!(line(&stuck, &stuck, PERIOD).is_some());
    }
}
