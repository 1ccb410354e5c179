//! `cargo xtask bench speculation`: tokens a second with drafts and without, alternating in one process, and
//! whether the outputs are equal.

use ::taper::{ModelSource, Speculation, Taper};
use anyhow::{Context, Result, ensure};
use std::{
    fs,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};
use taper_base::{
    Constraint, ConstraintError, End, Engine, EngineStats, Event, GenRequest, Grammar,
    SamplingParams, SharedGrammar, StopRules, TokenId, TokenMask,
};
use taper_engine::channel;

/// What to measure.
#[derive(Debug, clap::Args)]
pub(crate) struct SpeculationArgs {
    /// A model: a directory, a GGUF file or the name of one that was downloaded.
    model: String,
    /// Tasks.
    #[arg(long, value_delimiter = ',', default_value = "edit,copy,code,prose,json")]
    tasks: Vec<String>,
    /// Temperatures.
    #[arg(long, value_delimiter = ',', default_values_t = [0.0, 0.7])]
    temperatures: Vec<f32>,
    /// Sequences at a time. With 1 alone, decode uses 16-bit activations.
    #[arg(long, value_delimiter = ',', default_values_t = [1])]
    sequences: Vec<u32>,
    /// Tokens of each output, beside those of a given text.
    #[arg(long, default_value_t = 256)]
    tokens: u32,
    /// Measurements of each, with and without alternating; medians are shown, of the ratio too.
    #[arg(long, default_value_t = 3)]
    repeats: usize,
    /// Most tokens of a draft.
    #[arg(long, default_value_t = 8)]
    num_draft_tokens: u32,
    /// Draft with this model instead of what followed earlier.
    #[arg(long, value_name = "MODEL")]
    draft_model: Option<String>,
    /// Draft with the checkpoint's head for multi-token prediction instead.
    #[arg(long, conflicts_with = "draft_model")]
    mtp: bool,
    /// Verify all that is drafted.
    #[arg(long, conflicts_with = "draft_model")]
    steady: bool,
    /// Threads [default: one a core].
    #[arg(long)]
    threads: Option<usize>,
    /// KV codec.
    #[arg(long, default_value = "f16")]
    kv_cache_dtype: String,
}

/// Tokens of the text that is edited.
const TEXT: usize = 1500;
/// Changes of it.
const EDITS: usize = 10;

pub(crate) fn run(root: &Path, args: &SpeculationArgs) -> Result<()> {
    let most = args.sequences.iter().copied().max().unwrap_or(1);
    let speculation = if args.mtp { Speculation::mtp() } else { Speculation::suffix() };
    let mut speculation = speculation.most(args.num_draft_tokens);
    if args.steady {
        speculation = speculation.steady();
    }
    let mut builder = Taper::builder(&args.model)
        .max_num_seqs(most)
        .max_model_len(4096)
        .kv(args.kv_cache_dtype.as_str())
        .speculation(Some(speculation));
    if let Some(threads) = args.threads {
        builder = builder.threads(threads);
    }
    if let Some(draft) = &args.draft_model {
        builder = builder.draft_model(ModelSource::find(draft)?, args.num_draft_tokens);
    }
    let model = builder.build()?;
    let text = fs::read_to_string(root.join("tests/fixtures/heldout.txt"));
    let text = text.context("reading heldout.txt")?;
    println!("{}, {:?}", model.name, model.engine.info().drafting);
    println!(
        "\n{:<6} {:>4} {:>5}  {:>11} {:>11} {:>6}  {:>8} {:>9} {:>9}",
        "task",
        "t",
        "seqs",
        "plain tok/s",
        "draft tok/s",
        "ratio",
        "tok/step",
        "accepted",
        "µs/token"
    );
    for task in &args.tasks {
        for &temperature in &args.temperatures {
            for &n in &args.sequences {
                let requests = (0..n).map(|i| request(&model, &text, task, i, temperature, args));
                let requests: Vec<_> = requests.collect::<Result<_>>()?;
                compare(&model, task, temperature, &requests, args.repeats)?;
            }
        }
    }
    Ok(())
}

