//! An answer while it is written, and when it is whole.

use crate::{Error, Options, Result, Taper};
use std::{
    collections::VecDeque,
    sync::{Arc, mpsc::RecvTimeoutError},
    time::{Duration, Instant},
};
use taper_base::{Engine, Event, FinishReason, GenRequest, Medium, StopRules, TokenId};
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
#[non_exhaustive]
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
    /// `None` after the end. Without them the engine gives a request up.
    events: Option<Events>,
    text: TextStream,
    parser: OutputParser,
    ready: VecDeque<Delta>,
    start: Instant,
    answer: Answer,
}

impl Stream {
    /// Submits a prompt.
    pub(crate) fn start(
        model: &Taper,
        (prompt, media): (Vec<TokenId>, Arc<[Medium]>),
        mut parser: ParserOptions,
        options: &Options,
    ) -> Result<Self> {
        let mut text = TextOptions::default();
        text.keep_tags(&model.tokenizer, &mut parser);
        let text = TextStream::new(&model.tokenizer, &text, &prompt)?;
        let prompt_tokens = prompt.len();
        let request = GenRequest {
            prompt,
            media,
            sampling: options.sampling(model),
            stop: StopRules { max_tokens: options.max_tokens, ..StopRules::default() },
            adapter: options.adapter.clone(),
            ..GenRequest::default()
        };
        let (sink, events) = channel();
        let start = Instant::now();
        model.engine.submit(request, sink)?;
        Ok(Self::new(events, text, OutputParser::new(parser), prompt_tokens, start))
    }

    fn new(
        events: Events,
        text: TextStream,
        parser: OutputParser,
        prompt_tokens: usize,
        start: Instant,
    ) -> Self {
        let answer = Answer {
            message: ParsedMessage::default(),
            prompt_tokens,
            tokens: 0,
            first_token: Duration::ZERO,
            total: Duration::ZERO,
            finish: None,
        };
        Self { events: Some(events), text, parser, ready: VecDeque::new(), start, answer }
    }

    /// The next part, if it comes within this time. Events that show nothing, such as tokens whose text
    /// is held back, do not prolong it.
    ///
    /// # Errors
    /// The generation failed, or its text cannot be read; it has ended then.
    pub fn next_within(&mut self, time: Duration) -> Result<Part> {
        // Such a time may be beyond what a clock can tell: there is no deadline then.
        let deadline = Instant::now().checked_add(time);
        let mut left = time;
        loop {
            if let Some(delta) = self.next_ready() {
                return Ok(Part::Delta(delta));
            }
            let Some(events) = &mut self.events else { return Ok(Part::End) };
            let taken = match events.next_within(left) {
                Ok(event) => self.take(event),
                Err(RecvTimeoutError::Timeout) => return Ok(Part::Pending),
                Err(RecvTimeoutError::Disconnected) => Err(Error::Stopped),
            };
            if let Err(error) = taken {
                self.end();
                return Err(error);
            }
            left = deadline.map_or(time, |at| at.saturating_duration_since(Instant::now()));
            if left.is_zero() && self.ready.is_empty() && self.events.is_some() {
                return Ok(Part::Pending);
            }
        }
    }

    /// The next of what is ready, which becomes a part of the answer.
    fn next_ready(&mut self) -> Option<Delta> {
        let delta = self.ready.pop_front()?;
        self.answer.message.apply(delta.clone());
        Some(delta)
    }

    fn take(&mut self, event: Event) -> Result<()> {
        match event {
            Event::Started { .. } | Event::Prompt(_) | Event::Drafted { .. } => {}
            Event::Token(token) => {
                if self.answer.tokens == 0 {
                    self.answer.first_token = self.start.elapsed();
                }
                self.answer.tokens += 1;
                self.ready.extend(self.parser.push(&self.text.push(&token)?.text));
            }
            Event::Finished(reason) => {
                self.ready.extend(self.parser.push(&self.text.finish()?.text));
                self.ready.extend(self.parser.finish());
                self.answer.finish = Some(reason);
                self.end();
            }
            Event::Failed(error) => return Err(error.into()),
        }
        Ok(())
    }

