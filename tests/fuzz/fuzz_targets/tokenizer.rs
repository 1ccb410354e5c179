//! A tokenizer.json, and what it makes of texts and ids.
#![no_main]

use libfuzzer_sys::fuzz_target;
use taper_chat::Tokenizer;

fuzz_target!(|data: &[u8]| {
    let Ok(tokenizer) = Tokenizer::from_bytes(data, None) else { return };
    for text in ["", "Hello, world 12!", " \u{2603}\u{fe0f}<|im_end|>\n\n  x", "\u{0}\u{10ffff}"] {
        if let Ok(ids) = tokenizer.encode(text, true) {
            let _ = tokenizer.decode(&ids, false);
        }
    }
    let ids: Vec<u32> = (0..200).chain([u32::MAX]).collect();
    let _ = tokenizer.decode(&ids, true);
    let mut pieces = tokenizer.detokenizer(true);
    for id in ids {
        let _ = (tokenizer.token_bytes(id), tokenizer.token_text(id), tokenizer.is_special(id));
        let _ = pieces.push(id);
    }
});
