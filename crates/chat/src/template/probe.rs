//! Probe conversations: what a template takes, and whether it works at all.

use super::{Inner, Named, TemplateRequest};
use crate::{ChatError, Message, Role, Tool, ToolCall};
use serde_json::{Map, Value, json};
use std::path::Path;

/// What a template takes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Traits {
    /// Content must be a list of parts.
    pub(super) typed_content: bool,
    /// The arguments of a call must be text.
    pub(super) text_arguments: bool,
    /// Ids of calls must have nine characters.
    pub(super) nine_character_ids: bool,
    /// Tools appear in the prompt.
    pub(super) shows_tools: bool,
    /// It speaks of the role "developer".
    pub(super) knows_developer: bool,
}

/// Stands in the probes' texts, to be found in the prompts.
const MARK: &str = "probe-7Q";
const TOOL: &str = "probe_tool_7q";

/// A conversation to try.
struct Probe {
    what: &'static str,
    messages: Vec<Message>,
    tools: Vec<Tool>,
    add_generation_prompt: bool,
    kwargs: Map<String, Value>,
}

impl Probe {
    fn new(what: &'static str, messages: &[Message], tools: &[Tool]) -> Self {
        Self {
            what,
            messages: messages.to_vec(),
            tools: tools.to_vec(),
            add_generation_prompt: true,
            kwargs: Map::new(),
        }
    }

    fn run(&self, inner: &Inner, named: &Named, traits: &Traits) -> Result<String, ChatError> {
        let request = TemplateRequest {
            messages: &self.messages,
            tools: &self.tools,
            add_generation_prompt: self.add_generation_prompt,
            continue_final_message: false,
            kwargs: &self.kwargs,
        };
        inner.render(named, traits, &request, None)
    }

    /// A template may refuse a probe by `raise_exception`; it may not break.
    fn check(
        &self,
        inner: &Inner,
        named: &Named,
        traits: &Traits,
        file: &Path,
    ) -> Result<Option<String>, ChatError> {
        match self.run(inner, named, traits) {
            Ok(prompt) => Ok(Some(prompt)),
            Err(ChatError::TemplateRaised { .. }) => Ok(None),
            Err(ChatError::Render { source, .. } | ChatError::TemplateOutOfFuel { source, .. }) => {
                Err(ChatError::BrokenTemplate {
                    file: file.to_owned(),
                    line: source.line().unwrap_or(0),
                    while_doing: self.what,
                    reason: super::env::reason(&source),
                    source,
                })
            }
            Err(other) => Err(other),
        }
    }
}

/// Renders every probe.
pub(super) fn probe(inner: &Inner, named: &Named, file: &Path) -> Result<Traits, ChatError> {
    let system = Message::text(Role::System, "Be brief.");
    let user = Message::text(Role::User, MARK);
    let assistant = Message::text(Role::Assistant, "Yes?");
    let tools = [tool()];
    // A template of its own for tools never sees a request without.
    let some: &[Tool] = if named.name == super::TOOL_USE { &tools } else { &[] };
    let mut traits =
        Traits { knows_developer: named.source.contains("developer"), ..Traits::default() };

    let plain = Probe::new("one user message", std::slice::from_ref(&user), some);
    let shows_mark =
        |traits: &Traits| plain.run(inner, named, traits).is_ok_and(|prompt| prompt.contains(MARK));
    let typed = Traits { typed_content: true, ..traits };
    if !shows_mark(&traits) && shows_mark(&typed) {
        traits = typed;
    }
    plain.check(inner, named, &traits, file)?;

    let mut probes = vec![
        Probe::new("a system message", &[system.clone(), user.clone()], some),
        Probe::new("two turns", &[user.clone(), assistant.clone(), user.clone()], some),
    ];
    let mut finished = Probe::new("a finished turn", &[user.clone(), assistant], some);
    finished.add_generation_prompt = false;
    probes.push(finished);
    for (what, enable) in [("enable_thinking on", true), ("enable_thinking off", false)] {
        let mut thinking = Probe::new(what, std::slice::from_ref(&user), some);
        thinking.kwargs.insert("enable_thinking".to_owned(), enable.into());
        probes.push(thinking);
    }
    for probe in &probes {
        probe.check(inner, named, &traits, file)?;
    }

    for messages in [vec![user.clone()], vec![system, user.clone()]] {
        let with_tools = Probe::new("tools", &messages, &tools);
        let prompt = with_tools.check(inner, named, &traits, file)?;
        traits.shows_tools |= prompt.is_some_and(|prompt| prompt.contains(TOOL));
    }
    let round_trip = Probe::new("a tool's round trip", &called_tool(&user), &tools);
    settle_calls(&round_trip, inner, named, &mut traits, file)?;
    Ok(traits)
}

/// A tool with the kinds of members that schemas have.
fn tool() -> Tool {
    Tool {
        name: TOOL.to_owned(),
        description: Some("Looks something up.".to_owned()),
        parameters: Some(json!({
            "type": "object",
            "properties": {
                "query": { "type": "string", "description": "What to look up." },
                "kinds": { "type": "array", "items": { "type": "string" } },
                "limit": { "type": ["integer", "null"], "enum": [1, 2] },
            },
            "required": ["query"],
        })),
        strict: None,
    }
}

/// A question, a call, the tool's answer.
fn called_tool(user: &Message) -> Vec<Message> {
    let id = "call_0123456789abcdefABCDEF00".to_owned();
    let arguments = r#"{"query": "x", "limit": 1}"#.to_owned();
    let mut call = Message::text(Role::Assistant, "");
    call.tool_calls = vec![ToolCall { id: id.clone(), name: TOOL.to_owned(), arguments }];
    let mut answer = Message::text(Role::Tool, "Found it.");
    answer.name = Some(TOOL.to_owned());
    answer.tool_call_id = Some(id);
    vec![user.clone(), call, answer]
}

/// Finds a way of writing calls that the template takes. Refusing all of them is allowed.
fn settle_calls(
    probe: &Probe,
    inner: &Inner,
    named: &Named,
    traits: &mut Traits,
    file: &Path,
) -> Result<(), ChatError> {
    let (mut refused, mut first_error) = (false, None);
    for nine_character_ids in [false, true] {
        for text_arguments in [false, true] {
            let candidate = Traits { text_arguments, nine_character_ids, ..*traits };
            match probe.check(inner, named, &candidate, file) {
                Ok(Some(_)) => {
                    *traits = candidate;
                    return Ok(());
                }
                Ok(None) => refused = true,
                Err(error) => {
                    first_error.get_or_insert(error);
                }
            }
        }
    }
    first_error.filter(|_| !refused).map_or(Ok(()), Err)
}
