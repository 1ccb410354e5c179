//! A model that adds up what it attends to.

use std::{
    panic::resume_unwind,
    sync::{Arc, Mutex, PoisonError},
};
use taper_base::{LayerId, TokenId};
use taper_kv_codecs::AttnParams;
use taper_models::{Batch, Model, ModelError, ModelInfo, StateSession};
use taper_tensor::{Projected, Tensor, ops};

pub(super) const VOCAB: u32 = 16;
pub(super) const EOS: TokenId = 1;
const LAYERS: usize = 2;
const DIM: usize = 8;

/// What goes wrong in the next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// Nothing is computed.
    Error,
    /// Something is written, and the step panics.
    Panic,
    /// Logits of one token are not numbers.
    Logits,
    /// Keys and values of one token are not numbers.
    Rows,
}

/// What the next step is to do, and what the last ones did.
#[derive(Debug, Default)]
pub(super) struct Script {
    pub(super) fault: Option<Fault>,
    /// Tokens, positions and logits of each step since this was last taken.
    pub(super) steps: Vec<(Vec<TokenId>, Vec<u32>, Vec<u32>)>,
}

#[derive(Debug)]
pub(super) struct Adder {
    info: ModelInfo,
    script: Arc<Mutex<Script>>,
}

impl Adder {
    pub(super) fn new(script: Arc<Mutex<Script>>) -> Self {
        let info = ModelInfo {
            family: "adder",
            recurrent: Vec::new(),
            layers: LAYERS,
            heads: 1,
            kv_heads: 1,
            head_dim: DIM,
            layer_heads: Vec::new(),
            hidden: DIM,
            vocab: VOCAB as usize,
            max_positions: 4096,
            parameters: 1,
            weight_bytes: 1,
            prefill_apart: false,
            draft_heads: None,
            images: None,
            ahead: None,
        };
        Self { info, script }
    }
}

/// An element of a token's row: small and whole, so that sums are exact.
fn value(token: TokenId, position: u32, layer: usize, element: usize) -> u32 {
    (token * 31 + position * 17 + (layer * 7 + element * 13) as u32) % 61
}

/// The token after rows that add up to this.
fn next(sums: impl Iterator<Item = u64>) -> TokenId {
    (sums.zip(1..).map(|(sum, weight)| sum * weight).sum::<u64>() % u64::from(VOCAB)) as TokenId
}

/// The tokens that follow a prompt.
pub(super) fn reference(prompt: &[TokenId], most: usize) -> Vec<TokenId> {
    let mut sums = [0; LAYERS * DIM];
    let mut tokens = prompt.to_vec();
    let mut at = 0;
    while tokens.len() < prompt.len() + most {
        for (position, &token) in tokens.iter().enumerate().skip(at) {
            for (i, sum) in sums.iter_mut().enumerate() {
                *sum += u64::from(value(token, position as u32, i / DIM, i % DIM));
            }
        }
        at = tokens.len();
        tokens.push(next(sums.into_iter()));
    }
    tokens.split_off(prompt.len())
}

impl Model for Adder {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn forward(&self, batch: &Batch<'_>, kv: &mut dyn StateSession) -> Result<Tensor, ModelError> {
        let Batch { tokens, positions, logits_at, .. } = batch;
        let fault = {
            let mut script = self.script.lock().unwrap_or_else(PoisonError::into_inner);
            let step = (tokens.to_vec(), positions.to_vec(), logits_at.to_vec());
            script.steps.push(step);
            script.fault.take()
        };
        if fault == Some(Fault::Error) {
            return Err(ModelError::Batch { what: "a planted fault", expected: 1, got: 2 });
        }
        let n = tokens.len();
        let zeros = Tensor::from_vec(vec![0.0f32; n * DIM], &[n, DIM])?;
        let mut sums = vec![0.0f64; logits_at.len() * LAYERS * DIM];
        for layer in 0..LAYERS {
            let pairs = tokens.iter().zip(*positions);
            let elements = pairs.flat_map(|(&t, &p)| {
                (0..DIM).map(move |element| value(t, p, layer, element) as f32)
            });
            let mut v: Vec<f32> = elements.collect();
            if fault == Some(Fault::Rows)
                && let Some(last) = v.last_mut()
            {
                *last = f32::NAN;
            }
            let v = Tensor::from_vec(v, &[n, DIM])?;
            // Keys of zero: every row has the same weight.
            let (q, k) = (&zeros, &zeros);
            let rows =
                Projected { q, k, v: &v, head_dim: DIM, norms: None, rope: None, next: None };
            let means = kv.attend(LayerId(layer as u16), &rows, &AttnParams::new(1.0))?;
            ops::with_host_f32(&means, |means| {
                for (row, &at) in logits_at.iter().enumerate() {
                    let seen = f64::from(positions[at as usize] + 1);
                    let from = &means[at as usize * DIM..][..DIM];
                    let to = &mut sums[(row * LAYERS + layer) * DIM..][..DIM];
                    to.iter_mut().zip(from).for_each(|(sum, &mean)| *sum = f64::from(mean) * seen);
                }
            })?;
            if fault == Some(Fault::Panic) {
                // Past the hook that prints it.
                resume_unwind(Box::new("a planted panic".to_owned()));
            }
        }
        let mut logits = Vec::new();
        for (row, sums) in sums.chunks(LAYERS * DIM).enumerate() {
            let broken =
                (fault == Some(Fault::Logits) && row == 0) || sums.iter().any(|s| s.is_nan());
            let best = next(sums.iter().map(|sum| sum.round() as u64));
            let of = |token| if broken { f32::NAN } else { f32::from(u8::from(token == best)) };
            logits.extend((0..VOCAB).map(of));
        }
        Ok(Tensor::from_vec(logits, &[logits_at.len(), VOCAB as usize])?)
    }
}
