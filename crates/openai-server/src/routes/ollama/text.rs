//! Prompts that no template is put around: `raw`, and those with a `suffix`.

use crate::{
    constraint,
    errors::ApiError,
    prepare::{Params, params},
    routes::{chat_plan::Plan, completions::infill},
    state::{AppState, Served},
    wire::{Prompt, SamplingFields},
};

/// What a request asks of the model.
pub(super) struct TextAsk {
    pub(super) model: Option<String>,
    pub(super) prompt: String,
    /// What follows the output.
    pub(super) suffix: Option<String>,
    pub(super) sampling: SamplingFields,
    pub(super) max_tokens: Option<u32>,
    pub(super) content: Option<constraint::Asked>,
}

impl TextAsk {
    pub(super) fn plan(self, state: &AppState) -> Result<Plan, ApiError> {
        let (config, info) = (&state.0.config, state.0.engine.info());
        let Served { name: model, adapter } = state.0.model(self.model.as_deref())?;
        let params = params(&self.sampling, self.max_tokens, None, config, info)?;
        let mut params = Params { adapter, ..params };
        params.grammar = constraint::of_content(state, self.content.as_ref())?;
        state.0.check_text(&self.prompt, "prompt")?;
        let tokenizer = &state.0.tokenizer;
        let prompt = match self.suffix {
            Some(suffix) => {
                let infill = infill(state, &suffix, false, &mut params)?;
                infill.prompt(tokenizer, &Prompt::Text(self.prompt), true)?
            }
            None => tokenizer.encode(&self.prompt, true)?,
        };
        Ok(Plan::of_text(model, params, prompt))
    }
}
