//! A chat template, rendered.
#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::{Map, json};
use taper_chat::{ChatTemplate, Message, Role, TemplateRequest, Tool};
use taper_fuzz::text;

fuzz_target!(|data: &[u8]| {
    let Ok(template) = ChatTemplate::from_source(text(data), Some("<s>"), Some("</s>")) else {
        return;
    };
    let messages =
        [Message::text(Role::System, "Be brief."), Message::text(Role::User, "Hi {{ x }}")];
    let tools = [Tool {
        name: "get_weather".to_owned(),
        description: Some("Weather.".to_owned()),
        parameters: Some(
            json!({ "type": "object", "properties": { "city": { "type": "string" } } }),
        ),
        strict: None,
    }];
    let kwargs = Map::new();
    for tools in [&tools[..], &[]] {
        let request = TemplateRequest {
            messages: &messages,
            tools,
            add_generation_prompt: true,
            continue_final_message: false,
            kwargs: &kwargs,
        };
        let _ = template.render(&request);
    }
});
