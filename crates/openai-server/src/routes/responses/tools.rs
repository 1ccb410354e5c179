//! The tools of a response, and the choice among them.

use crate::{
    errors::ApiError,
    routes::chat_plan::{Chosen, tool_named},
    wire::{ResponseTool, ResponseToolChoice, ResponseToolChosen},
};
use serde_json::Value;
use taper_chat::Tool;

pub(super) fn chosen(
    tools: Vec<ResponseTool>,
    choice: Option<ResponseToolChoice>,
) -> Result<Chosen, ApiError> {
    let one = |(i, tool): (usize, ResponseTool)| converted(tool, &format!("tools[{i}]"));
    let tools = tools.into_iter().enumerate().map(one).collect::<Result<Vec<_>, _>>()?;
    let chosen = match choice {
        None => return Ok(all(tools, false)),
        Some(ResponseToolChoice::Mode(mode)) => match mode.as_str() {
            "auto" => return Ok(all(tools, false)),
            "none" => return Ok(Chosen::default()),
            "required" => all(tools, true),
            other => {
                let detail = format!("must be 'auto', 'required' or 'none', got '{other}'");
                return Err(ApiError::value("tool_choice", detail));
            }
        },
        Some(ResponseToolChoice::Chosen(chosen)) => among(tools, chosen)?,
    };
    if chosen.tools.is_empty() {
        return Err(ApiError::value("tool_choice", "is only allowed with 'tools'"));
    }
    Ok(chosen)
}

fn all(tools: Vec<Tool>, required: bool) -> Chosen {
    Chosen { callable: tools.clone(), tools, required }
}

fn among(tools: Vec<Tool>, chosen: ResponseToolChosen) -> Result<Chosen, ApiError> {
    match chosen.kind.as_str() {
        "function" => {
            let callable = vec![named(&tools, &chosen, "tool_choice")?];
            Ok(Chosen { tools, callable, required: true })
        }
        "allowed_tools" => {
            let required = match chosen.mode.as_deref() {
                Some("auto") => false,
                Some("required") => true,
                _ => {
                    let detail = "must be 'auto' or 'required'";
                    return Err(ApiError::value("tool_choice.mode", detail));
                }
            };
            let allowed = chosen.tools.unwrap_or_default().into_iter().enumerate();
            let one = |(i, one)| named(&tools, &one, &format!("tool_choice.tools[{i}]"));
            let callable = allowed.map(one).collect::<Result<_, _>>()?;
            Ok(Chosen { tools, callable, required })
        }
        kind => {
            let detail = format!("'{kind}' is not supported; only functions are");
            Err(ApiError::unsupported("tool_choice.type", detail))
        }
    }
}

fn named(tools: &[Tool], chosen: &ResponseToolChosen, at: &str) -> Result<Tool, ApiError> {
    match &chosen.name {
        Some(name) if chosen.kind == "function" => tool_named(tools, name, &format!("{at}.name")),
        _ => Err(ApiError::value(at, "must be of the type 'function' and name one")),
    }
}

fn converted(wire: ResponseTool, at: &str) -> Result<Tool, ApiError> {
    let refused = |name: &str, detail: &str| {
        Err(ApiError::unsupported(format!("{at}.{name}"), detail.to_owned()))
    };
    if wire.kind != "function" {
        let detail = format!("'{}' tools are not supported; only 'function' is", wire.kind);
        return refused("type", &detail);
    }
    if wire.defer_loading == Some(true) {
        return refused("defer_loading", "must be false: there is no search for tools");
    }
    if wire.asynchronous == Some(true) {
        return refused("async", "must be false: an answer ends with its calls");
    }
    if wire.allowed_callers.iter().flatten().any(|caller| caller != "direct") {
        return refused("allowed_callers", "only 'direct' is supported");
    }
    match wire.name {
        None => Err(ApiError::MissingParameter { param: format!("{at}.name") }),
        Some(name) if name.is_empty() => {
            Err(ApiError::value(format!("{at}.name"), "must not be empty"))
        }
        Some(name) => Ok(Tool {
            name,
            description: wire.description,
            parameters: wire.parameters.map(Value::Object),
            strict: wire.strict,
        }),
    }
}
