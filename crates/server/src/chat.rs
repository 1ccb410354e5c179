//! `taper chat`: a conversation in the terminal.

use crate::{
    cli::{ChatArgs, EngineArgs},
    conversation::Conversation,
    model,
    output::{OutputError, note},
    prompt::Prompt,
};
use anyhow::{Result, ensure};

const HELP: &str = "/reset forgets the conversation, /quit ends, Ctrl-C stops an answer";

pub(crate) fn chat(args: &ChatArgs) -> Result<()> {
    let source = model::find(args.model.name())?;
    let model = model::start_one(&source, &args.answer, false)?;
    ensure!(
        model.template.is_some(),
        "a conversation needs a chat template; `taper run --raw` continues a text without one"
    );
    let mut conversation = Conversation::new(&model, &args.answer)?;
    let mut prompt = Prompt::open()?;
    note!("{} ({source})", model.name);
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
            text => say(&mut conversation, text, &args.answer.engine)?,
        }
    }
    Ok(())
}

fn help(prompt: &Prompt) {
    note!("{HELP}{}", prompt.help());
}

/// One bad turn, such as a full context, does not end the conversation.
fn say(conversation: &mut Conversation<'_>, text: &str, engine: &EngineArgs) -> Result<()> {
    match conversation.say(text) {
        Ok(shown) => shown.report(),
        Err(error) if error.is::<OutputError>() => return Err(error),
        Err(error) => note!("error: {}", crate::explain(&error, Some(engine))),
    }
    Ok(())
}