fn request(
    model: &Taper,
    text: &str,
    task: &str,
    i: u32,
    temperature: f32,
    args: &SpeculationArgs,
) -> Result<GenRequest> {
    let encode = |text: &str| model.tokenizer.encode(text, true);
    let held: Vec<TokenId> = encode(text)?;
    let part = |len: usize| {
        let from = (i as usize * 997) % held.len().saturating_sub(len).max(1);
        held[from..(from + len).min(held.len())].to_vec()
    };
    let (mut prompt, mut grammar, mut tokens) = (Vec::new(), None, args.tokens);
    match task {
        // What a small model would not follow is given to it: each token is drawn from a mask of one.
        "edit" => {
            let original = part(TEXT);
            let given = edited(&original);
            tokens = u32::try_from(given.len())?;
            prompt = [original, encode("\n\nThe same text with ten corrections:\n\n")?].concat();
            grammar = Some(SharedGrammar::from(Arc::new(Given { text: given.into(), at: 0 })));
        }
        "copy" => {
            let original = part(400);
            prompt.extend_from_slice(&original);
            prompt.extend(encode("\n\nOnce more, the same text:\n\n")?);
            prompt.extend_from_slice(&original[..24.min(original.len())]);
        }
        "code" => prompt = encode(&format!("{CODE}    def method_{i}(self"))?,
        "json" => prompt = encode(&format!("{JSON}  {{\"id\": {}, \"name\": \"", 4 + i))?,
        "prose" => {
            let line =
                ["The old lighthouse", "On the first morning", "Nobody knew why", "The river"];
            prompt = encode(&format!("A short story.\n\n{} ", line[i as usize % line.len()]))?;
        }
        other => anyhow::bail!("there is no task {other}: edit, copy, code, prose, json"),
    }
    Ok(GenRequest {
        prompt,
        grammar,
        sampling: SamplingParams { temperature, seed: u64::from(i), ..SamplingParams::default() },
        stop: StopRules { max_tokens: Some(tokens), ignore_eos: true, ..StopRules::default() },
        ..GenRequest::default()
    })
}

/// A text with changes at equal distances: of one token for two, of two for one, and of one for one.
fn edited(text: &[TokenId]) -> Vec<TokenId> {
    let mut out = Vec::new();
    for (i, part) in text.chunks(text.len().div_ceil(EDITS)).enumerate() {
        let (before, rest) = part.split_at(part.len() / 2);
        out.extend_from_slice(before);
        let other = |i: usize| text[(i * 7919 + 31) % text.len()];
        out.extend((0..1 + i % 2).map(|j| other(2 * i + j)));
        out.extend_from_slice(&rest[(1 + i % 3 / 2).min(rest.len())..]);
    }
    out
}

/// An output that is given: each mask has one token.
#[derive(Debug, Clone)]
struct Given {
    text: Arc<[TokenId]>,
    at: usize,
}

impl Grammar for Given {
    fn start(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}

impl Constraint for Given {
    fn mask(&mut self) -> Result<Option<TokenMask>, ConstraintError> {
        let token = self.text.get(self.at).ok_or(ConstraintError::DeadEnd)?;
        Ok(Some(std::iter::once(*token).collect()))
    }

    fn accept(&mut self, _: TokenId) -> Result<(), ConstraintError> {
        self.at += 1;
        Ok(())
    }

    fn forced(&mut self) -> Vec<TokenId> {
        Vec::new()
    }

    fn end(&mut self) -> End {
        if self.at < self.text.len() { End::No } else { End::Must }
    }

