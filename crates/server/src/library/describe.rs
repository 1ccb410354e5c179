//! What a model's files say of it.

use crate::{
    cli::ServeArgs,
    serve::{Task, task},
};
use anyhow::Result;
use taper::ModelSource;
use taper_chat::{ChatTemplate, ReasoningFormat};
use taper_models::LoadOptions;
use taper_openai_server::Description;

/// Reads what a server with these flags would make of a model. No weights are read.
///
/// # Errors
/// Its files are gone, damaged, or of a kind that is not supported.
pub(crate) fn describe(source: &ModelSource, args: &ServeArgs) -> Result<Description> {
    let weights = source.checkpoint()?;
    let config = weights.config();
    let number = |field: &str| config.get(field).and_then(serde_json::Value::as_u64);
    let text = |field: &str| config.get(field).and_then(|value| value.as_str());
    let architecture = text("model_type").unwrap_or_default().to_owned();
    let context = number("max_position_embeddings").unwrap_or(0);
    let task = task(&args.task, source)?;
    let mut about = Description {
        weight_bytes: weights.bytes(),
        context_length: u32::try_from(context).unwrap_or(u32::MAX),
        architecture,
        generates: task == Task::Generate,
        ..Description::default()
    };
    if task == Task::Embed {
        let size = number("hidden_size").unwrap_or(0);
        about.dimensions = usize::try_from(size).unwrap_or(0);
    }
    if task != Task::Generate {
        return Ok(about);
    }
    let options = LoadOptions::default();
    let model = taper_models::load(&weights, options)?;
    let info = model.info();
    info.family.clone_into(&mut about.architecture);
    (about.parameters, about.weight_bytes) = (info.parameters, info.weight_bytes);
    about.context_length = u32::try_from(info.max_positions).unwrap_or(u32::MAX);
    about.template = template(source);
    let chats = !about.template.is_empty();
    let calls = args.tool_call_parser.format(&about.template, info.family);
    about.calls = chats && args.enable_auto_tool_choice && !calls.is_none();
    let thoughts = ReasoningFormat::detect(&about.template, info.family);
    about.thinks = chats && !thoughts.closers().is_empty();
    about.sees =
        chats && args.images.limit_mm_per_prompt > 0 && config.get("vision_config").is_some();
    Ok(about)
}

/// A model's own chat template; empty where it has none.
fn template(source: &ModelSource) -> String {
    match source {
        ModelSource::Static(model) => {
            let config: serde_json::Value =
                serde_json::from_slice(model.tokenizer_config).unwrap_or_default();
            config["chat_template"].as_str().unwrap_or_default().to_owned()
        }
        ModelSource::Gguf { file, .. } => file.chat_template().unwrap_or_default().to_owned(),
        _ => source
            .dir()
            .and_then(|dir| ChatTemplate::load(dir).ok())
            .map_or_else(String::new, |template| template.source().to_owned()),
    }
}
