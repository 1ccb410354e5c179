//! From wire messages and tools to those that templates take, with every check on the way.

use crate::{
    decode::either,
    errors::ApiError,
    images::{Images, checked_detail},
    wire::{
        ImageObject, ImageUrl, WireCalled, WireContent, WireMessage, WirePart, WireRole, WireTool,
    },
};
use taper_chat::{Content, ContentPart, Message, Role, Tool, ToolCall};

/// Checks and converts a conversation.
pub(crate) fn messages(wire: Vec<WireMessage>, images: &Images) -> Result<Vec<Message>, ApiError> {
    if wire.is_empty() {
        return Err(ApiError::value("messages", "must hold at least one message"));
    }
    let mut legacy = LegacyCalls(0);
    let one = |(i, m)| message(m, &format!("messages[{i}]"), &mut legacy, images);
    wire.into_iter().enumerate().map(one).collect()
}

/// Numbers calls from before calls had identifiers; the result of one follows it.
struct LegacyCalls(usize);

impl LegacyCalls {
    /// Nine letters and digits: some templates want just that.
    fn id(&self) -> String {
        format!("call{:05}", self.0 % 100_000)
    }

    fn call(&mut self, called: WireCalled) -> ToolCall {
        self.0 += 1;
        ToolCall { id: self.id(), name: called.name, arguments: called.arguments }
    }
}

fn message(
    wire: WireMessage,
    at: &str,
    legacy: &mut LegacyCalls,
    images: &Images,
) -> Result<Message, ApiError> {
    let field = |name: &str| format!("{at}.{name}");
    let assistant = wire.role == WireRole::Assistant;
    let only = |name, who| Err(ApiError::value(field(name), format!("is only for {who} messages")));
    let unsupported = |name| Err(ApiError::unsupported(field(name), "is not supported"));
    if wire.refusal.is_some() {
        return unsupported("refusal");
    }
    if wire.audio.is_some() {
        return unsupported("audio");
    }
    if wire.annotations.is_some_and(|a| !a.is_empty()) {
        return unsupported("annotations");
    }
    if !assistant && wire.tool_calls.is_some() {
        return only("tool_calls", "assistant");
    }
    if !assistant && wire.function_call.is_some() {
        return only("function_call", "assistant");
    }
    let (name, other) = (field("reasoning_content"), field("reasoning"));
    let reasoning = either((&name, wire.reasoning_content), (&other, wire.reasoning))?;
    if !assistant && reasoning.is_some() {
        return only("reasoning_content", "assistant");
    }
    match (wire.role, &wire.tool_call_id) {
        (WireRole::Tool, None) => {
            return Err(ApiError::MissingParameter { param: field("tool_call_id") });
        }
        (WireRole::Tool, Some(_)) | (_, None) => {}
        (_, Some(_)) => return only("tool_call_id", "tool"),
    }
    let mut tool_calls = Vec::new();
    for (i, call) in wire.tool_calls.into_iter().flatten().enumerate() {
        if call.kind.as_deref().is_some_and(|kind| kind != "function") {
            let param = field(&format!("tool_calls[{i}].type"));
            return Err(ApiError::unsupported(param, "only 'function' is supported"));
        }
        let (name, arguments) = (call.function.name, call.function.arguments);
        tool_calls.push(ToolCall { id: call.id, name, arguments });
    }
    tool_calls.extend(wire.function_call.map(|called| legacy.call(called)));
    let function = wire.role == WireRole::Function;
    let content = match wire.content {
        Some(content) => Some(convert(content, &field("content"), images)?),
        None if assistant && (!tool_calls.is_empty() || reasoning.is_some()) => None,
        None => return Err(ApiError::MissingParameter { param: field("content") }),
    };
    Ok(Message {
        role: match wire.role {
            WireRole::System => Role::System,
            WireRole::Developer => Role::Developer,
            WireRole::User => Role::User,
            WireRole::Assistant => Role::Assistant,
            WireRole::Tool | WireRole::Function => Role::Tool,
        },
        content,
        name: wire.name,
        reasoning_content: reasoning,
        tool_calls,
        tool_call_id: wire.tool_call_id.or_else(|| function.then(|| legacy.id())),
    })
}

