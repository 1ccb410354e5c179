//! Chat templates: conversations to prompts.

use crate::{ChatError, Message, Tool};
use serde_json::{Map, Value};
use std::path::Path;

/// What to render.
#[derive(Debug, Clone, Copy)]
pub struct TemplateRequest<'a> {
    /// The conversation.
    pub messages: &'a [Message],
    /// Tools that the model may call.
    pub tools: &'a [Tool],
    /// End with the beginning of an assistant's turn.
    pub add_generation_prompt: bool,
    /// End inside the last message, for the model to go on with it.
    pub continue_final_message: bool,
    /// Further variables for the template, such as `enable_thinking`.
    pub kwargs: &'a Map<String, Value>,
}

/// A model's chat template.
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    source: String,
}

pub(crate) fn read(path: &Path) -> Result<Vec<u8>, ChatError> {
    std::fs::read(path).map_err(|source| ChatError::Read { path: path.to_owned(), source })
}

impl ChatTemplate {
    /// Reads the template of a model's directory.
    ///
    /// # Errors
    /// There is none, or it is broken; the error names file, line and reason.
    pub fn load(dir: &Path) -> Result<Self, ChatError> {
        let bytes = read(&dir.join("chat_template.jinja"))?;
        Self::from_source(&String::from_utf8_lossy(&bytes), None, None)
    }

    /// Compiles a template and renders probe conversations with it.
    ///
    /// # Errors
    /// It is broken; the error names line and reason.
    pub fn from_source(
        source: &str,
        _bos_token: Option<&str>,
        _eos_token: Option<&str>,
    ) -> Result<Self, ChatError> {
        Ok(Self { source: source.to_owned() })
    }

    /// The template's text, for [`ToolFormat::detect`](crate::ToolFormat::detect).
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Whether tools make a difference to the prompt.
    #[must_use]
    pub fn supports_tools(&self) -> bool {
        false
    }

    /// A conversation to a prompt.
    ///
    /// # Errors
    /// The template refuses the conversation or breaks on it.
    pub fn render(&self, _request: &TemplateRequest<'_>) -> Result<String, ChatError> {
        Err(ChatError::NothingToContinue)
    }
}
