//! taper-chat: a prompt with a tool, and the call in the model's output while it is written.

use anyhow::{Context, Result};
use std::path::Path;
use taper_chat::{
    ChatTemplate, Delta, Message, OutputParser, ParserOptions, ReasoningFormat, Role,
    TemplateRequest, Tokenizer, Tool, ToolFormat,
};

const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/server/models/demo");

fn main() -> Result<()> {
    let template = ChatTemplate::load(Path::new(DEMO))?;
    let parameters = serde_json::json!({
        "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]
    });
    let tool = Tool {
        name: "get_weather".to_owned(),
        description: Some("The weather in a city".to_owned()),
        parameters: Some(parameters),
        strict: None,
    };
    let prompt = template.render(&TemplateRequest {
        messages: &[Message::text(Role::User, "Is it raining in Lisbon?")],
        tools: &[tool],
        add_generation_prompt: true,
        continue_final_message: false,
        kwargs: &serde_json::Map::new(),
    })?;
    println!("{prompt}");
    let tokens = Tokenizer::load(Path::new(DEMO))?.encode(&prompt, false)?;
    println!("--- {} tokens; the answer arrives in pieces of five bytes:", tokens.len());

    let answer = "<think>\nI should look.\n</think>\n\n<tool_call>\n\
                  {\"name\": \"get_weather\", \"arguments\": {\"city\": \"Lisbon\"}}\n</tool_call>";
    let reasoning = ReasoningFormat::detect(template.source(), "");
    let mut parser = OutputParser::new(ParserOptions {
        reasoning,
        tools: ToolFormat::detect(template.source(), ""),
        starts_in_reasoning: reasoning.starts_in(&prompt),
        ..ParserOptions::default()
    });
    let mut deltas = Vec::new();
    for piece in answer.as_bytes().chunks(5) {
        deltas.extend(parser.push(std::str::from_utf8(piece)?));
    }
    deltas.extend(parser.finish());
    deltas.iter().for_each(|delta| println!("{delta:?}"));
    let call = deltas.iter().find(|d| matches!(d, Delta::ToolCallStart { .. }));
    call.context("the answer calls a tool")?;
    Ok(())
}

#[test]
fn runs() -> Result<()> {
    main()
}
