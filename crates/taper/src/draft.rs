//! A smaller model that drafts.

use crate::{Error, ModelSource, Result, load::load_weights};
use std::sync::Arc;
use taper_chat::Tokenizer;
use taper_engine::{KvBudget, Speculation, speculative::ModelDrafter};
use taper_kv_cache::{KvConfig, KvScheme};
use taper_models::{LoadOptions, Model, ModelInfo};

/// A draft model, loaded.
#[derive(Debug)]
pub(crate) struct DraftModel {
    model: Arc<dyn Model>,
    most: u32,
    /// Tokens that each of its caches holds.
    tokens: usize,
}

impl DraftModel {
    /// Loads a model that drafts for one with this tokenizer and so many logits a token.
    pub(crate) fn load(
        source: &ModelSource,
        most: u32,
        options: LoadOptions<'_>,
        tokenizer: &Tokenizer,
        vocab: usize,
    ) -> Result<Self> {
        if options.gpu.is_some() {
            return Err(Error::DraftOnGpu);
        }
        let name = || source.to_string();
        let own = source.tokenizer()?;
        let known = u32::try_from(tokenizer.vocab_size().max(own.vocab_size())).unwrap_or(u32::MAX);
        let differs = |&id: &u32| tokenizer.token_bytes(id) != own.token_bytes(id);
        if let Some(token) = (0..known).find(differs) {
            return Err(Error::DraftTokens { model: name(), token });
        }
        // The longest sequence is the other model's affair: what is too long here is not drafted.
        let options = LoadOptions { max_model_len: None, draft_head: false, ..options };
        let model = load_weights(&source.checkpoint()?, options, None);
        let model = model.map_err(|source| Error::Model { model: name(), source })?;
        let fits = ModelDrafter::check(model.info(), vocab);
        fits.map_err(|source| Error::DraftModel { model: name(), source })?;
        Ok(Self { model: model.into(), most, tokens: 0 })
    }

    /// What is left of a budget once the draft model has its weights and as many tokens as the other one, in a cache
    /// beside each of `caches`.
    pub(crate) fn leave(
        &mut self,
        budget: KvBudget,
        target: &ModelInfo,
        caches: usize,
    ) -> Result<KvBudget> {
        let block = KvConfig::BLOCK_TOKENS;
        let bytes = |info: &ModelInfo| info.cache(KvScheme::default(), block, 1).bytes_per_block();
        let (own, its) = (bytes(self.model.info()), bytes(target));
        let weights = self.model.info().weight_bytes;
        Ok(match budget {
            KvBudget::Tokens(tokens) => {
                self.tokens = usize::try_from(tokens).unwrap_or(usize::MAX);
                budget
            }
            KvBudget::Bytes(all) => {
                let rest = all.saturating_sub(weights);
                let part = (u128::from(rest) * u128::from(own) / u128::from(own + its)) as u64;
                if part == 0 {
                    return Err(Error::NoMemory { weights, allowed: all, share: 1.0 });
                }
                let each = part / caches.max(1) as u64;
                self.tokens = usize::try_from(each / own.max(1)).unwrap_or(usize::MAX) * block;
                KvBudget::Bytes(rest - part)
            }
        })
    }

    /// What the engine drafts with.
    pub(crate) fn speculation(&self) -> Speculation {
        let (model, tokens) = (Arc::clone(&self.model), self.tokens);
        let drafter = move || {
            let model = Arc::clone(&model);
            Box::new(ModelDrafter::new(model, KvScheme::default(), tokens)) as Box<_>
        };
        Speculation::new(drafter).most(self.most)
    }
}
