//! Chat templates: conversations to prompts.

mod constants;
mod env;
mod filters;
mod json;
mod load;
mod memory;
mod methods;
mod operators;
mod probe;
mod python;
mod time;
mod values;

pub(crate) use load::read;

use crate::{ChatError, Message, Tool};
use minijinja::{Environment, ErrorKind, Value as Jinja, value::Serde};
use probe::Traits;
use serde_json::{Map, Value};
use std::{
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
};

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

/// A model's chat template, rendered as Hugging Face transformers does. Cloning is cheap.
///
/// Loading renders probe conversations. A template that renders none of them fails there. Others
/// show what they take: content as text or as parts, a call's arguments as a mapping or as text,
/// ids of any length or of nine characters. A conversation that a template cannot write is that
/// request's error.
#[derive(Clone)]
pub struct ChatTemplate {
    inner: Arc<Inner>,
}

#[derive(Clone)]
struct Inner {
    env: Environment<'static>,
    main: Named,
    /// Takes over when there are tools.
    tool_use: Option<Named>,
    /// `bos_token` and its like.
    special_tokens: Map<String, Value>,
}

/// One template of the environment.
#[derive(Clone)]
struct Named {
    name: &'static str,
    source: String,
    traits: Traits,
}

/// A template's text, where it came from and what belongs to it.
struct Sources {
    file: PathBuf,
    main: String,
    tool_use: Option<String>,
    special_tokens: Map<String, Value>,
}

impl fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatTemplate")
            .field("bytes", &self.inner.main.source.len())
            .field("supports_tools", &self.supports_tools())
            .finish_non_exhaustive()
    }
}

impl ChatTemplate {
    /// Reads the template of a model's directory: `chat_template.jinja`, else
    /// `chat_template.json`, else `chat_template` in `tokenizer_config.json`.
    ///
    /// # Errors
    /// There is none, or it is broken; the error names file, line and reason.
    pub fn load(dir: &Path) -> Result<Self, ChatError> {
        Self::build(load::find(dir)?)
    }

    /// Reads a template from a file of its own. The special tokens are those of the model's
    /// directory.
    ///
    /// # Errors
    /// The file cannot be read, or the template is broken; the error names file, line and reason.
    pub fn load_file(file: &Path, dir: &Path) -> Result<Self, ChatError> {
        Self::build(load::file(file, dir)?)
    }

    /// Compiles a template and renders probe conversations with it.
    ///
    /// # Errors
    /// It is broken; the error names line and reason.
    pub fn from_source(
        source: &str,
        bos_token: Option<&str>,
        eos_token: Option<&str>,
    ) -> Result<Self, ChatError> {
        let mut special_tokens = Map::new();
        for (name, token) in [("bos_token", bos_token), ("eos_token", eos_token)] {
            if let Some(token) = token {
                special_tokens.insert(name.to_owned(), token.into());
            }
        }
        Self::build(Sources {
            file: PathBuf::from("chat template"),
            main: source.to_owned(),
            tool_use: None,
            special_tokens,
        })
    }

    fn build(sources: Sources) -> Result<Self, ChatError> {
        let mut env = env::environment();
        let mut add = |name: &'static str, source: String| {
            let text = env::known_tags(&source);
            let checked = constants::check(&text, env.syntax());
            checked.and_then(|()| env.add_template_owned(name, text)).map_err(|error| {
                ChatError::BrokenTemplate {
                    file: sources.file.clone(),
                    line: error.line().unwrap_or(0),
                    while_doing: "compiling",
                    reason: env::reason(&error),
                    source: error,
                }
            })?;
            Ok::<_, ChatError>(Named { name, source, traits: Traits::default() })
        };
        let main = add(DEFAULT, sources.main)?;
        let tool_use = sources.tool_use.map(|source| add(TOOL_USE, source)).transpose()?;
        let mut inner = Inner { env, main, tool_use, special_tokens: sources.special_tokens };
        inner.main.traits = probe::probe(&inner, &inner.main, &sources.file)?;
        if let Some(named) = &inner.tool_use {
            let traits = probe::probe(&inner, named, &sources.file)?;
            if let Some(named) = &mut inner.tool_use {
                named.traits = traits;
            }
        }
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Fixes the time that `strftime_now` shows, in seconds since 1970; without this it is the
    /// current time, in UTC.
    #[must_use]
    pub fn at(mut self, unix_seconds: i64) -> Self {
        env::fix_time(&mut Arc::make_mut(&mut self.inner).env, unix_seconds);
        self
    }

