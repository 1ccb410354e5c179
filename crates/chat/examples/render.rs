//! Renders conversations with chat templates: a JSON line in, a JSON line out.
//!
//! In: `{"template": "..", "time": 0, "cases": [{"messages": [..], "tools": [..],
//! "add_generation_prompt": true, "kwargs": {..}}]}`, messages and tools as in the API. Out:
//! `{"error": null, "formats": ["hermes", "qwen3"], "results": [{"prompt": ".."} or {"error": ".."}]}`;
//! `error` is why a template does not load, `formats` are those of tool calls and of reasoning.

use serde_json::{Map, Value, json};
use std::io::{BufRead, Write};
use taper_chat::{
    ChatTemplate, Content, ContentPart, Message, ReasoningFormat, Role, TemplateRequest, Tool,
    ToolCall, ToolFormat,
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut out = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let job: Value = serde_json::from_str(&line?)?;
        writeln!(out, "{}", answer(&job)?)?;
        out.flush()?;
    }
    Ok(())
}

fn answer(job: &Value) -> Result<Value, Box<dyn std::error::Error>> {
    let source = job["template"].as_str().ok_or("no template")?;
    let template = match ChatTemplate::from_source(source, Some("<s>"), Some("</s>")) {
        Ok(template) => template.at(job["time"].as_i64().unwrap_or(0)),
        Err(error) => return Ok(json!({ "error": error.to_string(), "results": [] })),
    };
    let mut results = Vec::new();
    for case in job["cases"].as_array().ok_or("no cases")? {
        results.push(render(&template, case)?);
    }
    let tools = ToolFormat::detect(source, "").to_string();
    let reasoning = ReasoningFormat::detect(source, "").to_string();
    Ok(json!({ "error": null, "formats": [tools, reasoning], "results": results }))
}

fn render(template: &ChatTemplate, case: &Value) -> Result<Value, Box<dyn std::error::Error>> {
    let list = |key: &str| case[key].as_array().cloned().unwrap_or_default();
    let messages = list("messages").iter().map(message).collect::<Result<Vec<_>, _>>()?;
    let tools: Vec<Tool> = list("tools").iter().map(tool).collect();
    let empty = Map::new();
    let result = template.render(&TemplateRequest {
        messages: &messages,
        tools: &tools,
        add_generation_prompt: case["add_generation_prompt"] == true,
        continue_final_message: false,
        kwargs: case["kwargs"].as_object().unwrap_or(&empty),
    });
    Ok(match result {
        Ok(prompt) => json!({ "prompt": prompt }),
        Err(error) => json!({ "error": error.to_string() }),
    })
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn message(value: &Value) -> Result<Message, String> {
    let role = match value["role"].as_str() {
        Some("system") => Role::System,
        Some("developer") => Role::Developer,
        Some("user") => Role::User,
        Some("assistant") => Role::Assistant,
        Some("tool") => Role::Tool,
        other => return Err(format!("no such role: {other:?}")),
    };
    let content = match &value["content"] {
        Value::Array(parts) => Some(Content::Parts(
            parts.iter().map(|part| ContentPart::Text(text(&part["text"]))).collect(),
        )),
        content => content.as_str().map(|text| Content::Text(text.to_owned())),
    };
    let calls = value["tool_calls"].as_array().cloned().unwrap_or_default();
    let tool_calls = calls.iter().map(|call| ToolCall {
        id: text(&call["id"]),
        name: text(&call["function"]["name"]),
        arguments: call["function"]["arguments"].to_string(),
    });
    let optional = |key: &str| value[key].as_str().map(str::to_owned);
    Ok(Message {
        role,
        content,
        name: optional("name"),
        reasoning_content: optional("reasoning_content"),
        tool_calls: tool_calls.collect(),
        tool_call_id: optional("tool_call_id"),
    })
}

fn tool(value: &Value) -> Tool {
    let function = &value["function"];
    Tool {
        name: text(&function["name"]),
        description: function["description"].as_str().map(str::to_owned),
        parameters: function.get("parameters").cloned(),
        strict: None,
    }
}
