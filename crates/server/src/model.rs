//! From a name on the command line to a running engine.

use crate::{
    cli::{EngineArgs, TemplateChoice},
    generation_config::GenerationConfig,
    hints, identity,
    kv_scheme::SchemeSpec,
    memory,
    sizes::human,
};
use anyhow::{Context, Result, bail, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Map;
use std::{
    fs, io,
    panic::resume_unwind,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};
use taper_base::{Engine, SamplingParams};
use taper_chat::{ChatError, ChatTemplate, Message, Role, TemplateRequest, Tokenizer};
use taper_engine::{EngineConfig, KvBudget, KvDisk, KvOffer, LocalEngine};
use taper_hub::HubConfig;
use taper_models::{Activations, LoadOptions, Model};
use taper_tensor::gpu::Gpu;
use taper_weights::{Checkpoint, Gguf};

/// The demo model, as its directory would hold it.
pub(crate) mod builtin {
    pub(super) const NAME: &str = "taper-demo";
    pub(crate) const CONFIG: &[u8] = include_bytes!("../models/demo/config.json");
    pub(crate) static WEIGHTS: &[u8] = include_bytes!("../models/demo/model.safetensors");
    pub(super) static TOKENIZER: &[u8] = include_bytes!("../models/demo/tokenizer.json");
    pub(super) const TOKENIZER_CONFIG: &[u8] =
        include_bytes!("../models/demo/tokenizer_config.json");
    pub(super) const GENERATION: &[u8] = include_bytes!("../models/demo/generation_config.json");
}

/// Where a model is.
#[derive(Debug, Clone)]
pub(crate) enum ModelSource {
    Builtin,
    Dir(PathBuf),
    /// One file of llama.cpp's format.
    Gguf {
        path: PathBuf,
        file: Arc<Gguf>,
    },
    /// Downloaded: `org/name`, and where it lies.
    Hub {
        id: String,
        dir: PathBuf,
    },
}

impl ModelSource {
    pub(crate) fn find(name: Option<&str>) -> Result<Self> {
        let Some(name) = name else { return Ok(Self::Builtin) };
        if let Some(path) = gguf_file(Path::new(name)) {
            let file = Arc::new(Gguf::open(&path)?);
            return Ok(Self::Gguf { path, file });
        }
        let cache = HubConfig::from_env()?.cache;
        let found = taper_hub::resolve(name, &cache)
            .map_err(|error| hints::missing_model(error, name, &cache))?;
        Ok(match found.id {
            Some(id) => Self::Hub { id: id.name().to_owned(), dir: found.dir },
            None => Self::Dir(found.dir),
        })
    }

    /// Directory of the model; the built-in model and GGUF files have none.
    pub(crate) fn dir(&self) -> Option<&Path> {
        match self {
            Self::Builtin | Self::Gguf { .. } => None,
            Self::Dir(dir) | Self::Hub { dir, .. } => Some(dir),
        }
    }

    /// The name that requests use.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Builtin => builtin::NAME.to_owned(),
            Self::Hub { id, .. } => id.clone(),
            Self::Gguf { path, .. } => {
                path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
            }
            Self::Dir(dir) => {
                let full = dir.canonicalize().unwrap_or_else(|_| dir.clone());
                full.file_name().unwrap_or(full.as_os_str()).to_string_lossy().into_owned()
            }
        }
    }

    pub(crate) fn checkpoint(&self) -> Result<Checkpoint> {
        Ok(match self {
            Self::Builtin => Checkpoint::from_static(builtin::CONFIG, builtin::WEIGHTS)?,
            Self::Dir(dir) | Self::Hub { dir, .. } => Checkpoint::open(dir)?,
            Self::Gguf { file, .. } => file.checkpoint()?,
        })
    }

    pub(crate) fn tokenizer(&self) -> Result<Tokenizer> {
        Ok(match self {
            Self::Builtin => {
                Tokenizer::from_bytes(builtin::TOKENIZER, Some(builtin::TOKENIZER_CONFIG))?
            }
            Self::Dir(dir) | Self::Hub { dir, .. } => Tokenizer::load(dir)?,
            Self::Gguf { file, .. } => {
                let (tokenizer, config) = file.tokenizer_files()?;
                Tokenizer::from_bytes(&tokenizer, Some(&config))?
            }
        })
    }

    fn generation_config(&self) -> GenerationConfig {
        let dir = match self {
            Self::Builtin => return GenerationConfig::parse(builtin::GENERATION),
            Self::Gguf { .. } => return GenerationConfig::default(),
            Self::Dir(dir) | Self::Hub { dir, .. } => dir,
        };
        let path = dir.join("generation_config.json");
        match fs::read(&path) {
            Ok(json) => GenerationConfig::parse(&json),
            Err(error) => {
                if error.kind() != io::ErrorKind::NotFound {
                    tracing::warn!("{} is left out: {error}", path.display());
                }
                GenerationConfig::default()
            }
        }
    }

    fn template(
        &self,
        choice: &TemplateChoice,
        tokenizer: &Tokenizer,
    ) -> Result<Option<ChatTemplate>> {
        let from_source = |source: &str| {
            ChatTemplate::from_source(source, tokenizer.bos_token(), tokenizer.eos_token())
        };
        match (choice, self.dir()) {
            (TemplateChoice::None, _) => Ok(None),
            (TemplateChoice::File(file), Some(dir)) => {
                Ok(Some(ChatTemplate::load_file(file, dir)?))
            }
            (TemplateChoice::File(file), None) => {
                let source = fs::read_to_string(file)
                    .with_context(|| format!("reading {}", file.display()))?;
                let template = from_source(&source).with_context(|| file.display().to_string())?;
                Ok(Some(template))
            }
            (TemplateChoice::Model, None) => {
                if let Self::Gguf { path, file } = self {
                    let source = file.chat_template().with_context(|| {
                        format!("{} has no chat template; {OTHER_TEMPLATES}", path.display())
                    })?;
                    return Ok(Some(
                        from_source(source).with_context(|| path.display().to_string())?,
                    ));
                }
                let config: serde_json::Value = serde_json::from_slice(builtin::TOKENIZER_CONFIG)?;
                let source = config.get("chat_template").and_then(|t| t.as_str());
                Ok(Some(from_source(source.context("the demo model has a template")?)?))
            }
            (TemplateChoice::Model, Some(dir)) => match ChatTemplate::load(dir) {
                Ok(template) => Ok(Some(template)),
                Err(error @ ChatError::NoTemplate { .. }) => bail!("{error}; {OTHER_TEMPLATES}"),
                Err(error) => Err(error.into()),
            },
        }
    }
}

