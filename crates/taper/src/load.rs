//! From settings to a running engine.

use crate::{
    Builder, Error, KvPlan, ModelSource, Result, Taper, builder::Progress, draft::DraftModel,
    identity, memory, vision,
};
use std::{
    panic::resume_unwind,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};
use taper_engine::{EngineConfig, KvBudget, KvDisk, KvOffer, LocalEngine, Speculation};
use taper_models::{Ahead, LoadOptions, Model, ModelError, ModelInfo, Precision};
use taper_weights::Checkpoint;

/// How often progress is reported.
const REPORT: Duration = Duration::from_millis(20);

/// Loads a model and starts its engine.
pub(crate) fn build(settings: &Builder, source: &ModelSource) -> Result<Taper> {
    if let Some(threads) = settings.threads {
        taper_tensor::pool::set_threads(threads)?;
    }
    let precision = settings.precision()?;
    let weights = Arc::new(source.checkpoint()?);
    let gpu = settings.gpu.as_ref();
    let free = memory::available_bytes()?;
    let allowed = (free as f64 * settings.memory_share) as u64;
    let experts =
        settings.experts.as_ref().map(|own| own.streaming(source, allowed)).transpose()?;
    // On a GPU nothing is drafted.
    let own_head = settings.draft_model.is_none()
        && gpu.is_none()
        && settings.speculation.as_ref().is_some_and(Speculation::reads_head);
    let options = LoadOptions {
        max_model_len: settings.max_model_len.map(|n| n as usize),
        precision,
        gpu,
        experts: experts.as_ref(),
        moe_top_k: settings.moe_top_k,
        draft_head: own_head,
    };
    // A tokenizer takes as long as the weights of a small model, so both are read at once; and a
    // broken template should not cost a long wait for the weights of a large one.
    let (model, text) = thread::scope(|scope| {
        let model = scope.spawn(|| load_weights(&weights, options, settings.progress.as_ref()));
        let text = || {
            let tokenizer = source.tokenizer()?;
            let template = source.template(&settings.chat_template, &tokenizer)?;
            Ok::<_, Error>((tokenizer, template, source.generation_config()))
        };
        let text = text();
        (model.join().unwrap_or_else(|panic| resume_unwind(panic)), text)
    });
    let (tokenizer, template, generation) = text?;
    let model = model.map_err(|e| Error::Model { model: source.to_string(), source: e })?;
    let (family, parameters) = (model.info().family, model.info().parameters);
    let kwargs = &settings.processor_kwargs;
    let vision = match settings.images {
        true => vision::open(source, model.info(), &tokenizer, kwargs)?,
        false => None,
    };
    let resolve = |plan: &KvPlan| plan.resolve(model.info().layers, gpu);
    let offer = |(bits, plan): &(u32, KvPlan)| {
        Ok::<_, Error>(KvOffer { bits: *bits, scheme: resolve(plan)? })
    };
    if own_head && model.draft_head().is_none() {
        return Err(Error::NoDraftHead { model: source.to_string() });
    }
    let draft = settings.draft_model.as_ref();
    let draft = draft.map(|(source, most)| {
        DraftModel::load(source, *most, options, &tokenizer, model.info().vocab)
    });
    let mut draft = draft.transpose()?;
    let tower = vision.as_ref().map_or(0, |vision| vision.weight_bytes());
    let budget = kv_budget(settings, free, &*model, tower)?;
    let kv_budget = match &mut draft {
        Some(draft) => draft.leave(budget, model.info(), 1 + settings.kv_offers.len())?,
        None => budget,
    };
    let eviction = settings.eviction.as_ref();
    let eviction = eviction.map(|eviction| eviction.resolve(source, &*model, &tokenizer, gpu));
    let config = EngineConfig {
        eviction: eviction.transpose()?,
        max_model_len: settings.max_model_len,
        max_num_seqs: settings.max_num_seqs,
        kv_recall_pages: settings.kv_recall_pages,
        kv_hot_tokens: settings.kv_hot_tokens,
        kv_resident_bytes: match settings.kv_hot_tokens {
            // A cache may be larger than memory then, and memory has its limit still.
            Some(_) => Some(memory_budget(settings, free, &*model, tower)?),
            None => None,
        },
        max_num_batched_tokens: step_tokens(settings, model.info())?,
        max_waiting: settings.max_waiting,
        scheduling: settings.scheduling,
        scheme: resolve(&settings.kv)?,
        offers: settings.kv_offers.iter().map(offer).collect::<Result<_>>()?,
        disk: disk(settings, source, precision)?,
        exact: settings.kv_exact,
        prefix_caching: settings.prefix_caching,
        idle: settings.kv_idle,
        kv_budget,
        adapters: settings.adapters.clone(),
        max_adapters: settings.max_adapters,
        max_adapter_rank: settings.max_adapter_rank,
        speculation: match &draft {
            Some(draft) => Some(draft.speculation()),
            None => settings.speculation.clone(),
        },
        eos_token_ids: generation
            .eos_token_ids(weights.config(), model.info().vocab)
            .map_err(Error::Eos)?,
    };
    let engine = Arc::new(LocalEngine::start(model, &config)?);
    let (name, sampling) = (source.name(), generation.sampling());
    Ok(Taper { name, family, parameters, engine, tokenizer, template, sampling, vision })
}

