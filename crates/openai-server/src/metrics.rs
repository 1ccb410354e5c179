//! `/metrics`: Prometheus text with vLLM's names, so that its dashboards and routers work as they
//! are. Counts of tokens and steps come from the engine; latencies are taken here.

mod ends;
pub(crate) mod experts;
mod histogram;
mod images;
mod keys;
mod speech;

use crate::{keys::ApiKeys, state::unix_time};
use ends::Ends;
use histogram::Histogram;
use std::{
    fmt::{self, Write as _},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Instant,
};
use taper_base::{AdapterInfo, Drafting, EngineInfo, EngineStats, FinishReason, STEP_TOKENS};

const TTFT: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
];
const PER_TOKEN: &[f64] = &[
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
];
const REQUEST: &[f64] = &[
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
];

/// Clients are never told to wait longer.
const LONGEST_RETRY: f64 = 60.0;

/// What the server has measured since it started.
#[derive(Debug)]
pub(crate) struct Metrics {
    label: String,
    /// When the server started, in seconds of Unix time.
    started: u64,
    pub(crate) ttft: Histogram,
    pub(crate) inter_token: Histogram,
    pub(crate) per_output_token: Histogram,
    pub(crate) e2e: Histogram,
    pub(crate) prompt_tokens: Histogram,
    pub(crate) generation_tokens: Histogram,
    pub(crate) queue: Histogram,
    pub(crate) prefill: Histogram,
    pub(crate) decode: Histogram,
    pub(crate) inference: Histogram,
    params_n: Histogram,
    params_max_tokens: Histogram,
    max_generation_tokens: Histogram,
    pub(crate) hung_steps: AtomicU64,
    ends: Mutex<Ends>,
    pub(crate) prefix_queries: AtomicU64,
    pub(crate) prefix_hits: AtomicU64,
    stop: AtomicU64,
    length: AtomicU64,
    abort: AtomicU64,
    error: AtomicU64,
}

/// How a generation ended, as `finished_reason` counts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    Finished(FinishReason),
    /// Nobody listened any more.
    Aborted,
    Failed,
}

impl Metrics {
    pub(crate) fn new(model: &str, info: &EngineInfo) -> Self {
        // vLLM's buckets for token counts: 1, 2, 5, 10, ... up to the longest sequence.
        let longest = f64::from(info.max_model_len);
        let powers = (0..10).map(|e| 10f64.powi(e));
        let tokens: Vec<f64> = powers
            .flat_map(|p| [p, 2.0 * p, 5.0 * p])
            .take_while(|bound| *bound <= longest)
            .collect();
        let zero = || AtomicU64::new(0);
        Self {
            label: format!("model_name=\"{}\"", escaped(model)),
            started: unix_time(),
            ttft: Histogram::new(TTFT),
            inter_token: Histogram::new(PER_TOKEN),
            per_output_token: Histogram::new(PER_TOKEN),
            e2e: Histogram::new(REQUEST),
            prompt_tokens: Histogram::new(&tokens),
            generation_tokens: Histogram::new(&tokens),
            queue: Histogram::new(REQUEST),
            prefill: Histogram::new(REQUEST),
            decode: Histogram::new(REQUEST),
            inference: Histogram::new(REQUEST),
            params_n: Histogram::new(&[1.0, 2.0, 5.0, 10.0, 20.0]),
            params_max_tokens: Histogram::new(&tokens),
            max_generation_tokens: Histogram::new(&tokens),
            hung_steps: zero(),
            ends: Mutex::default(),
            prefix_queries: zero(),
            prefix_hits: zero(),
            stop: zero(),
            length: zero(),
            abort: zero(),
            error: zero(),
        }
    }

    pub(crate) fn ended(&self, how: Ended) {
        let counter = match how {
            Ended::Finished(FinishReason::Stop) => &self.stop,
            Ended::Finished(FinishReason::Length) => &self.length,
            Ended::Aborted => &self.abort,
            Ended::Failed => &self.error,
        };
        counter.fetch_add(1, Relaxed);
        self.ends.lock().unwrap_or_else(PoisonError::into_inner).add(Instant::now());
    }