    /// The template's text, for [`ToolFormat::detect`](crate::ToolFormat::detect); where there is
    /// one of its own for tools, that one.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.inner.choose(true).source
    }

    /// Whether the prompt shows the model its tools.
    #[must_use]
    pub fn supports_tools(&self) -> bool {
        self.inner.choose(true).traits.shows_tools
    }

    /// A conversation to a prompt.
    ///
    /// # Errors
    /// The template refuses the conversation or breaks on it.
    pub fn render(&self, request: &TemplateRequest<'_>) -> Result<String, ChatError> {
        let named = self.inner.choose(!request.tools.is_empty());
        if !request.continue_final_message {
            return self.inner.render(named, &named.traits, request, None);
        }
        if request.add_generation_prompt {
            return Err(ChatError::GenerationPromptAndContinue);
        }
        // As transformers: a tag after the final text shows where the template's own end begins.
        let text = request.messages.last().and_then(|m| m.content.as_ref());
        let text = text.ok_or(ChatError::NothingToContinue)?.to_text();
        let mut prompt = self.inner.render(named, &named.traits, request, Some(CONTINUE_TAG))?;
        let at = prompt.rfind(CONTINUE_TAG.trim_end()).ok_or(ChatError::NothingToContinue)?;
        if !prompt.contains(text.trim()) {
            return Err(ChatError::NothingToContinue);
        }
        let keeps_spaces = prompt[at..].starts_with(CONTINUE_TAG);
        prompt.truncate(at);
        if !keeps_spaces {
            prompt.truncate(prompt.trim_end().len());
        }
        Ok(prompt)
    }
}

/// The names that transformers gives templates.
const DEFAULT: &str = "default";
const TOOL_USE: &str = "tool_use";

/// Ends in a space, which shows whether the template trims.
const CONTINUE_TAG: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

impl Inner {
    fn choose(&self, tools: bool) -> &Named {
        self.tool_use.as_ref().filter(|_| tools).unwrap_or(&self.main)
    }

    fn render(
        &self,
        named: &Named,
        traits: &Traits,
        request: &TemplateRequest<'_>,
        tag: Option<&str>,
    ) -> Result<String, ChatError> {
        let mut context = self.special_tokens.clone();
        context.insert("messages".to_owned(), values::messages(request.messages, traits, tag));
        context.insert("tools".to_owned(), values::tools(request.tools));
        // Absent tools and documents are none, not undefined, in transformers.
        context.insert("documents".to_owned(), Value::Null);
        context.insert("add_generation_prompt".to_owned(), request.add_generation_prompt.into());
        // The template itself, of which nothing is known: what is asked of it is undefined.
        context.insert("self".to_owned(), Value::Object(Map::new()));
        for (name, value) in request.kwargs {
            context.insert(name.clone(), value.clone());
        }
        operators::render(&self.env, named.name, Jinja::from(Serde(context))).map_err(|source| {
            if let Some(message) = env::raised(&source) {
                return ChatError::TemplateRaised { message };
            }
            if memory::caused(&source) {
                let line = source.line().unwrap_or(0);
                let limit = memory::LIMIT >> 20;
                return ChatError::TemplateOutOfMemory { line, limit, source };
            }
            if source.kind() == ErrorKind::OutOfFuel {
                return ChatError::TemplateOutOfFuel { fuel: env::FUEL, source };
            }
            let line = source.line().unwrap_or(0);
            ChatError::Render { line, reason: env::reason(&source), source }
        })
    }
}
