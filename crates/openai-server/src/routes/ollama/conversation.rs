//! From Ollama's messages to those that templates take.

use crate::{
    errors::ApiError,
    images::{Images, of_base64},
    wire::OllamaMessage,
};
use serde_json::Value;
use std::collections::VecDeque;
use taper_chat::{Content, ContentPart, Message, Role, ToolCall};

/// A call whose result has not come yet.
struct Open {
    id: String,
    name: String,
}

/// Converts a conversation. Calls and results that have no ids are joined by the tool's name, or in
/// their order.
pub(super) fn messages(
    wire: Vec<OllamaMessage>,
    images: &Images,
) -> Result<Vec<Message>, ApiError> {
    let (mut open, mut calls) = (VecDeque::new(), 0);
    let one =
        |(i, message)| converted(message, &format!("messages[{i}]"), &mut open, &mut calls, images);
    wire.into_iter().enumerate().map(one).collect()
}

fn converted(
    wire: OllamaMessage,
    at: &str,
    open: &mut VecDeque<Open>,
    calls: &mut usize,
    images: &Images,
) -> Result<Message, ApiError> {
    let role = match wire.role.as_str() {
        "system" => Role::System,
        "user" => Role::User,
        "assistant" => Role::Assistant,
        "tool" => Role::Tool,
        other => {
            let detail = format!("must be system, user, assistant or tool, got '{other}'");
            return Err(ApiError::value(format!("{at}.role"), detail));
        }
    };
    let only = |name: &str, who: &str, is_set: bool| match is_set {
        true => Err(ApiError::value(format!("{at}.{name}"), format!("is only for {who} messages"))),
        false => Ok(()),
    };
    let assistant = role == Role::Assistant;
    only("tool_calls", "assistant", !assistant && wire.tool_calls.is_some())?;
    only("thinking", "assistant", !assistant && wire.thinking.is_some())?;
    only("tool_name", "tool", role != Role::Tool && wire.tool_name.is_some())?;
    only("tool_call_id", "tool", role != Role::Tool && wire.tool_call_id.is_some())?;
    let mut message = Message::text(role, "");
    let own = wire.images.unwrap_or_default();
    message.content = content(wire.content, &own, &format!("{at}.images"), images)?;
    message.reasoning_content = wire.thinking.filter(|thinking| !thinking.is_empty());
    for call in wire.tool_calls.into_iter().flatten() {
        *calls += 1;
        // Nine letters and digits: some templates want just that.
        let id = call.id.unwrap_or_else(|| format!("call{:05}", *calls % 100_000));
        let (name, arguments) = (call.function.name, Value::Object(call.function.arguments));
        open.push_back(Open { id: id.clone(), name: name.clone() });
        message.tool_calls.push(ToolCall { id, name, arguments: arguments.to_string() });
    }
    if role == Role::Tool {
        message.tool_call_id =
            Some(answered(open, wire.tool_call_id.as_deref(), wire.tool_name.as_deref(), at)?);
        message.name = wire.tool_name;
    }
    Ok(message)
}

/// A text with its images before it, as Ollama has them.
pub(super) fn content(
    text: Option<String>,
    own: &[String],
    at: &str,
    images: &Images,
) -> Result<Option<Content>, ApiError> {
    if own.is_empty() {
        return Ok(text.map(Content::Text));
    }
    images.takes(at)?;
    let one = |(i, image): (usize, &String)| images.part(of_base64(image), &format!("{at}[{i}]"));
    let mut parts = own.iter().enumerate().map(one).collect::<Result<Vec<_>, _>>()?;
    parts.extend(text.map(ContentPart::Text));
    Ok(Some(Content::Parts(parts)))
}

/// The id of the call that a result is of.
fn answered(
    open: &mut VecDeque<Open>,
    id: Option<&str>,
    name: Option<&str>,
    at: &str,
) -> Result<String, ApiError> {
    let is_meant = |call: &Open| match (id, name) {
        (Some(id), _) => call.id == id,
        (None, Some(name)) => call.name == name,
        (None, None) => true,
    };
    let found = open.iter().position(is_meant).and_then(|index| open.remove(index));
    let none = || ApiError::value(at, "is the result of no call before it");
    found.map(|call| call.id).ok_or_else(none)
}
