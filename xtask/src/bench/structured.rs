//! `cargo xtask bench structured`: what a schema costs: throughput with and without it, forced tokens,
//! and times of masks.

use ::taper::Taper;
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use taper_base::{Engine, Event, GenRequest, SamplingParams, SharedGrammar, StopRules, TokenId};
use taper_chat::Tokenizer;
use taper_engine::channel;
use taper_grammar::{Content, Grammars, Output};

/// What to measure.
#[derive(Debug, clap::Args)]
pub(crate) struct StructuredArgs {
    /// A model: a directory, a GGUF file or the name of one that was downloaded.
    model: String,
    /// Tokens of each output.
    #[arg(long, default_value_t = 96)]
    tokens: u32,
    /// Sequences at a time.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 8, 32])]
    sequences: Vec<u32>,
    /// Measurements of each, with and without alternating; medians are shown, of the ratio too.
    #[arg(long, default_value_t = 3)]
    repeats: usize,
    /// Threads [default: one a core].
    #[arg(long)]
    threads: Option<usize>,
    /// Prints each line of the throughput as JSON too.
    #[arg(long)]
    json: bool,
    /// Only throughput: no times of masks alone, and no forced tokens.
    #[arg(long)]
    only_throughput: bool,
}

/// What was measured at so many sequences.
#[derive(Debug)]
struct Throughput {
    /// Tokens a second without a schema, and with one.
    plain: f64,
    schema: f64,
    /// The median of the ratios of runs beside each other.
    ratio: f64,
    /// Of a step with the schema: milliseconds of all threads for masks, and of waiting for them.
    mask: f64,
    wait: f64,
}

pub(crate) fn run(args: &StructuredArgs) -> Result<()> {
    let most = args.sequences.iter().copied().max().unwrap_or(1);
    // Drafts are another mechanism's gain.
    let mut builder =
        Taper::builder(&args.model).max_num_seqs(most).max_model_len(1024).speculation(None);
    if let Some(threads) = args.threads {
        builder = builder.threads(threads);
    }
    let model = builder.build()?;
    let info = model.engine.info();
    let start = Instant::now();
    let grammars = Grammars::new(&model.tokenizer, info.vocab_size, &info.eos_token_ids)?;
    println!(
        "{}: {} tokens, prepared in {:.2} s",
        model.name,
        info.vocab_size,
        start.elapsed().as_secs_f64()
    );
    if !args.only_throughput {
        masks(&grammars, &model.tokenizer)?;
    }
    let grammar = of(&grammars, &long_list())?;
    println!(
        "\n{:>9}  {:>12}  {:>12}  {:>6}  {:>12}  {:>12}",
        "sequences", "plain tok/s", "schema tok/s", "ratio", "mask ms/step", "wait ms/step"
    );
    for &n in &args.sequences {
        let Throughput { plain, schema, ratio, mask, wait } = compare(&model, n, args, &grammar)?;
        println!("{n:>9}  {plain:>12.1}  {schema:>12.1}  {ratio:>6.3}  {mask:>12.3}  {wait:>12.3}");
        if args.json {
            let line = json!({ "model": model.name, "sequences": n, "plain_tokens_per_second": plain,
                "schema_tokens_per_second": schema, "ratio": ratio, "mask_ms_per_step": mask,
                "wait_ms_per_step": wait });
            println!("{line}");
        }
    }
    if args.only_throughput {
        return Ok(());
    }
    forced(&model, &of(&grammars, &five_fields())?)
}

/// Runs with the schema and without alternate, in an order that changes, so that what else the machine
/// does falls on both alike.
fn compare(
    model: &Taper,
    n: u32,
    args: &StructuredArgs,
    grammar: &SharedGrammar,
) -> Result<Throughput> {
    let (mut plain, mut schema) = (Vec::new(), Vec::new());
    // Warms up.
    throughput(model, n, args.tokens.min(16), Some(grammar))?;
    let before = model.engine.stats();
    for turn in 0..args.repeats {
        for constrained in [turn % 2 == 1, turn % 2 == 0] {
            let grammar = constrained.then_some(grammar);
            let speed = throughput(model, n, args.tokens, grammar)?;
            if constrained { &mut schema } else { &mut plain }.push(speed);
        }
    }
    let after = model.engine.stats();
    let ratios: Vec<_> = schema.iter().zip(&plain).map(|(schema, plain)| schema / plain).collect();
    // Half of the steps have a schema.
    let steps = (after.steps - before.steps) as f64 / 2.0;
    let each = |time: Duration| 1e3 * time.as_secs_f64() / steps;
    Ok(Throughput {
        plain: median(&plain),
        schema: median(&schema),
        ratio: median(&ratios),
        mask: each(after.mask_time - before.mask_time),
        wait: each(after.mask_wait - before.mask_wait),
    })
}

fn of(grammars: &Grammars, schema: &Value) -> Result<SharedGrammar> {
    let content = Content::JsonSchema { schema: schema.clone(), strict: true, whitespace: None };
    Ok(grammars.output(&Output { content: Some(&content), ..Output::default() })?)
}

