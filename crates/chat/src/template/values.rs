//! Messages and tools as the values that templates see.

use super::probe::Traits;
use crate::{Content, ContentPart, Message, Role, Tool, ToolCall};
use serde_json::{Map, Value, json};

/// The conversation; `tag` is appended to the last message's text.
pub(super) fn messages(messages: &[Message], traits: &Traits, tag: Option<&str>) -> Value {
    let last = messages.len().saturating_sub(1);
    messages
        .iter()
        .enumerate()
        .map(|(i, m)| message(m, traits, tag.filter(|_| i == last).unwrap_or_default()))
        .collect()
}

/// None when there are no tools, as in transformers.
pub(super) fn tools(tools: &[Tool]) -> Value {
    if tools.is_empty() { Value::Null } else { json!(tools) }
}

fn message(message: &Message, traits: &Traits, tag: &str) -> Value {
    let mut out = Map::new();
    let mut put = |key: &str, value: Value| out.insert(key.to_owned(), value);
    // Templates know "developer" only where "system" means something else.
    let role = match message.role {
        Role::Developer if !traits.knows_developer => Role::System,
        role => role,
    };
    put("role", role.as_str().into());
    put("content", content(message, traits, tag));
    if let Some(name) = &message.name {
        put("name", name.as_str().into());
    }
    if let Some(reasoning) = &message.reasoning_content {
        put("reasoning_content", reasoning.as_str().into());
        // The name that gpt-oss reads.
        put("thinking", reasoning.as_str().into());
    }
    if !message.tool_calls.is_empty() {
        put("tool_calls", message.tool_calls.iter().map(|c| tool_call(c, traits)).collect());
    }
    if let Some(id) = &message.tool_call_id {
        put("tool_call_id", call_id(id, traits).into());
    }
    Value::Object(out)
}

/// The content, with `tag` behind its last text.
fn content(message: &Message, traits: &Traits, tag: &str) -> Value {
    let part = |text: String| json!({ "type": "text", "text": text });
    if let Some(content @ Content::Parts(parts)) = &message.content
        && (traits.typed_content
            || traits.parts.role(message.role)
            || content.images().next().is_some())
    {
        let last = parts.len().saturating_sub(1);
        let parts = parts.iter().enumerate().map(|(i, own)| match own {
            ContentPart::Text(text) => part(format!("{text}{}", if i == last { tag } else { "" })),
            // As transformers' processors give it.
            ContentPart::Image(_) => json!({ "type": "image" }),
        });
        return parts.collect();
    }
    // Templates add texts; none at all would break them, as vLLM found.
    let mut text = message.content.as_ref().map(Content::to_text).unwrap_or_default();
    text.push_str(tag);
    if traits.typed_content { json!([part(text)]) } else { Value::String(text) }
}

fn tool_call(call: &ToolCall, traits: &Traits) -> Value {
    let arguments = match serde_json::from_str::<Map<String, Value>>(&call.arguments) {
        Ok(mapping) if !traits.text_arguments => Value::Object(mapping),
        _ => Value::String(call.arguments.clone()),
    };
    json!({
        "id": call_id(&call.id, traits),
        "type": "function",
        "function": { "name": call.name, "arguments": arguments },
    })
}

/// Mistral's templates take ids of nine letters and digits and raise on others. The end of an id
/// is kept: beginnings are alike.
fn call_id(id: &str, traits: &Traits) -> String {
    if !traits.nine_character_ids {
        return id.to_owned();
    }
    let kept: Vec<char> = id.chars().filter(char::is_ascii_alphanumeric).collect();
    let tail: String = kept[kept.len().saturating_sub(9)..].iter().collect();
    format!("{tail:0>9}")
}
