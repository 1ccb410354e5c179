//! An answer while it is written, and when it is whole.

use crate::{Error, Options, Result, Taper};
use std::{
    collections::VecDeque,
    sync::mpsc::RecvTimeoutError,
    time::{Duration, Instant},
};
use taper_base::{Engine, Event, FinishReason, GenRequest, StopRules, TokenId};
use taper_chat::{Delta, OutputParser, ParsedMessage, ParserOptions, TextOptions, TextStream};
use taper_engine::{Events, channel};

/// How long [`Stream::next`] waits before it looks again.
const WAIT: Duration = Duration::from_secs(1);

/// A whole answer.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Answer {
    /// Content, reasoning and tool calls.
    pub message: ParsedMessage,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens that were generated.
    pub tokens: usize,
    /// Time to the first token; zero if there was none.
    pub first_token: Duration,
    /// Time to the end.
    pub total: Duration,
    /// Why it ended; `None` if it was given up.
    pub finish: Option<FinishReason>,
}

impl Answer {
    /// The content; empty if there is none.
    #[must_use]
    pub fn text(&self) -> &str {
        self.message.content.as_deref().unwrap_or_default()
    }
}

/// What a wait for an answer brought.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// More of the answer.
    Delta(Delta),
    /// Nothing yet.
    Pending,
    /// The answer is whole.
    End,
}

/// An answer while it is written: an iterator of its parts. Dropping it cancels the request.
#[derive(Debug)]
pub struct Stream {
    events: Events,
    text: TextStream,
    parser: OutputParser,
    ready: VecDeque<Delta>,
    start: Instant,
    ended: bool,
    answer: Answer,
}

impl Stream {
    /// Submits a prompt.
    pub(crate) fn start(
        model: &Taper,
        prompt: Vec<TokenId>,
        mut parser: ParserOptions,
        options: &Options,
    ) -> Result<Self> {
        let mut text = TextOptions::default();
        text.keep_tags(&model.tokenizer, &mut parser);
        let text = TextStream::new(&model.tokenizer, &text, &prompt)?;
        let answer = Answer {
            message: ParsedMessage::default(),
            prompt_tokens: prompt.len(),
            tokens: 0,
            first_token: Duration::ZERO,
            total: Duration::ZERO,
            finish: None,
        };
        let request = GenRequest {
            prompt,
            sampling: options.sampling(model),
            stop: StopRules { max_tokens: options.max_tokens, ..StopRules::default() },
            prompt_logprobs: None,
            kv_bits: None,
            client: None,
            cache_salt: None,
        };
        let (sink, events) = channel();
        let start = Instant::now();
        model.engine.submit(request, sink)?;
        let (parser, ready) = (OutputParser::new(parser), VecDeque::new());
        Ok(Self { events, text, parser, ready, start, ended: false, answer })
    }

    /// The next part, if it comes within this time.
    ///
    /// # Errors
    /// The generation failed.
    pub fn next_within(&mut self, time: Duration) -> Result<Part> {
        loop {
            if let Some(delta) = self.ready.pop_front() {
                self.answer.message.apply(delta.clone());
                return Ok(Part::Delta(delta));
            }
            if self.ended {
                return Ok(Part::End);
            }
            let event = match self.events.next_within(time) {
                Ok(event) => event,
                Err(RecvTimeoutError::Timeout) => return Ok(Part::Pending),
                Err(RecvTimeoutError::Disconnected) => {
                    self.end();
                    return Err(Error::Stopped);
                }
            };
            self.take(event)?;
        }
    }

    fn take(&mut self, event: Event) -> Result<()> {
        match event {
            Event::Started { .. } | Event::Prompt(_) => {}
            Event::Token(token) => {
                if self.answer.tokens == 0 {
                    self.answer.first_token = self.start.elapsed();
                }
                self.answer.tokens += 1;
                self.ready.extend(self.parser.push(&self.text.push(&token)?.text));
            }
            Event::Finished(reason) => {
                self.answer.finish = Some(reason);
                self.ready.extend(self.parser.push(&self.text.finish()?.text));
                self.ready.extend(self.parser.finish());
                self.end();
            }
            Event::Failed(error) => {
                self.end();
                return Err(error.into());
            }
        }
        Ok(())
    }

    fn end(&mut self) {
        self.ended = true;
        self.answer.total = self.start.elapsed();
    }

    /// Waits for the rest, and returns the whole answer.
    ///
    /// # Errors
    /// The generation failed.
    pub fn answer(mut self) -> Result<Answer> {
        self.by_ref().try_for_each(|delta| delta.map(drop))?;
        Ok(self.answer)
    }

    /// What has come so far; the rest is given up.
    #[must_use]
    pub fn give_up(mut self) -> Answer {
        if !self.ended {
            self.end();
        }
        self.answer
    }
}

impl Iterator for Stream {
    type Item = Result<Delta>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.next_within(WAIT) {
                Ok(Part::Delta(delta)) => return Some(Ok(delta)),
                Ok(Part::Pending) => {}
                Ok(Part::End) => return None,
                Err(error) => return Some(Err(error)),
            }
        }
    }
}
