//! `taper chat`: a conversation in the terminal.

use crate::{
    cli::ChatArgs,
    conversation::Conversation,
    model::{ModelSource, Requests, RunningModel, describe},
};
use anyhow::Result;
use std::io::{self, BufRead, IsTerminal, Write};

const HELP: &str = "/reset forgets the conversation, /quit ends, Ctrl-C stops an answer";

pub(crate) fn chat(args: &ChatArgs) -> Result<()> {
    let source = ModelSource::find(args.answer.model.as_deref())?;
    let model = RunningModel::start(&source, &args.answer.engine, Requests::ONE)?;
    let mut conversation = Conversation::new(model, &args.answer)?;
    let terminal = io::stdin().is_terminal();
    eprintln!("{} ({})", conversation.model().name, describe(&source));
    eprintln!("{HELP}");
    let mut line = String::new();
    loop {
        if terminal {
            print!("> ");
            io::stdout().flush()?;
        }
        line.clear();
        if io::stdin().lock().read_line(&mut line)? == 0 {
            return Ok(());
        }
        match line.trim() {
            "" => {}
            "/quit" | "/exit" => return Ok(()),
            "/help" => eprintln!("{HELP}"),
            "/reset" => conversation.reset(),
            text => match conversation.say(text) {
                Ok(cost) => cost.report(),
                // One bad turn, such as a full context, does not end the conversation.
                Err(error) => eprintln!("error: {}", crate::explain(&error)),
            },
        }
    }
}
