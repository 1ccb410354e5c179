//! `taper inspect`: a model's architecture, formats and memory needs.

mod experts;

use crate::{
    cli::{EngineArgs, InspectArgs},
    model,
    output::Out,
    sizes::{count, human},
};
use anyhow::Result;
use std::path::Path;
use taper::available_bytes;
use taper_engine::{EngineConfig, KvBudget};
use taper_models::{AdapterError, LoadOptions, Model, ModelInfo};
use taper_weights::Checkpoint;

/// Tokens of a step, as `taper serve` has them.
const STEP_TOKENS: u32 = 512;

pub(crate) fn inspect(args: &InspectArgs) -> Result<()> {
    let source = model::find(args.model.name())?;
    let weights = source.checkpoint()?;
    let options = LoadOptions { moe_top_k: args.experts.moe_top_k, ..LoadOptions::default() };
    let model = taper_models::load(&weights, options)?;
    let info = model.info();
    writeln!(Out, "{} ({source})", source.name())?;
    let row = |name: &str, value: String| writeln!(Out, "  {name:<22}{value}");
    row("architecture", info.family.to_owned())?;
    row("parameters", format!("{:.1} M", info.parameters as f64 / 1e6))?;
    row("weights", format!("{} ({})", human(info.weight_bytes), formats(&weights)))?;
    let bits = info.weight_bytes as f64 * 8.0 / info.parameters as f64;
    row("bits a weight", format!("{bits:.2}"))?;
    let heads = format!("{} query, {} key/value", info.heads, info.kv_heads);
    row("layers", format!("{} of {heads} heads x {}", info.layers, info.head_dim))?;
    if let Some(states) = info.states(1, 0) {
        let bytes = human(states.bytes_per_slot());
        row("recurrent layers", format!("{}, {bytes} a sequence", states.layers.len()))?;
    }
    row("vocabulary", info.vocab.to_string())?;
    row("context", format!("{} tokens", info.max_positions))?;
    if let Some(dir) = &args.lora {
        show_adapter(&*model, dir)?;
    }
    memory_table(args, info)?;
    experts::show(args, &source, &weights)?;
    if args.tensors {
        writeln!(Out)?;
        for t in weights.list() {
            writeln!(Out, "  {:<60} {:<5} {:?}", t.name, t.dtype, t.shape)?;
        }
    }
    Ok(())
}

/// What an adapter of the model is, or why it is none.
fn show_adapter(model: &dyn Model, dir: &Path) -> Result<()> {
    let none = AdapterError::NoTargets { family: model.info().family };
    let adapter = model.adapter_targets().ok_or(none)?.load(dir, None)?;
    let base = adapter.base().map_or_else(String::new, |base| format!(", made for {base}"));
    let (modules, million) =
        (count(adapter.modules(), "module"), adapter.parameters() as f64 / 1e6);
    let what = format!("rank {}, {modules}, {million:.1} M parameters", adapter.rank());
    writeln!(Out, "  {:<22}{what}, {}{base}", "adapter", human(adapter.bytes()))?;
    Ok(())
}

fn memory_table(args: &InspectArgs, info: &ModelInfo) -> Result<()> {
    let scheme = args.kv.plan()?.resolve(info.layers, None)?;
    let free = available_bytes()?;
    let name = scheme.to_string();
    let config = EngineConfig {
        max_num_seqs: 1,
        max_num_batched_tokens: STEP_TOKENS,
        scheme,
        ..EngineConfig::default()
    };
    writeln!(Out, "\n  memory with a KV cache of {name}; {} are free", human(free))?;
    let beside = if info.recurrent.is_empty() { "exact" } else { "exact, states" };
    writeln!(Out, "  {:>10} {:>12} {:>14} {:>12}", "context", "KV cache", beside, "total")?;
    let max = info.max_positions as u64;
    let mut lengths = args.context.clone();
    if lengths.is_empty() {
        lengths = [4096, 16_384, 65_536, max].into_iter().filter(|&n| n <= max).collect();
        lengths.dedup();
    }
    for tokens in lengths {
        let sized = EngineConfig { kv_budget: KvBudget::Tokens(tokens), ..config.clone() };
        let plan = sized.plan(info)?;
        let Some(kv) = plan.caches.first() else { continue };
        let (coded, all) = (kv.bytes_per_block() * kv.blocks as u64, kv.bytes());
        let (total, exact) = (all + info.weight_bytes, all - coded);
        let verdict = match () {
            () if tokens > max => "  longer than the model's context",
            () if total > free => "  does not fit",
            () => "  fits",
        };
        let [coded, exact, total] = [coded, exact, total].map(human);
        writeln!(Out, "  {tokens:>10} {coded:>12} {exact:>14} {total:>12}{verdict}")?;
    }
    Ok(())
}

/// Tokens of the KV cache of one of several models, which its requests share.
const SHARED_TOKENS: u64 = 32_768;

/// Memory of a model's KV cache in a server of several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KvNeed {
    pub(crate) bytes: u64,
}

impl KvNeed {
    /// What the flags say, or room for a number of tokens, and no more than for all sequences at once.
    pub(crate) fn of(args: &EngineArgs, info: &ModelInfo) -> Result<Self> {
        if let Some(bytes) = args.kv_cache_memory_bytes {
            return Ok(Self { bytes });
        }
        let most = args.max_model_len.map_or(info.max_positions as u64, u64::from);
        let sequences = u64::from(args.max_num_seqs.unwrap_or(u32::MAX));
        let tokens = most.saturating_mul(sequences).min(SHARED_TOKENS);
        let tokens = tokens.max(args.max_model_len.map_or(0, u64::from));
        let config = EngineConfig {
            max_num_seqs: 1,
            max_num_batched_tokens: STEP_TOKENS,
            scheme: args.kv.plan()?.resolve(info.layers, args.gpu()?.as_ref())?,
            exact: args.exact(),
            kv_budget: KvBudget::Tokens(tokens),
            ..EngineConfig::default()
        };
        let each: u64 = config.plan(info)?.caches.iter().map(|kv| kv.bytes()).sum();
        let caches = 1 + args.kv.offers()?.len() as u64;
        Ok(Self { bytes: each.saturating_mul(caches) })
    }
}

/// "6-bit, group 64: 57 tensors; BF16: 33 tensors"
pub(crate) fn formats(weights: &Checkpoint) -> String {
    let counts = weights.format_counts();
    let one = |(format, n): (&String, &usize)| format!("{format}: {}", count(*n, "tensor"));
    counts.iter().map(one).collect::<Vec<_>>().join("; ")
}
