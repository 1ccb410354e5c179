//! A GGUF file: its checkpoint, its tokenizer and its template.
#![no_main]

use libfuzzer_sys::fuzz_target;
use taper_chat::Tokenizer;
use taper_fuzz::file;
use taper_models::LoadOptions;
use taper_weights::Gguf;

fuzz_target!(|data: &[u8]| {
    let path = file("model.gguf", data);
    let Ok(gguf) = Gguf::open(&path) else { return };
    let _ = gguf.chat_template();
    if let Ok((tokenizer, config)) = gguf.tokenizer_files() {
        let _ = Tokenizer::from_bytes(&tokenizer, Some(&config));
    }
    if let Ok(checkpoint) = gguf.checkpoint() {
        let _ = taper_models::load(&checkpoint, LoadOptions::default());
    }
});