    /// Takes in what a request asked for: choices, and tokens of each at most, `None` where it is left open.
    pub(crate) fn asked(&self, n: usize, max_tokens: Option<u32>, longest: u32) {
        self.params_n.observe(n as f64);
        if let Some(most) = max_tokens {
            self.params_max_tokens.observe(f64::from(most));
        }
        self.max_generation_tokens.observe(f64::from(max_tokens.unwrap_or(longest).min(longest)));
    }

    /// Seconds in which a queue of this length gets room for a tenth of it, as generations have ended of late.
    pub(crate) fn retry_after(&self, queued: u32) -> u64 {
        let rate = self.ends.lock().unwrap_or_else(PoisonError::into_inner).rate(Instant::now());
        (f64::from(queued) / 10.0 / rate).ceil().clamp(1.0, LONGEST_RETRY) as u64
    }

    /// The page. Adapters come with how many there may be.
    pub(crate) fn render(
        &self,
        info: &EngineInfo,
        stats: &EngineStats,
        (adapters, max): (&[AdapterInfo], usize),
    ) -> String {
        let mut out = String::with_capacity(16 << 10);
        // Writing to a string cannot fail.
        let _ = self.write(&mut out, info, stats);
        if let Some(experts) = &stats.experts {
            let _ = experts::write(&mut out, &self.label, experts);
        }
        let _ = self.write_process(&mut out);
        if max > 0 {
            let _ = self.write_adapters(&mut out, adapters, max);
        }
        out
    }

    /// What keys have used.
    pub(crate) fn render_keys(&self, out: &mut String, keys: &ApiKeys) {
        // Writing to a string cannot fail.
        let _ = keys::write(out, &self.label, keys);
    }

    /// Which adapters requests use, as vLLM has it: labels of a gauge whose value is the time.
    fn write_adapters(
        &self,
        out: &mut String,
        adapters: &[AdapterInfo],
        max: usize,
    ) -> fmt::Result {
        let names = |of: fn(&AdapterInfo) -> u32| {
            let used = adapters.iter().filter(|adapter| of(adapter) > 0);
            escaped(&used.map(|adapter| &*adapter.name).collect::<Vec<_>>().join(","))
        };
        let (running, waiting) = (names(|a| a.running), names(|a| a.waiting));
        let (name, label, now) = ("vllm:lora_requests_info", &self.label, unix_time());
        writeln!(out, "# HELP {name} Adapters that requests use.\n# TYPE {name} gauge")?;
        writeln!(
            out,
            "{name}{{{label},max_lora=\"{max}\",running_lora_adapters=\"{running}\",waiting_lora_adapters=\"{waiting}\"}} {now}"
        )?;
        let name = "taper:lora_adapter_bytes";
        writeln!(out, "# HELP {name} Bytes of each adapter in memory.\n# TYPE {name} gauge")?;
        for adapter in adapters {
            let (own, rank, bytes) = (escaped(&adapter.name), adapter.rank, adapter.bytes);
            writeln!(out, "{name}{{{label},lora_name=\"{own}\",rank=\"{rank}\"}} {bytes}")?;
        }
        Ok(())
    }

    /// What vLLM's page has of the process, by the names of Prometheus's own clients.
    fn write_process(&self, out: &mut String) -> fmt::Result {
        let mut one = |name: &str, help: &str, value: u64| {
            writeln!(out, "# HELP {name} {help}\n# TYPE {name} gauge\n{name} {value}")
        };
        one("process_start_time_seconds", "Start of the server, in Unix time.", self.started)?;
        match resident_bytes() {
            Some(n) => one("process_resident_memory_bytes", "Resident memory in bytes.", n),
            None => Ok(()),
        }
    }