/// What to do without a chat template.
const OTHER_TEMPLATES: &str =
    "pass --chat-template FILE, or --chat-template none to serve completions only";

/// The GGUF file that a path means: itself, or the one in a directory of nothing else.
fn gguf_file(path: &Path) -> Option<PathBuf> {
    let is_gguf = |path: &Path| {
        path.extension().is_some_and(|e| e.eq_ignore_ascii_case("gguf")) && path.is_file()
    };
    if is_gguf(path) {
        return Some(path.to_owned());
    }
    if path.join("config.json").exists() {
        return None;
    }
    let inside = fs::read_dir(path).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    let mut files: Vec<PathBuf> = inside.filter(|path| is_gguf(path)).collect();
    files.sort();
    // Parts of one file follow each other.
    let name = files.first()?.file_name()?.to_string_lossy().into_owned();
    (files.len() == 1 || name.contains("-00001-of-")).then(|| files.swap_remove(0))
}

/// A model that is loaded and ready to generate.
#[derive(Debug)]
pub(crate) struct RunningModel {
    pub(crate) name: String,
    pub(crate) family: &'static str,
    pub(crate) parameters: u64,
    pub(crate) engine: Arc<LocalEngine>,
    pub(crate) tokenizer: Tokenizer,
    pub(crate) template: Option<ChatTemplate>,
    pub(crate) sampling: SamplingParams,
}