/// Tokens of a step. A GPU widens every weight to halves once a step, so its steps are longer, where it has
/// memory for their activations. Experts on a disk are read once a step. Images that see themselves are whole in a
/// step, and so are prompts that do.
fn step_tokens(settings: &Builder, model: &ModelInfo) -> Result<u32> {
    const LARGE: u64 = 32_000_000_000;
    const LONGEST: usize = 8192;
    let prompt = u32::try_from(model.max_positions.min(LONGEST)).unwrap_or(u32::MAX);
    Ok(match (settings.max_num_batched_tokens, &settings.gpu) {
        (Some(tokens), _) => tokens,
        (None, None) if settings.experts.is_some() => 2048,
        (None, None) => match model.ahead {
            None => 512,
            Some(Ahead::Images | Ahead::ImagesInWindows) => 2048,
            Some(Ahead::Prompts) => prompt.max(512),
        },
        (None, Some(gpu)) if gpu.memory()?.total < LARGE => 2048,
        (None, Some(_)) => 8192,
    })
}

/// Where prefixes are kept, if they are.
fn disk(settings: &Builder, source: &ModelSource, precision: Precision) -> Result<Option<KvDisk>> {
    let Some((dir, max_bytes)) = settings.kv_disk.clone() else { return Ok(None) };
    if settings.gpu.is_some() || !settings.prefix_caching {
        return Err(Error::NoDisk);
    }
    let model = identity::identity(source, settings.max_model_len, precision, settings.moe_top_k)?;
    Ok(Some(KvDisk { dir, max_bytes, model }))
}

/// `free` is the memory before the model was loaded, and `tower` what its vision tower takes of the host's.
fn kv_budget(settings: &Builder, free: u64, model: &dyn Model, tower: u64) -> Result<KvBudget> {
    match settings.kv_bytes {
        Some(bytes) => Ok(KvBudget::Bytes(bytes)),
        None => memory_budget(settings, free, model, tower).map(KvBudget::Bytes),
    }
}

/// Bytes of memory that weights leave of the share that is allowed.
fn memory_budget(settings: &Builder, free: u64, model: &dyn Model, tower: u64) -> Result<u64> {
    let share = settings.memory_share;
    if !(share > 0.0 && share <= 1.0) {
        return Err(Error::MemoryShare { share });
    }
    let own = model.info().weight_bytes;
    // On a GPU the weights are there already.
    let (free, weights) = match &settings.gpu {
        Some(gpu) => (gpu.memory()?.free + own, own),
        None => (free, own + tower),
    };
    let allowed = (free as f64 * share) as u64;
    match allowed.checked_sub(weights) {
        None | Some(0) => Err(Error::NoMemory { weights, allowed, share }),
        Some(rest) => Ok(rest),
    }
}

/// Builds a model. Weights that are not repacked stay mapped; they are read once, so that the first
/// request does not wait for the disk.
///
/// `progress(done, total)` counts bytes of the weights. They are counted a second time when they are
/// read once.
///
/// # Errors
/// Taper has no such model, or a tensor is missing or of another shape than the model's.
pub fn load_weights(
    weights: &Checkpoint,
    options: LoadOptions<'_>,
    progress: Option<&Progress>,
) -> std::result::Result<Box<dyn Model>, ModelError> {
    let report = |done| {
        if let Some(progress) = progress {
            progress.report(done, weights.bytes());
        }
    };
    let done = AtomicBool::new(false);
    let model = thread::scope(|scope| {
        let reporter = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                report(weights.used_bytes());
                thread::park_timeout(REPORT);
            }
        });
        let model = taper_models::load(weights, options);
        done.store(true, Ordering::Relaxed);
        reporter.thread().unpark();
        model
    })?;
    let mapped = options.gpu.is_none() && options.precision == Precision::F32;
    // What the system does not tell is no reason to fail: the pages come when they are needed.
    if mapped && weights.bytes() < memory::available_bytes().unwrap_or(0) {
        let mut read = 0;
        weights.page_in(|bytes| {
            read += bytes;
            report(read);
        });
    }
    Ok(model)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Experts;

    fn info(ahead: Option<Ahead>) -> ModelInfo {
        ModelInfo {
            family: "test",
            layers: 1,
            recurrent: Vec::new(),
            heads: 1,
            kv_heads: 1,
            head_dim: 1,
            layer_heads: Vec::new(),
            hidden: 1,
            vocab: 1,
            max_positions: 4000,
            parameters: 1,
            weight_bytes: 1,
            prefill_apart: false,
            draft_heads: None,
            images: None,
            ahead,
        }
    }

    #[test]
    fn streamed_experts_are_read_once_for_many_tokens() {
        let builder = || Builder::from(ModelSource::Dir("m".into()));
        let tokens = |builder: &Builder, ahead| step_tokens(builder, &info(ahead)).unwrap();
        assert_eq!(tokens(&builder(), None), 512);
        assert_eq!(tokens(&builder().stream_experts(Experts::default()), None), 2048);
        assert_eq!(tokens(&builder().max_num_batched_tokens(64), Some(Ahead::Prompts)), 64);
        assert_eq!(tokens(&builder(), Some(Ahead::Images)), 2048);
        assert_eq!(tokens(&builder(), Some(Ahead::Prompts)), 4000);
    }
}
