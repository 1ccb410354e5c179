//! Limits and variables of the template go through as they were sent. Other servers rewrite them
//! for models that reason; the numbers are those of a list of cases for such rewriting.

use crate::support::{App, Reply, TEMPLATE, chat, config, tokenizer};
use axum::http::StatusCode;
use serde_json::{Value, json};
use taper_chat::ReasoningFormat;
use taper_openai_server::ServerConfig;

const PATH: &str = "/v1/chat/completions";

fn app(reasoning: &str, context: u32, template: &str) -> App {
    let config = ServerConfig { reasoning_format: reasoning.parse().unwrap(), ..config() };
    App::of_context(config, Reply::Text("x".into()), tokenizer(), template, context)
}

/// What reaches the engine for `max_tokens`.
async fn limit(app: &App, fields: Value) -> Option<u32> {
    app.chat(fields).await;
    app.engine.last().stop.max_tokens
}

/// A limit holds for reasoning and answer together, as OpenAI and vLLM have it: whoever wants more
/// asks for more.
#[tokio::test]
async fn limits_are_not_raised_for_reasoning() {
    for (case, reasoning, context, asked) in [
        ("1: 8192", "nemotron_v3", 131_072, 8192),
        ("2: 65536", "nemotron_v3", 131_072, 65_536),
        ("3: 16384", "nemotron_v3", 131_072, 16_384),
        ("8: 64", "nemotron_v3", 131_072, 64),
        ("9: 256 without a parser", "none", 131_072, 256),
        ("11: 256 of a small context", "nemotron_v3", 4096, 256),
        ("12: 8192 of a large context", "nemotron_v3", 131_072, 8192),
        ("13: a sixth of the context", "nemotron_v3", 24_576, 4096),
        ("14: more than half of the context", "nemotron_v3", 24_576, 14_000),
        ("15: a tenth of the context", "nemotron_v3", 40_960, 4096),
    ] {
        let app = app(reasoning, context, TEMPLATE);
        for name in ["max_tokens", "max_completion_tokens"] {
            assert_eq!(limit(&app, json!({ name: asked })).await, Some(asked), "{case}");
        }
    }
    // 16 to 23: every format of reasoning, and not only the eight that are rewritten elsewhere.
    for reasoning in ReasoningFormat::names() {
        let app = app(reasoning, 131_072, TEMPLATE);
        assert_eq!(limit(&app, json!({ "max_tokens": 8192 })).await, Some(8192), "{reasoning}");
    }
    // 10: an unknown parser stops the start.
    assert!("no_such_parser".parse::<ReasoningFormat>().is_err());
    let app = app("nemotron_v3", 131_072, TEMPLATE);
    // 4 and 5: no limit but the context.
    for fields in [json!({}), json!({ "max_tokens": null })] {
        assert_eq!(limit(&app, fields).await, None);
    }
    // 6 and 7.
    for (asked, param) in [(0, "max_tokens"), (-1, "max_tokens")] {
        let (status, answer) = app.post(PATH, &chat(json!({ "max_tokens": asked }))).await;
        assert_eq!((status, &answer["error"]["param"]), (StatusCode::BAD_REQUEST, &json!(param)));
    }
}

/// Shows what the template was given.
const SHOWS: &str = "{{ messages[-1].content }}|{{ enable_thinking | default('unset') }}|\
                     {{ system_role | default('unset') }}|{{ add_generation_prompt }}";

/// Reasoning is read apart in any case, so that nothing has to be turned off.
#[tokio::test]
async fn thinking_is_as_the_client_and_the_template_have_it() {
    let system = json!({ "system_role": "system", "add_generation_prompt": true });
    let none = json!({ "add_generation_prompt": false });
    let rows = [
        ("24: none", Value::Null, json!({}), "unset|unset|true"),
        ("25: null", Value::Null, json!({ "max_tokens": 100 }), "unset|unset|true"),
        ("27: on", json!({ "enable_thinking": true }), json!({}), "true|unset|true"),
        ("28: off", json!({ "enable_thinking": false }), json!({}), "false|unset|true"),
        ("29: others", system, json!({}), "unset|system|true"),
        ("29: the other way", none, json!({}), "unset|unset|false"),
        ("32: a limit", Value::Null, json!({ "max_tokens": 16_384 }), "unset|unset|true"),
        ("33: a low limit", Value::Null, json!({ "max_tokens": 8192 }), "unset|unset|true"),
    ];
    // 30 and 31: with every parser, and without one.
    for reasoning in ["qwen3", "deepseek_r1", "none"] {
        let app = app(reasoning, 131_072, SHOWS);
        for (case, kwargs, fields, expected) in &rows {
            let mut fields = fields.clone();
            fields["chat_template_kwargs"] = kwargs.clone();
            let asked = fields["max_tokens"].as_u64();
            let limit = limit(&app, fields).await;
            assert!(asked.is_none() || limit.map(u64::from) == asked, "{case}");
            let prompt = tokenizer().decode(&app.engine.last().prompt, false).unwrap();
            assert_eq!(prompt.to_lowercase(), format!("hi|{expected}"), "{reasoning}, {case}");
        }
        // 26: what is no object is refused.
        for (kwargs, param) in [
            (json!("garbage"), "chat_template_kwargs"),
            (json!({ "add_generation_prompt": 1 }), "chat_template_kwargs.add_generation_prompt"),
            (json!({ "messages": [] }), "chat_template_kwargs.messages"),
        ] {
            let body = chat(json!({ "chat_template_kwargs": kwargs }));
            let (status, answer) = app.post(PATH, &body).await;
            assert_eq!((status.as_u16(), &answer["error"]["param"]), (400, &json!(param)));
        }
        let both = json!({ "add_generation_prompt": true,
                           "chat_template_kwargs": { "add_generation_prompt": false } });
        assert_eq!(app.post(PATH, &chat(both)).await.0, StatusCode::BAD_REQUEST);
    }
}
