//! taper-base and taper-engine: a model generates, token by token.

use anyhow::Result;
use std::{io::Write, path::Path};
use taper_base::{Engine, Event, GenRequest, SamplingParams, StopRules};
use taper_chat::{TextOptions, TextStream, Tokenizer};
use taper_engine::{EngineConfig, KvBudget, LocalEngine, channel};
use taper_models::LoadOptions;
use taper_weights::Checkpoint;

const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/server/models/demo");

fn main() -> Result<()> {
    let dir = Path::new(DEMO);
    let tokenizer = Tokenizer::load(dir)?;
    let model = taper_models::load(&Checkpoint::open(dir)?, LoadOptions::default())?;
    let end = tokenizer.encode("<|im_end|>", false)?;
    let config = EngineConfig {
        max_model_len: Some(512),
        max_num_seqs: 8,
        kv_budget: KvBudget::Tokens(1024),
        eos_token_ids: end,
        ..EngineConfig::default()
    };
    let engine = LocalEngine::start(model, &config)?;

    // The engine deals in tokens: templates and text are somebody else's (see the chat example).
    let text = "<|im_start|>user\nWhat is 12 + 30?<|im_end|>\n<|im_start|>assistant\n<think>\n";
    let prompt = tokenizer.encode(text, false)?;
    let mut stream = TextStream::new(&tokenizer, &TextOptions::default(), &prompt)?;
    let request = GenRequest {
        prompt,
        sampling: SamplingParams::greedy(),
        stop: StopRules { max_tokens: Some(100), ..StopRules::default() },
        ..GenRequest::default()
    };
    let (sink, events) = channel();
    engine.submit(request, sink)?;

    for event in events {
        match event {
            Event::Token(token) => print!("{}", stream.push(&token)?.text),
            Event::Finished(reason) => println!("{}\n[{reason:?}]", stream.finish()?.text),
            Event::Failed(error) => return Err(error.into()),
            Event::Started { .. } | Event::Prompt(_) | Event::Drafted { .. } => {}
        }
        std::io::stdout().flush()?;
    }
    let stats = engine.stats();
    println!("{} prompt tokens, {} generated", stats.prompt_tokens, stats.generation_tokens);
    Ok(())
}

#[test]
fn runs() -> Result<()> {
    main()
}
