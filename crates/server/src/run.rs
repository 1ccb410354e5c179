//! `taper run`: one reply.

use crate::{
    cli::RunArgs,
    conversation::Conversation,
    model::{ModelSource, Requests, RunningModel},
};
use anyhow::Result;
use std::io::Read;

pub(crate) fn run(args: &RunArgs) -> Result<()> {
    let mut prompt = args.prompt.clone();
    if prompt == "-" {
        prompt.clear();
        std::io::stdin().read_to_string(&mut prompt)?;
    }
    let source = ModelSource::find(args.model.as_deref())?;
    let model = RunningModel::start(&source, &args.answer.engine, Requests::ONE)?;
    let mut conversation = Conversation::new(model, &args.answer)?;
    let cost =
        if args.raw { conversation.complete(&prompt)? } else { conversation.say(&prompt)? };
    cost.report();
    cost.stopped.map_or(Ok(()), |stop| Err(stop.into()))
}
