//! From Anthropic's messages to those that templates take.

use crate::{
    errors::ApiError,
    images::{Images, of_base64},
    routes::chat_roles::append,
    wire::{AnthropicMessage, Block, BlockSource, Blocks},
};
use serde_json::Value;
use taper_chat::{Content, ContentPart, Message, Role, ToolCall};

/// What Claude Code writes at the head of its system prompt for the accounts of Anthropic. It differs
/// from request to request, and no prefix could be reused behind it.
const BILLING: &str = "x-anthropic-billing-header:";

/// Converts the system prompt and the messages after it.
pub(super) fn messages(
    system: Option<Blocks>,
    wire: Vec<AnthropicMessage>,
    images: &Images,
) -> Result<Vec<Message>, ApiError> {
    if wire.is_empty() {
        return Err(ApiError::value("messages", "must hold at least one message"));
    }
    let last_user = wire.iter().rposition(|message| message.role == "user");
    let mut all = Vec::new();
    if let Some(system) = system {
        let mut texts = texts(system, "system")?;
        texts.retain(|text| !text.starts_with(BILLING));
        if !texts.is_empty() {
            all.push(Message::text(Role::System, texts.join("\n")));
        }
    }
    for (i, message) in wire.into_iter().enumerate() {
        let at = format!("messages[{i}]");
        let passed = last_user.is_some_and(|user| i < user);
        for message in converted(message, &at, passed, images)? {
            add(&mut all, message);
        }
    }
    Ok(all)
}

/// A deferred tool that a client's own search for tools has found.
#[derive(Debug)]
pub(super) struct Found<'a> {
    pub(super) name: &'a str,
    /// Where the conversation says so.
    pub(super) at: String,
}

/// The tools that the results of a conversation refer to.
pub(super) fn found(wire: &[AnthropicMessage]) -> Vec<Found<'_>> {
    fn blocks(content: &Blocks) -> &[Block] {
        match content {
            Blocks::Text(_) => &[],
            Blocks::List(blocks) => blocks,
        }
    }
    let mut all = Vec::new();
    for (i, message) in wire.iter().enumerate() {
        for (j, block) in blocks(&message.content).iter().enumerate() {
            let content = block.content.as_ref().map(blocks).unwrap_or_default();
            for (k, part) in content.iter().enumerate() {
                if let Some(name) = part.tool_name.as_deref() {
                    let at = format!("messages[{i}].content[{j}].content[{k}].tool_name");
                    all.push(Found { name, at });
                }
            }
        }
    }
    all
}

/// Adds a message; the API makes one of neighbours of one role, as many templates want it.
fn add(all: &mut Vec<Message>, message: Message) {
    let joins = |last: &&mut Message| last.role == message.role && last.role != Role::Tool;
    let Some(last) = all.last_mut().filter(joins) else {
        return all.push(message);
    };
    append(last, message.content);
    last.tool_calls.extend(message.tool_calls);
    if let Some(more) = message.reasoning_content {
        let reasoning = last.reasoning_content.get_or_insert_default();
        if !reasoning.is_empty() {
            reasoning.push('\n');
        }
        reasoning.push_str(&more);
    }
}

/// The messages that one stands for: the results of tools are messages of their own. `passed` says
/// that a message of the user follows.
fn converted(
    wire: AnthropicMessage,
    at: &str,
    passed: bool,
    images: &Images,
) -> Result<Vec<Message>, ApiError> {
    let system = wire.role == "system";
    let goes = match wire.clear_at.as_deref() {
        None => false,
        Some(_) if !system => {
            return Err(ApiError::value(format!("{at}.clear_at"), "is only for system messages"));
        }
        Some("never") => false,
        Some("next_user_message") => passed,
        Some(_) => {
            let detail = "must be 'never' or 'next_user_message'";
            return Err(ApiError::value(format!("{at}.clear_at"), detail));
        }
    };
    let content_at = format!("{at}.content");
    match wire.role.as_str() {
        "user" => user(wire.content, &content_at, images),
        "assistant" => Ok(vec![assistant(wire.content, &content_at)?]),
        "system" => {
            let texts = texts(wire.content, &content_at)?;
            let message = Message::text(Role::System, texts.join("\n"));
            Ok(if goes { Vec::new() } else { vec![message] })
        }
        other => {
            let detail = format!("must be 'user', 'assistant' or 'system', got '{other}'");
            Err(ApiError::value(format!("{at}.role"), detail))
        }
    }
}

