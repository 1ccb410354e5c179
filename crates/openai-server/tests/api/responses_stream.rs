//! Streams of OpenAI's Responses API: typed events, in order.

use crate::{
    responses::{body, create, tools},
    support::{App, Reply, config, post},
};
use axum::http::StatusCode;
use serde_json::{Value, json};
use taper_base::GenerationError;
use taper_openai_server::ServerConfig;

/// The events of a stream: named, numbered, without a last line.
async fn events(app: &App, mut fields: Value) -> Vec<Value> {
    fields["stream"] = json!(true);
    let (status, _, text) = app.send(post("/v1/responses", &body(fields).to_string())).await;
    assert_eq!(status, StatusCode::OK, "{text}");
    let one = |(i, event): (usize, &str)| {
        let (name, data) = event.split_once('\n').unwrap_or_else(|| panic!("{event}"));
        let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(data["type"], name.strip_prefix("event: ").unwrap());
        assert_eq!(data["sequence_number"], i);
        data
    };
    text.trim_end().split("\n\n").enumerate().map(one).collect()
}

/// The types without `response.`, those of repeated deltas once.
fn types(events: &[Value]) -> Vec<&str> {
    let kinds = events.iter().map(|event| event["type"].as_str().unwrap());
    let mut types: Vec<_> = kinds.map(|kind| kind.strip_prefix("response.").unwrap()).collect();
    types.dedup();
    types
}

fn joined(events: &[Value], kind: &str, output_index: usize) -> String {
    let own = events.iter().filter(|e| e["type"] == kind && e["output_index"] == output_index);
    own.map(|event| event["delta"].as_str().unwrap()).collect()
}

/// A response without what differs each time.
fn bare(mut response: Value) -> Value {
    for field in ["id", "created_at", "completed_at"] {
        response[field] = Value::Null;
    }
    for item in response["output"].as_array_mut().unwrap() {
        item["id"] = Value::Null;
        item["call_id"] = Value::Null;
    }
    response
}

const TEXT: [&str; 6] = [
    "output_item.added",
    "content_part.added",
    "output_text.delta",
    "output_text.done",
    "content_part.done",
    "output_item.done",
];
const CALL: [&str; 4] = [
    "output_item.added",
    "function_call_arguments.delta",
    "function_call_arguments.done",
    "output_item.done",
];

#[tokio::test]
async fn a_text() {
    let app = App::text("Hello there");
    let all = events(&app, json!({ "include": ["message.output_text.logprobs"] })).await;
    let mut expected = vec!["created", "in_progress"];
    expected.extend(TEXT);
    expected.push("completed");
    assert_eq!(types(&all), expected);
    assert_eq!(all[0]["response"]["status"], "in_progress");
    assert_eq!(all[2]["item"]["content"], json!([]));
    assert_eq!(joined(&all, "response.output_text.delta", 0), "Hello there");
    let done = all.iter().find(|e| e["type"] == "response.output_text.done").unwrap();
    assert_eq!(
        (&done["text"], done["logprobs"].as_array().unwrap().len()),
        (&json!("Hello there"), 11)
    );
    let response = &all.last().unwrap()["response"];
    assert_eq!(all[all.len() - 2]["item"], response["output"][0]);
    assert_eq!(all[0]["response"]["id"], response["id"]);
    // The same as a whole answer, and kept.
    let whole = create(&app, json!({ "include": ["message.output_text.logprobs"] })).await;
    assert_eq!(bare(response.clone()), bare(whole));
    let (status, kept) =
        app.get(&format!("/v1/responses/{}", response["id"].as_str().unwrap())).await;
    assert_eq!(
        (status, serde_json::from_str::<Value>(&kept).unwrap()),
        (StatusCode::OK, response.clone())
    );
}

#[tokio::test]
async fn reasoning_text_and_calls() {
    let call = |city: &str| {
        format!(
            "<tool_call>\n{{\"name\": \"get_weather\", \"arguments\": {{\"city\": \"{city}\"}}}}\n</tool_call>"
        )
    };
    let said = format!("Hm.</think>\nLook.\n{}\n{}", call("Paris"), call("Rome"));
    let kwargs = json!({ "enable_thinking": true }).as_object().unwrap().clone();
    let thinks = ServerConfig { default_chat_template_kwargs: kwargs, ..config() };
    let app = App::with(thinks, Reply::Text(said));
    for summary in [false, true] {
        let mut fields = json!({ "tools": tools() });
        if summary {
            fields["reasoning"] = json!({ "summary": "detailed" });
        }
        let all = events(&app, fields.clone()).await;
        let mut expected = vec!["created", "in_progress", "output_item.added"];
        expected.extend(match summary {
            false => [
                "content_part.added",
                "reasoning_text.delta",
                "reasoning_text.done",
                "content_part.done",
            ],
            true => [
                "reasoning_summary_part.added",
                "reasoning_summary_text.delta",
                "reasoning_summary_text.done",
                "reasoning_summary_part.done",
            ],
        });
        expected.push("output_item.done");
        expected.extend(TEXT);
        expected.extend(CALL);
        expected.extend(CALL);
        expected.push("completed");
        assert_eq!(types(&all), expected);
        for (index, city) in [(2, "Paris"), (3, "Rome")] {
            let arguments = joined(&all, "response.function_call_arguments.delta", index);
            assert_eq!(serde_json::from_str::<Value>(&arguments).unwrap(), json!({ "city": city }));
        }
        let whole = create(&app, fields).await;
        assert_eq!(bare(all.last().unwrap()["response"].clone()), bare(whole));
    }
}

#[tokio::test]
async fn the_ends() {
    let app = App::text("Hello there");
    let all = events(&app, json!({ "max_output_tokens": 5 })).await;
    let last = all.last().unwrap();
    assert_eq!(
        (&last["type"], &last["response"]["status"]),
        (&json!("response.incomplete"), &json!("incomplete"))
    );
    assert_eq!(last["response"]["output"][0]["status"], "incomplete");

    app.engine.say(Reply::Fail("on".into(), GenerationError::EngineDead));
    let all = events(&app, json!({})).await;
    let last = all.last().unwrap();
    assert_eq!(
        (&last["type"], &last["response"]["status"]),
        (&json!("response.failed"), &json!("failed"))
    );
    assert_eq!(last["response"]["error"]["code"], "server_error");
    assert_eq!(last["response"]["output"][0]["content"][0]["text"], "on");
}
