//! `cargo xtask bench experts`: experts streamed from disk, beside the bound of the disk and beside resident ones, and
//! policies by replay of what was used.

use super::{experts_model, experts_top_k, own::OwnArgs};
use crate::runner::{Piece, Runner};
use anyhow::{Context, Result, ensure};
use serde_json::json;
use std::{
    fs,
    path::{Path, PathBuf},
    time::Instant,
};
use taper_base::{ExpertStats, TokenId};
use taper_chat::Tokenizer;
use taper_models::{
    ExpertMemory, ExpertStreaming, LoadOptions, Policy, StreamedExperts, Trace, pack_experts,
    replay,
};
use taper_weights::Checkpoint;

/// Records that the disk is measured with.
const RECORDS: usize = 128;
/// Shares of all experts that replays have slots for.
const SHARES: [f64; 3] = [0.125, 0.25, 0.5];

/// What to measure.
#[derive(Debug, clap::Args)]
pub(crate) struct ExpertsArgs {
    /// A checkpoint of a mixture of experts.
    model: PathBuf,
    /// First make it, of random weights in the shapes of Qwen3-30B-A3B with so many layers (48 are
    /// 16 GB).
    #[arg(long, value_name = "LAYERS")]
    make: Option<usize>,
    /// A pack of its experts; it is written if there is none. Without this the checkpoint is read.
    #[arg(long, value_name = "DIR")]
    pack: Option<PathBuf>,
    /// Memory for experts in MiB; without this all are resident.
    #[arg(long, value_name = "MIB")]
    memory: Option<u64>,
    /// Tokens of the prompt; 0 decodes alone.
    #[arg(long, default_value_t = 2048)]
    prompt: usize,
    /// Sequences that decode together.
    #[arg(long, default_value_t = 1)]
    batch: usize,
    /// Experts of the next layer that are read ahead.
    #[arg(long, default_value_t = 0)]
    prefetch: usize,
    /// Threads that read.
    #[arg(long, default_value_t = 4)]
    readers: usize,
    /// Who leaves when room is needed.
    #[arg(long, default_value = "class-lru")]
    policy: Policy,
    /// Read records without their checksums.
    #[arg(long)]
    no_checksums: bool,
    /// Run this text, instead of tokens that mean nothing: what hit rates of trained weights want.
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,
    /// Only say how far outputs are from the model's where a token goes through so many experts; several, separated
    /// by commas.
    #[arg(long, value_delimiter = ',', requires = "text", value_name = "N")]
    moe_top_k: Vec<usize>,
    /// Write which experts were used to this file, for --replay.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Only replay a trace.
    #[arg(long, value_name = "FILE", conflicts_with = "trace")]
    replay: Option<PathBuf>,
    #[command(flatten)]
    own: OwnArgs,
}

pub(crate) fn run(args: &ExpertsArgs) -> Result<()> {
    if let Some(path) = &args.replay {
        let text = fs::read_to_string(path)?;
        return replays(&Trace::parse(&text).context("the file is no trace")?);
    }
    args.own.set_threads()?;
    if let Some(layers) = args.make {
        experts_model::make(&args.model, layers)?;
    }
    let weights = Checkpoint::open(&args.model)?;
    let text = args.text.as_ref().map(|path| tokens_of(&args.model, path)).transpose()?;
    if let (Some(text), false) = (&text, args.moe_top_k.is_empty()) {
        return experts_top_k::run(&weights, text, &args.moe_top_k, &args.own);
    }
    if let Some(dir) = args.pack.as_ref().filter(|dir| !taper_models::Manifest::is_in(dir)) {
        let start = Instant::now();
        let report = pack_experts(&weights, dir, &[], &mut |_, _| {})?;
        let seconds = start.elapsed().as_secs_f64();
        println!(
            "packed {:.2} GB in {seconds:.1} s ({} records were there)",
            gb(report.bytes),
            report.resumed
        );
    }
    let streaming = args.memory.map(|mib| {
        let mut streaming = ExpertStreaming::new(ExpertMemory::Bytes(mib << 20));
        streaming.pack.clone_from(&args.pack);
        // Each run sees its tokens for the first time.
        streaming.remembers = false;
        (streaming.readers, streaming.prefetch) = (args.readers, args.prefetch);
        (streaming.checksums, streaming.policy) = (!args.no_checksums, args.policy);
        streaming
    });
    let tokens = (args.prompt + args.own.decode + 2) * args.batch;
    let options = LoadOptions {
        max_model_len: Some(tokens),
        precision: args.own.precision(args.batch)?,
        experts: streaming.as_ref(),
        ..LoadOptions::default()
    };
    let start = Instant::now();
    let model = taper_models::load(&weights, options)?;
    println!("loaded in {:.1} s", start.elapsed().as_secs_f64());
    let experts = model.experts();
    let mut runner = Runner::over(model, &args.own.kv_cache_dtype, None, tokens, None)?;
    measure(args, text.as_deref(), &mut runner, experts.as_ref())
}

