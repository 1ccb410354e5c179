//! Responses that are kept: chains, listings, limits and the background.

use crate::{
    responses::{body, create, prompt},
    support::{App, Reply, config},
};
use axum::{
    body::Body,
    http::{Method, Request, StatusCode},
};
use serde_json::{Value, json};
use std::time::Duration;
use taper_openai_server::ServerConfig;

async fn send(app: &App, method: Method, path: &str) -> (StatusCode, Value) {
    let request = Request::builder().method(method).uri(path).body(Body::empty()).unwrap();
    let (status, _, text) = app.send(request).await;
    (status, serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}")))
}

async fn get(app: &App, path: &str) -> (StatusCode, Value) {
    send(app, Method::GET, path).await
}

fn id(response: &Value) -> &str {
    response["id"].as_str().unwrap()
}

fn limited(responses: usize, bytes: usize) -> App {
    let config =
        ServerConfig { max_stored_responses: responses, max_stored_bytes: bytes, ..config() };
    App::with(config, Reply::Text("Hi".into()))
}

#[tokio::test]
async fn a_conversation_goes_on() {
    let app = App::text("one");
    let first = create(&app, json!({ "input": "1?", "instructions": "First." })).await;
    app.engine.say(Reply::Text("two".into()));
    let second = json!({ "input": [{ "role": "user", "content": "2?" }], "previous_response_id": id(&first) });
    let second = create(&app, second).await;
    assert_eq!(second["previous_response_id"], first["id"]);
    // Instructions are those of one response.
    let expected = "<|im_start|>user\n1?<|im_end|>\n<|im_start|>assistant\none<|im_end|>\n\
                    <|im_start|>user\n2?<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(prompt(&app), expected);

    let (status, kept) = get(&app, &format!("/v1/responses/{}", id(&second))).await;
    assert_eq!((status, &kept), (StatusCode::OK, &second));
    let path = format!("/v1/responses/{}/input_items", id(&second));
    let (_, list) = get(&app, &format!("{path}?order=asc")).await;
    let roles: Vec<_> = list["data"].as_array().unwrap().iter().map(|item| &item["role"]).collect();
    assert_eq!(roles, ["user", "assistant", "user"], "{list}");
    assert_eq!(list["data"][0]["content"], json!([{ "type": "input_text", "text": "1?" }]));
    assert_eq!((&list["has_more"], &list["object"]), (&json!(false), &json!("list")));
    let (_, page) = get(&app, &format!("{path}?limit=1")).await;
    assert_eq!((&page["data"][0], &page["has_more"]), (&list["data"][2], &json!(true)));
    let (_, page) =
        get(&app, &format!("{path}?limit=5&after={}", page["last_id"].as_str().unwrap())).await;
    assert_eq!((&page["data"][0], &page["last_id"]), (&list["data"][1], &list["data"][0]["id"]));

    // An item by its name, as some clients send it.
    let reference = json!([{ "type": "item_reference", "id": first["output"][0]["id"] },
        { "role": "user", "content": "3?" }]);
    create(&app, json!({ "input": reference })).await;
    assert!(prompt(&app).starts_with("<|im_start|>assistant\none<|im_end|>"));

    // The rest of a chain outlives the deletion of its beginning.
    let (status, gone) = send(&app, Method::DELETE, &format!("/v1/responses/{}", id(&first))).await;
    assert_eq!((status, &gone["deleted"]), (StatusCode::OK, &json!(true)));
    let (status, _) =
        app.post("/v1/responses", &body(json!({ "previous_response_id": id(&first) }))).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    create(&app, json!({ "input": "3?", "previous_response_id": id(&second) })).await;
    assert!(prompt(&app).contains("1?") && prompt(&app).contains("two"));
}

