//! Videos in prompts, over an encoder that looks at two frames at a time.

use crate::images::{asks, base64, prompt, refused, seeing, text};
use serde_json::{Value, json};

fn video(url: &str) -> Value {
    json!({ "type": "video_url", "video_url": { "url": url } })
}

#[tokio::test]
async fn a_video_is_images_with_their_times() {
    let app = seeing();
    let list = [[2, 1, 7], [2, 1, 8], [1, 1, 9]].map(|frame| base64(&frame)).join(",");
    let gif = |frames: &[u8]| format!("data:image/gif;base64,{}", base64(frames));
    let six = gif(b"v\x01\x01a\x01\x01b\x01\x01c\x01\x01d\x01\x01e\x01\x01f");
    let parts = json!([
        text("a"),
        video(&format!("data:video/jpeg;base64,{list}")),
        text("b"),
        video(&six)
    ]);
    let (status, _) = app.post("/v1/chat/completions", &asks(parts)).await;
    assert_eq!(status, 200);
    let want = prompt(&[
        Ok("<"),
        Ok("user:a[0.0, 0.5]"),
        Err(2),
        Ok("[1.0, 1.0]"),
        Err(1),
        Ok("b[0.0, 1.0]"),
        Err(1),
        Ok("[2.0, 2.0]"),
        Err(1),
        Ok(">"),
        Ok("<"),
    ]);
    assert_eq!(app.engine.last().prompt, want);
    let slow = json!({ "type": "video_url", "video_url": {
        "url": format!("data:video/jpeg;base64,{list}"), "fps": 0.5 } });
    let (status, _) = app.post("/v1/chat/completions", &asks(json!([slow]))).await;
    assert_eq!(status, 200);
    let text = |from: usize, n: usize| -> String {
        let prompt = app.engine.last().prompt;
        prompt[from..from + n].iter().map(|&t| char::from(t as u8)).collect()
    };
    assert_eq!(text(6, 10), "[0.0, 2.0]");
    let (_, page) = app.get("/metrics").await;
    assert!(page.contains("taper:videos_total{") && page.contains("taper:video_frames_total{"));
}

#[tokio::test]
async fn other_videos_are_refused_with_what_to_do() {
    let app = seeing();
    for (url, says) in [
        ("data:video/mp4;base64,AAAA", "MP4 is not read"),
        ("https://a.example/b.mp4", "videos come in requests"),
        ("data:video/jpeg;base64,AAEC,!", "not valid base64"),
        ("frames:2,AAEC", "videos come in requests"),
        ("", "videos come in requests"),
    ] {
        let (status, error) =
            refused(&app, "/v1/chat/completions", &asks(json!([video(url)]))).await;
        let message = error["message"].as_str().unwrap();
        assert!(status == 400 && message.contains(says), "{url}: {error}");
    }
    let frames = json!([{ "type": "image_url", "image_url": { "url": "frames:2,AAEC" } }]);
    let (status, error) = refused(&app, "/v1/chat/completions", &asks(frames)).await;
    assert_eq!((status, &error["code"]), (400, &json!("invalid_image")), "{error}");
    for fps in [json!(0), json!(-1), json!(1e9)] {
        let part = json!({ "type": "video_url",
            "video_url": { "url": "data:video/jpeg;base64,AQEB", "fps": fps } });
        let (status, error) = refused(&app, "/v1/chat/completions", &asks(json!([part]))).await;
        assert!(status == 400 && error["message"].as_str().unwrap().contains("fps"), "{error}");
    }
    assert_eq!(app.engine.count(), 0);
}
