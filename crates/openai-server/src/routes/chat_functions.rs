//! `functions` and `function_call`, which were there before tools: translated on the way in and back
//! on the way out.

use crate::{
    errors::ApiError,
    wire::{ChatChoice, ChatRequest, ChosenTools, DeltaOut, FunctionChoice, ToolChoice, WireTool},
};

/// Makes tools of the functions, if the request has any.
pub(super) fn as_tools(wire: &mut ChatRequest) -> Result<bool, ApiError> {
    let functions = wire.functions.take().unwrap_or_default();
    let call = wire.function_call.take();
    if functions.is_empty() {
        return match call {
            Some(_) => Err(ApiError::value("function_call", "is only allowed with 'functions'")),
            None => Ok(false),
        };
    }
    for (name, given) in
        [("tools", wire.tools.is_some()), ("tool_choice", wire.tool_choice.is_some())]
    {
        if given {
            return Err(ApiError::value(name, "excludes 'functions'"));
        }
    }
    wire.tools = Some(functions.into_iter().map(WireTool::of).collect());
    wire.tool_choice = match call {
        None => None,
        Some(FunctionChoice::Mode(mode)) if mode == "auto" || mode == "none" => {
            Some(ToolChoice::Mode(mode))
        }
        Some(FunctionChoice::Mode(mode)) => {
            let detail = format!("must be 'auto', 'none' or name a function, got '{mode}'");
            return Err(ApiError::value("function_call", detail));
        }
        Some(FunctionChoice::Chosen(function)) => Some(ToolChoice::Chosen(ChosenTools {
            kind: "function".to_owned(),
            function: Some(function),
            allowed_tools: None,
        })),
    };
    // There was one call a message.
    wire.parallel_tool_calls = Some(false);
    Ok(true)
}

/// An error about the tools, by the names that the request has.
pub(super) fn error(mut error: ApiError) -> ApiError {
    if let ApiError::InvalidValue { param, .. }
    | ApiError::UnsupportedValue { param, .. }
    | ApiError::MissingParameter { param }
    | ApiError::Grammar { param, .. } = &mut error
    {
        *param = renamed(param);
    }
    error
}

fn renamed(param: &str) -> String {
    if let Some(rest) = param.strip_prefix("tools") {
        return format!("functions{}", rest.replacen("].function", "]", 1));
    }
    match param.strip_prefix("tool_choice") {
        Some(rest) => format!("function_call{}", rest.replacen(".function", "", 1)),
        None => param.to_owned(),
    }
}

/// A choice with its call as it was then.
pub(super) fn choice(mut choice: ChatChoice) -> ChatChoice {
    let calls = std::mem::take(&mut choice.message.tool_calls);
    choice.message.function_call = calls.into_iter().next().map(|call| call.function);
    ChatChoice { finish_reason: reason(choice.finish_reason), ..choice }
}

/// A delta of a stream with its call as it was then.
pub(super) fn delta(mut delta: DeltaOut) -> DeltaOut {
    let calls = std::mem::take(&mut delta.tool_calls);
    DeltaOut { function_call: calls.into_iter().next().map(|call| call.function), ..delta }
}

/// Why it ended.
pub(super) fn reason(reason: &'static str) -> &'static str {
    if reason == "tool_calls" { "function_call" } else { reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_what_the_request_has() {
        for (tools, functions) in [
            ("tools[1].function.name", "functions[1].name"),
            ("tools[0].function.parameters", "functions[0].parameters"),
            ("tools", "functions"),
            ("tool_choice.function.name", "function_call.name"),
            ("tool_choice", "function_call"),
            ("messages[0].tools", "messages[0].tools"),
        ] {
            assert_eq!(renamed(tools), functions);
        }
    }
}
