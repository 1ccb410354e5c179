//! Answers in the terminal: a conversation over the engine, without HTTP.

use crate::{cli::AnswerArgs, interrupt::Interrupt, model::RunningModel};
use anyhow::{Context, Result, bail};
use serde_json::{Map, Value};
use std::{
    io::{self, Write},
    time::{Duration, Instant},
};
use taper_base::{Engine, Event, FinishReason, GenRequest, SamplingParams, StopRules, TokenId};
use taper_chat::{
    Content, Delta, Message, OutputParser, ParsedMessage, ParserOptions, ReasoningFormat, Role,
    TemplateRequest, TextOptions, TextStream, ToolFormat, starts_in_reasoning,
};
use taper_engine::channel;

/// A model, its settings and what was said so far.
#[derive(Debug)]
pub(crate) struct Conversation {
    model: RunningModel,
    args: AnswerArgs,
    messages: Vec<Message>,
    interrupt: Interrupt,
}

/// What an answer cost.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cost {
    pub(crate) prompt_tokens: usize,
    pub(crate) tokens: usize,
    pub(crate) first_token: Duration,
    pub(crate) total: Duration,
    pub(crate) finish: Option<FinishReason>,
}

impl Conversation {
    pub(crate) fn new(model: RunningModel, args: &AnswerArgs) -> Result<Self> {
        let interrupt = Interrupt::listen()?;
        let mut new = Self { model, args: args.clone(), messages: Vec::new(), interrupt };
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
        let done = self.answer();
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
        let prompt = self.model.tokenizer.encode(text, true)?;
        let plain = OutputParser::new(ParserOptions::default());
        self.generate(prompt, plain).map(|(_, cost)| cost)
    }

    fn answer(&mut self) -> Result<(ParsedMessage, Cost)> {
        let template = self.model.template.as_ref();
        let template = template.context("the model has no chat template; use --raw")?;
        let mut kwargs = Map::new();
        kwargs.insert("enable_thinking".into(), Value::Bool(self.args.think));
        let prompt = template.render(&TemplateRequest {
            messages: &self.messages,
            tools: &[],
            add_generation_prompt: true,
            continue_final_message: false,
            kwargs: &kwargs,
        })?;
        let parser = OutputParser::new(ParserOptions {
            reasoning: ReasoningFormat::detect(template.source()),
            tools: ToolFormat::None,
            starts_in_reasoning: starts_in_reasoning(&prompt),
            ..ParserOptions::default()
        });
        let tokens = self.model.tokenizer.encode(&prompt, false)?;
        self.generate(tokens, parser)
    }

    fn generate(
        &self,
        prompt: Vec<TokenId>,
        mut parser: OutputParser,
    ) -> Result<(ParsedMessage, Cost)> {
        let prompt_tokens = prompt.len();
        let request = GenRequest {
            prompt,
            sampling: self.sampling(),
            stop: StopRules { max_tokens: self.args.max_tokens, ..StopRules::default() },
            prompt_logprobs: None,
            kv_bits: None,
            client: None,
        };
        let mut text = TextStream::new(&self.model.tokenizer, TextOptions::default())?;
        let (sink, events) = channel();
        let start = Instant::now();
        self.model.engine.submit(request, sink)?;
        let (mut message, mut screen) = (ParsedMessage::default(), Screen::default());
        let mut cost = Cost {
            prompt_tokens,
            tokens: 0,
            first_token: Duration::ZERO,
            total: start.elapsed(),
            finish: None,
        };
        for event in events {
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
            if self.interrupt.take() {
                break;
            }
        }
        cost.total = start.elapsed();
        screen.end()?;
        Ok((message, cost))
    }

    fn sampling(&self) -> SamplingParams {
        let own = self.model.sampling.clone();
        let temperature = self.args.temperature.unwrap_or(own.temperature);
        SamplingParams { temperature, seed: self.args.seed, ..own }
    }
}

/// Standard output: reasoning set apart from the answer.
#[derive(Debug, Default)]
struct Screen {
    reasoning: bool,
    answered: bool,
}

impl Screen {
    fn show(&mut self, delta: &Delta) -> io::Result<()> {
        let mut out = io::stdout().lock();
        match delta {
            Delta::Reasoning(text) => {
                if !std::mem::replace(&mut self.reasoning, true) {
                    writeln!(out, "<think>")?;
                }
                out.write_all(text.as_bytes())?;
            }
            Delta::Content(text) => {
                if self.reasoning && !self.answered {
                    write!(out, "\n</think>\n\n")?;
                }
                self.answered = true;
                out.write_all(text.as_bytes())?;
            }
            Delta::ToolCallStart { .. } | Delta::ToolCallArguments { .. } => {}
        }
        out.flush()
    }

    fn end(&self) -> io::Result<()> {
        let mut out = io::stdout().lock();
        writeln!(out)?;
        out.flush()
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
        eprintln!(
            "[{} prompt tokens, {} tokens, first after {:.0} ms{speed}{end}]",
            self.prompt_tokens,
            self.tokens,
            self.first_token.as_secs_f64() * 1e3,
        );
    }
}
