//! What every handler sees, and the phases of the server's life.

use crate::{
    config::ServerConfig, errors::ApiError, images::Images, intake::Intake, metrics::Metrics,
    model::Model, speech::Transcripts, stored::Responses,
};
use axum::extract::FromRef;
use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use taper_base::{Engine, TextScores, TextVectors};
use taper_chat::{ChatTemplate, Tokenizer};
use taper_grammar::{GrammarError, Grammars};
use tokio::{sync::watch, time};

/// How often the server looks whether its engine lives.
const LOOK_AT_ENGINE: Duration = Duration::from_millis(100);

/// The server without its socket; cheap to clone.
#[derive(Clone, Debug)]
pub struct AppState(pub(crate) Arc<Shared>);

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) engine: Arc<dyn Engine>,
    /// What makes vectors of texts, in a server that does that instead.
    pub(crate) vectors: Option<Arc<dyn TextVectors>>,
    /// What scores texts, in a server that does that instead.
    pub(crate) scores: Option<Arc<dyn TextScores>>,
    /// What writes down speech, in a server that does that instead.
    pub(crate) transcripts: Option<Transcripts>,
    pub(crate) tokenizer: Tokenizer,
    pub(crate) template: Option<ChatTemplate>,
    pub(crate) config: ServerConfig,
    pub(crate) metrics: Metrics,
    pub(crate) intake: Intake,
    pub(crate) images: Images,
    /// Of all models of a server.
    pub(crate) responses: Arc<Responses>,
    /// Made when the server starts, beside everything else.
    grammars: OnceLock<Result<Grammars, GrammarError>>,
    /// Bytes of the longest token.
    longest_token: OnceLock<usize>,
    /// Texts that templates and parsers take for more than text.
    markers: OnceLock<Vec<String>>,
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
        Self::from(Model::new(engine, tokenizer, template, config))
    }

    /// A model of a server whose models share what is kept of responses.
    pub(crate) fn over(model: Model, responses: Arc<Responses>) -> Self {
        let Model { engine, vectors, scores, transcriber, tokenizer, template, config } = model;
        let transcripts =
            transcriber.map(|model| Transcripts::new(model, config.max_waiting_audio));
        let metrics = Metrics::new(config.model_name(), engine.info());
        let intake = Intake::new(&config);
        let images = Images::new(&config, &tokenizer);
        let state = Self(Arc::new(Shared {
            engine,
            vectors,
            scores,
            transcripts,
            tokenizer,
            template,
            config,
            metrics,
            intake,
            images,
            responses,
            grammars: OnceLock::new(),
            longest_token: OnceLock::new(),
            markers: OnceLock::new(),
            started: unix_time(),
            ready: AtomicBool::new(true),
            phase: watch::Sender::new(Phase::Serving),
            in_flight: watch::Sender::new(0),
        }));
        let shared = Arc::downgrade(&state.0);
        let prepare = move || {
            if let Some(shared) = shared.upgrade() {
                // Requests that need them hear of an error.
                let _ = shared.grammars();
            }
        };
        // Without the thread, the first request that needs them waits a second.
        if let Err(error) = thread::Builder::new().name("taper-vocabulary".into()).spawn(prepare) {
            tracing::warn!(%error, "no thread to prepare the vocabulary for grammars");
        }
        state
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

impl From<Model> for AppState {
    /// A server of one model.
    fn from(model: Model) -> Self {
        let responses = Arc::new(Responses::new(&model.config));
        Self::over(model, responses)
    }
}

impl FromRef<AppState> for Arc<Responses> {
    fn from_ref(state: &AppState) -> Self {
        Arc::clone(&state.0.responses)
    }
}

impl Shared {
    /// What makes grammars of outputs.
    pub(crate) fn grammars(&self) -> Result<&Grammars, ApiError> {
        let grammars = self.grammars.get_or_init(|| {
            let info = self.engine.info();
            Grammars::new(&self.tokenizer, info.vocab_size, &info.eos_token_ids)
        });
        let param = || "response_format".to_owned();
        let refused =
            |source: &GrammarError| ApiError::Grammar { param: param(), source: source.clone() };
        grammars.as_ref().map_err(refused)
    }

    /// The queue for transcripts, of a model that makes some.
    pub(crate) fn transcripts(&self) -> Result<&Transcripts, ApiError> {
        self.transcripts.as_ref().ok_or(ApiError::NoTranscripts)
    }

    pub(crate) fn is_ready(&self) -> bool {
        let ready = self.ready.load(Ordering::Relaxed) && self.ailment().is_none();
        ready && self.phase() == Phase::Serving
    }

    /// Whether a model step has taken longer than any should.
    pub(crate) fn is_hung(&self) -> bool {
        self.config.step_timeout.is_some_and(|most| self.engine.stats().step_time > most)
    }

    /// Why the server should be restarted, if it should.
    pub(crate) fn ailment(&self) -> Option<&'static str> {
        match self.engine.is_alive() {
            false => Some("the engine has failed"),
            true => self.is_hung().then_some("a model step hangs"),
        }
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
        if text.len() > self.longest_token().saturating_mul(max as usize) {
            return Err(ApiError::TextTooLong { bytes: text.len(), max, param });
        }
        Ok(())
    }

    /// The start of a text: at least so many tokens of it.
    pub(crate) fn start_of(&self, mut text: String, tokens: u32) -> String {
        let most = self.longest_token().saturating_mul(tokens as usize);
        text.truncate(text.floor_char_boundary(most));
        text
    }

    /// Bytes of the longest token.
    fn longest_token(&self) -> usize {
        *self.longest_token.get_or_init(|| {
            let ids = 0..u32::try_from(self.tokenizer.vocab_size()).unwrap_or(u32::MAX);
            ids.map(|id| self.tokenizer.token_bytes(id).len()).max().unwrap_or(0).max(1)
        })
    }

    /// Added tokens as text, special or not, and `others`. Those without a sign, such as runs of blanks, mark nothing.
    pub(crate) fn markers(&self, others: &[&str]) -> &[String] {
        self.markers.get_or_init(|| {
            let marks =
                |token: &&str| token.chars().any(|c| !c.is_alphanumeric() && !c.is_whitespace());
            let mut all: Vec<String> =
                self.tokenizer.added_tokens().filter(marks).map(str::to_owned).collect();
            all.extend(others.iter().map(|text| (*text).to_owned()));
            // The longest first: a shorter one may be a part of it.
            all.sort_by_key(|text| std::cmp::Reverse(text.len()));
            all
        })
    }

    /// The end of a text that has its last `tokens` tokens, whatever they are: tokens of the rest
    /// need not be known.
    pub(crate) fn end_of<'a>(&self, text: &'a str, tokens: usize) -> &'a str {
        // The first tokens of a part may differ from those of the whole.
        let bytes = self.longest_token().saturating_mul(tokens.saturating_add(64));
        let from = text.len().saturating_sub(bytes);
        &text[text.ceil_char_boundary(from)..]
    }

    /// Checks the `model` field. Absent is accepted, as vLLM does: one server has one model.
    /// An adapter is a model of its own name.
    pub(crate) fn model(&self, asked: Option<&str>) -> Result<Served, ApiError> {
        let names = &self.config.served_model_names;
        let own = |name: &str| Served { name: name.to_owned(), adapter: None };
        let Some(asked) = asked else { return Ok(own(self.config.model_name())) };
        if names.iter().any(|name| name == asked) {
            return Ok(own(asked));
        }
        let adapters = self.engine.adapters();
        if let Some(adapter) = adapters.iter().find(|adapter| *adapter.name == *asked) {
            return Ok(Served { name: asked.to_owned(), adapter: Some(Arc::clone(&adapter.name)) });
        }
        let served = names.iter().map(String::as_str).chain(adapters.iter().map(|a| &*a.name));
        let served = served.collect::<Vec<_>>().join(", ");
        Err(ApiError::ModelNotFound { model: asked.to_owned(), served })
    }
}

/// What a request's `model` names.
#[derive(Debug)]
pub(crate) struct Served {
    pub(crate) name: String,
    /// The adapter of that name, if it is one.
    pub(crate) adapter: Option<Arc<str>>,
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
