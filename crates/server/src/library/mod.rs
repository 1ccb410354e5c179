//! The models of `--models-dir`, and how they are loaded.

mod describe;
mod pull;
pub(crate) mod scan;

use crate::{
    cli::ServeArgs,
    inspect::KvNeed,
    model::{self, Requests},
    serve::{Loaded, Task, config_of, load, task},
};
pub(crate) use describe::describe;
use scan::{Found, scan};
use std::{
    collections::BTreeMap,
    fs,
    path::PathBuf,
    sync::{Mutex, PoisonError},
};
use taper::{ModelSource, Progress};
use taper_models::LoadOptions;
use taper_openai_server::{Description, Library, LibraryError, Listed, Model, ServerConfig, Watch};

/// The models of a directory, and one that was named.
#[derive(Debug)]
pub(crate) struct ModelsDir {
    dir: PathBuf,
    /// Loaded at the start, wherever it lies.
    first: Option<(String, ModelSource)>,
    args: ServeArgs,
    requests: Requests,
    /// What is alike for all.
    config: ServerConfig,
    /// Bytes of KV cache that were planned for a model.
    planned: Mutex<BTreeMap<String, u64>>,
}

impl ModelsDir {
    pub(crate) fn new(
        dir: PathBuf,
        first: Option<(String, ModelSource)>,
        args: ServeArgs,
        requests: Requests,
        config: ServerConfig,
    ) -> Self {
        Self { dir, first, args, requests, config, planned: Mutex::default() }
    }

    fn found(&self) -> Result<BTreeMap<String, Found>, LibraryError> {
        scan(&self.dir).map_err(unusable)
    }

    fn source(&self, name: &str) -> Result<ModelSource, LibraryError> {
        if let Some((own, source)) = &self.first
            && own == name
        {
            return Ok(source.clone());
        }
        let mut found = self.found()?;
        let gone = || LibraryError::Unusable { reason: "its files are gone".to_owned() };
        let Found { path, id, gguf, .. } = found.remove(name).ok_or_else(gone)?;
        match id {
            Some(id) => Ok(ModelSource::Hub { id, dir: path }),
            None if gguf => ModelSource::find(&path.to_string_lossy()).map_err(unusable),
            None => Ok(ModelSource::Dir(path)),
        }
    }

    /// Further names of a model.
    fn aliases(&self, name: &str) -> Vec<String> {
        let aliases = self.args.models.model_alias.iter();
        let aliases = aliases.filter(|(_, own)| own == name).map(|(alias, _)| alias.clone());
        let is_first = self.first.as_ref().is_some_and(|(own, _)| own == name);
        let served = self.args.served_model_name.iter().filter(|_| is_first).cloned();
        served.filter(|own| own != name).chain(aliases).collect()
    }

    fn listed(&self, name: String, found: Option<&Found>) -> Listed {
        let config = found.filter(|found| !found.gguf);
        let architecture = config.map(model_type).unwrap_or_default();
        let pinned = self.args.models.pin_model.contains(&name) || found.is_none();
        let aliases = self.aliases(&name);
        Listed {
            aliases,
            path: found.map(|found| found.path.clone()).unwrap_or_default(),
            file_bytes: found.map_or(0, |found| found.bytes),
            modified: found.map_or(std::time::UNIX_EPOCH, |found| found.modified),
            architecture,
            gguf: found.is_some_and(|found| found.gguf),
            pinned,
            name,
        }
    }

    /// Bytes of a model's weights and of its KV cache.
    fn plan(&self, name: &str, most: u64) -> Result<(u64, u64), LibraryError> {
        let source = self.source(name)?;
        let weights = source.checkpoint().map_err(unusable)?;
        if task(&self.args.task, &source).map_err(unusable)? != Task::Generate {
            return fitting(weights.bytes(), 0, most);
        }
        let top_k = self.args.engine.experts.moe_top_k;
        let options = LoadOptions { moe_top_k: top_k, ..LoadOptions::default() };
        let model = taper_models::load(&weights, options).map_err(unusable)?;
        let kv = KvNeed::of(&self.args.engine, model.info()).map_err(unusable)?;
        fitting(model.info().weight_bytes, kv.bytes, most)
    }