fn convert(content: WireContent, at: &str, images: &Images) -> Result<Content, ApiError> {
    let parts = match content {
        WireContent::Text(text) => return Ok(Content::Text(text)),
        WireContent::Parts(parts) => parts,
    };
    if parts.is_empty() {
        return Err(ApiError::value(at, "must hold at least one part"));
    }
    let mut all = Vec::with_capacity(parts.len());
    for (i, own) in parts.into_iter().enumerate() {
        let at = format!("{at}[{i}]");
        match own.kind == "video_url" {
            true => all.extend(video_parts(own, &at, images)?),
            false => all.push(part(own, &at, images)?),
        }
    }
    Ok(Content::Parts(all))
}

/// A video, which is several parts to templates.
fn video_parts(part: WirePart, at: &str, images: &Images) -> Result<Vec<ContentPart>, ApiError> {
    images.takes(at)?;
    let others = [
        ("refusal", part.refusal.is_some()),
        ("image_url", part.image_url.is_some()),
        ("text", part.text.is_some()),
        ("input_audio", part.input_audio.is_some()),
        ("audio_url", part.audio_url.is_some()),
        ("file", part.file.is_some()),
    ];
    if let Some((name, _)) = others.iter().find(|(_, set)| *set) {
        return Err(ApiError::UnknownParameter { param: format!("{at}.{name}") });
    }
    let at = format!("{at}.video_url");
    let Some(video) = part.video_url else {
        return Err(ApiError::MissingParameter { param: at });
    };
    images.video(&video.url, video.fps, &at)
}

fn part(part: WirePart, at: &str, images: &Images) -> Result<ContentPart, ApiError> {
    let image = part.kind == "image_url";
    match part.kind.as_str() {
        "text" | "image_url" => {}
        kind @ ("input_audio" | "audio_url" | "file" | "refusal") => {
            let detail = format!("'{kind}' parts are not supported");
            return Err(ApiError::unsupported(at, detail));
        }
        kind => {
            let detail = format!("there are no '{kind}' parts");
            return Err(ApiError::value(format!("{at}.type"), detail));
        }
    }
    let others = [
        ("refusal", part.refusal.is_some()),
        ("image_url", part.image_url.is_some() && !image),
        ("text", part.text.is_some() && image),
        ("input_audio", part.input_audio.is_some()),
        ("video_url", part.video_url.is_some()),
        ("audio_url", part.audio_url.is_some()),
        ("file", part.file.is_some()),
    ];
    if let Some((name, _)) = others.iter().find(|(_, set)| *set) {
        return Err(ApiError::UnknownParameter { param: format!("{at}.{name}") });
    }
    let missing = |name| ApiError::MissingParameter { param: format!("{at}.{name}") };
    if image {
        images.takes(at)?;
        let url = part.image_url.ok_or_else(|| missing("image_url"))?;
        return image_part(url, None, &format!("{at}.image_url"), images);
    }
    Ok(ContentPart::Text(part.text.ok_or_else(|| missing("text"))?))
}

/// An image by its URL; `detail` stands beside it, or in it.
pub(crate) fn image_part(
    image: ImageUrl,
    detail: Option<String>,
    at: &str,
    images: &Images,
) -> Result<ContentPart, ApiError> {
    let (url, own) = match image {
        ImageUrl::Url(url) => (url, None),
        ImageUrl::Object(ImageObject { url, detail, .. }) => (url, detail),
    };
    checked_detail(own.or(detail).as_deref(), at)?;
    images.part(url.into(), at)
}

/// Checks and converts the tools.
pub(crate) fn tools(wire: Vec<WireTool>) -> Result<Vec<Tool>, ApiError> {
    let convert = |(i, tool): (usize, WireTool)| {
        let at = format!("tools[{i}]");
        if tool.kind != "function" {
            let detail = format!("'{}' tools are not supported; only 'function' is", tool.kind);
            return Err(ApiError::unsupported(format!("{at}.type"), detail));
        }
        let Some(function) = tool.function else {
            return Err(ApiError::MissingParameter { param: format!("{at}.function") });
        };
        if function.name.is_empty() {
            return Err(ApiError::value(format!("{at}.function.name"), "must not be empty"));
        }
        Ok(Tool {
            name: function.name,
            description: function.description,
            parameters: function.parameters.map(Into::into),
            strict: function.strict,
        })
    };
    wire.into_iter().enumerate().map(convert).collect()
}
