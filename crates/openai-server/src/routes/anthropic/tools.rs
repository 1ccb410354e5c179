//! The tools of a request of Anthropic's, and the choice among them.

use super::conversation::Found;
use crate::{
    errors::ApiError,
    routes::chat_plan::{ByName, Chosen},
    wire::{AnthropicChoice, AnthropicTool},
};
use serde_json::Value;
use std::collections::HashSet;
use taper_chat::Tool;

/// The tools of a request, and the choice among them. A deferred one is there once a result of the client's
/// search has found it, or if the choice is for it.
pub(super) fn chosen(
    wire: Vec<AnthropicTool>,
    choice: Option<&AnthropicChoice>,
    found: &[Found<'_>],
) -> Result<Chosen, ApiError> {
    let kind = choice.map_or("auto", |choice| choice.kind.as_str());
    let name = choice.and_then(|choice| choice.name.as_deref());
    let tools = loaded(wire, name, found)?;
    if name.is_some() && kind != "tool" {
        return Err(ApiError::value("tool_choice.name", "is only allowed with the type 'tool'"));
    }
    if tools.is_empty() && matches!(kind, "any" | "tool") {
        return Err(ApiError::value("tool_choice", "is only allowed with 'tools'"));
    }
    let all = |tools: Vec<Tool>, required| Chosen { callable: tools.clone(), tools, required };
    match (kind, name) {
        ("auto", _) => Ok(all(tools, false)),
        ("any", _) => Ok(all(tools, true)),
        ("none", _) => Ok(Chosen::default()),
        ("tool", Some(name)) => {
            let callable = vec![ByName::of(&tools).get(name, "tool_choice.name")?];
            Ok(Chosen { tools, callable, required: true })
        }
        ("tool", None) => Err(ApiError::MissingParameter { param: "tool_choice.name".to_owned() }),
        (other, _) => {
            let detail = format!("must be 'auto', 'any', 'tool' or 'none', got '{other}'");
            Err(ApiError::value("tool_choice.type", detail))
        }
    }
}

/// The tools that the model is told of.
fn loaded(
    wire: Vec<AnthropicTool>,
    chosen: Option<&str>,
    found: &[Found<'_>],
) -> Result<Vec<Tool>, ApiError> {
    let names: HashSet<_> = wire.iter().filter_map(|tool| tool.name.clone()).collect();
    for Found { name, at } in found {
        if !names.contains(*name) {
            return Err(ApiError::value(at, format!("there is no tool '{name}' in 'tools'")));
        }
    }
    let deferred = |tool: &AnthropicTool| tool.defer_loading == Some(true);
    if !wire.is_empty() && wire.iter().all(deferred) {
        let detail = "must hold a tool that is not deferred: none could find the others";
        return Err(ApiError::value("tools", detail));
    }
    let wanted: HashSet<_> = found.iter().map(|found| found.name).chain(chosen).collect();
    let mut tools = Vec::new();
    for (i, tool) in wire.into_iter().enumerate() {
        let is_there =
            !deferred(&tool) || tool.name.as_deref().is_some_and(|name| wanted.contains(name));
        let tool = converted(tool, &format!("tools[{i}]"))?;
        if is_there {
            tools.push(tool);
        }
    }
    Ok(tools)
}

fn converted(wire: AnthropicTool, at: &str) -> Result<Tool, ApiError> {
    if let Some(kind) = wire.kind.filter(|kind| kind != "custom") {
        let detail =
            format!("'{kind}' tools are not supported; only those with an 'input_schema' are");
        return Err(ApiError::unsupported(format!("{at}.type"), detail));
    }
    let missing = |name: &str| ApiError::MissingParameter { param: format!("{at}.{name}") };
    let refused =
        |name: &str, detail: &str| Err(ApiError::unsupported(format!("{at}.{name}"), detail));
    if wire.allowed_callers.iter().flatten().any(|caller| caller != "direct") {
        return refused("allowed_callers", "only 'direct' is supported");
    }
    if wire.input_examples.is_some_and(|examples| !examples.is_empty()) {
        return refused("input_examples", "is not supported; put examples into the description");
    }
    let name = wire.name.ok_or_else(|| missing("name"))?;
    if name.is_empty() {
        return Err(ApiError::value(format!("{at}.name"), "must not be empty"));
    }
    Ok(Tool {
        name,
        description: wire.description,
        parameters: Some(Value::Object(wire.input_schema.ok_or_else(|| missing("input_schema"))?)),
        strict: wire.strict,
    })
}
