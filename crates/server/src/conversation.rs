//! Answers in the terminal: a conversation over the engine, without HTTP.

use crate::{
    cli::AnswerArgs,
    interrupt::{Busy, Interrupted, Interrupts},
    model::RunningModel,
    output::{Out, OutputError, note},
    sizes::count,
};
use anyhow::{Context, Result, bail};
use serde_json::{Map, Value};
use std::{
    sync::mpsc::RecvTimeoutError,
    time::{Duration, Instant},
};
use taper_base::{Engine, Event, FinishReason, GenRequest, SamplingParams, StopRules, TokenId};
use taper_chat::{
    Content, Delta, Message, OutputParser, ParsedMessage, ParserOptions, ReasoningFormat, Role,
    TemplateRequest, TextOptions, TextStream, ToolFormat, starts_in_reasoning,
};
use taper_engine::channel;

/// How often a computation that says nothing is asked whether it should stop.
const CHECK: Duration = Duration::from_millis(50);

/// A model, its settings and what was said so far.
#[derive(Debug)]
pub(crate) struct Conversation {
    model: RunningModel,
    args: AnswerArgs,
    messages: Vec<Message>,
    interrupts: Interrupts,
}

/// Tokens and time of a reply.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cost {
    pub(crate) prompt_tokens: usize,
    pub(crate) tokens: usize,
    pub(crate) first_token: Duration,
    pub(crate) total: Duration,
    pub(crate) finish: Option<FinishReason>,
    /// The signal that cut it short.
    pub(crate) stopped: Option<Interrupted>,
}

impl Conversation {
    pub(crate) fn new(model: RunningModel, args: &AnswerArgs) -> Result<Self> {
        let interrupts = Interrupts::listen()?;
        let mut new = Self { model, args: args.clone(), messages: Vec::new(), interrupts };
        new.reset();
        Ok(new)
    }

    pub(crate) fn model(&self) -> &RunningModel {
        &self.model
    }

    /// Forgets all but the system message.
    pub(crate) fn reset(&mut self) {
        let system = self.args.system.iter();
        self.messages = system.map(|text| Message::text(Role::System, text)).collect();
    }

    /// Answers a message, on standard output as it comes, and remembers both.
    pub(crate) fn say(&mut self, text: &str) -> Result<Cost> {
        self.messages.push(Message::text(Role::User, text));
        let busy = self.interrupts.busy();
        let done = self.answer(&busy);
        let (message, cost) = match done {
            Ok(done) => done,
            Err(error) => {
                self.messages.pop();
                return Err(error);
            }
        };
        self.messages.push(Message {
            content: message.content.map(Content::Text),
            reasoning_content: message.reasoning,
            tool_calls: message.tool_calls,
            ..Message::text(Role::Assistant, "")
        });
        Ok(cost)
    }

    /// Continues a text as it is.
    pub(crate) fn complete(&mut self, text: &str) -> Result<Cost> {
        let busy = self.interrupts.busy();
        let prompt = self.model.tokenizer.encode(text, true)?;
        self.generate(prompt, ParserOptions::default(), &busy).map(|(_, cost)| cost)
    }

    fn answer(&self, busy: &Busy) -> Result<(ParsedMessage, Cost)> {
        let template = self.model.template.as_ref();
        let template = template
            .context("there is no chat template, so only `taper run --raw` can continue a text")?;
        let mut kwargs = Map::new();
        kwargs.insert("enable_thinking".into(), Value::Bool(self.args.think));
        let prompt = template.render(&TemplateRequest {
            messages: &self.messages,
            tools: &[],
            add_generation_prompt: true,
            continue_final_message: false,
            kwargs: &kwargs,
        })?;
        let parser = ParserOptions {
            reasoning: ReasoningFormat::detect(template.source()),
            tools: ToolFormat::NONE,
            starts_in_reasoning: starts_in_reasoning(&prompt),
            ..ParserOptions::default()
        };
        let tokens = self.model.tokenizer.encode(&prompt, false)?;
        self.generate(tokens, parser, busy)
    }