/// Requests that an engine takes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Requests {
    /// Sequences computed together, where the flags leave it open.
    pub(crate) together: u32,
    /// Requests that may wait.
    pub(crate) waiting: u32,
}

impl Requests {
    /// The limits of a conversation in the terminal: one request at a time.
    pub(crate) const ONE: Self = Self { together: 1, waiting: 1 };
}

impl RunningModel {
    /// Loads a model and starts its engine.
    pub(crate) fn start(
        source: &ModelSource,
        args: &EngineArgs,
        requests: Requests,
    ) -> Result<Self> {
        let max_num_seqs = args.max_num_seqs.unwrap_or(requests.together);
        let activations = args.activations(max_num_seqs);
        if let Some(threads) = args.threads {
            taper_tensor::pool::set_threads(threads.into())?;
        }
        let (name, spec, offers) = (source.name(), args.kv.spec()?, args.kv.offers()?);
        let loading = || format!("loading {}", describe(source));
        let weights = Arc::new(source.checkpoint().with_context(loading)?);
        let gpu = args.gpu()?;
        let options = LoadOptions {
            max_model_len: args.max_model_len.map(|n| n as usize),
            activations,
            gpu: gpu.as_ref(),
        };
        let free = memory::available_bytes()?;
        // A tokenizer takes as long as the weights of a small model, so both are read at once; and
        // a broken template should not cost a long wait for the weights of a large one.
        let (model, text) = thread::scope(|scope| {
            let model = scope.spawn(|| load(&weights, options));
            let text = || {
                let tokenizer = source.tokenizer().with_context(loading)?;
                let template = source.template(&args.template(), &tokenizer)?;
                anyhow::Ok((tokenizer, template, source.generation_config()))
            };
            let text = text();
            (model.join().unwrap_or_else(|panic| resume_unwind(panic)), text)
        });
        let (tokenizer, template, generation) = text?;
        let model = model.with_context(loading)?;
        let (family, parameters) = (model.info().family, model.info().parameters);
        let resolve = |spec: &SchemeSpec| spec.resolve(model.info().layers, gpu.as_ref());
        let offer = |(bits, spec): &(u32, SchemeSpec)| {
            anyhow::Ok(KvOffer { bits: *bits, scheme: resolve(spec)? })
        };
        let offers = offers.iter().map(offer).collect::<Result<_>>()?;
        let config = EngineConfig {
            max_model_len: args.max_model_len,
            max_num_seqs,
            max_num_batched_tokens: args.max_num_batched_tokens,
            max_waiting: requests.waiting,
            scheme: resolve(&spec)?,
            offers,
            disk: disk(source, args, activations)?,
            exact: args.exact(),
            prefix_caching: args.prefix_caching(),
            idle: args.idle(),
            kv_budget: kv_budget(args, free, &*model, gpu.as_ref())?,
            eos_token_ids: generation.eos_token_ids(weights.config(), model.info().vocab)?,
        };
        let engine = Arc::new(LocalEngine::start(model, &config)?);
        let sampling = generation.sampling();
        Ok(Self { name, family, parameters, engine, tokenizer, template, sampling })
    }

