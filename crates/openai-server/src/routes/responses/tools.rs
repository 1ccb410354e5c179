//! The tools of a response, and the choice among them.

use crate::{
    errors::ApiError,
    routes::chat_plan::{ByName, Chosen},
    wire::{ResponseTool, ResponseToolChoice, ResponseToolChosen},
};
use serde_json::Value;
use std::collections::{HashMap, HashSet};
use taper_chat::Tool;

/// Functions of namespaces, by the names that the model has for them.
#[derive(Debug, Default)]
pub(super) struct Namespaces(HashMap<String, (String, String)>);

impl Namespaces {
    /// The namespace and the name that a function has for the caller.
    pub(super) fn split(&self, name: String) -> (Option<String>, String) {
        match self.0.get(&name) {
            Some((namespace, own)) => (Some(namespace.clone()), own.clone()),
            None => (None, name),
        }
    }

    /// The model's names by those that the caller has for functions; of several, the first one.
    fn by_own(&self) -> HashMap<&str, &str> {
        let mut all: Vec<_> = self.0.iter().map(|(name, (_, own))| (&**own, &**name)).collect();
        all.sort_unstable_by(|a, b| b.cmp(a));
        all.into_iter().collect()
    }
}

/// The model's name of a function in a namespace: formats of calls have one name for a function.
pub(super) fn in_namespace(namespace: &str, name: &str) -> String {
    format!("{namespace}__{name}")
}

pub(super) fn chosen(
    tools: Vec<ResponseTool>,
    choice: Option<ResponseToolChoice>,
) -> Result<(Chosen, Namespaces), ApiError> {
    let (tools, namespaces) = declared(tools)?;
    let chosen = among(tools, choice, &namespaces)?;
    Ok((chosen, namespaces))
}

/// The functions that the model is told of.
fn declared(wire: Vec<ResponseTool>) -> Result<(Vec<Tool>, Namespaces), ApiError> {
    let (mut tools, mut namespaces) = (Vec::new(), Namespaces::default());
    for (i, mut tool) in wire.into_iter().enumerate() {
        let at = format!("tools[{i}]");
        let members = tool.tools.take();
        if tool.kind != "namespace" {
            if members.is_some() {
                return Err(ApiError::UnknownParameter { param: format!("{at}.tools") });
            }
            tools.push(converted(tool, &at)?);
            continue;
        }
        let missing = |name: &str| ApiError::MissingParameter { param: format!("{at}.{name}") };
        let members = members.ok_or_else(|| missing("tools"))?;
        let namespace = tool.name.filter(|name| !name.is_empty()).ok_or_else(|| missing("name"))?;
        for (j, member) in members.into_iter().enumerate() {
            let mut function = converted(member, &format!("{at}.tools[{j}]"))?;
            let name = in_namespace(&namespace, &function.name);
            let own = std::mem::replace(&mut function.name, name.clone());
            // The first one says too what they are for: there is no other place for it.
            let words = [tool.description.take(), function.description.take()];
            let words: Vec<_> =
                words.into_iter().flatten().filter(|text| !text.is_empty()).collect();
            function.description = (!words.is_empty()).then(|| words.join("\n"));
            namespaces.0.insert(name, (namespace.clone(), own));
            tools.push(function);
        }
    }
    // A call by such a name could be meant for either.
    let mut names = HashSet::new();
    for tool in &tools {
        if !names.insert(&tool.name) && namespaces.0.contains_key(&tool.name) {
            let detail = format!("two functions would be '{}' to the model", tool.name);
            return Err(ApiError::value("tools", detail));
        }
    }
    Ok((tools, namespaces))
}

fn among(
    tools: Vec<Tool>,
    choice: Option<ResponseToolChoice>,
    namespaces: &Namespaces,
) -> Result<Chosen, ApiError> {
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
        Some(ResponseToolChoice::Chosen(chosen)) => picked(tools, chosen, namespaces)?,
    };
    if chosen.tools.is_empty() {
        return Err(ApiError::value("tool_choice", "is only allowed with 'tools'"));
    }
    Ok(chosen)
}

fn all(tools: Vec<Tool>, required: bool) -> Chosen {
    Chosen { callable: tools.clone(), tools, required }
}

fn picked(
    tools: Vec<Tool>,
    chosen: ResponseToolChosen,
    namespaces: &Namespaces,
) -> Result<Chosen, ApiError> {
    let (names, inside) = (ByName::of(&tools), namespaces.by_own());
    match chosen.kind.as_str() {
        "function" => {
            let callable = vec![named(&names, &chosen, &inside, "tool_choice")?];
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
            let one = |(i, one)| named(&names, &one, &inside, &format!("tool_choice.tools[{i}]"));
            let callable = allowed.map(one).collect::<Result<_, _>>()?;
            Ok(Chosen { tools, callable, required })
        }
        kind => {
            let detail = format!("'{kind}' is not supported; only functions are");
            Err(ApiError::unsupported("tool_choice.type", detail))
        }
    }
}

fn named(
    names: &ByName<'_>,
    chosen: &ResponseToolChosen,
    inside: &HashMap<&str, &str>,
    at: &str,
) -> Result<Tool, ApiError> {
    match &chosen.name {
        Some(name) if chosen.kind == "function" => {
            let inside = inside.get(name.as_str()).filter(|_| !names.has(name));
            names.get(inside.copied().unwrap_or(name), &format!("{at}.name"))
        }
        _ => Err(ApiError::value(at, "must be of the type 'function' and name one")),
    }
}

fn converted(wire: ResponseTool, at: &str) -> Result<Tool, ApiError> {
    let refused = |name: &str, detail: &str| {
        Err(ApiError::unsupported(format!("{at}.{name}"), detail.to_owned()))
    };
    if wire.kind != "function" {
        let detail = format!(
            "'{}' tools are not supported; functions and namespaces of them are",
            wire.kind
        );
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