/// Results come first, as the API wants them: templates have them follow their calls.
fn user(content: Blocks, at: &str, images: &Images) -> Result<Vec<Message>, ApiError> {
    let blocks = match content {
        Blocks::Text(text) => return Ok(vec![Message::text(Role::User, text)]),
        Blocks::List(blocks) => blocks,
    };
    if blocks.is_empty() {
        return Err(ApiError::value(at, "must hold at least one block"));
    }
    let (mut messages, mut parts) = (Vec::new(), Vec::new());
    for (i, block) in blocks.into_iter().enumerate() {
        let at = format!("{at}[{i}]");
        match block.kind.as_str() {
            "text" => parts.push(ContentPart::Text(text(block, &at)?)),
            "image" => parts.push(image(block, &at, images)?),
            "tool_result" => messages.push(result(block, &at, images)?),
            "tool_use" | "thinking" | "redacted_thinking" => return Err(misplaced(&block, &at)),
            _ => return Err(unsupported(&block, &at)),
        }
    }
    if let Some(content) = content_of(parts) {
        messages.push(Message { content: Some(content), ..Message::text(Role::User, "") });
    }
    Ok(messages)
}

fn assistant(content: Blocks, at: &str) -> Result<Message, ApiError> {
    let mut message = Message { content: None, ..Message::text(Role::Assistant, "") };
    let blocks = match content {
        Blocks::Text(text) => return Ok(Message::text(Role::Assistant, text)),
        Blocks::List(blocks) => blocks,
    };
    let (mut texts, mut thoughts) = (Vec::new(), Vec::new());
    for (i, block) in blocks.into_iter().enumerate() {
        let at = format!("{at}[{i}]");
        match block.kind.as_str() {
            "text" => texts.push(text(block, &at)?),
            "thinking" => thoughts.push(thinking(block, &at)?),
            // Only its maker can read it.
            "redacted_thinking" => only(&block, &["data"], &at)?,
            "tool_use" => message.tool_calls.push(call(block, &at)?),
            "tool_result" => return Err(misplaced(&block, &at)),
            _ => return Err(unsupported(&block, &at)),
        }
    }
    thoughts.retain(|thought| !thought.is_empty());
    message.reasoning_content = (!thoughts.is_empty()).then(|| thoughts.join("\n"));
    message.content = content_of(texts.into_iter().map(ContentPart::Text).collect());
    if message.content.is_none() && message.tool_calls.is_empty() {
        message.content = Some(Content::Text(String::new()));
    }
    Ok(message)
}

fn content_of(mut parts: Vec<ContentPart>) -> Option<Content> {
    match parts.as_mut_slice() {
        [] => None,
        [ContentPart::Text(text)] => Some(Content::Text(std::mem::take(text))),
        _ => Some(Content::Parts(parts)),
    }
}

/// Content that may be nothing but text.
fn texts(content: Blocks, at: &str) -> Result<Vec<String>, ApiError> {
    each_of(content, at, |block, at| match block.kind.as_str() {
        "text" => text(block, at),
        _ => Err(unsupported(&block, at)),
    })
}

/// What each block says.
fn each_of<T: From<String>>(
    content: Blocks,
    at: &str,
    one: impl Fn(Block, &str) -> Result<T, ApiError>,
) -> Result<Vec<T>, ApiError> {
    let blocks = match content {
        Blocks::Text(text) => return Ok(vec![text.into()]),
        Blocks::List(blocks) => blocks.into_iter().enumerate(),
    };
    blocks.map(|(i, block)| one(block, &format!("{at}[{i}]"))).collect()
}

fn text(block: Block, at: &str) -> Result<String, ApiError> {
    only(&block, &["text", "citations"], at)?;
    needed(block.text, at, "text")
}