    /// Why there is no chat, if there is none: plain completions may work all the same.
    pub(crate) fn no_chat(&self) -> Option<String> {
        let messages = [Message::text(Role::User, "Hello")];
        let prompt = self.template.as_ref()?.render(&TemplateRequest {
            messages: &messages,
            tools: &[],
            add_generation_prompt: true,
            continue_final_message: false,
            kwargs: &Map::new(),
        });
        let prompt = match prompt {
            Ok(prompt) => prompt,
            Err(error) => return Some(format!("the template cannot write one message: {error}")),
        };
        let info = self.engine.info();
        match self.tokenizer.encode(&prompt, false) {
            Err(error) => Some(error.to_string()),
            Ok(tokens) if tokens.is_empty() => Some("the template writes nothing".to_owned()),
            Ok(tokens) if tokens.iter().any(|id| *id >= info.vocab_size) => {
                Some(format!("the tokenizer has tokens above the model's {}", info.vocab_size))
            }
            Ok(tokens) if tokens.len() >= info.max_model_len as usize => Some(format!(
                "one word takes {} tokens and the context has {}",
                tokens.len(),
                info.max_model_len
            )),
            Ok(_) => None,
        }
    }
}

/// Where prefixes are kept, if they are.
fn disk(
    source: &ModelSource,
    args: &EngineArgs,
    activations: Activations,
) -> Result<Option<KvDisk>> {
    let Some(dir) = args.kv_offloading_dir.clone() else { return Ok(None) };
    ensure!(args.device == "cpu", "--kv-offloading-dir works on the CPU only, not with --device");
    ensure!(args.prefix_caching(), "--kv-offloading-dir keeps prefixes: it needs prefix caching");
    let size = args.kv_offloading_size;
    ensure!(size > 0.0 && size.is_finite(), "--kv-offloading-size must be above 0");
    let max_bytes = (size * (1u64 << 30) as f64) as u64;
    Ok(Some(KvDisk { dir, max_bytes, model: identity::identity(source, args, activations)? }))
}

/// `free` is the memory before the model was loaded.
fn kv_budget(
    args: &EngineArgs,
    free: u64,
    model: &dyn Model,
    gpu: Option<&Gpu>,
) -> Result<KvBudget> {
    if let Some(bytes) = args.kv_cache_memory_bytes {
        return Ok(KvBudget::Bytes(bytes));
    }
    let share = args.gpu_memory_utilization;
    ensure!(share > 0.0 && share <= 1.0, "--gpu-memory-utilization must be above 0 and at most 1");
    let weights = model.info().weight_bytes;
    // On a GPU the weights are there already.
    let free = match gpu {
        Some(gpu) => gpu.memory()?.free + weights,
        None => free,
    };
    let allowed = (free as f64 * share) as u64;
    ensure!(
        allowed > weights,
        "the weights take {} and may take {} ({share} of the free memory); close other programs, raise --gpu-memory-utilization or use a smaller model",
        human(weights),
        human(allowed),
    );
    Ok(KvBudget::Bytes(allowed - weights))
}

/// Builds the model, with a progress bar. Weights that are not repacked stay mapped; they are read
/// once, so that the first request does not wait for the disk.
pub(crate) fn load(weights: &Checkpoint, options: LoadOptions<'_>) -> Result<Box<dyn Model>> {
    let bar = ProgressBar::new(weights.bytes());
    if let Ok(style) = ProgressStyle::with_template(
        "loading weights {wide_bar} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec}",
    ) {
        bar.set_style(style);
    }
    let done = AtomicBool::new(false);
    let model = thread::scope(|scope| {
        let progress = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                bar.set_position(weights.used_bytes());
                thread::park_timeout(Duration::from_millis(20));
            }
        });
        let model = taper_models::load(weights, options);
        done.store(true, Ordering::Relaxed);
        progress.thread().unpark();
        model
    })?;
    let mapped = options.gpu.is_none() && options.activations == Activations::F32;
    if mapped && weights.bytes() < memory::available_bytes()? {
        bar.set_position(0);
        weights.page_in(|bytes| bar.inc(bytes));
    }
    bar.finish_and_clear();
    Ok(model)
}

/// A directory's name for messages.
pub(crate) fn describe(source: &ModelSource) -> String {
    match source {
        ModelSource::Builtin => "built-in demo model".to_owned(),
        ModelSource::Dir(dir) | ModelSource::Hub { dir, .. } => dir.display().to_string(),
        ModelSource::Gguf { path, .. } => path.display().to_string(),
    }
}