    fn write(&self, out: &mut String, info: &EngineInfo, stats: &EngineStats) -> fmt::Result {
        let label = &self.label;
        let share = |used: u32, total: u32| f64::from(used) / f64::from(total.max(1));
        let exact = share(stats.kv_exact_blocks_used, stats.kv_exact_blocks_total);
        let usage = share(stats.kv_blocks_used, stats.kv_blocks_total).max(exact);
        let mut one = |name: &str, kind: &str, help: &str, value: f64| {
            writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name}{{{label}}} {value}")
        };
        let (g, c) = ("gauge", "counter");
        let running = f64::from(stats.running);
        one("vllm:num_requests_running", g, "Requests with a part in the current step.", running)?;
        let waiting = f64::from(stats.waiting);
        one("vllm:num_requests_waiting", g, "Requests in the queue.", waiting)?;
        one(
            "vllm:kv_cache_usage_perc",
            g,
            "Share of the KV blocks in use, or of exact blocks if that is more, from 0 to 1.",
            usage,
        )?;
        let n = stats.preemptions as f64;
        one("vllm:num_preemptions_total", c, "Sequences thrown back into the queue.", n)?;
        let n = stats.kv_evictions as f64;
        one("taper:kv_evictions_total", c, "Evictions of tokens from a sequence's KV cache.", n)?;
        let n = stats.kv_evicted_tokens as f64;
        one("taper:kv_evicted_tokens_total", c, "Tokens evicted from the KV cache.", n)?;
        let n = stats.prompt_tokens as f64;
        one("vllm:prompt_tokens_total", c, "Prompt tokens computed.", n)?;
        let n = stats.generation_tokens as f64;
        one("vllm:generation_tokens_total", c, "Tokens generated.", n)?;
        let n = stats.masked_tokens as f64;
        one("taper:masked_tokens_total", c, "Tokens sampled under a grammar's mask.", n)?;
        let n = stats.forced_tokens as f64;
        one("taper:forced_tokens_total", c, "Tokens that a grammar forced, not sampled.", n)?;
        let n = stats.mask_time.as_secs_f64();
        let help = "Time of all threads that found tokens which grammars allow.";
        one("taper:grammar_mask_seconds_total", c, help, n)?;
        let n = stats.mask_wait.as_secs_f64();
        let help = "Time that steps waited for grammars after their forward pass.";
        one("taper:grammar_mask_wait_seconds_total", c, help, n)?;
        let n = self.prefix_queries.load(Relaxed) as f64;
        one("vllm:prefix_cache_queries_total", c, "Prompt tokens looked up in the cache.", n)?;
        let n = self.prefix_hits.load(Relaxed) as f64;
        one("vllm:prefix_cache_hits_total", c, "Prompt tokens found in the cache.", n)?;
        let n = stats.disk_hit_tokens as f64;
        one("taper:disk_prefix_cache_hits_total", c, "Prompt tokens found on disk.", n)?;
        let n = stats.disk_written_blocks as f64;
        one("taper:disk_prefix_cache_written_blocks_total", c, "KV blocks written to disk.", n)?;
        let n = stats.disk_written_bytes as f64;
        one("taper:disk_prefix_cache_written_bytes_total", c, "Bytes of their files.", n)?;
        let n = stats.drafts as f64;
        one("vllm:spec_decode_num_drafts_total", c, "Drafts that were verified.", n)?;
        let n = stats.draft_tokens as f64;
        one("vllm:spec_decode_num_draft_tokens_total", c, "Tokens of these drafts.", n)?;
        let n = stats.accepted_draft_tokens as f64;
        one("vllm:spec_decode_num_accepted_tokens_total", c, "Tokens of them that were right.", n)?;
        let n = stats.draft_time.as_secs_f64();
        one("taper:spec_decode_draft_seconds_total", c, "Time spent on finding drafts.", n)?;
        one("taper:engine_steps_total", c, "Model steps.", stats.steps as f64)?;
        let n = stats.failed_steps as f64;
        one("taper:engine_failed_steps_total", c, "Steps that failed with their requests.", n)?;
        let n = stats.restarts as f64;
        one("taper:engine_restarts_total", c, "Failures after which all requests ended.", n)?;
        let n = self.hung_steps.load(Relaxed) as f64;
        one("taper:engine_hung_steps_total", c, "Steps that took longer than any should.", n)?;
        let n = f64::from(stats.step_prompt_tokens);
        one("taper:step_prompt_tokens", g, "Tokens of prompts in a step that requests share.", n)?;
        let n = info.kv_capacity_bytes as f64;
        one("taper:kv_cache_capacity_bytes", g, "Bytes reserved for the KV cache.", n)?;
        let n = info.kv_exact_bytes as f64;
        one("taper:kv_cache_exact_capacity_bytes", g, "Those for exact tokens.", n)?;
        let n = stats.kv_used_bytes as f64;
        one("taper:kv_cache_used_bytes", g, "Bytes of the KV cache in use.", n)?;
        let n = stats.kv_exact_bytes as f64;
        one("taper:kv_cache_exact_used_bytes", g, "Those of exact tokens.", n)?;
        let n = f64::from(stats.kv_blocks_idle);
        one("taper:kv_cache_idle_blocks", g, "Free KV blocks whose contents may be reused.", n)?;
        let n = f64::from(info.kv_recall_pages);
        one(
            "taper:kv_recall_pages",
            g,
            "Pages that a new token attends to by default; 0 is all.",
            n,
        )?;
        let n = stats.recall_steps as f64;
        let help = "Steps of sequences that left pages of their KV cache out.";
        one("taper:kv_recall_steps_total", c, help, n)?;
        let n = stats.recall_attended_pages as f64;
        one("taper:kv_recall_attended_pages_total", c, "Pages that they attended to.", n)?;
        let n = stats.recall_skipped_pages as f64;
        one("taper:kv_recall_skipped_pages_total", c, "Pages that they left out.", n)?;
        let n = stats.recall_choices as f64;
        one("taper:kv_recall_choices_total", c, "Choices of pages.", n)?;
        let n = f64::from(stats.kv_cold_pages);
        one("taper:kv_cold_pages", g, "Pages of running sequences that are on disk alone.", n)?;
        let n = stats.kv_evicted_pages as f64;
        one("taper:kv_evicted_pages_total", c, "Pages that have left memory.", n)?;
        let n = stats.kv_recalled_pages as f64;
        one("taper:kv_recalled_pages_total", c, "Pages that came back from disk.", n)?;
        let help = "Pages that prompts have read from disk and not kept.";
        one("taper:kv_streamed_pages_total", c, help, stats.kv_streamed_pages as f64)?;
        let n = stats.kv_recall_wait.as_secs_f64();
        one("taper:kv_recall_wait_seconds_total", c, "Time that steps waited for pages.", n)?;
        let n = info.weight_bytes as f64;
        one("taper:weight_bytes", g, "Bytes of weights in memory or mapped.", n)?;

