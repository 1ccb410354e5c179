//! A conversation.

use crate::{Answer, Error, Result, Stream, Taper, vision::Shown};
use serde_json::{Map, Value};
use std::sync::Arc;
use taper_base::SamplingParams;
use taper_chat::{
    Content, ContentPart, Message, ParserOptions, ReasoningFormat, Role, TemplateRequest,
};

/// How answers are made.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct Options {
    /// Most tokens of an answer; `None` leaves it to the context.
    pub max_tokens: Option<u32>,
    /// 0 is greedy; `None` takes what the model's makers recommend.
    pub temperature: Option<f32>,
    /// Makes sampling reproducible.
    pub seed: u64,
    /// Lets a reasoning model reason before it answers.
    pub think: bool,
    /// The adapter that the model runs with, one of [`Taper::adapters`].
    pub adapter: Option<Arc<str>>,
}

impl Options {
    /// A limit for the tokens of an answer.
    #[must_use]
    pub fn max_tokens(self, tokens: u32) -> Self {
        Self { max_tokens: Some(tokens), ..self }
    }

    /// A temperature; 0 is greedy.
    #[must_use]
    pub fn temperature(self, temperature: f32) -> Self {
        Self { temperature: Some(temperature), ..self }
    }

    /// A seed.
    #[must_use]
    pub fn seed(self, seed: u64) -> Self {
        Self { seed, ..self }
    }

    /// Whether a reasoning model reasons before it answers.
    #[must_use]
    pub fn think(self, think: bool) -> Self {
        Self { think, ..self }
    }

    /// The name of an adapter that the model runs with.
    #[must_use]
    pub fn adapter(self, name: &str) -> Self {
        Self { adapter: Some(name.into()), ..self }
    }

    /// Sampling by these options, and else by the model's own.
    pub(crate) fn sampling(&self, model: &Taper) -> SamplingParams {
        let own = model.sampling.clone();
        let temperature = self.temperature.unwrap_or(own.temperature);
        SamplingParams { temperature, seed: self.seed, ..own }
    }
}

/// A conversation: what was said so far, and how answers are made.
#[derive(Debug, Clone)]
pub struct Chat<'a> {
    model: &'a Taper,
    messages: Vec<Message>,
    /// Images of the messages and of the next one, in order.
    images: Vec<Shown>,
    /// How answers are made.
    pub options: Options,
}

impl<'a> Chat<'a> {
    pub(crate) fn new(model: &'a Taper) -> Self {
        Self { model, messages: Vec::new(), images: Vec::new(), options: Options::default() }
    }

    /// Begins anew, with a system message.
    #[must_use]
    pub fn system(mut self, text: &str) -> Self {
        self.messages = vec![Message::text(Role::System, text)];
        self
    }

    /// How answers are made.
    #[must_use]
    pub fn options(self, options: Options) -> Self {
        Self { options, ..self }
    }

    /// What was said so far.
    #[must_use]
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// Forgets all but the system message.
    pub fn reset(&mut self) {
        self.messages.retain(|message| message.role == Role::System);
        self.images.clear();
    }

    /// Shows an image with the next message; `file` is a PNG, JPEG, WebP, GIF or BMP file.
    ///
    /// # Errors
    /// The model takes no images, or not this one.
    pub fn show(&mut self, file: &[u8]) -> Result<()> {
        let encoder = self.model.vision.as_ref().ok_or(Error::NoImages)?;
        self.images.push(Shown::new(&**encoder, file)?);
        Ok(())
    }

    /// The next message of the user, with the images that belong to none yet.
    fn message(&self, text: &str) -> Message {
        let images = |message: &Message| {
            message.content.as_ref().map_or(0, |content| content.images().count())
        };
        let before: usize = self.messages.iter().map(images).sum();
        if before == self.images.len() {
            return Message::text(Role::User, text);
        }
        let images = (before..self.images.len()).map(|i| ContentPart::Image(i.to_string().into()));
        let parts = images.chain([ContentPart::Text(text.to_owned())]).collect();
        Message { content: Some(Content::Parts(parts)), ..Message::text(Role::User, "") }
    }

    /// Answers a message, and remembers both.
    ///
    /// # Errors
    /// As [`Self::stream`], or the generation failed; nothing is remembered then.
    pub fn say(&mut self, text: &str) -> Result<Answer> {
        let answer = self.stream(text)?.answer()?;
        self.remember(text, &answer);
        Ok(answer)
    }

    /// Answers a message part by part. Neither is remembered before [`Self::remember`].
    ///
    /// # Errors
    /// There is no chat template, it refuses the conversation, or the engine refuses the request.
    pub fn stream(&self, text: &str) -> Result<Stream> {
        let template = self.model.template.as_ref().ok_or(Error::NoTemplate)?;
        let mut messages = self.messages.clone();
        messages.push(self.message(text));
        let mut kwargs = Map::new();
        kwargs.insert("enable_thinking".into(), Value::Bool(self.options.think));
        let prompt = template.render(&TemplateRequest {
            messages: &messages,
            tools: &[],
            add_generation_prompt: true,
            continue_final_message: false,
            kwargs: &kwargs,
        })?;
        let reasoning = ReasoningFormat::detect(template.source(), self.model.family);
        let parser = ParserOptions {
            reasoning,
            starts_in_reasoning: reasoning.starts_in(&prompt),
            ..ParserOptions::default()
        };
        let tokens = self.model.tokenizer.encode(&prompt, false)?;
        let (tokens, media) = match &self.model.vision {
            Some(encoder) if !self.images.is_empty() => {
                Shown::place(&self.images, &tokens, encoder.placeholder())?
            }
            _ => (tokens, Arc::default()),
        };
        Stream::start(self.model, (tokens, media), parser, &self.options)
    }

    /// Adds a message and its answer to what was said.
    pub fn remember(&mut self, text: &str, answer: &Answer) {
        self.messages.push(self.message(text));
        self.messages.push(answer.into());
    }
}