    fn fork(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}

/// Runs with drafts and without alternate, in an order that changes.
fn compare(
    model: &Taper,
    task: &str,
    temperature: f32,
    requests: &[GenRequest],
    repeats: usize,
) -> Result<()> {
    let (mut plain, mut fast, mut seen) = (Vec::new(), Vec::new(), Vec::new());
    let mut text = None;
    for turn in 0..repeats {
        for drafts in [turn % 2 == 1, turn % 2 == 0] {
            let before = model.engine.stats();
            let (speed, tokens) = throughput(model, requests, drafts)?;
            if drafts {
                fast.push(speed);
                seen.push(since(&before, &model.engine.stats()));
            } else {
                plain.push(speed);
            }
            let equal = text.get_or_insert_with(|| tokens.clone()) == &tokens;
            ensure!(equal, "{task} at {temperature}: outputs differ");
        }
    }
    let ratios: Vec<_> = fast.iter().zip(&plain).map(|(fast, plain)| fast / plain).collect();
    let of = |f: fn(&Seen) -> f64| median(&seen.iter().map(f).collect::<Vec<_>>());
    println!(
        "{task:<6} {temperature:>4} {:>5}  {:>11.1} {:>11.1} {:>6.3}  {:>8.2} {:>8.0}% {:>9.1}",
        requests.len(),
        median(&plain),
        median(&fast),
        median(&ratios),
        of(|s| s.tokens / s.steps) / requests.len() as f64,
        of(|s| 100.0 * s.accepted / s.drafted.max(1.0)),
        of(|s| 1e6 * s.drafting.as_secs_f64() / s.tokens),
    );
    Ok(())
}

/// What a run counted.
#[derive(Debug)]
struct Seen {
    tokens: f64,
    steps: f64,
    drafted: f64,
    accepted: f64,
    drafting: Duration,
}

fn since(before: &EngineStats, after: &EngineStats) -> Seen {
    Seen {
        tokens: (after.generation_tokens - before.generation_tokens) as f64,
        steps: (after.steps - before.steps) as f64,
        drafted: (after.draft_tokens - before.draft_tokens) as f64,
        accepted: (after.accepted_draft_tokens - before.accepted_draft_tokens) as f64,
        drafting: after.draft_time - before.draft_time,
    }
}

/// Tokens a second of requests that are decoded together, from the first token of all on, and the tokens.
fn throughput(
    model: &Taper,
    requests: &[GenRequest],
    drafts: bool,
) -> Result<(f64, Vec<Vec<TokenId>>)> {
    let ask = |request: &GenRequest| -> Result<_> {
        let max_draft_tokens = if drafts { None } else { Some(0) };
        let (sink, events) = channel();
        model.engine.submit(GenRequest { max_draft_tokens, ..request.clone() }, sink)?;
        Ok(events)
    };
    let open: Vec<_> = requests.iter().map(ask).collect::<Result<_>>()?;
    let (mut first, mut all) = (None, Vec::new());
    for events in open {
        let mut tokens = Vec::new();
        for event in events {
            match event {
                Event::Token(token) => {
                    first.get_or_insert_with(Instant::now);
                    tokens.push(token.id);
                }
                Event::Failed(error) => return Err(error.into()),
                _ => {}
            }
        }
        all.push(tokens);
    }
    let seconds = first.context("no token came")?.elapsed().as_secs_f64();
    Ok((all.iter().map(Vec::len).sum::<usize>() as f64 / seconds, all))
}

fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

const CODE: &str = "class Account:\n    def __init__(self, owner, balance=0):\n        self.owner = owner\n        self.balance = balance\n\n    def deposit(self, amount):\n        if amount <= 0:\n            raise ValueError(\"amount must be positive\")\n        self.balance += amount\n        return self.balance\n\n    def withdraw(self, amount):\n        if amount > self.balance:\n            raise ValueError(\"insufficient funds\")\n        self.balance -= amount\n        return self.balance\n\n";

const JSON: &str = "[\n  {\"id\": 1, \"name\": \"Alice\", \"email\": \"alice@example.com\", \"active\": true, \"roles\": [\"admin\", \"user\"]},\n  {\"id\": 2, \"name\": \"Bob\", \"email\": \"bob@example.com\", \"active\": false, \"roles\": [\"user\"]},\n  {\"id\": 3, \"name\": \"Carol\", \"email\": \"carol@example.com\", \"active\": true, \"roles\": [\"user\"]},\n";