        let name = "vllm:request_success_total";
        writeln!(out, "# HELP {name} Generations by the way they ended.\n# TYPE {name} counter")?;
        let reasons = [
            ("stop", &self.stop),
            ("length", &self.length),
            ("abort", &self.abort),
            ("error", &self.error),
        ];
        for (reason, count) in reasons {
            let count = count.load(Relaxed);
            writeln!(out, "{name}{{{label},finished_reason=\"{reason}\"}} {count}")?;
        }

        let name = "vllm:spec_decode_num_accepted_tokens_per_pos_total";
        writeln!(out, "# HELP {name} Accepted tokens by position.\n# TYPE {name} counter")?;
        for (position, count) in stats.accepted_per_position.iter().enumerate() {
            writeln!(out, "{name}{{{label},position=\"{position}\"}} {count}")?;
        }

        let name = "taper:spec_decode_info";
        writeln!(out, "# HELP {name} What drafts tokens, or why none are.\n# TYPE {name} gauge")?;
        let (method, most, reason) = match &info.drafting {
            Drafting::On { method, most } => (method.as_str(), *most, String::new()),
            Drafting::Off { reason } => ("off", 0, escaped(reason)),
        };
        writeln!(
            out,
            "{name}{{{label},method=\"{method}\",num_speculative_tokens=\"{most}\",reason=\"{reason}\"}} 1"
        )?;

