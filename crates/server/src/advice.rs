//! What to do about an error: the flag to change, or the command to run. Libraries know neither.

use crate::{cli::EngineArgs, model::NoGpu};
use std::{error::Error as StdError, io::ErrorKind, path::Path};
use taper::Error;
use taper_chat::ChatError;
use taper_engine::{EngineError, EvictionError};
use taper_hub::HubError;
use taper_kv_cache::KvCacheError;
use taper_models::{ExpertError, ModelError};
use taper_weights::{ConvertError, WeightsError};

/// The first cause that something can be done about decides. `engine` is what the user chose, where the
/// command runs a model.
pub(crate) fn advice(error: &anyhow::Error, engine: Option<&EngineArgs>) -> Option<String> {
    error.chain().find_map(|cause| of_cause(cause, engine))
}

/// Errors that say nothing of their own are no links of the chain, so what they hold is asked here.
fn of_cause(cause: &(dyn StdError + 'static), engine: Option<&EngineArgs>) -> Option<String> {
    let own = cause.downcast_ref().and_then(of_taper);
    own.or_else(|| cause.downcast_ref().and_then(|error| of_engine(error, engine)))
        .or_else(|| cause.downcast_ref().and_then(of_hub))
        .or_else(|| cause.downcast_ref().and_then(of_weights))
        .or_else(|| cause.downcast_ref().and_then(of_convert))
        .or_else(|| cause.downcast_ref().and_then(of_model))
        .or_else(|| cause.downcast_ref().and_then(of_cache))
        .or_else(|| cause.downcast_ref().and_then(of_gpu))
        .or_else(|| of_file(cause, engine))
        .or_else(|| of_cause(held(cause)?, engine))
}

/// What an error holds that speaks with the words of another one.
fn held<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a (dyn StdError + 'static)> {
    if let Some(error) = error.downcast_ref() {
        return match error {
            Error::Hub(e) => Some(e),
            Error::Chat(e) => Some(e),
            Error::KvCache(e) => Some(e),
            Error::Engine(e) => Some(e),
            _ => None,
        };
    }
    if let Some(ModelError::Weights(e)) = error.downcast_ref() {
        return Some(e);
    }
    if let Some(EngineError::Disk(e)) = error.downcast_ref() {
        return Some(e);
    }
    match error.downcast_ref() {
        Some(ConvertError::Source(e)) => Some(&**e),
        _ => None,
    }
}

fn of_taper(error: &Error) -> Option<String> {
    let advice = match error {
        Error::NoMemory { .. } => {
            "close other programs, raise --gpu-memory-utilization or use a smaller model"
        }
        Error::MemoryShare { .. } => "--gpu-memory-utilization sets it",
        Error::ModelHasNoTemplate { .. } => {
            "pass --chat-template FILE, or --chat-template none to serve completions only"
        }
        Error::NoTemplate => "`taper run --raw` does that",
        _ => return None,
    };
    Some(advice.to_owned())
}

fn of_engine(error: &EngineError, engine: Option<&EngineArgs>) -> Option<String> {
    let advice = match error {
        EngineError::TooLong { capacity, .. } => {
            return Some(more_cache(engine, *capacity == 0));
        }
        EngineError::BeyondModel { .. } => "lower --max-model-len",
        EngineError::Exact { .. } => "change --kv-sink-tokens and --kv-recent-tokens",
        EngineError::NoRecall { .. } => "leave --kv-recall-pages out",
        EngineError::Eviction(error) => return of_eviction(error),
        EngineError::NoHotTokens { .. } => "pass --kv-offloading-dir, or leave --kv-hot-tokens out",
        EngineError::NoColdRoom { .. } => {
            "raise --kv-offloading-size, or lower --kv-cache-memory-bytes"
        }
        EngineError::NoDisk { .. } => "leave --kv-offloading-dir out",
        EngineError::Scheme { .. } => "choose another --kv-cache-dtype",
        EngineError::SameBits { .. } => "leave one of them out of --additional-config",
        _ => return None,
    };
    Some(advice.to_owned())
}

fn of_eviction(error: &EvictionError) -> Option<String> {
    let advice = match error {
        EvictionError::Every { .. } => "change --kv-evict-every",
        EvictionError::Budget { .. } => {
            "raise --kv-budget, or lower --kv-evict-prefix or --kv-evict-window"
        }
        EvictionError::Exact { .. } => {
            "raise --kv-evict-prefix and --kv-evict-window, or lower --kv-sink-tokens and --kv-recent-tokens"
        }
        EvictionError::Unsupported { .. } => "leave --kv-evict out",
        _ => return None,
    };
    Some(advice.to_owned())
}

/// How to fit a sequence into the cache: by the flag that set its size.
fn more_cache(engine: Option<&EngineArgs>, nothing_fits: bool) -> String {
    let bytes = engine.is_some_and(|e| e.kv_cache_memory_bytes.is_some());
    let size = if bytes { "--kv-cache-memory-bytes" } else { "--gpu-memory-utilization" };
    match nothing_fits {
        // No sequence is short enough for that.
        true => format!("raise {size}"),
        false => {
            format!("lower --max-model-len, raise {size} or choose a smaller --kv-cache-dtype")
        }
    }
}

pub(crate) fn of_hub(error: &HubError) -> Option<String> {
    match error {
        HubError::NotCached { id, .. } => Some(format!("run `taper download {id}`")),
        HubError::Incomplete { id, .. } => {
            Some(format!("run `taper download {id}` to fetch the rest"))
        }
        HubError::NotAModel { .. } => Some(
            "copy the missing file there too, or name another directory or a GGUF file".to_owned(),
        ),
        _ => None,
    }
}

fn of_weights(error: &WeightsError) -> Option<String> {
    match error {
        WeightsError::MissingShard { path } => Some(match downloaded(path) {
            Some(id) => format!("run `taper download {id}` again"),
            None => "copy it there too, from where the other files came".to_owned(),
        }),
        WeightsError::UnsupportedQuantization { .. } => {
            Some("`taper convert` quantizes a dense checkpoint".to_owned())
        }
        _ => None,
    }
}

/// The model of the hub that a file in the cache of downloads belongs to.
fn downloaded(path: &Path) -> Option<String> {
    let mut parts = path.iter().filter_map(|part| part.to_str());
    let folder = parts.find_map(|part| part.strip_prefix("models--"))?;
    parts.any(|part| part == "snapshots").then(|| folder.replacen("--", "/", 1))
}

fn of_convert(error: &ConvertError) -> Option<String> {
    let ConvertError::Write { source, .. } = error else { return None };
    Some(match source.kind() {
        ErrorKind::StorageFull => "make room, or choose a destination on another disk".to_owned(),
        _ => "choose a destination that can be written".to_owned(),
    })
}

fn of_model(error: &ModelError) -> Option<String> {
    let advice = match error {
        ModelError::CpuOnly { .. } | ModelError::StreamedOnGpu => "leave --device out",
        ModelError::StreamedExactly => "choose another --dtype",
        ModelError::NoExperts => "leave --stream-experts or --pack-experts out",
        ModelError::TopK { .. } => "change --moe-top-k",
        ModelError::Experts(error) => return of_experts(error),
        _ => return None,
    };
    Some(advice.to_owned())
}

fn of_experts(error: &ExpertError) -> Option<String> {
    let advice = match error {
        ExpertError::Floor { needed, .. } => {
            return Some(format!("give --expert-memory {needed} or more"));
        }
        ExpertError::OtherModel { .. } => "run `taper convert MODEL --pack-experts` again",
        ExpertError::File { source, .. } if source.kind() == ErrorKind::AlreadyExists => {
            "the pack is there; delete it to make it anew"
        }
        ExpertError::File { source, .. } if source.kind() != ErrorKind::NotFound => return None,
        ExpertError::Manifest { .. }
        | ExpertError::Json { .. }
        | ExpertError::Checksum { .. }
        | ExpertError::Header { .. }
        | ExpertError::File { .. } => {
            "delete the pack, and run `taper convert MODEL --pack-experts` again"
        }
        _ => return None,
    };
    Some(advice.to_owned())
}

fn of_cache(error: &KvCacheError) -> Option<String> {
    let advice = match error {
        KvCacheError::Disk { .. } => {
            "give a --kv-offloading-dir that can be written, or leave it out"
        }
        KvCacheError::DiskInUse { .. } => "give a --kv-offloading-dir of its own to each server",
        _ => return None,
    };
    Some(advice.to_owned())
}

fn of_gpu(error: &NoGpu) -> Option<String> {
    let device = &error.device;
    Some(format!("leave it out to compute on the CPU; docs/{device}.md says what it needs"))
}

/// Files that could not be read, which two libraries say.
fn of_file(cause: &(dyn StdError + 'static), engine: Option<&EngineArgs>) -> Option<String> {
    let taper = cause.downcast_ref().and_then(|error| match error {
        Error::Read { path, .. } => Some(path),
        _ => None,
    });
    let chat = cause.downcast_ref().and_then(|error| match error {
        ChatError::Read { path, .. } => Some(path),
        _ => None,
    });
    let path = taper.or(chat)?;
    let template = engine.and_then(|e| e.chat_template.as_deref());
    if template.is_some_and(|file| Path::new(file) == path) {
        let advice = "--chat-template takes a file with a Jinja template, or \"none\"";
        return Some(advice.to_owned());
    }
    let tokenizer = path.file_name().is_some_and(|name| name == "tokenizer.json");
    tokenizer.then(|| "copy it there too, from where the model came".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;
    use std::io;
    use taper_kv_codecs::KvCodecError;
    use taper_tensor::TensorError;

    fn engine(flags: &[&str]) -> EngineArgs {
        let cli = Cli::parse_from([&["taper", "run", "x"], flags].concat());
        let Some(Command::Run(args)) = cli.command else { panic!("run") };
        args.answer.engine
    }

    fn read(path: &str) -> ChatError {
        ChatError::Read { path: path.into(), source: io::ErrorKind::NotFound.into() }
    }

    fn shard(path: &str) -> WeightsError {
        WeightsError::MissingShard { path: path.into() }
    }

    fn method() -> WeightsError {
        WeightsError::UnsupportedQuantization { method: "gptq".into() }
    }

    fn model(source: ModelError) -> Error {
        Error::Model { model: "m".into(), source }
    }

    fn disk() -> KvCacheError {
        let (dir, source) = ("d".into(), io::ErrorKind::NotFound.into());
        KvCacheError::Disk { dir, source }
    }

    fn too_long(capacity: u64) -> Error {
        Error::Engine(EngineError::TooLong { wanted: 9, capacity, budget_bytes: 1 })
    }

    fn unwritten(kind: io::ErrorKind) -> ConvertError {
        ConvertError::Write { path: "out".into(), source: kind.into() }
    }

    #[test]
    fn every_error_that_a_flag_mends_names_it() {
        let weights = Error::Weights { model: "m".into(), source: method() };
        let not_cached =
            || "org/name".parse().map(|id| HubError::NotCached { id, cache: "c".into() });
        let hub = "c/models--org--my--name/snapshots/abc/model-00001-of-00002.safetensors";
        let no_gpu = TensorError::Gpu { what: "find a GPU", message: "no driver".into() };
        let tokenizer = Error::Tokenizer { model: "m".into(), source: read("m/tokenizer.json") };
        let no_model = HubError::NotAModel { dir: "m".into(), missing: "config.json".into() };
        let source = KvCodecError::HeadDim { head_dim: 7 };
        let scheme = EngineError::Scheme { scheme: "turbo4".into(), source };
        let no_cold_room =
            EngineError::NoColdRoom { kv_bytes: 3, resident_bytes: 1, disk_bytes: 1 };
        let in_use = KvCacheError::DiskInUse { dir: "d".into() };
        let all: [(anyhow::Error, &str); 30] = [
            (Error::NoMemory { weights: 2, allowed: 1, share: 0.5 }.into(), "--gpu-memory-util"),
            (Error::MemoryShare { share: 2.0 }.into(), "--gpu-memory-utilization"),
            (Error::ModelHasNoTemplate { path: "m".into() }.into(), "--chat-template"),
            (Error::NoTemplate.into(), "run --raw"),
            (too_long(1).into(), "lower --max-model-len"),
            (EngineError::BeyondModel { wanted: 2, max: 1 }.into(), "--max-model-len"),
            (EngineError::Exact { block: 32 }.into(), "--kv-sink-tokens"),
            (EngineError::NoDisk { family: "f" }.into(), "--kv-offloading-dir"),
            (EngineError::NoRecall { reason: "r" }.into(), "--kv-recall-pages"),
            (EngineError::NoHotTokens { reason: "r" }.into(), "--kv-hot-tokens"),
            (no_cold_room.into(), "--kv-offloading-size"),
            (EngineError::SameBits { bits: 4 }.into(), "--additional-config"),
            (scheme.into(), "--kv-cache-dtype"),
            (Error::Engine(EngineError::Disk(disk())).into(), "--kv-offloading-dir"),
            (Error::KvCache(disk()).into(), "--kv-offloading-dir"),
            (Error::Engine(EngineError::Disk(in_use)).into(), "--kv-offloading-dir"),
            (not_cached().unwrap().into(), "taper download org/name"),
            (Error::Hub(not_cached().unwrap()).into(), "taper download org/name"),
            (no_model.into(), "copy the missing file"),
            (weights.into(), "taper convert"),
            (model(ModelError::Weights(method())).into(), "taper convert"),
            (ModelError::Weights(shard(hub)).into(), "taper download org/my--name"),
            (ConvertError::from(shard(hub)).into(), "taper download org/my--name"),
            (ConvertError::from(shard("m/a.safetensors")).into(), "copy it there"),
            (model(ModelError::CpuOnly { family: "f" }).into(), "leave --device out"),
            (unwritten(io::ErrorKind::StorageFull).into(), "make room"),
            (unwritten(io::ErrorKind::PermissionDenied).into(), "can be written"),
            (NoGpu { device: "cuda".into(), source: no_gpu }.into(), "docs/cuda.md"),
            (tokenizer.into(), "copy it there"),
            (Error::Chat(read("m/tokenizer.json")).into(), "copy it there"),
        ];
        for (error, word) in all {
            let context = format!("{error:#}");
            for error in [error.context("loading"), anyhow::anyhow!("no advice")] {
                let found = advice(&error, None);
                let wanted = (error.to_string() == "loading").then_some(word);
                assert_eq!(found.is_some(), wanted.is_some(), "{context}");
                assert!(
                    found.unwrap_or_default().contains(wanted.unwrap_or_default()),
                    "{context}"
                );
            }
        }
    }

    #[test]
    fn advice_is_about_what_the_user_chose() {
        let bytes = engine(&["--kv-cache-memory-bytes", "1"]);
        let said = |error: Error, engine: &EngineArgs| advice(&error.into(), Some(engine)).unwrap();
        assert_eq!(said(too_long(0), &bytes), "raise --kv-cache-memory-bytes");
        assert_eq!(said(too_long(0), &engine(&[])), "raise --gpu-memory-utilization");
        let some = said(too_long(32), &bytes);
        assert!(
            some.contains("--kv-cache-memory-bytes") && !some.contains("utilization"),
            "{some}"
        );
        let chosen = engine(&["--chat-template", "/nope"]);
        let source = || io::ErrorKind::NotFound.into();
        for path in ["/nope", "/other"] {
            let missing = Error::Read { path: path.into(), source: source() };
            for error in [missing, Error::Chat(read(path))] {
                let found = advice(&error.into(), Some(&chosen)).unwrap_or_default();
                assert_eq!(found.contains("--chat-template"), path == "/nope", "{found}");
            }
        }
    }
}