    fn generate(
        &self,
        prompt: Vec<TokenId>,
        mut parser: ParserOptions,
        busy: &Busy,
    ) -> Result<(ParsedMessage, Cost)> {
        let prompt_tokens = prompt.len();
        let mut options = TextOptions::default();
        options.keep_tags(&self.model.tokenizer, &mut parser);
        let mut parser = OutputParser::new(parser);
        let mut text = TextStream::new(&self.model.tokenizer, &options, &prompt)?;
        let request = GenRequest {
            prompt,
            sampling: self.sampling(),
            stop: StopRules { max_tokens: self.args.max_tokens, ..StopRules::default() },
            prompt_logprobs: None,
            kv_bits: None,
            client: None,
            cache_salt: None,
        };
        let (sink, mut events) = channel();
        let start = Instant::now();
        self.model.engine.submit(request, sink)?;
        let (mut message, mut screen) = (ParsedMessage::default(), Screen::default());
        let mut cost = Cost {
            prompt_tokens,
            tokens: 0,
            first_token: Duration::ZERO,
            total: start.elapsed(),
            finish: None,
            stopped: None,
        };
        while cost.stopped.is_none() {
            cost.stopped = busy.check().err();
            let event = match events.next_within(CHECK) {
                Ok(event) => event,
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => break,
            };
            let deltas = match event {
                Event::Started { .. } | Event::Prompt(_) => continue,
                Event::Token(token) => {
                    if cost.tokens == 0 {
                        cost.first_token = start.elapsed();
                    }
                    cost.tokens += 1;
                    parser.push(&text.push(&token)?.text)
                }
                Event::Finished(reason) => {
                    cost.finish = Some(reason);
                    let mut deltas = parser.push(&text.finish()?.text);
                    deltas.extend(parser.finish());
                    deltas
                }
                Event::Failed(error) => bail!(error),
            };
            for delta in deltas {
                screen.show(&delta)?;
                message.apply(delta);
            }
        }
        cost.total = start.elapsed();
        writeln!(Out)?;
        Ok((message, cost))
    }

    fn sampling(&self) -> SamplingParams {
        let own = self.model.sampling.clone();
        let temperature = self.args.temperature.unwrap_or(own.temperature);
        SamplingParams { temperature, seed: self.args.seed, ..own }
    }
}

/// Standard output: reasoning set apart from the reply.
#[derive(Debug, Default)]
struct Screen {
    reasoning: bool,
    answered: bool,
}

impl Screen {
    fn show(&mut self, delta: &Delta) -> Result<(), OutputError> {
        match delta {
            Delta::Reasoning(text) => {
                if !std::mem::replace(&mut self.reasoning, true) {
                    writeln!(Out, "<think>")?;
                }
                write!(Out, "{text}")
            }
            Delta::Content(text) => {
                if self.reasoning && !self.answered {
                    write!(Out, "\n</think>\n\n")?;
                }
                self.answered = true;
                write!(Out, "{text}")
            }
            Delta::ToolCallStart { .. } | Delta::ToolCallArguments { .. } => Ok(()),
        }
    }
}

impl Cost {
    /// One line on standard error.
    pub(crate) fn report(&self) {
        let decode = self.total.saturating_sub(self.first_token).as_secs_f64();
        let speed = match self.tokens {
            0 | 1 => String::new(),
            n => format!(", {:.0} tokens/s", (n - 1) as f64 / decode.max(1e-9)),
        };
        let end = match self.finish {
            Some(FinishReason::Stop) => "",
            Some(FinishReason::Length) => ", cut by the length limit",
            None => ", stopped",
        };
        note!(
            "[{}, {}, first after {:.0} ms{speed}{end}]",
            count(self.prompt_tokens, "prompt token"),
            count(self.tokens, "token"),
            self.first_token.as_secs_f64() * 1e3,
        );
    }
}
