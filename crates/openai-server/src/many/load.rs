//! Loading a model, which makes room first, and unloading one.

use super::{
    LOOK, LibraryError, ModelPhase, Models, Served,
    table::{Leaving, Reason, Room},
};
use crate::{
    errors::ApiError,
    routes::model_routes,
    state::{AppState, Phase},
};
use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};
use tokio::{
    sync::{MutexGuard, watch},
    task::spawn_blocking,
    time::{Instant as Time, timeout_at},
};

/// How far a load is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LoadState {
    /// Other models load, or have to go first.
    Waiting,
    /// So many bytes of weights, of so many.
    Reading(u64, u64),
    Done,
    Failed(LibraryError),
}

/// [`LoadState`] of a load that has not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LoadProgress {
    Waiting,
    Reading(u64, u64),
}

/// How long the last owners of a model may take: requests whose clients have left are still prepared.
const LAST_OWNERS: Duration = Duration::from_secs(30);

impl Models {
    /// Loads a model into its slot, and tells those who wait. A load goes on when nobody waits any more.
    pub(super) async fn load(self, name: String, id: u64, told: watch::Sender<LoadState>) {
        // A panic must not leave those who wait, nor the slot.
        let loading = tokio::spawn(self.clone().try_load(name.clone(), id, told.clone()));
        let end = match loading.await.unwrap_or(Err(LibraryError::Internal)) {
            Ok(()) => LoadState::Done,
            Err(error) => {
                tracing::error!(model = name, %error, "a model cannot be loaded");
                self.table().failed(&name, id);
                LoadState::Failed(error)
            }
        };
        told.send_replace(end);
        self.changed();
        self.settle();
    }

    async fn try_load(
        self,
        name: String,
        id: u64,
        told: watch::Sender<LoadState>,
    ) -> Result<(), LibraryError> {
        // One at a time: two would wait for each other's memory.
        let _turn = self.0.loading.lock().await;
        let start = Instant::now();
        let most = self.0.models.limits.memory_bytes;
        let (library, own) = (Arc::clone(&self.0.library), name.clone());
        let bytes = spawn_blocking(move || library.needs(&own, most)).await.map_err(internal)??;
        if bytes > most {
            return Err(LibraryError::TooLarge { needed: bytes, limit: most });
        }
        self.make_room(&name, id, bytes).await?;
        let (library, own) = (Arc::clone(&self.0.library), name.clone());
        let report = told.clone();
        let progress = Box::new(move |done, total| {
            report.send_replace(LoadState::Reading(done, total));
        });
        let model = spawn_blocking(move || library.load(&own, bytes, progress));
        let model = model.await.map_err(internal)??;
        let state = AppState::over(model, Arc::clone(&self.0.responses));
        let router = model_routes(&state);
        let served = Arc::new(Served { state, router });
        let pinned = self.find(&name).await.is_ok_and(|model| model.pinned);
        if self.phase() == Phase::Stopped {
            served.state.set_phase(Phase::Stopped);
        }
        // What the engine has taken is at most what was kept for it; the estimate stays, as other things
        // than weights and caches take memory too.
        self.table().loaded(&name, id, served, bytes, pinned);
        let ms = start.elapsed().as_millis();
        tracing::info!(model = name, bytes, ms, "loaded");
        Ok(())
    }

    /// Waits until so many bytes are kept for a model.
    async fn make_room(&self, name: &str, id: u64, bytes: u64) -> Result<(), LibraryError> {
        let deadline = Time::now() + self.0.models.patience;
        loop {
            let mut changes = self.0.changes.subscribe();
            let room = self.table().room(name, id, bytes);
            match room {
                Room::Here => return Ok(()),
                Room::Never => return Err(LibraryError::NoRoom),
                Room::Wait => {}
            }
            self.settle();
            if !self.another_look(&mut changes, deadline).await {
                self.table().spare();
                self.changed();
                return Err(LibraryError::NoRoom);
            }
        }
    }

    /// Begins to unload what has to go.
    pub(crate) fn settle(&self) {
        let idle = |served: &Arc<Served>| served.state.in_flight() == 0;
        let leaving = self.table().settle(Instant::now(), idle);
        for model in leaving {
            let models = self.clone();
            // The end of an engine waits for its thread.
            let unload = move || models.unload(model);
            match tokio::runtime::Handle::try_current() {
                Ok(runtime) => drop(runtime.spawn_blocking(unload)),
                // The process ends.
                Err(_) => unload(),
            }
        }
    }

    fn unload(&self, Leaving { name, id, model }: Leaving<Arc<Served>>) {
        let memory = Arc::downgrade(&model.state.0);
        drop(model);
        let start = Instant::now();
        while memory.strong_count() > 0 && start.elapsed() < LAST_OWNERS {
            thread::sleep(Duration::from_millis(2));
        }
        self.table().removed(&name, id);
        tracing::info!(model = name, "unloaded");
        self.changed();
    }

    /// Retires a model whose engine has died, so that it is loaded anew.
    pub(super) fn give_up_dead(&self, name: &str) {
        tracing::error!(model = name, "the engine has failed; the model is loaded again");
        self.table().retire(name, Reason::Failed);
        self.settle();
    }

    /// How far the load of a model is; `None` if it is not being loaded.
    pub(crate) fn progress(&self, name: &str) -> Option<LoadProgress> {
        let load = self.table().load_of(name)?;
        match *load.borrow() {
            LoadState::Waiting => Some(LoadProgress::Waiting),
            LoadState::Reading(done, total) => Some(LoadProgress::Reading(done, total)),
            LoadState::Done | LoadState::Failed(_) => None,
        }
    }

    /// Keeps a model from being loaded while what is returned lives. One that is on its way out is waited for.
    pub(crate) async fn keep_unloaded(&self, name: &str) -> Result<MutexGuard<'_, ()>, ApiError> {
        let mut changes = self.0.changes.subscribe();
        let deadline = Time::now() + self.0.models.patience;
        loop {
            let turn = self.0.loading.lock().await;
            match self.table().phase(name) {
                ModelPhase::Unloaded => return Ok(turn),
                ModelPhase::Unloading => drop(turn),
                ModelPhase::Loading | ModelPhase::Loaded => break,
            }
            if !self.another_look(&mut changes, deadline).await {
                break;
            }
        }
        Err(ApiError::ModelLoaded { model: name.to_owned() })
    }

    /// Unloads a model once its requests have ended; `false` if it is not loaded.
    pub(crate) async fn retire(&self, name: &str) -> bool {
        let mut changes = self.0.changes.subscribe();
        if !self.table().retire(name, Reason::Asked) {
            return false;
        }
        self.settle();
        let deadline = Time::now() + self.0.models.patience;
        while !self.table().is_gone(name) {
            if !self.another_look(&mut changes, deadline).await {
                break;
            }
        }
        true
    }

    /// Waits until something has changed; `false` at the deadline. A response in the background ends without
    /// a word, so that a look is due now and then.
    pub(super) async fn another_look(
        &self,
        changes: &mut watch::Receiver<()>,
        deadline: Time,
    ) -> bool {
        let due = deadline.min(Time::now() + LOOK);
        let changed = timeout_at(due, changes.changed()).await.is_ok();
        self.settle();
        changed || Time::now() < deadline
    }
}

// By value: it is the argument of `map_err`.
#[allow(clippy::needless_pass_by_value)]
fn internal(error: tokio::task::JoinError) -> LibraryError {
    tracing::error!(%error, "a load has panicked");
    LibraryError::Internal
}
