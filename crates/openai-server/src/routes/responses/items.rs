//! From items to the messages that templates take.

use super::tools::in_namespace;
use crate::{
    errors::ApiError,
    images::Images,
    messages::image_part,
    wire::{InputContent, InputItem, InputPart},
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use taper_chat::{Content, ContentPart, Message, Role, ToolCall};

/// The messages that items stand for. Reasoning, text and calls of one answer are items of their own,
/// and one message here.
#[derive(Debug)]
pub(super) struct Messages<'a> {
    all: Vec<Message>,
    images: &'a Images,
}

impl<'a> Messages<'a> {
    pub(super) fn new(images: &'a Images) -> Self {
        Self { all: Vec::new(), images }
    }

    /// A message in front of the items.
    pub(super) fn instruct(&mut self, instructions: String) {
        self.all.push(Message::text(Role::System, instructions));
    }

    pub(super) fn user(&mut self, text: String) {
        self.all.push(Message::text(Role::User, text));
    }

    /// Adds an item. `at` is the field that holds it.
    pub(super) fn add(&mut self, item: InputItem, at: &str) -> Result<(), ApiError> {
        match item.kind.as_deref().unwrap_or("message") {
            "message" => self.message(item, at),
            "reasoning" => self.reasoning(item, at),
            "function_call" => self.call(item, at),
            "function_call_output" => self.result(item, at),
            kind => {
                let detail = format!("'{kind}' items are not supported");
                Err(ApiError::unsupported(format!("{at}.type"), detail))
            }
        }
    }

    pub(super) fn finish(self) -> Vec<Message> {
        self.all
    }

    fn message(&mut self, item: InputItem, at: &str) -> Result<(), ApiError> {
        only(&item, &["role", "content"], at)?;
        let role = match needed(item.role, at, "role")?.as_str() {
            "user" => Role::User,
            "assistant" => Role::Assistant,
            "system" => Role::System,
            "developer" => Role::Developer,
            other => {
                let detail = format!("must be user, assistant, system or developer, got '{other}'");
                return Err(ApiError::value(format!("{at}.role"), detail));
            }
        };
        let content = needed(item.content, at, "content")?;
        let (kinds, at) = (["input_text", "output_text", "text"], field(at, "content"));
        if role != Role::Assistant {
            let content = said(parts(content, &kinds, &at, self.images)?)
                .ok_or_else(|| ApiError::value(at, "must hold at least one part"))?;
            self.all.push(Message { content: Some(content), ..Message::text(role, "") });
            return Ok(());
        }
        let text = texts(content, &kinds, &at)?.concat();
        self.amend(|answer| match &mut answer.content {
            Some(Content::Text(before)) => before.push_str(&text),
            content => *content = Some(Content::Text(text)),
        });
        Ok(())
    }

    fn reasoning(&mut self, item: InputItem, at: &str) -> Result<(), ApiError> {
        only(&item, &["content", "summary", "encrypted_content"], at)?;
        let content = match item.content {
            Some(content) => texts(content, &["reasoning_text"], &field(at, "content"))?,
            None => Vec::new(),
        };
        let summary = InputContent::Parts(item.summary.unwrap_or_default());
        let summary = texts(summary, &["summary_text"], &field(at, "summary"))?;
        // Only its maker can read what others have encrypted.
        let unsealed = item.encrypted_content.as_deref().and_then(unsealed);
        let text = match unsealed {
            _ if !content.is_empty() => content.concat(),
            Some(text) => text,
            None => summary.join("\n"),
        };
        if !text.is_empty() {
            // Reasoning begins an answer, even right behind another.
            if self
                .all
                .last()
                .is_some_and(|last| last.content.is_some() || !last.tool_calls.is_empty())
            {
                self.all.push(Message { content: None, ..Message::text(Role::Assistant, "") });
            }
            self.amend(|answer| answer.reasoning_content.get_or_insert_default().push_str(&text));
        }
        Ok(())
    }

    fn call(&mut self, item: InputItem, at: &str) -> Result<(), ApiError> {
        only(&item, &["call_id", "name", "arguments", "namespace"], at)?;
        let call = ToolCall {
            id: needed(item.call_id, at, "call_id")?,
            name: match item.namespace {
                Some(namespace) => in_namespace(&namespace, &needed(item.name, at, "name")?),
                None => needed(item.name, at, "name")?,
            },
            arguments: needed(item.arguments, at, "arguments")?,
        };
        self.amend(|answer| answer.tool_calls.push(call));
        Ok(())
    }

    fn result(&mut self, item: InputItem, at: &str) -> Result<(), ApiError> {
        only(&item, &["call_id", "output", "name", "namespace"], at)?;
        let output = needed(item.output, at, "output")?;
        let (kinds, at_output) = (["input_text", "output_text"], field(at, "output"));
        let parts = parts(output, &kinds, &at_output, self.images)?;
        let content = Content::Parts(parts);
        let sees = content.images().next().is_some();
        let content = if sees { content } else { Content::Text(content.to_text()) };
        let id = needed(item.call_id, at, "call_id")?;
        let message = Message::text(Role::Tool, "");
        self.all.push(Message { tool_call_id: Some(id), content: Some(content), ..message });
        Ok(())
    }

