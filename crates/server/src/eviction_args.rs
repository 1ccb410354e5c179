//! Flags for eviction from the KV cache, and `taper calibrate`.

use crate::{
    cli::ModelArg,
    convert,
    interrupt::Interrupts,
    model,
    output::{Out, note},
    sizes::{self, count},
};
use anyhow::{Context, Result, ensure};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use std::{fs, path::PathBuf};
use taper::{Builder, EvictBy, Eviction, LoadOptions, Precision, QueryText};

/// Tokens of the built-in text that statistics are made of, if nobody says otherwise.
const WARMUP: usize = 1024;

/// Which tokens leave the KV cache.
#[derive(Debug, Clone, Args)]
pub(crate) struct EvictionArgs {
    /// Evict tokens from the KV cache while a sequence runs: "triattention" keeps those that later tokens will look
    /// at most, "window" the first and the latest.
    ///
    /// For long reasoning, whose early steps are seldom looked at again. What is evicted is lost: do not use it where
    /// something in a long prompt must be found, or keep prompts with --kv-evict-keep-prompt. Not for models with
    /// recurrent layers or sliding windows.
    #[arg(long, value_name = "POLICY", value_parser = ["triattention", "window"])]
    pub(crate) kv_evict: Option<String>,
    /// Tokens of each sequence that stay in the cache, at most [default: 2048].
    #[arg(long, value_name = "TOKENS", value_parser = sizes::some_tokens::<u32>, requires = "kv_evict")]
    pub(crate) kv_budget: Option<u32>,
    /// Tokens between two evictions, a multiple of 32 and of --kv-recent-tokens [default: 128].
    #[arg(long, value_name = "TOKENS", value_parser = sizes::some_tokens::<u32>, requires = "kv_evict")]
    pub(crate) kv_evict_every: Option<u32>,
    /// First tokens of each sequence that are never evicted [default: 128].
    #[arg(long, value_name = "TOKENS", value_parser = sizes::tokens::<u32>, requires = "kv_evict")]
    pub(crate) kv_evict_prefix: Option<u32>,
    /// Latest tokens of each sequence that are never evicted [default: 128].
    #[arg(long, value_name = "TOKENS", value_parser = sizes::tokens::<u32>, requires = "kv_evict")]
    pub(crate) kv_evict_window: Option<u32>,
    /// Never evict tokens of prompts; the budget is then of what follows them.
    #[arg(long, requires = "kv_evict")]
    pub(crate) kv_evict_keep_prompt: bool,
    /// Tokens of a built-in text that the model runs over at startup, for the statistics that triattention needs
    /// [default: 1024].
    #[arg(long, value_name = "TOKENS", value_parser = sizes::some_tokens::<usize>, requires = "kv_evict", conflicts_with = "kv_evict_stats")]
    pub(crate) kv_evict_warmup: Option<usize>,
    /// Statistics of this model from `taper calibrate`, in place of a run at startup.
    #[arg(long, value_name = "FILE", requires = "kv_evict")]
    pub(crate) kv_evict_stats: Option<PathBuf>,
}

impl EvictionArgs {
    /// What the flags say.
    pub(crate) fn eviction(&self) -> Result<Option<Eviction>> {
        let by = match self.kv_evict.as_deref() {
            None => return Ok(None),
            Some("window") => {
                ensure!(
                    self.kv_evict_stats.is_none() && self.kv_evict_warmup.is_none(),
                    "--kv-evict-stats and --kv-evict-warmup are for --kv-evict triattention"
                );
                EvictBy::Window
            }
            Some(_) => EvictBy::TriAttention(match &self.kv_evict_stats {
                Some(file) => QueryText::File(file.clone()),
                None => QueryText::Text {
                    text: convert::CALIBRATION.to_owned(),
                    tokens: self.kv_evict_warmup.unwrap_or(WARMUP),
                },
            }),
        };
        let mut eviction = Eviction::new(by);
        eviction.budget = self.kv_budget.unwrap_or(eviction.budget);
        eviction.every = self.kv_evict_every.unwrap_or(eviction.every);
        eviction.prefix = self.kv_evict_prefix.unwrap_or(eviction.prefix);
        eviction.window = self.kv_evict_window.unwrap_or(eviction.window);
        eviction.keep_prompt = self.kv_evict_keep_prompt;
        Ok(Some(eviction))
    }

    pub(crate) fn apply(&self, builder: Builder) -> Result<Builder> {
        Ok(builder.evict(self.eviction()?))
    }
}

#[derive(Debug, Args)]
pub(crate) struct CalibrateArgs {
    #[command(flatten)]
    pub(crate) model: ModelArg,
    /// Text to run the model over, like those that it will write [default: a built-in one].
    #[arg(long, value_name = "FILE")]
    pub(crate) text: Option<PathBuf>,
    /// Tokens of the text that are used, at most.
    #[arg(long, value_name = "TOKENS", default_value = "16k", value_parser = sizes::some_tokens::<usize>)]
    pub(crate) tokens: usize,
    /// File to write.
    #[arg(long, short, value_name = "FILE")]
    pub(crate) out: PathBuf,
    /// Compute threads [default: one per core].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) threads: Option<u16>,
}

/// `taper calibrate`: statistics of a model's queries, for `--kv-evict-stats`.
pub(crate) fn calibrate(args: &CalibrateArgs) -> Result<()> {
    if let Some(threads) = args.threads {
        taper::set_threads(threads.into())?;
    }
    // Known before a run that takes long.
    taper::can_write(&args.out)?;
    let source = model::find(args.model.name())?;
    let text = match &args.text {
        Some(path) => {
            fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?
        }
        None => convert::CALIBRATION.to_owned(),
    };
    let mut ids = source.tokenizer()?.encode(&text, true)?;
    let weights = source.checkpoint()?;
    let loading = model::loading_bar();
    let progress = model::reporter(&loading).into();
    let precision = Precision::of_dtype("auto", 1).unwrap_or_default();
    let options = LoadOptions { precision, ..LoadOptions::default() };
    let model = taper::load_weights(&weights, options, Some(&progress));
    loading.finish_and_clear();
    let model = model.with_context(|| format!("loading {source}"))?;
    let interrupts = Interrupts::listen()?;
    let busy = interrupts.busy();
    let most = args.tokens.min(model.info().max_positions);
    if ids.len() > most && args.text.is_some() {
        note!("the first {most} of {} tokens are used", ids.len());
    }
    ids.truncate(most);
    let bar = ProgressBar::new(ids.len() as u64);
    bar.set_style(ProgressStyle::with_template("calibrating {wide_bar} {percent} %, {eta} left")?);
    let step = |done: usize| {
        bar.set_position(done as u64);
        busy.check().is_ok()
    };
    let written = taper::calibrate(&source, &*model, &ids, &args.out, step);
    bar.finish_and_clear();
    busy.check()?;
    written?;
    let tokens = count(ids.len(), "token");
    writeln!(Out, "{}: statistics of {source} over {tokens}", args.out.display())?;
    Ok(())
}