fn image(block: Block, at: &str, images: &Images) -> Result<ContentPart, ApiError> {
    images.takes(at)?;
    only(&block, &["source"], at)?;
    let source = needed(block.source, at, "source")?;
    let at = format!("{at}.source");
    let BlockSource::Image(source) = source else {
        return Err(ApiError::InvalidType { param: at, detail: "expected an object".to_owned() });
    };
    let (url, other) = match needed(source.kind, &at, "type")?.as_str() {
        "base64" => (of_base64(&needed(source.data, &at, "data")?), ("url", source.url.is_some())),
        "url" => {
            let others = source.data.is_some() || source.media_type.is_some();
            (needed(source.url, &at, "url")?.into(), ("data", others))
        }
        kind => {
            let detail = format!("'{kind}' is not supported; use 'base64' or 'url'");
            return Err(ApiError::unsupported(format!("{at}.type"), detail));
        }
    };
    match other {
        (name, true) => Err(ApiError::UnknownParameter { param: format!("{at}.{name}") }),
        (_, false) => images.part(url, &at),
    }
}

fn thinking(block: Block, at: &str) -> Result<String, ApiError> {
    only(&block, &["thinking", "signature"], at)?;
    needed(block.thinking, at, "thinking")
}

fn call(block: Block, at: &str) -> Result<ToolCall, ApiError> {
    only(&block, &["id", "name", "input", "caller", "toolset_name"], at)?;
    let input = needed(block.input, at, "input")?;
    Ok(ToolCall {
        id: needed(block.id, at, "id")?,
        name: needed(block.name, at, "name")?,
        arguments: Value::Object(input).to_string(),
    })
}

fn result(block: Block, at: &str, images: &Images) -> Result<Message, ApiError> {
    only(&block, &["tool_use_id", "content", "is_error", "toolset_name"], at)?;
    let content = block.content.map(|content| outcome(content, &format!("{at}.content"), images));
    let content = Content::Parts(content.transpose()?.unwrap_or_default());
    let mut text = content.to_text();
    // No template has a place for it.
    if block.is_error == Some(true) && !text.starts_with("Error") {
        text.insert_str(0, "Error: ");
    }
    let images = content.images().cloned().map(ContentPart::Image);
    let parts: Vec<_> = [ContentPart::Text(text)].into_iter().chain(images).collect();
    let id = needed(block.tool_use_id, at, "tool_use_id")?;
    let message = Message::text(Role::Tool, "");
    Ok(Message { tool_call_id: Some(id), content: content_of(parts), ..message })
}

/// What a result says. A tool that was found is among the others from then on, so its name is enough.
fn outcome(content: Blocks, at: &str, images: &Images) -> Result<Vec<ContentPart>, ApiError> {
    each_of(content, at, |block, at| match block.kind.as_str() {
        "text" => text(block, at).map(ContentPart::Text),
        "image" => image(block, at, images),
        "tool_reference" => {
            only(&block, &["tool_name"], at)?;
            let name = needed(block.tool_name, at, "tool_name")?;
            Ok(ContentPart::Text(format!("The tool {name} can be called now.")))
        }
        _ => Err(unsupported(&block, at)),
    })
}

fn needed<T>(value: Option<T>, at: &str, name: &str) -> Result<T, ApiError> {
    value.ok_or_else(|| ApiError::MissingParameter { param: format!("{at}.{name}") })
}

/// Refuses fields of other kinds of blocks.
fn only(block: &Block, own: &[&str], at: &str) -> Result<(), ApiError> {
    let fields = [
        ("text", block.text.is_some()),
        ("thinking", block.thinking.is_some()),
        ("signature", block.signature.is_some()),
        ("data", block.data.is_some()),
        ("source", block.source.is_some()),
        ("id", block.id.is_some()),
        ("name", block.name.is_some()),
        ("input", block.input.is_some()),
        ("tool_use_id", block.tool_use_id.is_some()),
        ("content", block.content.is_some()),
        ("is_error", block.is_error.is_some()),
        ("citations", block.citations.is_some()),
        ("caller", block.caller.is_some()),
        ("toolset_name", block.toolset_name.is_some()),
        ("tool_name", block.tool_name.is_some()),
    ];
    match fields.iter().find(|(name, set)| *set && !own.contains(name)) {
        Some((name, _)) => Err(ApiError::UnknownParameter { param: format!("{at}.{name}") }),
        None => Ok(()),
    }
}

fn misplaced(block: &Block, at: &str) -> ApiError {
    let role = if block.kind == "tool_result" { "user" } else { "assistant" };
    ApiError::value(at, format!("'{}' blocks are only for {role} messages", block.kind))
}

fn unsupported(block: &Block, at: &str) -> ApiError {
    let kind = &block.kind;
    ApiError::unsupported(at, format!("'{kind}' blocks are not supported here"))
}
