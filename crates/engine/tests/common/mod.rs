//! Models, engines and requests for the tests: a checkpoint whose tokens are known, and a mock whose
//! steps the test lets through one by one.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]

use safetensors::SafeTensors;
use std::{
    fs,
    path::PathBuf,
    sync::{Mutex, mpsc},
    thread,
    time::{Duration, Instant},
};
use taper_base::{
    Engine, Event, FinishReason, GenRequest, GenerationError, SamplingParams, StopRules, TokenId,
    TokenLogprobs,
};
use taper_engine::{EngineConfig, Events, KvBudget, LocalEngine, channel};
use taper_models::{Batch, LoadOptions, Model, ModelError, ModelInfo, StateSession};
use taper_tensor::Tensor;
use taper_weights::Checkpoint;

/// The end-of-sequence token of every engine here.
pub(crate) const EOS: TokenId = 2;

/// What transformers made of a checkpoint.
#[derive(Debug)]
pub(crate) struct Fixture {
    pub(crate) prompt: Vec<TokenId>,
    pub(crate) logits: Vec<Vec<f32>>,
    pub(crate) greedy: Vec<TokenId>,
}

pub(crate) fn fixture_dir() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/parity/qwen3-bf16")
}

pub(crate) fn fixture() -> Fixture {
    let bytes = fs::read(fixture_dir().join("expected.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let ids = |name| {
        let data = file.tensor(name).unwrap().data();
        let ids = data.as_chunks::<8>().0.iter().map(|b| i64::from_le_bytes(*b));
        ids.map(|id| TokenId::try_from(id).unwrap()).collect()
    };
    let logits = file.tensor("logits").unwrap();
    let vocab = *logits.shape().last().unwrap();
    let floats = logits.data().as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b));
    let logits = floats.collect::<Vec<_>>().chunks(vocab).map(<[f32]>::to_vec).collect();
    Fixture { prompt: ids("input_ids"), logits, greedy: ids("greedy") }
}

pub(crate) fn config() -> EngineConfig {
    EngineConfig {
        max_num_seqs: 64,
        max_num_batched_tokens: 256,
        max_waiting: 256,
        scheme: taper_kv_codecs::parse("f32").unwrap().into(),
        exact: None,
        // What drafts do has tests of its own; others count steps.
        speculation: None,
        kv_budget: KvBudget::Tokens(16_384),
        eos_token_ids: vec![EOS],
        ..EngineConfig::default()
    }
}

/// The fixture's model behind an engine.
pub(crate) fn tiny(config: &EngineConfig) -> LocalEngine {
    let weights = Checkpoint::open(&fixture_dir()).unwrap();
    let model = taper_models::load(&weights, LoadOptions::default()).unwrap();
    LocalEngine::start(model, config).unwrap()
}

/// A fixture's weights, for contexts that are longer than the fixture's.
pub(crate) fn long(family: &str, config: &EngineConfig) -> LocalEngine {
    let from = fixture_dir().join("..");
    let dir = tempfile::tempdir().unwrap();
    for file in fs::read_dir(from.join(family)).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), dir.path().join(file.file_name())).unwrap();
    }
    let path = dir.path().join("config.json");
    let text = fs::read_to_string(&path).unwrap();
    let longer =
        text.replace("\"max_position_embeddings\": 512", "\"max_position_embeddings\": 8192");
    assert_ne!(text, longer);
    fs::write(path, longer).unwrap();
    let weights = Checkpoint::open(dir.path()).unwrap();
    let model = taper_models::load(&weights, LoadOptions::default()).unwrap();
    LocalEngine::start(model, config).unwrap()
}

type Forward = dyn Fn(&Batch<'_>) -> Result<Vec<f32>, ModelError> + Send + Sync;

/// A model that is a function of the batch, and waits for a permit before each step.
pub(crate) struct Mock {
    info: ModelInfo,
    forward: Box<Forward>,
    permits: Option<Mutex<mpsc::Receiver<()>>>,
}

impl std::fmt::Debug for Mock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mock").finish_non_exhaustive()
    }
}

impl Mock {
    pub(crate) const VOCAB: u32 = 64;

