//! Conversations and tools, as chat templates see them.

use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use std::sync::Arc;

/// Role of a message's author.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Instructions.
    System,
    /// Instructions, by the newer name.
    Developer,
    /// The person.
    User,
    /// The model.
    Assistant,
    /// A tool's result.
    Tool,
}

impl Role {
    /// The name that templates compare with.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::Developer => "developer",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
        }
    }
}

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    /// Role of the author.
    pub role: Role,
    /// What is said; templates see `""` for `None`, as with vLLM.
    pub content: Option<Content>,
    /// The speaker's name, for templates that show it.
    pub name: Option<String>,
    /// An assistant's reasoning before its reply.
    pub reasoning_content: Option<String>,
    /// Tools that an assistant called.
    pub tool_calls: Vec<ToolCall>,
    /// The call whose result a tool's message holds.
    pub tool_call_id: Option<String>,
}

impl Message {
    /// A message of text alone.
    #[must_use]
    pub fn text(role: Role, text: impl Into<String>) -> Self {
        Self {
            role,
            content: Some(Content::Text(text.into())),
            name: None,
            reasoning_content: None,
            tool_calls: Vec::new(),
            tool_call_id: None,
        }
    }
}

/// Content of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// A text.
    Text(String),
    /// Parts; joined by newlines for templates that take texts only.
    Parts(Vec<ContentPart>),
}

impl Content {
    /// URLs of the images, in order.
    pub fn images(&self) -> impl Iterator<Item = &Arc<str>> {
        let parts = match self {
            Self::Text(_) => &[],
            Self::Parts(parts) => parts.as_slice(),
        };
        parts.iter().filter_map(|part| match part {
            ContentPart::Image(url) => Some(url),
            ContentPart::Text(_) => None,
        })
    }

    /// All the text there is, parts joined by newlines; images are left out.
    #[must_use]
    pub fn to_text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Parts(parts) => {
                let texts: Vec<&str> = parts.iter().filter_map(ContentPart::text).collect();
                texts.join("\n")
            }
        }
    }
}

/// A part of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ContentPart {
    /// A text.
    Text(String),
    /// An image, by its URL. Templates are told where it stands, and not what it is.
    Image(Arc<str>),
}

impl From<String> for ContentPart {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl ContentPart {
    /// The text, if it is one.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Image(_) => None,
        }
    }
}

/// A tool call by the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCall {
    /// Identifies the call in the tool's result.
    pub id: String,
    /// Name of the tool.
    pub name: String,
    /// JSON text, as the model wrote it: it need not be valid.
    pub arguments: String,
}

/// A tool that the model may call.
#[derive(Debug, Clone, PartialEq)]
pub struct Tool {
    /// Name of the function.
    pub name: String,
    /// Description of the function, for the model.
    pub description: Option<String>,
    /// JSON schema of its arguments.
    pub parameters: Option<Value>,
    /// Whether the arguments must follow the schema.
    pub strict: Option<bool>,
}

/// As the OpenAI API writes a tool: `{"type": "function", "function": {..}}`.
impl Serialize for Tool {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut function = json!({ "name": self.name });
        if let Some(description) = &self.description {
            function["description"] = json!(description);
        }
        if let Some(parameters) = &self.parameters {
            function["parameters"] = parameters.clone();
        }
        if let Some(strict) = self.strict {
            function["strict"] = json!(strict);
        }
        json!({ "type": "function", "function": function }).serialize(serializer)
    }
}
