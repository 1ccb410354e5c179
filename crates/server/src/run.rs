//! `taper run`: one reply.

use crate::{cli::RunArgs, conversation::Conversation, model};
use anyhow::{Context, Result, ensure};
use std::io::Read;

pub(crate) fn run(args: &RunArgs) -> Result<()> {
    let mut prompt = args.prompt.clone();
    if prompt == "-" {
        prompt.clear();
        std::io::stdin().read_to_string(&mut prompt).context("reading standard input")?;
    }
    // An unset variable of a shell, more often than not. Without a template it is refused where no
    // token stands for the beginning of a text.
    ensure!(
        args.raw || !prompt.is_empty(),
        "the prompt is empty; give a text, or \"-\" to read standard input"
    );
    let source = model::find(args.model.as_deref())?;
    let images = args
        .image
        .iter()
        .map(|path| std::fs::read(path).with_context(|| format!("reading {}", path.display())));
    let images: Vec<_> = images.collect::<Result<_>>()?;
    let model = model::start_one(&source, &args.answer, !images.is_empty())?;
    let mut conversation = Conversation::new(&model, &args.answer)?;
    for (path, image) in args.image.iter().zip(&images) {
        conversation.show(image).with_context(|| path.display().to_string())?;
    }
    let shown =
        if args.raw { conversation.complete(&prompt)? } else { conversation.say(&prompt)? };
    shown.report();
    shown.stopped.map_or(Ok(()), |stop| Err(stop.into()))
}
