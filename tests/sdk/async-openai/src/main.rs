//! The async-openai client against a running server: does it find what it expects?
//!
//! Requests are written as JSON, read into the client's own types and sent from those; answers
//! arrive in its types, which fail on any field that is missing or of another shape.

use async_openai::{
    Client,
    config::OpenAIConfig,
    error::OpenAIError,
    types::{
        chat::{
            ChatCompletionMessageToolCalls, CreateChatCompletionRequest,
            CreateChatCompletionResponse, FinishReason,
        },
        completions::CreateCompletionRequest,
    },
};
use futures::StreamExt;
use serde_json::{Value, json};
use std::{error::Error, process::ExitCode};

type Outcome = Result<(), Box<dyn Error>>;

const TOOL_PROMPT: &str = "Please get a weather with city Paris.";

struct Context {
    client: Client<OpenAIConfig>,
    base_url: String,
    api_key: Option<String>,
    model: String,
}

fn check(holds: bool, what: impl Into<String>) -> Outcome {
    if holds { Ok(()) } else { Err(what.into().into()) }
}

fn client(base_url: &str, api_key: &str) -> Client<OpenAIConfig> {
    Client::with_config(OpenAIConfig::new().with_api_base(base_url).with_api_key(api_key))
}

fn tools() -> Value {
    json!([{ "type": "function", "function": { "name": "get_weather", "description": "Get a weather.",
        "parameters": { "type": "object", "properties": { "city": { "type": "string" } },
                        "required": ["city"] } } }])
}

impl Context {
    fn request(
        &self,
        text: &str,
        fields: Value,
    ) -> Result<CreateChatCompletionRequest, Box<dyn Error>> {
        let mut body = json!({ "model": self.model, "temperature": 0.0, "max_completion_tokens": 200,
                               "messages": [{ "role": "user", "content": text }] });
        for (name, value) in fields.as_object().into_iter().flatten() {
            body[name] = value.clone();
        }
        Ok(serde_json::from_value(body)?)
    }

    async fn chat(
        &self,
        text: &str,
        fields: Value,
    ) -> Result<CreateChatCompletionResponse, Box<dyn Error>> {
        Ok(self.client.chat().create(self.request(text, fields)?).await?)
    }
}

async fn chat(c: &Context) -> Outcome {
    let answer = c.chat("Hello!", json!({})).await?;
    let choice = answer.choices.first().ok_or("no choice")?;
    check(choice.message.content.as_deref().is_some_and(|t| !t.trim().is_empty()), "content")?;
    check(choice.finish_reason == Some(FinishReason::Stop), "finish_reason")?;
    let usage = answer.usage.ok_or("no usage")?;
    check(usage.total_tokens == usage.prompt_tokens + usage.completion_tokens, "usage")
}

async fn stream(c: &Context) -> Outcome {
    let whole = c.chat("Hello!", json!({})).await?;
    let fields = json!({ "stream": true, "stream_options": { "include_usage": true } });
    let mut stream = c.client.chat().create_stream(c.request("Hello!", fields)?).await?;
    let (mut text, mut usage) = (String::new(), None);
    while let Some(chunk) = stream.next().await {
        let chunk = chunk?;
        for choice in chunk.choices {
            text.push_str(choice.delta.content.as_deref().unwrap_or_default());
        }
        usage = chunk.usage.or(usage);
    }
    let same = whole.choices.first().and_then(|c| c.message.content.clone()) == Some(text.clone());
    check(same, format!("streamed {text:?}"))?;
    check(usage.is_some_and(|u| u.completion_tokens > 0), "usage")
}

