//! taper-openai-server: an engine that echoes, behind the OpenAI API.

use anyhow::Result;
use std::{path::Path, sync::Arc, time::Duration};
use taper_base::*;
use taper_chat::Tokenizer;
use taper_openai_server::{AppState, ServerConfig, serve};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/server/models/demo");

#[derive(Debug)]
struct Echo(EngineInfo);

impl Engine for Echo {
    fn submit(&self, r: GenRequest, mut events: Box<dyn EventSink>) -> Result<(), SubmitError> {
        events.send(Event::Started { cached_tokens: 0 });
        for id in r.prompt {
            events.send(Event::Token(GeneratedToken { id, logprobs: None, stops: false }));
        }
        events.send(Event::Finished(FinishReason::Stop));
        Ok(())
    }
    fn info(&self) -> &EngineInfo {
        &self.0
    }
    fn stats(&self) -> EngineStats {
        EngineStats::default()
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let info = EngineInfo {
        max_model_len: 64,
        vocab_size: 8192,
        eos_token_ids: vec![],
        kv_cache_dtype: "none".to_owned(),
        kv_capacity_tokens: 64,
        kv_capacity_bytes: 0,
        weight_bytes: 0,
    };
    let tokenizer = Tokenizer::load(Path::new(DEMO))?;
    let state = AppState::new(Arc::new(Echo(info)), tokenizer, None, ServerConfig::default());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    println!("serving on http://{address}");

    // A server waits for Ctrl-C here; this one for the end of its only client.
    let client = async move {
        let body = r#"{"prompt": "Say that again", "max_tokens": 8}"#;
        let head = "POST /v1/completions HTTP/1.1\r\nHost: echo\r\nConnection: close\r\n";
        let request = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());
        let mut socket = tokio::net::TcpStream::connect(address).await?;
        socket.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        socket.read_to_string(&mut answer).await?;
        Ok::<_, std::io::Error>(println!("{answer}"))
    };
    serve(listener, state, async { client.await.unwrap_or(()) }, Duration::from_secs(1)).await?;
    Ok(())
}

#[test]
fn runs() -> Result<()> {
    main()
}