/// A text's tokens.
fn tokens_of(model: &Path, text: &Path) -> Result<Vec<TokenId>> {
    let tokenizer = Tokenizer::load(model).context("--text wants the model's tokenizer")?;
    let text = fs::read_to_string(text).with_context(|| format!("reading {}", text.display()))?;
    Ok(tokenizer.encode(&text, false)?)
}

fn measure(
    args: &ExpertsArgs,
    text: Option<&[TokenId]>,
    runner: &mut Runner,
    experts: Option<&StreamedExperts>,
) -> Result<()> {
    if let Some(stats) = experts.and_then(StreamedExperts::stats) {
        println!(
            "{} slots of {} experts, floor {}; {:.2} MB an expert, {:.0} MB a token",
            stats.slots,
            stats.experts,
            stats.floor_slots,
            stats.slot_bytes as f64 / 1e6,
            (stats.active * stats.slot_bytes) as f64 / 1e6
        );
    }
    let vocab = runner.model.info().vocab as u32;
    let prompt: Vec<TokenId> = match text {
        Some(text) => text.iter().take(args.prompt).copied().collect(),
        None => (0..args.prompt as u32).map(|i| i.wrapping_mul(2_654_435_761) % vocab).collect(),
    };
    let answers = text.map(|text| &text[prompt.len()..]);
    let enough = answers.is_none_or(|rest| rest.len() >= args.own.decode * args.batch);
    ensure!(enough, "the text is too short for --prompt and --decode");
    if let Some(experts) = experts {
        experts.start_trace();
    }
    for seq in 0..args.batch as u64 {
        let phase = Phase::begin("prefill", experts)?;
        for (i, tokens) in prompt.chunks(args.own.chunk).enumerate() {
            runner.greedy(&[Piece::prompt(seq, i * args.own.chunk, tokens)])?;
        }
        phase.end(prompt.len())?;
    }
    // What a model of random weights generates repeats itself, and hits experts that a text would not.
    let token = |step: usize, seq: usize| -> TokenId {
        if let Some(answers) = answers {
            return answers[seq * args.own.decode + step];
        }
        let i = (step * args.batch + seq) as u32;
        i.wrapping_add(7).wrapping_mul(0x9E37_79B1).rotate_left(9) % vocab
    };
    let phase = Phase::begin("decode", experts)?;
    let mut answer = Vec::new();
    for step in 0..args.own.decode {
        let tokens: Vec<_> = (0..args.batch).map(|seq| token(step, seq)).collect();
        let depth = args.prompt + step;
        let pieces = tokens.iter().zip(0..);
        let pieces: Vec<_> = pieces
            .map(|(token, seq)| Piece::answer(seq, depth, std::slice::from_ref(token)))
            .collect();
        let next = runner.greedy(&pieces)?;
        ensure!(next.len() == args.batch, "a token of each sequence");
        answer.extend_from_slice(&next);
    }
    phase.end(answer.len())?;
    let hash = answer.iter().fold(0u64, |h, &t| h.wrapping_mul(31).wrapping_add(t.into()));
    println!("answer {hash:016x}: {} tokens", answer.len());
    let Some(trace) = experts.and_then(StreamedExperts::take_trace) else { return Ok(()) };
    if let Some(path) = &args.trace {
        fs::write(path, trace.to_text())?;
    }
    replays(&trace)
}

