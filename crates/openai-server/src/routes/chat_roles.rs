//! Instructions in the middle of a conversation, and templates that take them at its head only.

use super::{chat_plan::Ask, chat_prompt::render};
use crate::{errors::ApiError, state::AppState};
use taper_chat::{ChatError, Content, ContentPart, Message, Role};

fn instructs(message: &Message) -> bool {
    matches!(message.role, Role::System | Role::Developer)
}

/// Puts instructions where the model's template takes them. Agents write several messages of them, and
/// in places where many templates have none.
pub(super) fn settle(state: &AppState, ask: &mut Ask) {
    if !ask.prompt.messages.iter().skip(1).any(instructs) {
        return;
    }
    let rendered = render(state, ask.prompt.clone(), &ask.tools.tools);
    // Whatever else is wrong is found again where the prompt is made.
    if matches!(rendered, Err(ApiError::Chat(ChatError::TemplateRaised { .. }))) {
        let messages = std::mem::take(&mut ask.prompt.messages);
        ask.prompt.messages = folded(messages);
    }
}

/// The conversation with one message of instructions at its head. Later ones become text of the user,
/// in the marks that Claude Code has for such text.
fn folded(messages: Vec<Message>) -> Vec<Message> {
    let mut all: Vec<Message> = Vec::new();
    for mut message in messages {
        let at_head = all.last().is_none_or(instructs);
        if instructs(&message) && !at_head {
            let text = message.content.as_ref().map(Content::to_text).unwrap_or_default();
            let text = format!("<system-reminder>\n{text}\n</system-reminder>");
            message = Message::text(Role::User, text);
        }
        match all.last_mut() {
            Some(last) if instructs(last) && instructs(&message) => append(last, message.content),
            Some(last) if last.role == Role::User && message.role == Role::User => {
                append(last, message.content);
            }
            _ => all.push(message),
        }
    }
    all
}

/// Adds content to that of a message.
pub(super) fn append(message: &mut Message, more: Option<Content>) {
    let parts = |content: Option<Content>| match content {
        None => Vec::new(),
        Some(Content::Text(text)) => vec![ContentPart::Text(text)],
        Some(Content::Parts(parts)) => parts,
    };
    let mut both = parts(message.content.take());
    both.extend(parts(more));
    message.content = (!both.is_empty()).then_some(Content::Parts(both));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_message_of_instructions_stays() {
        let given = [
            (Role::Developer, "a"),
            (Role::System, "b"),
            (Role::User, "c"),
            (Role::System, "d"),
            (Role::Assistant, "e"),
            (Role::Developer, "f"),
        ];
        let all = folded(given.map(|(role, text)| Message::text(role, text)).into());
        let all: Vec<_> =
            all.iter().map(|m| (m.role, m.content.as_ref().unwrap().to_text())).collect();
        let expected = [
            (Role::Developer, "a\nb"),
            (Role::User, "c\n<system-reminder>\nd\n</system-reminder>"),
            (Role::Assistant, "e"),
            (Role::User, "<system-reminder>\nf\n</system-reminder>"),
        ];
        assert_eq!(all, expected.map(|(role, text)| (role, text.to_owned())));
    }
}