#[tokio::test]
async fn what_is_not_kept_is_404_with_advice() {
    let app = limited(2, 1 << 20);
    let unkept = create(&app, json!({ "store": false })).await;
    let first = create(&app, json!({})).await;
    let second = create(&app, json!({})).await;
    // What is used stays.
    assert_eq!(get(&app, &format!("/v1/responses/{}", id(&first))).await.0, StatusCode::OK);
    let third = create(&app, json!({})).await;
    for kept in [&first, &third] {
        assert_eq!(get(&app, &format!("/v1/responses/{}", id(kept))).await.0, StatusCode::OK);
    }
    for lost in [&unkept, &second] {
        let (status, answer) = get(&app, &format!("/v1/responses/{}", id(lost))).await;
        assert_eq!(
            (status, &answer["error"]["code"]),
            (StatusCode::NOT_FOUND, &json!("response_not_found"))
        );
        let fields = json!({ "previous_response_id": id(lost) });
        let (status, answer) = app.post("/v1/responses", &body(fields)).await;
        assert_eq!(
            (status, &answer["error"]["param"]),
            (StatusCode::NOT_FOUND, &json!("previous_response_id"))
        );
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.contains("the last 2") && message.contains("'input'"), "{message}");
        for path in ["input_items", "cancel"] {
            let method = if path == "cancel" { Method::POST } else { Method::GET };
            let path = format!("/v1/responses/{}/{path}", id(lost));
            assert_eq!(send(&app, method, &path).await.0, StatusCode::NOT_FOUND);
        }
    }
    let none = limited(0, 1 << 20);
    let lost = create(&none, json!({})).await;
    assert_eq!(get(&none, &format!("/v1/responses/{}", id(&lost))).await.0, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn long_conversations_take_no_more_memory_than_the_limit() {
    let app = limited(1000, 100_000);
    let mut last = create(&app, json!({})).await;
    let mut steps = 0;
    loop {
        let fields = json!({ "input": "y".repeat(50), "previous_response_id": id(&last) });
        let (status, answer) = app.post("/v1/responses", &body(fields)).await;
        if status == StatusCode::NOT_FOUND {
            break;
        }
        assert_eq!(status, StatusCode::OK, "{answer}");
        (last, steps) = (answer, steps + 1);
        assert!(steps < 100, "a chain holds everything before it");
    }
    assert!(steps > 5, "{steps}");
    // There is room again.
    let fresh = create(&app, json!({})).await;
    assert_eq!(get(&app, &format!("/v1/responses/{}", id(&fresh))).await.0, StatusCode::OK);
}

#[tokio::test]
async fn the_background() {
    let app = App::text("Hello");
    let begun = create(&app, json!({ "background": true })).await;
    assert_eq!((&begun["status"], &begun["output"]), (&json!("in_progress"), &json!([])));
    let path = format!("/v1/responses/{}", id(&begun));
    let done = async |path: &str| {
        for _ in 0..500 {
            let (_, response) = get(&app, path).await;
            if response["status"] != "in_progress" {
                return response;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("it never ends");
    };
    let ended = done(&path).await;
    assert_eq!(
        (&ended["status"], &ended["output"][0]["content"][0]["text"]),
        (&json!("completed"), &json!("Hello"))
    );
    let (status, answer) = send(&app, Method::POST, &format!("{path}/cancel")).await;
    assert_eq!(
        (status, &answer["error"]["code"]),
        (StatusCode::BAD_REQUEST, &json!("not_in_progress"))
    );

    app.engine.say(Reply::Hold("Hel".into()));
    let begun = create(&app, json!({ "background": true })).await;
    let path = format!("/v1/responses/{}", id(&begun));
    let fields = json!({ "previous_response_id": id(&begun) });
    let (status, answer) = app.post("/v1/responses", &body(fields)).await;
    assert_eq!(
        (status, &answer["error"]["param"]),
        (StatusCode::BAD_REQUEST, &json!("previous_response_id"))
    );
    assert_eq!(app.engine.held_open(), 1);
    let (status, answer) = send(&app, Method::POST, &format!("{path}/cancel")).await;
    assert_eq!((status, &answer["status"]), (StatusCode::OK, &json!("cancelled")));
    let ended = done(&path).await;
    assert_eq!(ended["status"], "cancelled", "{ended}");
    assert_eq!(app.engine.held_open(), 0);
    assert_eq!(send(&app, Method::POST, &format!("{path}/cancel")).await.0, StatusCode::OK);

    // What is deleted ends, and does not come back.
    let begun = create(&app, json!({ "background": true })).await;
    let path = format!("/v1/responses/{}", id(&begun));
    assert_eq!(send(&app, Method::DELETE, &path).await.0, StatusCode::OK);
    for _ in 0..500 {
        if app.engine.held_open() == 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(app.engine.held_open(), 0);
    assert_eq!(get(&app, &path).await.0, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn queries_are_checked() {
    let app = App::text("Hi");
    let path = format!("/v1/responses/{}", id(&create(&app, json!({})).await));
    for (query, param) in [
        ("?stream=true", "stream"),
        ("?starting_after=3", "starting_after"),
        ("?mood=good", "mood"),
        ("/input_items?limit=0", "limit"),
        ("/input_items?order=random", "order"),
        ("/input_items?after=x", "after"),
        ("/input_items?before=x", "before"),
    ] {
        let (status, answer) = get(&app, &format!("{path}{query}")).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{query}: {answer}");
        assert_eq!(answer["error"]["param"], param, "{query}");
    }
    assert_eq!(get(&app, &format!("{path}?include[]=x&stream=false")).await.0, StatusCode::OK);
}