    fn planned(&self, name: &str) -> Option<u64> {
        self.planned.lock().unwrap_or_else(PoisonError::into_inner).get(name).copied()
    }
}

/// A cache that is too large for the memory is made smaller.
fn fitting(weights: u64, kv: u64, most: u64) -> Result<(u64, u64), LibraryError> {
    match most.checked_sub(weights) {
        Some(rest) if rest > 0 || kv == 0 => Ok((weights, kv.min(rest))),
        _ => Err(LibraryError::TooLarge { needed: weights.saturating_add(1), limit: most }),
    }
}

/// `model_type` of config.json.
fn model_type(found: &Found) -> String {
    let text = fs::read(found.path.join("config.json")).unwrap_or_default();
    let config: serde_json::Value = serde_json::from_slice(&text).unwrap_or_default();
    config.get("model_type").and_then(|name| name.as_str()).unwrap_or_default().to_owned()
}

fn unusable(error: impl Into<anyhow::Error>) -> LibraryError {
    let error: anyhow::Error = error.into();
    LibraryError::Unusable { reason: crate::explain(&error, None) }
}

impl Library for ModelsDir {
    fn list(&self) -> Result<Vec<Listed>, LibraryError> {
        let mut found = self.found()?;
        let first = self.first.as_ref().map(|(name, _)| {
            found.remove(name);
            self.listed(name.clone(), None)
        });
        let others = found.into_iter().map(|(name, found)| self.listed(name, Some(&found)));
        Ok(first.into_iter().chain(others).collect())
    }

    fn needs(&self, name: &str, most: u64) -> Result<u64, LibraryError> {
        let (weights, kv) = self.plan(name, most)?;
        let mut planned = self.planned.lock().unwrap_or_else(PoisonError::into_inner);
        planned.insert(name.to_owned(), kv);
        Ok(weights + kv)
    }

    fn load(
        &self,
        name: &str,
        bytes: u64,
        progress: Box<dyn Fn(u64, u64) + Send + Sync>,
    ) -> Result<Model, LibraryError> {
        let source = self.source(name)?;
        let kv = match self.planned(name) {
            Some(kv) => kv,
            None => self.plan(name, bytes)?.1,
        };
        let task = task(&self.args.task, &source).map_err(unusable)?;
        let progress = Progress::from(progress);
        let start = |source: &ModelSource| {
            let builder = model::builder(source, &self.args.engine, self.requests)?;
            let builder = self.args.images.apply(self.args.lora.apply(builder));
            Ok(builder.kv_bytes(kv).progress(progress).build()?)
        };
        let loaded = load(
            task,
            &source,
            &self.args.engine,
            (&self.args.lora, self.args.speech.limits()),
            start,
        );
        let loaded = loaded.map_err(unusable)?;
        if let Loaded::Text(model) = &loaded
            && let Some(why) = model.no_chat()
        {
            tracing::warn!(model = name, "no chat can be answered: {why}");
        }
        let mut names = vec![name.to_owned()];
        names.extend(self.aliases(name));
        let config = ServerConfig { served_model_names: names, ..self.config.clone() };
        let config = config_of(&self.args, config, &source, &loaded);
        Ok(loaded.with(config))
    }

    fn describe(&self, name: &str) -> Result<Description, LibraryError> {
        describe(&self.source(name)?, &self.args).map_err(unusable)
    }

    fn delete(&self, name: &str) -> Result<(), LibraryError> {
        if self.first.as_ref().is_some_and(|(own, _)| own == name) {
            return Err(LibraryError::NotOwned);
        }
        let found = self.found()?.remove(name);
        let found = found.ok_or(LibraryError::NotOwned)?;
        scan::delete(&found).map_err(unusable)
    }

    fn pull(&self, name: &str, watch: &mut dyn Watch) -> Result<String, LibraryError> {
        pull::pull(&self.dir, name, watch)
    }
}