async fn tool_round_trip(c: &Context) -> Outcome {
    let answer = c.chat(TOOL_PROMPT, json!({ "tools": tools() })).await?;
    let choice = answer.choices.first().ok_or("no choice")?;
    check(choice.finish_reason == Some(FinishReason::ToolCalls), "finish_reason")?;
    let calls = choice.message.tool_calls.as_deref().unwrap_or_default();
    let Some(ChatCompletionMessageToolCalls::Function(call)) = calls.first() else {
        return Err("no call".into());
    };
    check(call.function.name == "get_weather", "name")?;
    let arguments: Value = serde_json::from_str(&call.function.arguments)?;
    check(arguments == json!({ "city": "Paris" }), format!("arguments {arguments}"))?;
    let messages = json!([
        { "role": "user", "content": TOOL_PROMPT },
        { "role": "assistant", "tool_calls": calls },
        { "role": "tool", "tool_call_id": call.id, "content": "{\"result\": \"sunny\"}" },
    ]);
    let end = c.chat("", json!({ "tools": tools(), "messages": messages })).await?;
    check(end.choices.first().is_some_and(|c| c.message.content.is_some()), "an answer")
}

async fn logprobs_and_choices(c: &Context) -> Outcome {
    let answer = c.chat("Hello!", json!({ "logprobs": true, "top_logprobs": 2, "n": 2 })).await?;
    check(answer.choices.len() == 2, "two choices")?;
    let content =
        answer.choices.into_iter().next().and_then(|c| c.logprobs).and_then(|l| l.content);
    let content = content.unwrap_or_default();
    check(!content.is_empty() && content.iter().all(|e| e.top_logprobs.len() == 2), "logprobs")
}

async fn completion(c: &Context) -> Outcome {
    let request: CreateCompletionRequest = serde_json::from_value(
        json!({ "model": c.model, "prompt": "Rust is", "max_tokens": 5, "logprobs": 1, "echo": true }),
    )?;
    let answer = c.client.completions().create(request).await?;
    check(answer.choices.first().is_some_and(|c| c.text.starts_with("Rust is")), "echo")
}

fn code(result: Result<impl Sized, OpenAIError>) -> Option<(u16, String)> {
    match result {
        Err(OpenAIError::ApiError(e)) => Some((e.status_code.as_u16(), e.api_error.code?)),
        _ => None,
    }
}

async fn typed_errors(c: &Context) -> Outcome {
    let request = c.request("x", json!({ "model": "no-such-model" }))?;
    let got = code(c.client.chat().create(request).await);
    check(got == Some((404, "model_not_found".into())), format!("{got:?}"))?;
    let request = c.request("x", json!({ "temperature": 9.0 }))?;
    let got = code(c.client.chat().create(request).await);
    check(got == Some((400, "invalid_value".into())), format!("{got:?}"))?;
    if c.api_key.is_some() {
        let got = code(client(&c.base_url, "wrong").models().list().await);
        check(got == Some((401, "invalid_api_key".into())), format!("{got:?}"))?;
    }
    Ok(())
}

fn argument(name: &str) -> Option<String> {
    std::env::args().skip_while(|a| a != name).nth(1)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<ExitCode, Box<dyn Error>> {
    let base_url = argument("--base-url").unwrap_or_else(|| "http://localhost:8000/v1".into());
    let api_key = argument("--api-key");
    let client = client(&base_url, api_key.as_deref().unwrap_or("none"));
    let model = match argument("--model") {
        Some(model) => model,
        None => client.models().list().await?.data.into_iter().next().ok_or("no model")?.id,
    };
    let c = Context { client, base_url, api_key, model };
    let outcomes = [
        ("chat", chat(&c).await),
        ("stream", stream(&c).await),
        ("tool_round_trip", tool_round_trip(&c).await),
        ("logprobs_and_choices", logprobs_and_choices(&c).await),
        ("completion", completion(&c).await),
        ("typed_errors", typed_errors(&c).await),
    ];
    let mut failed = 0;
    for (name, outcome) in &outcomes {
        match outcome {
            Ok(()) => println!("ok      {name}"),
            Err(error) => {
                failed += 1;
                println!("FAILED  {name}: {error}");
            }
        }
    }
    println!("{} passed, {failed} failed", outcomes.len() - failed);
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