/// Goes on for as long as tokens are asked for, in strings that are free: little of it is forced.
fn long_list() -> Value {
    json!({ "type": "array", "minItems": 1000, "items": {
        "type": "object", "additionalProperties": false, "required": ["text", "n"],
        "properties": { "text": { "type": "string", "minLength": 40, "maxLength": 200 },
                        "n": { "type": "integer", "minimum": 0, "maximum": 1000 } } } })
}

fn five_fields() -> Value {
    json!({ "type": "object", "additionalProperties": false,
        "required": ["name", "age", "active", "kind", "note"],
        "properties": { "name": { "type": "string", "maxLength": 20 },
            "age": { "type": "integer", "minimum": 0, "maximum": 150 },
            "active": { "type": "boolean" }, "kind": { "enum": ["small", "large"] },
            "note": { "type": "string", "maxLength": 30 } } })
}

/// Tokens a second of `n` sequences that are decoded together.
fn throughput(model: &Taper, n: u32, tokens: u32, grammar: Option<&SharedGrammar>) -> Result<f64> {
    let ask = |seed: u32| -> Result<_> {
        let prompt = format!("This is prompt number {seed}. Here is what I think about it:");
        let request = GenRequest {
            prompt: model.tokenizer.encode(&prompt, true)?,
            sampling: SamplingParams { seed: u64::from(seed), ..SamplingParams::default() },
            stop: StopRules { max_tokens: Some(tokens), ignore_eos: true, ..StopRules::default() },
            grammar: grammar.cloned(),
            ..GenRequest::default()
        };
        let (sink, events) = channel();
        model.engine.submit(request, sink)?;
        Ok(events)
    };
    let open: Vec<_> = (0..n).map(ask).collect::<Result<_>>()?;
    // From the first token of all on: what comes before is the prompts.
    let (mut count, mut first, mut last) = (0u32, None, Instant::now());
    for events in open {
        for event in events {
            match event {
                Event::Token(_) => {
                    first.get_or_insert_with(Instant::now);
                    count += 1;
                }
                Event::Failed(error) => return Err(error.into()),
                _ => {}
            }
        }
        last = Instant::now();
    }
    ensure!(count == n * tokens, "{count} tokens came, not {}", n * tokens);
    let seconds = last.duration_since(first.context("no token came")?).as_secs_f64();
    Ok(f64::from(count) / seconds)
}

/// Sampled and forced tokens of small objects.
fn forced(model: &Taper, grammar: &SharedGrammar) -> Result<()> {
    let before = model.engine.stats();
    for seed in 0..20 {
        let request = GenRequest {
            prompt: model.tokenizer.encode("A person as JSON: ", true)?,
            sampling: SamplingParams { seed, ..SamplingParams::default() },
            stop: StopRules { max_tokens: Some(200), ..StopRules::default() },
            grammar: Some(grammar.clone()),
            ..GenRequest::default()
        };
        let (sink, events) = channel();
        model.engine.submit(request, sink)?;
        events.into_iter().for_each(drop);
    }
    let after = model.engine.stats();
    let forced = after.forced_tokens - before.forced_tokens;
    let all = after.generation_tokens - before.generation_tokens;
    println!(
        "\nobjects of five fields: {all} tokens, of which {forced} were forced ({:.0} % fewer sampled)",
        100.0 * forced as f64 / all as f64
    );
    Ok(())
}

/// Times of masks on one thread, along outputs of random tokens.
fn masks(grammars: &Grammars, tokenizer: &Tokenizer) -> Result<()> {
    println!(
        "\n{:<22} {:>9} {:>9} {:>7} {:>7} {:>7}",
        "schema", "compile", "first", "p50", "p99", "max"
    );
    let micros = |time: Duration| 1e6 * time.as_secs_f64();
    for (name, schema) in [
        ("five fields", five_fields()),
        ("list of long strings", long_list()),
        ("any object", json!({ "type": "object" })),
    ] {
        let start = Instant::now();
        let grammar = of(grammars, &schema)?;
        let compile = start.elapsed();
        let mut times = Vec::new();
        let vocab = tokenizer.vocab_size() as u32;
        for walk in 0..20u32 {
            let mut constraint = grammar.start();
            for step in 0..100u32 {
                let start = Instant::now();
                let mask = constraint.mask()?;
                times.push(start.elapsed());
                let Some(mask) = mask else { break };
                let from = (walk * 7919 + step * 104_729) % vocab;
                let mut tokens = (from..vocab).chain(0..from);
                let Some(token) = tokens.find(|token: &TokenId| mask.has(*token)) else { break };
                if constraint.accept(token).is_err() || constraint.end() == taper_base::End::Must {
                    break;
                }
            }
        }
        let first = times[0];
        times.sort_unstable();
        let at = |share: f64| micros(times[((times.len() - 1) as f64 * share) as usize]);
        println!(
            "{name:<22} {:>7.1}ms {:>7.0}µs {:>5.0}µs {:>5.0}µs {:>5.0}µs",
            1e3 * compile.as_secs_f64(),
            micros(first),
            at(0.5),
            at(0.99),
            at(1.0)
        );
    }
    Ok(())
}

fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}