/// A part of the measurement.
struct Phase<'a> {
    name: &'static str,
    experts: Option<&'a StreamedExperts>,
    speed: Option<f64>,
    before: ExpertStats,
    start: Instant,
}

impl<'a> Phase<'a> {
    fn begin(name: &'static str, experts: Option<&'a StreamedExperts>) -> Result<Self> {
        let speed = experts.map(|experts| experts.measure(RECORDS)).transpose()?;
        let before = experts.and_then(StreamedExperts::stats).unwrap_or_default();
        Ok(Self { name, experts, speed, before, start: Instant::now() })
    }

    /// Prints the speed of so many tokens, and what the disk did meanwhile. Its own speed is the mean of before and
    /// after.
    fn end(self, tokens: usize) -> Result<()> {
        let seconds = self.start.elapsed().as_secs_f64();
        if tokens == 0 {
            return Ok(());
        }
        let own = tokens as f64 / seconds;
        let Some(now) = self.experts.and_then(StreamedExperts::stats) else {
            println!("{}: {own:.2} tokens/s", self.name);
            return Ok(());
        };
        let (hits, misses) = (now.hits - self.before.hits, now.misses - self.before.misses);
        let read = (now.read_bytes - self.before.read_bytes) as f64;
        let useful = now.prefetch_useful - self.before.prefetch_useful;
        let wasted = now.prefetch_wasted - self.before.prefetch_wasted;
        // What all missing experts take to be read, if nothing else took any time.
        let after = self.experts.map(|experts| experts.measure(RECORDS)).transpose()?;
        let speed = (self.speed.unwrap_or_default() + after.unwrap_or_default()) / 2.0;
        let bound = tokens as f64 * speed / read.max(1.0);
        let stall = (now.stall - self.before.stall).as_secs_f64();
        let figures = json!({
            "phase": self.name,
            "tokens": tokens,
            "seconds": round(seconds),
            "tokens_per_second": round(own),
            "disk_gb_per_second": round(speed / 1e9),
            "bound": round(bound),
            "share_of_bound": round(own / bound),
            "hit_rate": round(hits as f64 / (hits + misses).max(1) as f64),
            "misses": misses,
            "read_gb": round(read / 1e9),
            "reads_an_expert": round(read / (now.slot_bytes * misses.max(1)) as f64),
            "stall_seconds": round(stall),
            "prefetch_useful": useful,
            "prefetch_wasted": wasted,
            "shrunk": now.shrunk,
        });
        println!("{figures}");
        Ok(())
    }
}

fn round(x: f64) -> f64 {
    (x * 1000.0).round() / 1000.0
}

fn gb(bytes: u64) -> f64 {
    bytes as f64 / 1e9
}

/// A table of hit rates.
fn replays(trace: &Trace) -> Result<()> {
    let mut all = std::collections::HashSet::new();
    for touch in &trace.touches {
        all.extend(touch.experts.iter().map(|(expert, _)| (touch.layer, *expert)));
    }
    println!("{} touches, {} experts; hit rates by replay:", trace.touches.len(), all.len());
    let names = Policy::ALL.map(|policy| format!("{:>10}", policy.to_string()));
    println!("{:>8} {}", "slots", names.join(" "));
    for share in SHARES {
        let slots = (all.len() as f64 * share) as usize;
        let rate = |policy| format!("{:>10.4}", replay(trace, slots, policy).hit_rate());
        println!("{slots:>8} {}", Policy::ALL.map(rate).join(" "));
    }
    for (rank, (right, found)) in (1..).zip(trace.foresight()) {
        println!(
            "expected as number {rank}: {right:.3} were used; {found:.3} of the used ones were named so far"
        );
    }
    Ok(())
}