    /// Runs as fast as it is asked to.
    pub(crate) fn new(
        forward: impl Fn(&Batch<'_>) -> Result<Vec<f32>, ModelError> + Send + Sync + 'static,
    ) -> Self {
        let info = ModelInfo {
            family: "mock",
            recurrent: Vec::new(),
            layers: 2,
            heads: 1,
            kv_heads: 1,
            head_dim: 8,
            layer_heads: Vec::new(),
            hidden: 8,
            vocab: Self::VOCAB as usize,
            max_positions: 4096,
            parameters: 1,
            weight_bytes: 1,
            prefill_apart: false,
            draft_heads: None,
            images: None,
            ahead: None,
        };
        Self { info, forward: Box::new(forward), permits: None }
    }

    pub(crate) fn info_mut(&mut self) -> &mut ModelInfo {
        &mut self.info
    }

    /// Every step needs a permit, until the sender is gone.
    pub(crate) fn gated(mut self) -> (Self, mpsc::Sender<()>) {
        let (sender, permits) = mpsc::channel();
        self.permits = Some(Mutex::new(permits));
        (self, sender)
    }

    /// Rows whose largest logit is at `next(token, position)`.
    pub(crate) fn rows(batch: &Batch<'_>, next: impl Fn(TokenId, u32) -> TokenId) -> Vec<f32> {
        let mut rows = Vec::new();
        for &at in batch.logits_at {
            let at = at as usize;
            let best = next(batch.tokens[at], batch.positions[at]);
            rows.extend((0..Self::VOCAB).map(|t| if t == best { 9.0 } else { t as f32 / 64.0 }));
        }
        rows
    }

    pub(crate) fn start(self, config: &EngineConfig) -> LocalEngine {
        LocalEngine::start(Box::new(self), config).unwrap()
    }
}

impl Model for Mock {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn forward(&self, batch: &Batch<'_>, _: &mut dyn StateSession) -> Result<Tensor, ModelError> {
        if let Some(permits) = &self.permits {
            let _ = permits.lock().unwrap().recv();
        }
        let rows = (self.forward)(batch)?;
        let shape = (rows.len() / self.info.vocab, self.info.vocab);
        Ok(Tensor::from_vec(rows, &[shape.0, shape.1])?)
    }
}

/// A chain that visits tokens from 10 on and never ends by itself.
pub(crate) fn next_token(token: TokenId, position: u32) -> TokenId {
    10 + (token * 31 + position * 7) % 50
}

/// A model whose greedy tokens are [`chain`]'s.
pub(crate) fn chain_model() -> Mock {
    Mock::new(|batch| Ok(Mock::rows(batch, next_token)))
}

/// What [`chain_model`] says after a prompt.
pub(crate) fn chain(prompt: &[TokenId], n: usize) -> Vec<TokenId> {
    let mut tokens = prompt.to_vec();
    for _ in 0..n {
        tokens.push(next_token(tokens[tokens.len() - 1], tokens.len() as u32 - 1));
    }
    tokens.split_off(prompt.len())
}

pub(crate) fn greedy(prompt: &[TokenId], max_tokens: u32) -> GenRequest {
    GenRequest {
        prompt: prompt.to_vec(),
        sampling: SamplingParams::greedy(),
        stop: StopRules { max_tokens: Some(max_tokens), ignore_eos: true, ..StopRules::default() },
        ..GenRequest::default()
    }
}

/// A whole generation.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    pub(crate) started: bool,
    pub(crate) cached: u32,
    pub(crate) prompt: Option<Vec<Option<TokenLogprobs>>>,
    pub(crate) tokens: Vec<TokenId>,
    pub(crate) logprobs: Vec<TokenLogprobs>,
    pub(crate) accepted: u32,
    pub(crate) rejected: u32,
    pub(crate) finish: Option<FinishReason>,
    pub(crate) error: Option<GenerationError>,
}

/// Reads to the end, and checks the order of events.
pub(crate) fn collect(events: Events) -> Answer {
    let mut answer = Answer::default();
    for event in events {
        assert!(answer.finish.is_none() && answer.error.is_none(), "{event:?} after the end");
        match event {
            Event::Started { cached_tokens } => {
                assert!(!std::mem::replace(&mut answer.started, true));
                answer.cached = cached_tokens;
            }
            Event::Prompt(entries) => {
                assert!(answer.started && answer.tokens.is_empty());
                assert!(answer.prompt.replace(entries).is_none());
            }
            Event::Token(token) => {
                assert!(answer.started);
                answer.tokens.push(token.id);
                answer.logprobs.extend(token.logprobs);
            }
            Event::Drafted { accepted, rejected } => {
                answer.accepted += accepted;
                answer.rejected += rejected;
                assert!(answer.accepted as usize <= answer.tokens.len());
            }
            Event::Finished(reason) => answer.finish = Some(reason),
            Event::Failed(error) => answer.error = Some(error),
        }
    }
    assert!(answer.finish.is_some() || answer.error.is_some(), "no end: {answer:?}");
    answer
}

pub(crate) fn submit(engine: &LocalEngine, request: GenRequest) -> Events {
    let (sink, events) = channel();
    engine.submit(request, sink).unwrap();
    events
}

pub(crate) fn ask(engine: &LocalEngine, request: GenRequest) -> Answer {
    collect(submit(engine, request))
}

/// Waits until nothing runs, and checks that nothing is held.
pub(crate) fn settled(engine: &LocalEngine) {
    wait_for(engine, "an idle engine", |s| s.running == 0 && s.waiting == 0);
    assert_eq!(engine.stats().kv_blocks_used, 0, "{:?}", engine.stats());
}

pub(crate) fn wait_for(
    engine: &LocalEngine,
    what: &str,
    holds: impl Fn(&taper_base::EngineStats) -> bool,
) {
    let start = Instant::now();
    while !holds(&engine.stats()) {
        assert!(start.elapsed() < Duration::from_secs(20), "no {what}: {:?}", engine.stats());
        thread::sleep(Duration::from_millis(1));
    }
}

/// Numbers that look random and are the same every time.
#[derive(Debug)]
pub(crate) struct Numbers(pub u64);

impl Numbers {
    pub(crate) fn below(&mut self, n: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        ((self.0 >> 33) % u64::from(n)) as u32
    }

    pub(crate) fn prompt(&mut self, len: u32, vocab: u32) -> Vec<TokenId> {
        (0..len).map(|_| self.below(vocab)).collect()
    }
}

/// Answers that are the same, bit for bit.
pub(crate) fn assert_equal(got: &[Answer], want: &[Answer], what: &str) {
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        assert!(got.error.is_none(), "request {i}, {what}: {:?}", got.error);
        assert_eq!(got.tokens, want.tokens, "request {i}, {what}");
        assert_eq!(got.logprobs, want.logprobs, "request {i}, {what}");
        assert_eq!(got.prompt, want.prompt, "request {i}, {what}");
        assert_eq!(got.finish, want.finish, "request {i}, {what}");
    }
}
