//! The adapters of an engine, and who uses them.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicU32, Ordering},
    },
};
use taper_base::{AdapterInfo, AdapterRefused, SubmitError};
use taper_models::{Adapter, AdapterTargets, ModelInfo};

/// The adapters that requests can name.
#[derive(Debug)]
pub(crate) struct Adapters {
    /// `None` of a model that takes none.
    targets: Option<AdapterTargets>,
    family: &'static str,
    max: usize,
    max_rank: Option<usize>,
    loaded: RwLock<BTreeMap<Arc<str>, Arc<Loaded>>>,
}

/// One of them. It stays while a request uses it.
#[derive(Debug)]
struct Loaded {
    adapter: Adapter,
    path: PathBuf,
    /// Requests that have not ended.
    open: AtomicU32,
    /// Requests that have begun to run.
    running: AtomicU32,
}

/// A request's adapter.
#[derive(Debug)]
pub(crate) struct AdapterUse {
    loaded: Arc<Loaded>,
    runs: bool,
}

impl AdapterUse {
    fn new(loaded: Arc<Loaded>) -> Self {
        loaded.open.fetch_add(1, Ordering::Relaxed);
        Self { loaded, runs: false }
    }

    pub(crate) fn adapter(&self) -> &Adapter {
        &self.loaded.adapter
    }

    /// The request has begun to run.
    pub(crate) fn begins(&mut self) {
        if !std::mem::replace(&mut self.runs, true) {
            self.loaded.running.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for AdapterUse {
    fn drop(&mut self) {
        self.loaded.open.fetch_sub(1, Ordering::Relaxed);
        if self.runs {
            self.loaded.running.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Under which salt a request's keys and values are shared. Those of an adapter are nobody else's: its digest has
/// a fixed length, and the first letter says whether there is one, so no two pairs have one name.
pub(crate) fn salt(adapter: Option<&AdapterUse>, own: Option<&Arc<str>>) -> Option<Arc<str>> {
    let Some(adapter) = adapter else { return own.map(|own| format!("s{own}").into()) };
    let digest: String = adapter.adapter().digest().iter().map(|b| format!("{b:02x}")).collect();
    Some(match own {
        Some(own) => format!("a{digest}s{own}").into(),
        None => format!("a{digest}").into(),
    })
}

impl Adapters {
    pub(crate) fn new(
        targets: Option<AdapterTargets>,
        model: &ModelInfo,
        (max, max_rank): (usize, Option<usize>),
    ) -> Self {
        Self { targets, family: model.family, max, max_rank, loaded: RwLock::default() }
    }

    pub(crate) fn load(&self, name: &str, path: &Path) -> Result<(), AdapterRefused> {
        let name: Arc<str> = name.into();
        let check = |loaded: &BTreeMap<Arc<str>, Arc<Loaded>>| {
            if loaded.contains_key(&name) {
                return Err(AdapterRefused::NameTaken { name: name.to_string() });
            }
            if loaded.len() >= self.max {
                return Err(AdapterRefused::TooMany { name: name.to_string(), max: self.max });
            }
            Ok(())
        };
        check(&self.loaded.read().unwrap_or_else(PoisonError::into_inner))?;
        let none = || taper_models::AdapterError::NoTargets { family: self.family };
        let adapter = self.targets.as_ref().ok_or_else(none);
        let adapter = adapter.and_then(|targets| targets.load(path, self.max_rank));
        let adapter = adapter.map_err(|source| AdapterRefused::Load {
            name: name.to_string(),
            source: Arc::new(source),
        })?;
        let (path, zero) = (path.to_owned(), AtomicU32::default);
        let entry = Arc::new(Loaded { adapter, path, open: zero(), running: zero() });
        let mut loaded = self.loaded.write().unwrap_or_else(PoisonError::into_inner);
        // Another one may have been loaded meanwhile.
        check(&loaded)?;
        loaded.insert(name, entry);
        Ok(())
    }

    pub(crate) fn unload(&self, name: &str) -> Result<(), AdapterRefused> {
        let mut loaded = self.loaded.write().unwrap_or_else(PoisonError::into_inner);
        match loaded.remove(name) {
            Some(_) => Ok(()),
            None => Err(AdapterRefused::Unknown { name: name.to_owned() }),
        }
    }

    /// The adapter that a request names.
    pub(crate) fn of(&self, name: Option<&Arc<str>>) -> Result<Option<AdapterUse>, SubmitError> {
        let Some(name) = name else { return Ok(None) };
        let loaded = self.loaded.read().unwrap_or_else(PoisonError::into_inner);
        match loaded.get(name) {
            Some(found) => Ok(Some(AdapterUse::new(Arc::clone(found)))),
            None => Err(SubmitError::UnknownAdapter { name: Arc::clone(name) }),
        }
    }

    pub(crate) fn list(&self) -> Vec<AdapterInfo> {
        let loaded = self.loaded.read().unwrap_or_else(PoisonError::into_inner);
        let info = |(name, one): (&Arc<str>, &Arc<Loaded>)| {
            let running = one.running.load(Ordering::Relaxed);
            AdapterInfo {
                name: Arc::clone(name),
                path: one.path.display().to_string(),
                rank: one.adapter.rank(),
                modules: one.adapter.modules(),
                parameters: one.adapter.parameters(),
                bytes: one.adapter.bytes(),
                base: one.adapter.base().map(str::to_owned),
                running,
                waiting: one.open.load(Ordering::Relaxed).saturating_sub(running),
            }
        };
        loaded.iter().map(info).collect()
    }
}
