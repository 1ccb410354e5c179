//! `taper kv-report`: what each KV codec costs this model, measured on the model itself.

mod measure;
mod report;

use crate::{cli::ModelArg, interrupt::Interrupts, model, sizes};
use anyhow::{Context, Result, ensure};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use measure::{Prefill, Truth};
use report::{Layers, Report, Row};
use std::{
    fs::File,
    io::Read,
    path::{Path, PathBuf},
    sync::Arc,
};
use taper::KvPlan;
use taper_kv_cache::{KvScheme, Prices};
use taper_kv_codecs::{Exact, KvCodec};
use taper_models::{LoadOptions, ModelInfo, Precision};

/// 24 documents that the demo model was not trained on.
const TEXT: &str = include_str!("../../../tests/fixtures/heldout.txt");

/// From the exact to the smallest.
const CODECS: [&str; 11] = [
    "affine8", "turbo8v4", "turbo5", "affine4", "turbo4", "taper4", "taper4v3", "turbo3", "taper3",
    "turbo4v2", "taper2",
];

/// The codec that prices are measured with: of few bits, so that its error stands out.
const PROBE: [&str; 2] = ["taper2v0", "taper0v2"];
/// Relative squared error of the probe (`docs/kv-codecs.md`, Gaussian rows).
const PROBE_ERROR: f64 = 0.09;

/// Bytes of text that are read for each token that is wanted; tokens of words have some four.
const BYTES: u64 = 64;

/// The beginning of a text, enough for so many tokens.
fn read(file: &Path, tokens: usize) -> Result<String> {
    let most = BYTES.saturating_mul(tokens as u64);
    let mut bytes = Vec::new();
    let opened = File::open(file).and_then(|f| f.take(most).read_to_end(&mut bytes));
    opened.with_context(|| format!("reading {}", file.display()))?;
    let whole = bytes.len() as u64 == most;
    String::from_utf8(bytes).or_else(|error| {
        let valid = error.utf8_error().valid_up_to();
        let mut bytes = error.into_bytes();
        // The last letter may have been cut.
        ensure!(whole && bytes.len() - valid < 4, "{} is no text in UTF-8", file.display());
        bytes.truncate(valid);
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    })
}

fn nats(text: &str) -> std::result::Result<f64, String> {
    within(text, f64::MAX)
}

fn percent(text: &str) -> std::result::Result<f64, String> {
    within(text, 100.0)
}

fn within(text: &str, most: f64) -> std::result::Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|n| (0.0..=most).contains(n));
    number.ok_or_else(|| match most == f64::MAX {
        true => "not a number from 0 on".into(),
        false => format!("not a number from 0 to {most}"),
    })
}

#[derive(Debug, Args)]
pub(crate) struct KvReportArgs {
    #[command(flatten)]
    pub(crate) model: ModelArg,
    /// Text to measure on; use one like those the model will serve [default: a built-in English
    /// text].
    #[arg(long, value_name = "FILE")]
    pub(crate) text: Option<PathBuf>,
    /// Tokens of the text to run, as one sequence.
    #[arg(long, default_value_t = 2048, value_name = "TOKENS", value_parser = sizes::some_tokens::<usize>)]
    pub(crate) context: usize,
    /// Codecs to measure, named as in --kv-cache-dtype.
    #[arg(long, value_name = "TYPE", value_delimiter = ',', default_values = CODECS)]
    pub(crate) codecs: Vec<String>,
    /// KV cache to compare with.
    #[arg(long, default_value = "f16", value_parser = ["f16", "f32"])]
    pub(crate) reference: String,
    /// Largest mean KL divergence of a recommended codec, in nats.
    #[arg(long, default_value_t = 0.005, value_name = "NATS", value_parser = nats)]
    pub(crate) max_kl: f64,
    /// Smallest top-1 agreement of a recommended codec, in percent.
    #[arg(long, default_value_t = 97.0, value_name = "PERCENT", value_parser = percent)]
    pub(crate) min_same: f64,
    /// Also measure the sensitivity of each layer, and propose taper codecs per layer with this
    /// many bits on average.
    #[arg(long, value_name = "BITS")]
    pub(crate) bits: Option<f64>,
    /// Precision of activations: float32, or as in `taper serve`.
    ///
    /// Rounded activations add an error of their own, as large as that of the best codecs, and hide
    /// what these cost.
    #[arg(long, default_value = "float32", value_parser = Precision::DTYPES)]
    pub(crate) dtype: String,
    /// First tokens that are kept in f16, as in `taper serve`.
    #[arg(long, default_value_t = Exact::DEFAULT.sink_tokens, value_name = "TOKENS", value_parser = sizes::tokens::<usize>)]
    pub(crate) kv_sink_tokens: usize,
    /// Recent tokens that are kept in f16, as in `taper serve`.
    #[arg(long, default_value_t = Exact::DEFAULT.recent_tokens, value_name = "TOKENS", value_parser = sizes::tokens::<usize>)]
    pub(crate) kv_recent_tokens: usize,
    /// Compute threads [default: one per core].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) threads: Option<u16>,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn run(args: &KvReportArgs) -> Result<()> {
    ensure!(args.bits.is_none_or(|b| (2.0..=8.0).contains(&b)), "--bits must be from 2 to 8");
    // Names are wrong at once, not after minutes of measuring.
    args.codecs.iter().try_for_each(|name| codec(name).map(drop))?;
    if let Some(threads) = args.threads {
        taper_tensor::pool::set_threads(threads.into())?;
    }
    let source = model::find(args.model.name())?;
    let weights = Arc::new(source.checkpoint()?);
    let tokenizer = source.tokenizer()?;
    let text = match &args.text {
        Some(file) => read(file, args.context)?,
        None => TEXT.to_owned(),
    };
    let mut ids = tokenizer.encode(&text, true)?;
    ids.truncate(args.context);
    let exact = exact(args)?;
    let first = exact.map_or(0, |e| e.recent_tokens);
    ensure!(
        ids.len() > first + 1,
        "the text has {} tokens, and all up to {first} are read exactly; give a longer --text, a larger --context or a smaller --kv-recent-tokens",
        ids.len(),
    );
    let precision = Precision::of_dtype(&args.dtype, 1).unwrap_or_default();
    let options = LoadOptions { precision, ..LoadOptions::default() };
    let loading = model::loading_bar();
    let progress = model::reporter(&loading).into();
    let model = taper::load_weights(&weights, options, Some(&progress));
    loading.finish_and_clear();
    let model = model.with_context(|| format!("loading {source}"))?;
    // Until here there is nothing to show, and a signal ends the process at once.
    let interrupts = Interrupts::listen()?;
    let busy = interrupts.busy();
    let info = model.info().clone();
    ensure!(
        ids.len() <= info.max_positions,
        "the text has {} tokens, of which --context {} are wanted; this model has {} positions, so give --context {} at most",
        ids.len(),
        args.context,
        info.max_positions,
        info.max_positions
    );
    let probes = if args.bits.is_some() { 2 * info.layers + 1 } else { 0 };
    let bar = ProgressBar::new(((1 + args.codecs.len() + probes) * ids.len()) as u64);
    bar.set_style(ProgressStyle::with_template("{msg:>12} {wide_bar} {percent} % {eta}")?);
    let step = |tokens: usize| {
        bar.inc(tokens as u64);
        Ok(busy.check()?)
    };
    let prefill = Prefill { model: &*model, ids: &ids, exact, step: &step };
    bar.set_message(args.reference.clone());
    let truth = prefill.truth(&codec(&args.reference)?.into(), first)?;
    let mut report = Report::new(source.name(), args, &prefill, &truth);
    let measured = measure_all(args, &info, &prefill, &truth, &mut report, &bar);
    bar.finish_and_clear();
    // What was measured is shown, interrupted or not.
    report.print(args, measured.is_ok())?;
    measured
}

