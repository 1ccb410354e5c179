//! The facade as a program uses it, on the demo model.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};
use taper::{Builder, ChatTemplateFrom, Delta, Engine, Error, FinishReason, Options, Taper};

const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../server/models/demo");

fn builder() -> Builder {
    Taper::builder(DEMO).max_model_len(512)
}

fn greedy() -> Options {
    Options::default().temperature(0.0).max_tokens(64)
}

#[test]
fn a_conversation_is_remembered() {
    let model = builder().kv("taper4").build().unwrap();
    let mut chat = model.chat().system("You are helpful.").options(greedy());
    let answer = chat.say("What is 12 + 30?").unwrap();
    assert_eq!((answer.text(), answer.finish), ("12 + 30 = 42.", Some(FinishReason::Stop)));
    assert_eq!(answer.tokens, model.engine.stats().generation_tokens as usize);
    assert_eq!(model.engine.info().kv_cache_dtype, "taper4");
    let before = answer.prompt_tokens;
    assert!(chat.say("Hello").unwrap().prompt_tokens > before + 12, "with what was said before");
    assert_eq!(chat.messages().len(), 5);
    chat.reset();
    assert_eq!(chat.messages().len(), 1, "the system message stays");
}

#[test]
fn parts_make_the_whole() {
    let model = builder().build().unwrap();
    let chat = model.chat().options(greedy().think(true));
    let whole = chat.stream("What is 58 + 67?").unwrap().answer().unwrap();
    let (mut reasoning, mut content) = (String::new(), String::new());
    for delta in chat.stream("What is 58 + 67?").unwrap() {
        match delta.unwrap() {
            Delta::Reasoning(text) => reasoning.push_str(&text),
            Delta::Content(text) => content.push_str(&text),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(whole.message.reasoning.as_deref(), Some(&*reasoning));
    assert_eq!((whole.text(), content.contains("125")), (&*content, true));
    assert!(chat.messages().is_empty(), "nothing was to be remembered");
}

#[test]
fn a_dropped_stream_is_cancelled() {
    let model = builder().max_waiting(1).build().unwrap();
    let options = Options::default().temperature(0.0).max_tokens(400);
    for _ in 0..8 {
        let mut stream = model.complete("Once upon a time", &options).unwrap();
        stream.next().unwrap().unwrap();
        let answer = stream.give_up();
        assert!(answer.finish.is_none() && answer.tokens > 0, "{answer:?}");
    }
    let next = model.complete("Once upon a time", &greedy()).unwrap().answer().unwrap();
    assert!(next.finish.is_some());
}

#[test]
fn a_stopped_engine_ends_a_stream() {
    let model = builder().build().unwrap();
    model.engine.stop();
    assert!(model.complete("a", &greedy()).and_then(taper::Stream::answer).is_err());
}

#[test]
fn a_load_reports_its_progress() {
    let most = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&most);
    let report = move |done: u64, total: u64| {
        assert!(done <= total);
        seen.fetch_max(total, Ordering::Relaxed);
    };
    let model = builder().progress(report).build().unwrap();
    assert!(most.load(Ordering::Relaxed) > 1_000_000, "bytes of the weights");
    assert_eq!((model.name.as_str(), model.family), ("demo", "qwen3"));
    assert_eq!(model.no_chat(), None);
}

#[test]
fn mistakes_are_typed() {
    let error = |builder: Builder| builder.build().unwrap_err();
    assert!(matches!(error(Taper::builder("org/never-downloaded")), Error::Hub(_)));
    assert!(matches!(error(builder().dtype("int3")), Error::Dtype { .. }));
    assert!(matches!(error(builder().kv("int1")), Error::KvPlan(_)));
    assert!(matches!(error(builder().memory_share(0.0)), Error::MemoryShare { .. }));
    assert!(matches!(error(builder().memory_share(f64::NAN)), Error::MemoryShare { .. }));
    assert!(matches!(error(builder().memory_share(1e-9)), Error::NoMemory { .. }));
    assert!(matches!(error(builder().max_num_seqs(0)), Error::Engine(_)));
    let uncached = builder().kv_disk("/nowhere", 1 << 30).prefix_caching(false);
    assert!(matches!(error(uncached), Error::NoDisk));
    let model = builder().chat_template(ChatTemplateFrom::Nowhere).build().unwrap();
    assert!(matches!(model.chat().say("Hello").unwrap_err(), Error::NoTemplate));
    assert_eq!(model.no_chat(), None, "there is no template that could fail");
    let long = "word ".repeat(2000);
    assert!(matches!(model.complete(&long, &greedy()).unwrap_err(), Error::Submit(_)));
}