        let name = "vllm:cache_config_info";
        writeln!(out, "# HELP {name} The KV cache in use.\n# TYPE {name} gauge")?;
        let blocks = u64::from(stats.kv_blocks_total);
        let block = info.kv_capacity_tokens.checked_div(blocks).unwrap_or(0);
        let dtype = escaped(&info.kv_cache_dtype);
        let prefix = if info.prefix_caching { "True" } else { "False" };
        writeln!(
            out,
            "{name}{{{label},block_size=\"{block}\",cache_dtype=\"{dtype}\",enable_prefix_caching=\"{prefix}\",num_gpu_blocks=\"{blocks}\"}} 1"
        )?;

        let name = "taper:kv_bits_info";
        writeln!(out, "# HELP {name} KV caches that requests may ask for.\n# TYPE {name} gauge")?;
        for offer in &info.kv_bits {
            let (bits, dtype) = (offer.bits, escaped(&offer.kv_cache_dtype));
            writeln!(out, "{name}{{{label},kv_bits=\"{bits}\",cache_dtype=\"{dtype}\"}} 1")?;
        }

        let histograms = [
            (&self.ttft, "time_to_first_token_seconds", "From arrival to the first token."),
            (&self.inter_token, "inter_token_latency_seconds", "Between two tokens."),
            (
                &self.per_output_token,
                "time_per_output_token_seconds",
                "Mean time a token after the first, one entry a generation.",
            ),
            (&self.e2e, "e2e_request_latency_seconds", "From arrival to the end."),
            (&self.prompt_tokens, "request_prompt_tokens", "Prompt tokens a generation."),
            (
                &self.generation_tokens,
                "request_generation_tokens",
                "Tokens generated a generation.",
            ),
            (
                &self.per_output_token,
                "request_time_per_output_token_seconds",
                "Mean time a token after the first, one entry a generation.",
            ),
            (&self.queue, "request_queue_time_seconds", "From arrival to the first step."),
            (&self.prefill, "request_prefill_time_seconds", "From there to the first token."),
            (&self.decode, "request_decode_time_seconds", "From the first token to the last."),
            (&self.inference, "request_inference_time_seconds", "From the first step to the last."),
            (&self.params_n, "request_params_n", "Choices that requests ask for."),
            (&self.params_max_tokens, "request_params_max_tokens", "Most tokens asked for."),
            (
                &self.max_generation_tokens,
                "request_max_num_generation_tokens",
                "Most tokens that a generation may have.",
            ),
        ];
        for (histogram, name, help) in histograms {
            histogram.write(out, &format!("vllm:{name}"), help, label)?;
        }
        write_steps(out, label, stats)
    }
}

/// Steps by their tokens, as the engine counts them.
fn write_steps(out: &mut String, label: &str, stats: &EngineStats) -> fmt::Result {
    let name = "vllm:iteration_tokens_total";
    writeln!(out, "# HELP {name} Tokens a step.\n# TYPE {name} histogram")?;
    let bounds = STEP_TOKENS.iter().map(|b| format!("{b}.0")).chain(["+Inf".to_owned()]);
    let mut total = 0;
    for (bound, count) in bounds.zip(stats.steps_by_tokens) {
        total += count;
        writeln!(out, "{name}_bucket{{{label},le=\"{bound}\"}} {total}")?;
    }
    let sum = stats.step_tokens;
    writeln!(out, "{name}_sum{{{label}}} {sum}\n{name}_count{{{label}}} {total}")
}

/// What the process holds in memory, where the system says so in a file.
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// A label value, as the exposition format wants it.
pub(crate) fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped() {
        assert_eq!(escaped("a\"b\\c\nd"), "a\\\"b\\\\c\\nd");
    }
}