fn measure_all(
    args: &KvReportArgs,
    info: &ModelInfo,
    prefill: &Prefill<'_>,
    truth: &Truth,
    report: &mut Report,
    bar: &ProgressBar,
) -> Result<()> {
    let row = |scheme: &KvScheme, report: &mut Report| -> Result<()> {
        let name = scheme.to_string();
        bar.set_message(name.clone());
        let bytes = prefill.bytes_a_token(scheme);
        report.rows.push(Row { name, bytes, loss: prefill.loss(scheme, truth)? });
        Ok(())
    };
    for name in &args.codecs {
        row(&codec(name)?.into(), report)?;
    }
    if let Some(bits) = args.bits {
        let prices = prices(info.layers, prefill, truth, bar)?;
        let spec = KvPlan::Bits { bits, prices: Some(prices.clone()) };
        let scheme = spec.resolve(info.layers, None)?;
        row(&scheme, report)?;
        report.layers = Some(Layers { scheme: scheme.to_string(), bits, prices });
    }
    Ok(())
}

/// What an error costs, by layer: the divergence with one side of one layer coded, over its error.
fn prices(
    layers: usize,
    prefill: &Prefill<'_>,
    truth: &Truth,
    bar: &ProgressBar,
) -> Result<Prices> {
    let plain = codec("f16")?;
    let mut sides = Vec::new();
    for (probe, side) in PROBE.iter().zip(["keys", "values"]) {
        let probe = codec(probe)?;
        let mut prices = Vec::with_capacity(layers);
        for layer in 0..layers {
            bar.set_message(format!("{side} {layer}"));
            let mut codecs = vec![Arc::clone(&plain); layers];
            codecs[layer] = Arc::clone(&probe);
            let loss = prefill.loss(&KvScheme::of_layers(&codecs)?, truth)?;
            prices.push(loss.mean_kl.max(0.0) / PROBE_ERROR);
        }
        sides.push(prices);
    }
    let v = sides.pop().unwrap_or_default();
    Ok(Prices { k: sides.pop().unwrap_or_default(), v })
}

fn codec(name: &str) -> Result<Arc<dyn KvCodec>> {
    Ok(taper_kv_codecs::parse(name)?)
}

fn exact(args: &KvReportArgs) -> Result<Option<Exact>> {
    let (sink_tokens, recent_tokens) = (args.kv_sink_tokens, args.kv_recent_tokens);
    if sink_tokens + recent_tokens == 0 {
        return Ok(None);
    }
    let block = measure::BLOCK;
    let whole = |n: usize| n.is_multiple_of(block);
    ensure!(
        recent_tokens > 0 && whole(recent_tokens) && whole(sink_tokens),
        "--kv-sink-tokens and --kv-recent-tokens must be multiples of {block}, or both 0"
    );
    Ok(Some(Exact { sink_tokens, recent_tokens }))
}
