//! Probe conversations: what a template takes, and whether it renders anything at all.
//!
//! A probe is an invented conversation, which a working template may well refuse or break on. So a
//! probe only teaches how to write a conversation; what a template cannot do is the error of the
//! request that asks for it.

use super::{Inner, Named, TemplateRequest};
use crate::{ChatError, Content, ContentPart, Message, Role, Tool, ToolCall};
use serde_json::{Map, json};
use std::path::Path;

/// What a template takes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Traits {
    /// Content must be a list of parts.
    pub(super) typed_content: bool,
    /// Whose content may be a list of parts.
    pub(super) parts: PartsOf,
    /// The arguments of a call must be text.
    pub(super) text_arguments: bool,
    /// Ids of calls must have nine characters.
    pub(super) nine_character_ids: bool,
    /// Tools appear in the prompt.
    pub(super) shows_tools: bool,
    /// It speaks of the role "developer".
    pub(super) knows_developer: bool,
}

/// The roles whose content a template goes through part by part.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct PartsOf {
    system: bool,
    user: bool,
    assistant: bool,
    tool: bool,
}

impl PartsOf {
    pub(super) fn role(self, role: Role) -> bool {
        match role {
            Role::System | Role::Developer => self.system,
            Role::User => self.user,
            Role::Assistant => self.assistant,
            Role::Tool => self.tool,
        }
    }

    fn role_mut(&mut self, role: Role) -> &mut bool {
        match role {
            Role::System | Role::Developer => &mut self.system,
            Role::User => &mut self.user,
            Role::Assistant => &mut self.assistant,
            Role::Tool => &mut self.tool,
        }
    }
}

/// Stand in the probes' texts, to be found in the prompts.
const MARK: &str = "probe-7Q";
const SECOND_MARK: &str = "probe-8Q";
const TOOL: &str = "probe_tool_7q";

/// What is rendered, and by which template.
struct Prober<'a> {
    inner: &'a Inner,
    named: &'a Named,
}

impl Prober<'_> {
    fn run(
        &self,
        traits: &Traits,
        messages: &[Message],
        tools: &[Tool],
    ) -> Result<String, ChatError> {
        let request = TemplateRequest {
            messages,
            tools,
            // A conversation that the assistant ended is finished.
            add_generation_prompt: messages.last().is_none_or(|m| m.role != Role::Assistant),
            continue_final_message: false,
            kwargs: &Map::new(),
        };
        self.inner.render(self.named, traits, &request, None)
    }
}

/// Learns what a template takes.
///
/// # Errors
/// The template breaks on a plain chat, and on every other conversation too.
pub(super) fn probe(inner: &Inner, named: &Named, file: &Path) -> Result<Traits, ChatError> {
    let prober = Prober { inner, named };
    let mut traits =
        Traits { knows_developer: named.source.contains("developer"), ..Traits::default() };
    let user = Message::text(Role::User, MARK);
    // A template of its own for tools never sees a request without.
    let tools = if named.name == super::TOOL_USE { vec![tool()] } else { Vec::new() };

    let plain = std::slice::from_ref(&user);
    let shows_mark = |traits: &Traits| {
        prober.run(traits, plain, &tools).is_ok_and(|prompt| prompt.contains(MARK))
    };
    let typed = Traits { typed_content: true, ..traits };
    if !shows_mark(&traits) && shows_mark(&typed) {
        traits = typed;
    }
    settle_calls(&prober, &mut traits);
    if named.name != super::TOOL_USE {
        renders_something(&prober, &traits, file)?;
    }
    for role in [Role::System, Role::User, Role::Assistant, Role::Tool] {
        *traits.parts.role_mut(role) = takes_parts(&prober, &traits, role, &tools);
    }
    let system = Message::text(Role::System, "Be brief.");
    traits.shows_tools = [vec![user.clone()], vec![system, user]].iter().any(|messages| {
        prober.run(&traits, messages, &[tool()]).is_ok_and(|prompt| prompt.contains(TOOL))
    });
    Ok(traits)
}

