//! Models, health, tokenize, metrics, keys, CORS, limits.

use crate::support::{App, Reply, chat, config, post};
use axum::http::StatusCode;
use serde_json::{Value, json};
use taper_openai_server::{ApiKeys, ServerConfig};

#[tokio::test]
async fn models_health_and_version() {
    let app = App::text("x");
    let (status, body) = app.get("/v1/models").await;
    let list: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((status, &list["object"]), (StatusCode::OK, &json!("list")));
    let ids: Vec<&Value> = list["data"].as_array().unwrap().iter().map(|m| &m["id"]).collect();
    assert_eq!(ids, ["mock", "org/mock"]);
    let card = &list["data"][0];
    assert_eq!((&card["object"], &card["max_model_len"]), (&json!("model"), &json!(4096)));
    assert_eq!(app.get("/v1/models/org/mock").await.0, StatusCode::OK);
    assert_eq!(app.get("/v1/models/org%2Fmock").await.0, StatusCode::OK);
    for unknown in ["other", "%ff"] {
        let (status, body) = app.get(&format!("/v1/models/{unknown}")).await;
        assert_eq!(status, StatusCode::NOT_FOUND);
        assert!(body.contains("model_not_found"), "{body}");
    }
    let (status, body) = app.get("/health").await;
    assert_eq!((status, body.contains("\"ok\"")), (StatusCode::OK, true));
    assert!(app.get("/version").await.1.contains(env!("CARGO_PKG_VERSION")));
    assert_eq!(app.get("/ready").await.0, StatusCode::OK);
    app.state.set_ready(false);
    assert_eq!(app.get("/ready").await.0, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(app.get("/health").await.0, StatusCode::OK);
}

#[tokio::test]
async fn tokens_there_and_back() {
    let app = App::text("x");
    let (_, body) = app.post("/tokenize", &json!({ "model": "mock", "prompt": "Hü" })).await;
    let expected =
        json!({ "count": 3, "max_model_len": 4096, "tokens": [72, 195, 188], "token_strs": null });
    assert_eq!(body, expected);
    let (_, body) =
        app.post("/tokenize", &json!({ "prompt": "Hi", "return_token_strs": true })).await;
    assert_eq!(body["token_strs"], json!(["H", "i"]));
    let (_, back) = app.post("/detokenize", &json!({ "tokens": [72, 195, 188] })).await;
    assert_eq!(back, json!({ "prompt": "Hü" }));
    // What `/tokenize` says of messages is what chat runs.
    let (_, body) = app.post("/tokenize", &chat(json!({ "enable_thinking": true }))).await;
    app.chat(json!({ "enable_thinking": true })).await;
    assert_eq!(body["tokens"], json!(app.engine.last().prompt));
    for (path, body, param) in [
        ("/tokenize", json!({}), "prompt"),
        ("/tokenize", json!({ "prompt": "a", "messages": [] }), "messages"),
        ("/tokenize", json!({ "prompt": "a", "tools": [] }), "tools"),
        ("/tokenize", json!({ "prompt": "a", "what": 1 }), "what"),
        ("/detokenize", json!({}), "tokens"),
        ("/detokenize", json!({ "tokens": [1, 99999] }), "tokens[1]"),
        ("/detokenize", json!({ "tokens": [1, "a"] }), "tokens[1]"),
    ] {
        let (status, answer) = app.post(path, &body).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{answer}");
        assert_eq!(answer["error"]["param"], param, "{answer}");
    }
}

#[tokio::test]
async fn metrics_have_the_names_of_vllm() {
    let app = App::text("Hello");
    *app.engine.cached.lock().unwrap() = 5;
    app.chat(json!({ "n": 2 })).await;
    app.chat(json!({ "max_tokens": 2 })).await;
    let prompt = app.engine.last().prompt.len();
    let (status, page) = app.get("/metrics").await;
    assert_eq!(status, StatusCode::OK);
    let label = "model_name=\"mock\"";
    for line in [
        format!("vllm:num_requests_running{{{label}}} 2"),
        format!("vllm:num_requests_waiting{{{label}}} 3"),
        format!("vllm:kv_cache_usage_perc{{{label}}} 0.3"),
        format!("vllm:num_preemptions_total{{{label}}} 4"),
        format!("vllm:prompt_tokens_total{{{label}}} 101"),
        format!("vllm:generation_tokens_total{{{label}}} 202"),
        format!("vllm:prefix_cache_queries_total{{{label}}} {}", 3 * prompt),
        format!("vllm:prefix_cache_hits_total{{{label}}} 15"),
        format!("taper:kv_cache_exact_capacity_bytes{{{label}}} 96"),
        format!("taper:kv_cache_used_bytes{{{label}}} 1100"),
        format!("taper:kv_cache_exact_used_bytes{{{label}}} 100"),
        format!("taper:kv_cache_idle_blocks{{{label}}} 3"),
        format!("taper:disk_prefix_cache_hits_total{{{label}}} 96"),
        format!("taper:disk_prefix_cache_written_blocks_total{{{label}}} 16"),
        format!("taper:disk_prefix_cache_written_bytes_total{{{label}}} 4096"),
        format!("taper:expert_slots{{{label}}} 40"),
        format!("taper:expert_capacity_bytes{{{label}}} 163840"),
        format!("taper:expert_read_bytes_total{{{label}}} 81920"),
        format!("taper:expert_hits_total{{{label}}} 70"),
        format!("taper:expert_misses_total{{{label}}} 20"),
        format!("taper:expert_prefetch_useful_total{{{label}}} 5"),
        format!("taper:expert_prefetch_wasted_total{{{label}}} 3"),
        format!("taper:expert_stall_seconds_total{{{label}}} 0.75"),
        format!("vllm:request_success_total{{{label},finished_reason=\"stop\"}} 2"),
        format!("vllm:request_success_total{{{label},finished_reason=\"length\"}} 1"),
        format!("vllm:request_success_total{{{label},finished_reason=\"abort\"}} 0"),
        format!(
            "vllm:cache_config_info{{{label},block_size=\"16\",cache_dtype=\"f16\",enable_prefix_caching=\"True\",num_gpu_blocks=\"20\"}} 1"
        ),
        format!("vllm:time_to_first_token_seconds_count{{{label}}} 3"),
        format!("vllm:inter_token_latency_seconds_count{{{label}}} 11"),
        format!("vllm:time_per_output_token_seconds_count{{{label}}} 3"),
        format!("vllm:e2e_request_latency_seconds_count{{{label}}} 3"),
        format!("vllm:request_prompt_tokens_sum{{{label}}} {}", 3 * prompt),
        format!("vllm:request_generation_tokens_sum{{{label}}} 14"),
        format!("vllm:request_generation_tokens_bucket{{{label},le=\"+Inf\"}} 3"),
        format!("vllm:iteration_tokens_total_bucket{{{label},le=\"1.0\"}} 70"),
        format!("vllm:iteration_tokens_total_bucket{{{label},le=\"512.0\"}} 77"),
        format!("vllm:iteration_tokens_total_sum{{{label}}} 3200"),
        format!("vllm:request_params_n_sum{{{label}}} 3"),
        format!("vllm:request_params_max_tokens_sum{{{label}}} 2"),
        format!("vllm:request_max_num_generation_tokens_count{{{label}}} 2"),
        format!("vllm:request_queue_time_seconds_count{{{label}}} 3"),
        format!("vllm:request_prefill_time_seconds_count{{{label}}} 3"),
        format!("vllm:request_decode_time_seconds_count{{{label}}} 3"),
        format!("vllm:request_inference_time_seconds_count{{{label}}} 3"),
        format!("vllm:request_time_per_output_token_seconds_count{{{label}}} 3"),
        format!("taper:engine_failed_steps_total{{{label}}} 2"),
        format!("taper:engine_restarts_total{{{label}}} 1"),
        format!("taper:engine_hung_steps_total{{{label}}} 0"),
    ] {
        assert!(page.lines().any(|l| l == line), "{line} not in\n{page}");
    }
    // Each metric is typed once, and every sample belongs to a typed metric.
    let typed: Vec<&str> =
        page.lines().filter_map(|l| l.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    let unique: std::collections::HashSet<&&str> = typed.iter().collect();
    assert_eq!(unique.len(), typed.len());
    for line in page.lines().filter(|l| !l.starts_with('#')) {
        let name = line.split('{').next().unwrap();
        assert!(typed.iter().any(|t| name.starts_with(t)), "{line}");
    }
}

#[tokio::test]
async fn keys_guard_what_costs_and_nothing_else() {
    let api_keys = ApiKeys::new(["k1", "k2"]).unwrap();
    let app = App::with(ServerConfig { api_keys, ..config() }, Reply::Text("x".into()));
    let body = chat(json!({})).to_string();
    let with = |key: Option<&str>, path: &str| {
        let mut request = post(path, &body);
        if let Some(key) = key {
            request.headers_mut().insert("authorization", key.parse().unwrap());
        }
        request
    };
    for key in [
        None,
        Some("Bearer wrong"),
        Some("k1"),
        Some("Basic k1"),
        Some("Bearer "),
        Some("Bearer k11"),
    ] {
        for path in ["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"] {
            let (status, headers, text) = app.send(with(key, path)).await;
            assert_eq!(status, StatusCode::UNAUTHORIZED, "{key:?} {path}");
            assert_eq!(headers["www-authenticate"], "Bearer");
            let error: Value = serde_json::from_str(&text).unwrap();
            assert_eq!(error["error"]["code"], "invalid_api_key");
        }
    }
    assert_eq!(app.get("/v1/models").await.0, StatusCode::UNAUTHORIZED);
    for key in ["Bearer k1", "bearer k2"] {
        let (status, _, _) = app.send(with(Some(key), "/v1/chat/completions")).await;
        assert_eq!(status, StatusCode::OK);
    }
    for path in ["/health", "/ready", "/metrics", "/version"] {
        assert_eq!(app.get(path).await.0, StatusCode::OK, "{path}");
    }
}

#[tokio::test]
async fn limits_methods_and_content_types() {
    let app = App::with(ServerConfig { max_body_bytes: 1000, ..config() }, Reply::Text("x".into()));
    let error = |text: &str| serde_json::from_str::<Value>(text).unwrap()["error"].clone();
    let long = chat(json!({ "user": "x".repeat(2000) })).to_string();
    let (status, _, text) = app.send(post("/v1/chat/completions", &long)).await;
    assert_eq!(
        (status, &error(&text)["code"]),
        (StatusCode::PAYLOAD_TOO_LARGE, &json!("body_too_large"))
    );
    let (status, text) = app.get("/v1/chat/completions").await;
    assert_eq!(
        (status, &error(&text)["code"]),
        (StatusCode::METHOD_NOT_ALLOWED, &json!("method_not_allowed"))
    );
    let (status, text) = app.get("/nowhere").await;
    assert_eq!((status, &error(&text)["code"]), (StatusCode::NOT_FOUND, &json!("unknown_url")));
    let body = chat(json!({})).to_string();
    for (kind, expected) in [
        (Some("application/json; charset=utf-8"), StatusCode::OK),
        // Programs may leave it out, and curl calls everything a form.
        (None, StatusCode::OK),
        (Some("application/x-www-form-urlencoded"), StatusCode::OK),
        (Some("text/plain"), StatusCode::UNSUPPORTED_MEDIA_TYPE),
    ] {
        let mut request = post("/v1/chat/completions", &body);
        request.headers_mut().remove("content-type");
        if let Some(kind) = kind {
            request.headers_mut().insert("content-type", kind.parse().unwrap());
        }
        assert_eq!(app.send(request).await.0, expected, "{kind:?}");
    }
}
