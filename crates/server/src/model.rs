//! From the command line to a running engine.

use crate::{
    cli::{ADAPTER, AnswerArgs, EngineArgs},
    hints,
    output::note,
};
use anyhow::{Result, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use taper::{Builder, ModelSource, Scheduling, StaticModel, Taper, TensorError};
use taper_hub::HubConfig;

/// The demo model, as its directory would hold it.
const DEMO: StaticModel = StaticModel::new(
    "taper-demo",
    include_bytes!("../models/demo/config.json"),
    include_bytes!("../models/demo/model.safetensors"),
    include_bytes!("../models/demo/tokenizer.json"),
)
.title("built-in demo model")
.tokenizer_config(include_bytes!("../models/demo/tokenizer_config.json"))
.generation_config(include_bytes!("../models/demo/generation_config.json"));

/// A GPU that was asked for and cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("--device {device}: {source}")]
pub(crate) struct NoGpu {
    /// As the flag names it.
    pub(crate) device: String,
    /// Why.
    pub(crate) source: TensorError,
}

/// Finds a model by its name; none is the demo model.
pub(crate) fn find(name: Option<&str>) -> Result<ModelSource> {
    Ok(match name {
        None => ModelSource::Static(DEMO),
        Some(name) => match ModelSource::find(name) {
            Err(taper::Error::Hub(error)) => {
                let cache = HubConfig::from_env()?.cache;
                return Err(hints::missing_model(error, name, &cache));
            }
            found => found?,
        },
    })
}

/// Requests that an engine takes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Requests {
    /// Sequences computed together, where the flags leave it open.
    pub(crate) together: u32,
    /// Requests that may wait.
    pub(crate) waiting: u32,
    /// The order in which they are served.
    pub(crate) scheduling: Scheduling,
}

impl Requests {
    /// The limits of a conversation in the terminal: one request at a time.
    const ONE: Self = Self { together: 1, waiting: 1, scheduling: Scheduling::Fcfs };
}

/// Loads a model, with a progress bar, and starts its engine.
/// `with` adds to what the flags of all commands say.
pub(crate) fn start(
    source: &ModelSource,
    args: &EngineArgs,
    requests: Requests,
    with: impl FnOnce(Builder) -> Builder,
) -> Result<Taper> {
    if args.experts.experts().is_some_and(|experts| experts.pack_of(source).is_none()) {
        note!(
            "experts are read from the model's files and repacked each time; `taper convert {source} --pack-experts DIR` makes this faster"
        );
    }
    let bar = loading_bar();
    let started = with(builder(source, args, requests)?).progress(reporter(&bar)).build();
    bar.finish_and_clear();
    Ok(started?)
}

/// Loads a model for a conversation in the terminal, with `images` or without.
pub(crate) fn start_one(source: &ModelSource, args: &AnswerArgs, images: bool) -> Result<Taper> {
    let with = |builder: Builder| match &args.lora {
        Some(dir) => builder.images(images).adapter(ADAPTER, dir),
        None => builder.images(images),
    };
    start(source, &args.engine, Requests::ONE, with)
}

/// What the flags say.
pub(crate) fn builder(
    source: &ModelSource,
    args: &EngineArgs,
    requests: Requests,
) -> Result<Builder> {
    let mut builder = Builder::from(source.clone())
        .dtype(&args.dtype)
        .kv(args.kv.plan()?)
        .kv_exact(args.exact())
        .kv_idle(args.idle())
        .memory_share(args.gpu_memory_utilization)
        .prefix_caching(args.prefix_caching())
        .kv_recall_pages(args.kv_recall_pages)
        .kv_hot_tokens(args.kv_hot_tokens)
        .max_num_seqs(args.max_num_seqs.unwrap_or(requests.together))
        .max_waiting(requests.waiting)
        .scheduling(requests.scheduling)
        .chat_template(args.template());
    if let Some(tokens) = args.max_num_batched_tokens {
        builder = builder.max_num_batched_tokens(tokens);
    }
    for (bits, plan) in args.kv.offers()? {
        builder = builder.kv_offer(bits, plan);
    }
    if let Some(dir) = &args.kv_offloading_dir {
        ensure!(
            args.device == "cpu",
            "--kv-offloading-dir works on the CPU only, not with --device"
        );
        ensure!(
            args.prefix_caching(),
            "--kv-offloading-dir keeps prefixes: it needs prefix caching"
        );
        let size = args.kv_offloading_size;
        ensure!(size > 0.0 && size.is_finite(), "--kv-offloading-size must be above 0");
        builder = builder.kv_disk(dir, (size * (1u64 << 30) as f64) as u64);
    }
    if let Some(bytes) = args.kv_cache_memory_bytes {
        let all = taper::total_bytes()?;
        ensure!(
            args.device != "cpu" || args.kv_hot_tokens.is_some() || bytes <= all,
            "--kv-cache-memory-bytes {bytes} is more than this machine has: {all}; with --kv-hot-tokens pages go to disk"
        );
        builder = builder.kv_bytes(bytes);
    }
    if let Some(tokens) = args.max_model_len {
        builder = builder.max_model_len(tokens);
    }
    builder = args.speculation.apply(builder)?;
    builder = args.eviction.apply(builder)?;
    if let Some(threads) = args.threads {
        builder = builder.threads(threads.into());
    }
    if let Some(gpu) = args.gpu()? {
        builder = builder.gpu(gpu);
    }
    args.experts.set(builder, &args.device)
}

/// A bar for bytes of weights.
pub(crate) fn loading_bar() -> ProgressBar {
    let bar = ProgressBar::new(0);
    if let Ok(style) = ProgressStyle::with_template(
        "loading weights {wide_bar} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec}",
    ) {
        bar.set_style(style);
    }
    bar
}

/// Moves a bar.
pub(crate) fn reporter(bar: &ProgressBar) -> impl Fn(u64, u64) + Send + Sync + use<> {
    let bar = bar.clone();
    move |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    }
}
