//! `taper chat`: a conversation in the terminal.

use crate::{
    cli::ChatArgs,
    conversation::Conversation,
    model::{ModelSource, Requests, RunningModel, describe},
    output::{OutputError, note},
    prompt::Prompt,
};
use anyhow::{Result, ensure};

const HELP: &str = "/reset forgets the conversation, /quit ends, Ctrl-C stops an answer";

pub(crate) fn chat(args: &ChatArgs) -> Result<()> {
    let source = ModelSource::find(args.model.name())?;
    let model = RunningModel::start(&source, &args.answer.engine, Requests::ONE)?;
    ensure!(
        model.template.is_some(),
        "a conversation needs a chat template; `taper run --raw` continues a text without one"
    );
    let mut conversation = Conversation::new(model, &args.answer)?;
    let mut prompt = Prompt::open()?;
    note!("{} ({})", conversation.model().name, describe(&source));
    help(&prompt);
    while let Some(message) = prompt.read()? {
        match message.trim() {
            "" => {}
            "/quit" | "/exit" => break,
            "/help" => help(&prompt),
            "/reset" => {
                conversation.reset();
                note!("(the conversation is forgotten)");
            }
            text => say(&mut conversation, text)?,
        }
    }
    Ok(())
}

fn help(prompt: &Prompt) {
    note!("{HELP}{}", prompt.help());
}

/// One failed message, such as a full context, does not end the conversation.
fn say(conversation: &mut Conversation, text: &str) -> Result<()> {
    match conversation.say(text) {
        Ok(cost) => cost.report(),
        Err(error) if error.is::<OutputError>() => return Err(error),
        Err(error) => note!("error: {}", crate::explain(&error)),
    }
    Ok(())
}
