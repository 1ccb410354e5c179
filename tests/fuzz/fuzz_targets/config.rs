//! A model's config.json, over the weights of a small one.
#![no_main]

use libfuzzer_sys::fuzz_target;
use taper_models::LoadOptions;
use taper_weights::Checkpoint;

const WEIGHTS: &[u8] = include_bytes!("../../tests/fixtures/parity/qwen3-bf16/model.safetensors");

fuzz_target!(|data: &[u8]| {
    if let Ok(checkpoint) = Checkpoint::from_static(data, WEIGHTS) {
        let _ = taper_models::load(&checkpoint, LoadOptions::default());
    }
});
