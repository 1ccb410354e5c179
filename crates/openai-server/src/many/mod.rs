//! Several models in one server: each is loaded when a request names it, and unloaded when others need its
//! memory or nobody has used it for a while.
//!
//! A loaded model is a server of one model without its socket ([`AppState`]); a request is read, handed to
//! the one that it names, and answered there. What decides about loading and unloading is [`table::Table`].

mod keep;
mod lease;
mod library;
mod load;
mod metrics;
mod table;

pub use keep::{KeepAlive, KeepAliveError};
pub use library::{Description, Library, LibraryError, Listed, PullStep, Watch};
pub use table::Limits;

pub(crate) use keep::parsed;
pub(crate) use lease::{Lease, holding};
pub(crate) use load::LoadProgress;
pub(crate) use table::{Phase as ModelPhase, Seen};

use crate::{
    config::ServerConfig,
    errors::ApiError,
    intake::Intake,
    state::{AppState, Phase},
    stored::Responses,
};
use axum::{Router, extract::FromRef};
use load::LoadState;
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use table::Table;
use tokio::{
    sync::{Mutex as AsyncMutex, watch},
    task::spawn_blocking,
    time,
};

/// How often models are looked at that nobody asks for.
const LOOK: Duration = Duration::from_millis(200);

/// How a server of several models behaves.
#[derive(Debug, Clone)]
pub struct ModelsConfig {
    /// What may be loaded at a time.
    pub limits: Limits,
    /// How long a model stays loaded after its last request.
    pub keep_alive: KeepAlive,
    /// How long a request waits for a place that others use, before it is refused with 503.
    pub patience: Duration,
    /// The model of requests that name none.
    pub default_model: Option<String>,
    /// Callers may download and delete models.
    pub allow_updates: bool,
}

/// The server of several models without its socket; cheap to clone.
#[derive(Clone, Debug)]
pub struct Models(pub(crate) Arc<Many>);

#[derive(Debug)]
pub(crate) struct Many {
    pub(crate) library: Arc<dyn Library>,
    pub(crate) config: ServerConfig,
    pub(crate) models: ModelsConfig,
    pub(crate) intake: Intake,
    /// Bytes of models that were downloaded.
    pub(crate) pulled_bytes: AtomicU64,
    table: Mutex<Table<Arc<Served>, watch::Receiver<LoadState>>>,
    /// Tells that the table has changed.
    changes: watch::Sender<()>,
    /// Held by the one load that runs.
    loading: AsyncMutex<()>,
    listed: RwLock<Arc<Vec<Listed>>>,
    phase: watch::Sender<Phase>,
    responses: Arc<Responses>,
}

/// A loaded model.
#[derive(Debug)]
pub(crate) struct Served {
    pub(crate) state: AppState,
    /// Its routes.
    pub(crate) router: Router,
}

impl Models {
    /// A server over a library. `config` is what is alike for all models; of it, names and what follows from
    /// a model's files are not used.
    #[must_use]
    pub fn new(library: Arc<dyn Library>, config: ServerConfig, models: ModelsConfig) -> Self {
        Self(Arc::new(Many {
            library,
            intake: Intake::new(&config),
            responses: Arc::new(Responses::new(&config)),
            config,
            pulled_bytes: AtomicU64::new(0),
            table: Mutex::new(Table::new(models.limits)),
            models,
            changes: watch::Sender::new(()),
            loading: AsyncMutex::new(()),
            listed: RwLock::default(),
            phase: watch::Sender::new(Phase::Serving),
        }))
    }

    /// Loads the pinned models.
    ///
    /// # Errors
    /// The library cannot be read, or one of them cannot be loaded.
    pub async fn load_pinned(&self) -> Result<(), ApiError> {
        for model in self.refresh().await?.iter().filter(|model| model.pinned) {
            self.lease(Some(&model.name), None).await?;
        }
        Ok(())
    }

    fn table(&self) -> MutexGuard<'_, Table<Arc<Served>, watch::Receiver<LoadState>>> {
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changed(&self) {
        self.0.changes.send_replace(());
    }

    /// The models of the library, as it was last read.
    fn listed(&self) -> Arc<Vec<Listed>> {
        Arc::clone(&self.0.listed.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Reads the library anew.
    pub(crate) async fn refresh(&self) -> Result<Arc<Vec<Listed>>, ApiError> {
        let library = Arc::clone(&self.0.library);
        let listed = spawn_blocking(move || library.list()).await;
        let listed = listed.map_err(|_| ApiError::Internal)?;
        let listed = Arc::new(listed.map_err(|source| failed("", source))?);
        *self.0.listed.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&listed);
        Ok(listed)
    }

    /// The model that a request means. Ollama's clients put `:latest` behind a name that has no tag.
    pub(crate) async fn find(&self, asked: &str) -> Result<Listed, ApiError> {
        let bare = asked.strip_suffix(":latest");
        let found = |listed: &[Listed]| {
            let named = |name: &str| listed.iter().find(|model| model.is(name)).cloned();
            named(asked).or_else(|| bare.and_then(named))
        };
        if let Some(model) = found(&self.listed()) {
            return Ok(model);
        }
        // It may have come since.
        let listed = self.refresh().await?;
        found(&listed).ok_or_else(|| {
            let names = listed.iter().map(|model| model.name.as_str()).collect::<Vec<_>>();
            ApiError::ModelNotFound { model: asked.to_owned(), served: names.join(", ") }
        })
    }

    /// What has a place in memory, by name.
    pub(crate) fn seen(&self) -> BTreeMap<String, Seen<Arc<Served>>> {
        self.table().seen()
    }

    pub(crate) fn phase(&self) -> Phase {
        *self.0.phase.borrow()
    }

    pub(crate) fn phases(&self) -> watch::Receiver<Phase> {
        self.0.phase.subscribe()
    }

    /// Of all models, those included that are loaded now and later.
    pub(crate) fn set_phase(&self, phase: Phase) {
        self.0.phase.send_replace(phase);
        if phase == Phase::Stopped {
            let served = self.seen().into_values().filter_map(|seen| seen.model);
            served.for_each(|served| served.state.set_phase(phase));
        }
    }

    /// Requests that use a model or wait for one, and responses that are written in the background.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        let one = |seen: Seen<Arc<Served>>| {
            let computing = seen.model.map_or(0, |served| served.state.in_flight());
            seen.uses.max(computing)
        };
        self.seen().into_values().map(one).sum()
    }

    /// Resolves when none is.
    pub(crate) async fn idle(&self) {
        while self.in_flight() > 0 {
            time::sleep(LOOK / 10).await;
        }
    }

    /// Unloads models that nobody has used for long enough, for as long as it is polled.
    pub(crate) async fn look_after(self) {
        let mut looks = time::interval(LOOK);
        loop {
            looks.tick().await;
            self.settle();
        }
    }

    /// Adds to the bytes that were downloaded.
    pub(crate) fn pulled(&self, bytes: u64) {
        self.0.pulled_bytes.fetch_add(bytes, Relaxed);
    }
}

impl FromRef<Models> for Arc<Responses> {
    fn from_ref(models: &Models) -> Self {
        Arc::clone(&models.0.responses)
    }
}

/// An error of the library, for a request.
pub(crate) fn failed(model: &str, source: LibraryError) -> ApiError {
    ApiError::Library { model: model.to_owned(), source }
}
