//! Answers in the terminal: a conversation over the engine, without HTTP.

use crate::{
    cli::AnswerArgs,
    interrupt::{Busy, Interrupted, Interrupts},
    output::{Out, OutputError, note},
    sizes::count,
};
use anyhow::Result;
use std::time::Duration;
use taper::{Answer, Chat, Delta, FinishReason, Part, Stream, Taper};

/// How often a computation that says nothing is asked whether it should stop.
const CHECK: Duration = Duration::from_millis(50);

/// A conversation on standard output.
#[derive(Debug)]
pub(crate) struct Conversation<'a> {
    model: &'a Taper,
    chat: Chat<'a>,
    interrupts: Interrupts,
}

/// What was shown.
#[derive(Debug)]
pub(crate) struct Shown {
    answer: Answer,
    /// The signal that cut it short.
    pub(crate) stopped: Option<Interrupted>,
}

impl<'a> Conversation<'a> {
    pub(crate) fn new(model: &'a Taper, args: &AnswerArgs) -> Result<Self> {
        let mut chat = model.chat();
        if let Some(text) = &args.system {
            chat = chat.system(text);
        }
        chat.options = args.options();
        Ok(Self { model, chat, interrupts: Interrupts::listen()? })
    }

    /// Forgets all but the system message.
    pub(crate) fn reset(&mut self) {
        self.chat.reset();
    }

    /// Shows the model an image file with the next message.
    pub(crate) fn show(&mut self, file: &[u8]) -> Result<()> {
        Ok(self.chat.show(file)?)
    }

    /// Answers a message, on standard output as it comes, and remembers both.
    pub(crate) fn say(&mut self, text: &str) -> Result<Shown> {
        let busy = self.interrupts.busy();
        let shown = show(self.chat.stream(text)?, &busy)?;
        self.chat.remember(text, &shown.answer);
        Ok(shown)
    }

    /// Continues a text as it is.
    pub(crate) fn complete(&self, text: &str) -> Result<Shown> {
        let busy = self.interrupts.busy();
        show(self.model.complete(text, &self.chat.options)?, &busy)
    }
}

/// Writes an answer as it comes, until it ends or a signal stops it.
fn show(mut stream: Stream, busy: &Busy) -> Result<Shown> {
    let (mut screen, mut stopped) = (Screen::default(), None);
    while stopped.is_none() {
        stopped = busy.check().err();
        match stream.next_within(CHECK)? {
            Part::Delta(delta) => screen.show(&delta)?,
            Part::End => break,
            // Nothing to show yet.
            _ => {}
        }
    }
    writeln!(Out)?;
    Ok(Shown { answer: stream.give_up(), stopped })
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

impl Shown {
    /// One line on standard error.
    pub(crate) fn report(&self) {
        let Answer { prompt_tokens, tokens, first_token, total, finish, .. } = self.answer;
        let decode = total.saturating_sub(first_token).as_secs_f64();
        let speed = match tokens {
            0 | 1 => String::new(),
            n => format!(", {:.0} tokens/s", (n - 1) as f64 / decode.max(1e-9)),
        };
        let end = match finish {
            Some(FinishReason::Stop) => "",
            Some(FinishReason::Length) => ", cut by the length limit",
            None => ", stopped",
        };
        note!(
            "[{}, {}, first after {:.0} ms{speed}{end}]",
            count(prompt_tokens, "prompt token"),
            count(tokens, "token"),
            first_token.as_secs_f64() * 1e3,
        );
    }
}
