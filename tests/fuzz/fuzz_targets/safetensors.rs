//! A file of weights: its tensors are weights or errors.
#![no_main]

use libfuzzer_sys::fuzz_target;
use taper_fuzz::{directory, file};
use taper_weights::Checkpoint;

fuzz_target!(|data: &[u8]| {
    file("config.json", br#"{"quantization": {"bits": 4, "group_size": 64}}"#);
    file("model.safetensors", data);
    let Ok(checkpoint) = Checkpoint::open(directory()) else { return };
    for info in checkpoint.list().into_iter().take(32) {
        let _ = checkpoint.vector(&info.name, 3);
        let layer = info.name.trim_end_matches(".weight");
        for (rows, cols) in [(2, 64), (2, 3), (usize::MAX, usize::MAX & !127)] {
            let _ = checkpoint.weight(layer, rows, cols);
        }
    }
});
