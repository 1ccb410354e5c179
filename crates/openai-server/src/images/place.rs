//! Where images stand in a prompt: the placeholder that a template writes for each.

use super::source::invalid;
use crate::errors::ApiError;
use serde_json::Value;
use taper_base::{PreparedImage, TokenId, expand_images};
use taper_chat::{Content, ContentPart, Message, Tokenizer, Tool};

/// Stands in texts behind the first letter of what reads like a placeholder and is none.
const APART: char = '\u{200b}';

/// What a template writes for an image.
#[derive(Debug, Clone)]
pub(crate) struct Placeholder {
    token: TokenId,
    text: String,
}

impl Placeholder {
    pub(super) fn new(token: TokenId, tokenizer: &Tokenizer) -> Self {
        Self { token, text: tokenizer.token_text(token) }
    }

    /// Refuses a prompt that has not as many placeholders as there are images.
    pub(super) fn check(&self, prompt: &[TokenId], images: usize) -> Result<(), ApiError> {
        let shown = prompt.iter().filter(|&&token| token == self.token).count();
        match shown == images {
            true => Ok(()),
            false => Err(invalid(format!(
                "the chat template of this model shows {shown} of {images} images; images belong in messages of the user"
            ))),
        }
    }

    /// The prompt with each image's tokens in place of its placeholder, and where each begins.
    pub(super) fn expand(
        &self,
        prompt: &[TokenId],
        images: &[Expansion],
    ) -> Result<(Vec<TokenId>, Vec<usize>), ApiError> {
        let tokens: Vec<_> = images.iter().map(|image| image.tokens.as_slice()).collect();
        expand_images(prompt, self.token, &tokens).ok_or(ApiError::Internal)
    }

    /// Keeps a text from reading like a placeholder.
    fn keep_apart(&self, text: &mut String) {
        let Some(first) = self.text.chars().next() else { return };
        if text.contains(&self.text) {
            let rest = &self.text[first.len_utf8()..];
            *text = text.replace(&self.text, &format!("{first}{APART}{rest}"));
        }
    }

    fn keep_value_apart(&self, value: &mut Value) {
        match value {
            Value::String(text) => self.keep_apart(text),
            Value::Array(values) => values.iter_mut().for_each(|v| self.keep_value_apart(v)),
            Value::Object(fields) => fields.values_mut().for_each(|v| self.keep_value_apart(v)),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
}

/// What stands for an image in a prompt.
#[derive(Debug, Clone)]
pub(super) struct Expansion {
    pub(super) tokens: Vec<TokenId>,
    pub(super) image_token: TokenId,
    pub(super) hash: [u8; 32],
    pub(super) grid: Option<[u32; 3]>,
}

impl From<&PreparedImage> for Expansion {
    fn from(image: &PreparedImage) -> Self {
        let PreparedImage { expansion, image_token, hash, grid, .. } = image;
        let tokens = expansion.clone();
        Self { tokens, image_token: *image_token, hash: *hash, grid: *grid }
    }
}

/// Keeps what a request says, in any of its texts, from reading like a placeholder.
pub(crate) fn keep_apart<'a>(
    placeholder: &Placeholder,
    messages: &mut [Message],
    tools: &mut [Tool],
    others: impl Iterator<Item = &'a mut Value>,
) {
    let apart = |text: &mut String| placeholder.keep_apart(text);
    for message in messages {
        match &mut message.content {
            Some(Content::Text(text)) => apart(text),
            Some(Content::Parts(parts)) => parts.iter_mut().for_each(|part| match part {
                ContentPart::Text(text) => apart(text),
                ContentPart::Image(_) => {}
            }),
            None => {}
        }
        let Message { name, reasoning_content, tool_call_id, .. } = message;
        [name, reasoning_content, tool_call_id].into_iter().flatten().for_each(apart);
        for call in &mut message.tool_calls {
            [&mut call.id, &mut call.name, &mut call.arguments].into_iter().for_each(apart);
        }
    }
    for tool in tools {
        tool.description.iter_mut().for_each(apart);
        tool.parameters.iter_mut().for_each(|value| placeholder.keep_value_apart(value));
    }
    others.for_each(|value| placeholder.keep_value_apart(value));
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use taper_chat::Role;

    fn placeholder() -> Placeholder {
        Placeholder { token: 9, text: "<|image|>".to_owned() }
    }

    #[test]
    fn there_are_as_many_placeholders_as_images() {
        for prompt in [&[1, 2][..], &[9], &[9, 9, 9]] {
            assert!(placeholder().check(prompt, 2).is_err());
        }
        placeholder().check(&[1, 9, 2, 9], 2).unwrap();
        placeholder().check(&[1], 0).unwrap();
    }

    #[test]
    fn no_text_of_a_request_reads_like_a_placeholder() {
        let text = || "a <|image|> b".to_owned();
        let mut message = Message::text(Role::User, text());
        message.content =
            Some(Content::Parts(vec![ContentPart::Text(text()), ContentPart::Image("x".into())]));
        message.name = Some(text());
        message.reasoning_content = Some(text());
        let call = taper_chat::ToolCall { id: text(), name: text(), arguments: text() };
        message.tool_calls = vec![call];
        let tool = Tool {
            name: "f".to_owned(),
            description: Some(text()),
            parameters: Some(json!({ "a": [text()] })),
            strict: None,
        };
        let mut value = json!({ "b": { "c": text() } });
        let (mut messages, mut tools) = ([message, Message::text(Role::User, text())], [tool]);
        keep_apart(&placeholder(), &mut messages, &mut tools, [&mut value].into_iter());
        let all = format!("{messages:?} {tools:?} {value}");
        assert!(!all.contains("<|image|>"), "{all}");
        assert_eq!(all.matches("image|> b").count(), 9, "{all}");
    }
}
