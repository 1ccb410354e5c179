//! What every handler sees, and the phases of the server's life.

use crate::{config::ServerConfig, errors::ApiError, intake::Intake, metrics::Metrics};
use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use taper_base::Engine;
use taper_chat::{ChatTemplate, Tokenizer};
use tokio::{sync::watch, time};

/// How often the server looks whether its engine lives.
const LOOK_AT_ENGINE: Duration = Duration::from_millis(100);

/// The server without its socket; cheap to clone.
#[derive(Clone, Debug)]
pub struct AppState(pub(crate) Arc<Shared>);

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) tokenizer: Tokenizer,
    pub(crate) template: Option<ChatTemplate>,
    pub(crate) config: ServerConfig,
    pub(crate) metrics: Metrics,
    pub(crate) intake: Intake,
    /// Bytes of the longest token.
    longest_token: OnceLock<usize>,
    pub(crate) started: u64,
    ready: AtomicBool,
    phase: watch::Sender<Phase>,
    in_flight: watch::Sender<usize>,
}

/// Where the server stands between start and end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Serving,
    /// What runs may finish; nothing new is taken.
    Draining,
    /// Patience is over: what still runs is ended with an error.
    Stopped,
}

impl AppState {
    /// A server over an engine. A model without a chat template serves completions only.
    #[must_use]
    pub fn new(
        engine: Arc<dyn Engine>,
        tokenizer: Tokenizer,
        template: Option<ChatTemplate>,
        config: ServerConfig,
    ) -> Self {
        let metrics = Metrics::new(config.model_name(), engine.info());
        let intake = Intake::new(&config);
        Self(Arc::new(Shared {
            engine,
            tokenizer,
            template,
            config,
            metrics,
            intake,
            longest_token: OnceLock::new(),
            started: unix_time(),
            ready: AtomicBool::new(true),
            phase: watch::Sender::new(Phase::Serving),
            in_flight: watch::Sender::new(0),
        }))
    }

    /// What `/ready` says; a server is ready from the start unless told otherwise.
    pub fn set_ready(&self, ready: bool) {
        self.0.ready.store(ready, Ordering::Relaxed);
    }

    /// Requests in progress.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        *self.0.in_flight.borrow()
    }

    pub(crate) fn set_phase(&self, phase: Phase) {
        self.0.phase.send_replace(phase);
    }

    /// Resolves when the engine has died.
    pub(crate) async fn engine_died(&self) {
        let mut looks = time::interval(LOOK_AT_ENGINE);
        while self.0.engine.is_alive() {
            looks.tick().await;
        }
    }

    /// Resolves when no request is in progress.
    pub(crate) async fn idle(&self) {
        // The sender lives in `self`, so waiting cannot fail.
        let _ = self.0.in_flight.subscribe().wait_for(|n| *n == 0).await;
    }
}

impl Shared {
    pub(crate) fn is_ready(&self) -> bool {
        let ready = self.ready.load(Ordering::Relaxed) && self.engine.is_alive();
        ready && self.phase() == Phase::Serving
    }

    pub(crate) fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    pub(crate) fn phases(&self) -> watch::Receiver<Phase> {
        self.phase.subscribe()
    }

    /// Refuses a text that cannot fit whatever its tokens are: tokenizing it first would take
    /// seconds and a hundred times its memory.
    pub(crate) fn check_text(&self, text: &str, param: &'static str) -> Result<(), ApiError> {
        let max = self.engine.info().max_model_len;
        if text.len() <= max as usize {
            return Ok(());
        }
        let longest = *self.longest_token.get_or_init(|| {
            let ids = 0..u32::try_from(self.tokenizer.vocab_size()).unwrap_or(u32::MAX);
            ids.map(|id| self.tokenizer.token_bytes(id).len()).max().unwrap_or(0).max(1)
        });
        if text.len() > longest.saturating_mul(max as usize) {
            return Err(ApiError::TextTooLong { bytes: text.len(), max, param });
        }
        Ok(())
    }

    /// Checks the `model` field. Absent is accepted, as vLLM does: one server has one model.
    pub(crate) fn model<'a>(&'a self, asked: Option<&'a str>) -> Result<&'a str, ApiError> {
        let names = &self.config.served_model_names;
        match asked {
            None => Ok(self.config.model_name()),
            Some(name) if names.iter().any(|n| n == name) => Ok(name),
            Some(name) => {
                Err(ApiError::ModelNotFound { model: name.to_owned(), served: names.join(", ") })
            }
        }
    }
}

/// Counts a request as in flight while it lives.
#[derive(Debug)]
pub(crate) struct InFlight(AppState);

impl InFlight {
    pub(crate) fn new(state: &AppState) -> Self {
        state.0.in_flight.send_modify(|n| *n += 1);
        Self(state.clone())
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.0.in_flight.send_modify(|n| *n -= 1);
    }
}

pub(crate) fn unix_time() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}