    fn end(&mut self) {
        if self.events.take().is_some() {
            self.answer.total = self.start.elapsed();
        }
    }

    /// Waits for the rest, and returns the whole answer.
    ///
    /// # Errors
    /// The generation failed.
    pub fn answer(mut self) -> Result<Answer> {
        self.by_ref().try_for_each(|delta| delta.map(drop))?;
        Ok(self.answer)
    }

    /// What has come so far, read or not; the rest is given up.
    #[must_use]
    pub fn give_up(mut self) -> Answer {
        self.end();
        while self.next_ready().is_some() {}
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

#[cfg(test)]
mod tests {
    use super::*;
    use taper_base::{EventSink, GeneratedToken, GenerationError};
    use taper_chat::Tokenizer;

    const TOKENIZER: &[u8] =
        br#"{"version": "1.0", "added_tokens": [], "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": {"a ": 0, "b ": 1, "": 2}, "unk_token": "a "}}"#;

    fn stream() -> (Box<dyn EventSink>, Stream) {
        let (sink, events) = channel();
        let tokenizer = Tokenizer::from_bytes(TOKENIZER, None).unwrap();
        let text = TextStream::new(&tokenizer, &TextOptions::default(), &[]).unwrap();
        let parser = OutputParser::new(ParserOptions::default());
        (sink, Stream::new(events, text, parser, 3, Instant::now()))
    }

    fn token(id: TokenId) -> Event {
        Event::Token(GeneratedToken { id, logprobs: None, stops: false, open: false })
    }

    #[test]
    fn events_that_show_nothing_do_not_prolong_a_wait() {
        let (mut sink, mut stream) = stream();
        for event in [Event::Started { cached_tokens: 0 }, Event::Prompt(vec![]), token(2)] {
            sink.send(event);
        }
        for event in [token(0), Event::Finished(FinishReason::Stop)] {
            sink.send(event);
        }
        let mut next = || stream.next_within(Duration::ZERO).unwrap();
        assert_eq!([next(), next(), next()], [Part::Pending, Part::Pending, Part::Pending]);
        let content = Part::Delta(Delta::Content("a ".to_owned()));
        assert_eq!([next(), next(), next()], [content, Part::End, Part::End]);
        assert_eq!((stream.answer.tokens, stream.answer.finish), (2, Some(FinishReason::Stop)));
    }

    #[test]
    fn the_longest_wait_is_a_wait() {
        let (mut sink, mut stream) = stream();
        sink.send(Event::Started { cached_tokens: 0 });
        sink.send(token(1));
        let part = stream.next_within(Duration::MAX).unwrap();
        assert_eq!(part, Part::Delta(Delta::Content("b ".to_owned())));
    }

    #[test]
    fn what_was_not_read_yet_is_not_lost() {
        let (mut sink, mut stream) = stream();
        sink.send(token(0));
        stream.next().unwrap().unwrap();
        stream.ready.extend(["b ", "a "].map(|text| Delta::Content(text.to_owned())));
        let answer = stream.give_up();
        assert_eq!((answer.text(), answer.finish), ("a b a ", None));
        assert!(sink.is_closed(), "the engine can give the request up");
    }

    #[test]
    fn every_failure_ends_a_stream() {
        // Decoders that fail are not known, but text that does ends a stream in the same place.
        let (mut sink, mut failed) = stream();
        for event in [token(0), Event::Failed(GenerationError::NotRead), token(1)] {
            sink.send(event);
        }
        assert!(failed.next().unwrap().is_ok());
        assert!(failed.next().unwrap().is_err());
        assert!(failed.next().is_none(), "it has ended");
        assert!(sink.is_closed(), "the engine can give the request up");
        let answer = failed.give_up();
        assert_eq!((answer.text(), answer.finish), ("a ", None));
        let (sink, mut stream) = stream();
        drop(sink);
        assert!(matches!(stream.next(), Some(Err(Error::Stopped))));
        assert!(stream.next().is_none());
    }
}
