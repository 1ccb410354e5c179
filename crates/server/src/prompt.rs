//! Where the messages of a conversation come from: a line editor, or the lines of a pipe.

use crate::output::note;
use anyhow::{Context, Result};
use rustyline::{Cmd, DefaultEditor, Event, KeyCode, KeyEvent, Modifiers, error::ReadlineError};
use std::io::{self, BufRead, IsTerminal};

pub(crate) enum Prompt {
    /// History, arrows, several lines to a message.
    Editor(Box<DefaultEditor>),
    /// A message a line.
    Lines,
}

impl Prompt {
    /// An editor where both ends are a terminal.
    pub(crate) fn open() -> Result<Self> {
        if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
            return Ok(Self::Lines);
        }
        let mut editor = DefaultEditor::new().context("opening the terminal")?;
        // Terminals that tell Shift-Enter from Enter send what Alt-Enter sends.
        for key in [KeyEvent(KeyCode::Enter, Modifiers::ALT), KeyEvent::ctrl('J')] {
            editor.bind_sequence(Event::from(key), Cmd::Newline);
        }
        Ok(Self::Editor(Box::new(editor)))
    }

    /// What to add to the help.
    pub(crate) fn help(&self) -> &'static str {
        match self {
            Self::Editor(_) => ", Alt-Enter or Ctrl-J begins a new line, Ctrl-D leaves",
            Self::Lines => "",
        }
    }

    /// The next message; none at the end.
    pub(crate) fn read(&mut self) -> Result<Option<String>> {
        match self {
            Self::Editor(editor) => edit(editor),
            Self::Lines => {
                let mut line = String::new();
                let read = io::stdin().lock().read_line(&mut line);
                Ok((read.context("reading standard input")? > 0).then_some(line))
            }
        }
    }
}

fn edit(editor: &mut DefaultEditor) -> Result<Option<String>> {
    let mut cleared = false;
    loop {
        match editor.readline("> ") {
            Ok(line) => {
                editor.add_history_entry(&line)?;
                return Ok(Some(line));
            }
            Err(ReadlineError::Interrupted) if !cleared => {
                cleared = true;
                note!("(Ctrl-C again or Ctrl-D leaves)");
            }
            Err(ReadlineError::Interrupted | ReadlineError::Eof) => return Ok(None),
            Err(error) => return Err(error).context("reading the terminal"),
        }
    }
}