/// A template that breaks on whatever it gets is broken. To refuse by `raise_exception` is to work.
fn renders_something(prober: &Prober<'_>, traits: &Traits, file: &Path) -> Result<(), ChatError> {
    let works = |result: &Result<String, ChatError>| {
        matches!(result, Ok(_) | Err(ChatError::TemplateRaised { .. }))
    };
    let user = Message::text(Role::User, MARK);
    let plain = prober.run(traits, std::slice::from_ref(&user), &[]);
    if works(&plain) {
        return Ok(());
    }
    let system = Message::text(Role::System, "Be brief.");
    let turns = vec![
        user.clone(),
        Message::text(Role::Assistant, "Yes?"),
        Message::text(Role::User, "No."),
    ];
    let conversations = [
        (vec![system.clone(), user.clone()], vec![]),
        (turns, vec![]),
        (vec![user.clone()], vec![tool()]),
        (vec![system, user], vec![tool()]),
        (called_tool(), vec![tool()]),
    ];
    if conversations.iter().any(|(messages, tools)| works(&prober.run(traits, messages, tools))) {
        return Ok(());
    }
    plain.map(drop).map_err(|error| match error {
        ChatError::Render { source, .. }
        | ChatError::TemplateOutOfFuel { source, .. }
        | ChatError::TemplateOutOfMemory { source, .. } => ChatError::BrokenTemplate {
            file: file.to_owned(),
            line: source.line().unwrap_or(0),
            while_doing: "one user message",
            reason: super::env::reason(&source),
            source,
        },
        other => other,
    })
}

/// Whether a role's parts appear in the prompt as texts, not as a list's brackets and quotes.
fn takes_parts(prober: &Prober<'_>, traits: &Traits, role: Role, tools: &[Tool]) -> bool {
    let texts = [MARK, SECOND_MARK].map(|text| ContentPart::Text(text.to_owned()));
    let parts = Content::Parts(texts.to_vec());
    let text = |role: Role| Message::text(role, "Hm.");
    let mut messages = match role {
        Role::System | Role::Developer => vec![text(role), text(Role::User)],
        Role::User => vec![text(role)],
        Role::Assistant => vec![text(Role::User), text(role), text(Role::User)],
        Role::Tool => called_tool(),
    };
    let calls_tool = [tool()];
    let tools = if role == Role::Tool { &calls_tool } else { tools };
    for message in messages.iter_mut().filter(|m| m.role == role) {
        message.content = Some(parts.clone());
    }
    let mut all = *traits;
    *all.parts.role_mut(role) = true;
    let shown = prober.run(&all, &messages, tools).unwrap_or_default();
    // A list that is written as such has its keys beside the texts.
    let quoted = [
        format!("'text': '{MARK}'"),
        format!("\"text\": \"{MARK}\""),
        format!("\"text\":\"{MARK}\""),
    ];
    shown.contains(MARK)
        && shown.contains(SECOND_MARK)
        && !quoted.iter().any(|text| shown.contains(text))
}

fn tool() -> Tool {
    Tool {
        name: TOOL.to_owned(),
        description: Some("Looks something up.".to_owned()),
        parameters: Some(json!({
            "type": "object",
            "properties": { "query": { "type": "string", "description": "What to look up." } },
            "required": ["query"],
        })),
        strict: None,
    }
}

/// A question, a call, the tool's result.
fn called_tool() -> Vec<Message> {
    let id = "call_0123456789abcdefABCDEF00".to_owned();
    let arguments = r#"{"query": "x"}"#.to_owned();
    let mut call = Message::text(Role::Assistant, "");
    call.tool_calls = vec![ToolCall { id: id.clone(), name: TOOL.to_owned(), arguments }];
    let mut answer = Message::text(Role::Tool, "Found it.");
    answer.name = Some(TOOL.to_owned());
    answer.tool_call_id = Some(id);
    vec![Message::text(Role::User, MARK), call, answer]
}

/// Finds a way of writing calls that the template takes; a mapping and whole ids where none is.
fn settle_calls(prober: &Prober<'_>, traits: &mut Traits) {
    for nine_character_ids in [false, true] {
        for text_arguments in [false, true] {
            let candidate = Traits { text_arguments, nine_character_ids, ..*traits };
            if prober.run(&candidate, &called_tool(), &[tool()]).is_ok() {
                *traits = candidate;
                return;
            }
        }
    }
}