    /// Changes the answer that is being put together.
    fn amend(&mut self, change: impl FnOnce(&mut Message)) {
        let fresh = || Message { content: None, ..Message::text(Role::Assistant, "") };
        let mut answer = match self.all.pop() {
            Some(last) if last.role == Role::Assistant => last,
            other => {
                self.all.extend(other);
                fresh()
            }
        };
        change(&mut answer);
        self.all.push(answer);
    }
}

/// Reasoning as `encrypted_content` holds it. It is the caller's own, so nothing is hidden: it only has
/// to come back as it was.
pub(super) fn sealed(reasoning: &str) -> String {
    BASE64_STANDARD.encode(reasoning)
}

fn unsealed(sealed: &str) -> Option<String> {
    String::from_utf8(BASE64_STANDARD.decode(sealed).ok()?).ok()
}

fn field(at: &str, name: &str) -> String {
    format!("{at}.{name}")
}

/// The content that parts are; `None` of no part.
fn said(mut parts: Vec<ContentPart>) -> Option<Content> {
    match parts.as_mut_slice() {
        [] => None,
        [ContentPart::Text(text)] => Some(Content::Text(std::mem::take(text))),
        _ => Some(Content::Parts(parts)),
    }
}

/// Parts of these kinds, and images.
fn parts(
    content: InputContent,
    kinds: &[&str],
    at: &str,
    images: &Images,
) -> Result<Vec<ContentPart>, ApiError> {
    each(content, at, |part, at| match part.kind.as_str() {
        "input_image" => image(part, at, images),
        _ => text(part, kinds, at).map(ContentPart::Text),
    })
}

fn texts(content: InputContent, kinds: &[&str], at: &str) -> Result<Vec<String>, ApiError> {
    let parts = each(content, at, |part, at| text(part, kinds, at).map(ContentPart::Text))?;
    let text = |part| match part {
        ContentPart::Text(text) => Some(text),
        ContentPart::Image(_) => None,
    };
    Ok(parts.into_iter().filter_map(text).collect())
}

fn each(
    content: InputContent,
    at: &str,
    one: impl Fn(InputPart, &str) -> Result<ContentPart, ApiError>,
) -> Result<Vec<ContentPart>, ApiError> {
    let parts = match content {
        InputContent::Text(text) => return Ok(vec![ContentPart::Text(text)]),
        InputContent::Parts(parts) => parts.into_iter().enumerate(),
    };
    parts.map(|(i, part)| one(part, &format!("{at}[{i}]"))).collect()
}

fn text(part: InputPart, kinds: &[&str], at: &str) -> Result<String, ApiError> {
    if !kinds.contains(&part.kind.as_str()) {
        let detail = format!("'{}' parts are not supported here", part.kind);
        return Err(ApiError::unsupported(at, detail));
    }
    let others = [
        ("image_url", part.image_url.is_some()),
        ("detail", part.detail.is_some()),
        ("file_id", part.file_id.is_some()),
    ];
    match others.iter().find(|(_, set)| *set) {
        Some((name, _)) => Err(ApiError::UnknownParameter { param: field(at, name) }),
        None => needed(part.text, at, "text"),
    }
}

fn image(part: InputPart, at: &str, images: &Images) -> Result<ContentPart, ApiError> {
    images.takes(at)?;
    if part.file_id.is_some() {
        let detail = "there are no files on this server; use 'image_url'";
        return Err(ApiError::unsupported(field(at, "file_id"), detail));
    }
    if part.text.is_some() {
        return Err(ApiError::UnknownParameter { param: field(at, "text") });
    }
    image_part(needed(part.image_url, at, "image_url")?, part.detail, at, images)
}

fn needed<T>(value: Option<T>, at: &str, name: &str) -> Result<T, ApiError> {
    value.ok_or_else(|| ApiError::MissingParameter { param: field(at, name) })
}

/// Refuses fields of other kinds of items.
fn only(item: &InputItem, own: &[&str], at: &str) -> Result<(), ApiError> {
    let fields = [
        ("role", item.role.is_some()),
        ("content", item.content.is_some()),
        ("call_id", item.call_id.is_some()),
        ("name", item.name.is_some()),
        ("arguments", item.arguments.is_some()),
        ("output", item.output.is_some()),
        ("summary", item.summary.is_some()),
        ("encrypted_content", item.encrypted_content.is_some()),
        ("namespace", item.namespace.is_some()),
    ];
    match fields.iter().find(|(name, set)| *set && !own.contains(name)) {
        Some((name, _)) => Err(ApiError::UnknownParameter { param: field(at, name) }),
        None => Ok(()),
    }
}
