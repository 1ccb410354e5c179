//! taper-openai-server: an engine that echoes, behind the OpenAI API.

use anyhow::Result;
use std::{path::Path, sync::Arc, time::Duration};
use taper_base::*;
use taper_openai_server::{AppState, ServerConfig, serve};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/server/models/demo");
const REQUEST: &str = "POST /v1/completions HTTP/1.1\r\nHost: echo\r\nConnection: close\r\n\
                       Content-Length: 28\r\n\r\n{\"prompt\": \"Say that again\"}";

#[derive(Debug)]
struct Echo(EngineInfo);

impl Engine for Echo {
    fn submit(&self, r: GenRequest, mut events: Box<dyn EventSink>) -> Result<(), SubmitError> {
        events.send(Event::Started { cached_tokens: 0 });
        for id in r.prompt {
            events.send(Event::Token(GeneratedToken {
                id,
                logprobs: None,
                stops: false,
                open: false,
            }));
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
    let tokenizer = taper_chat::Tokenizer::load(Path::new(DEMO))?;
    let engine = Arc::new(Echo(EngineInfo {
        max_model_len: 64,
        vocab_size: 8192,
        eos_token_ids: vec![],
        kv_cache_dtype: "none".to_owned(),
        kv_capacity_tokens: 64,
        kv_capacity_bytes: 0,
        kv_exact_bytes: 0,
        kv_bits: vec![],
        prefix_caching: false,
        weight_bytes: 0,
        kv_recall_pages: 0,
        drafting: Drafting::default(),
    }));
    let state = AppState::new(engine, tokenizer, None, ServerConfig::default());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let mut client = tokio::net::TcpStream::connect(listener.local_addr()?).await?;
    // A server waits for Ctrl-C; this one for the end of its only client.
    let shutdown = async move {
        let mut answer = String::new();
        client.write_all(REQUEST.as_bytes()).await.unwrap_or(());
        client.read_to_string(&mut answer).await.unwrap_or(0);
        println!("{answer}");
    };
    Ok(serve(vec![listener], state, shutdown, Duration::from_secs(1)).await?)
}

#[test]
fn runs() -> Result<()> {
    main()
}
