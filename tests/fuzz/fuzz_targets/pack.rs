//! A pack of experts: its manifest, and a file of records.
#![no_main]

use libfuzzer_sys::fuzz_target;
use taper_cpu::AlignedBytes;
use taper_fuzz::{directory, file};
use taper_moe_streaming::{ExpertDisk, ExpertKey, Manifest, PackFiles};

/// More than a record of the seeds takes.
const MOST: usize = 1 << 20;

fuzz_target!(|data: &[u8]| {
    let [a, b, rest @ ..] = data else { return };
    let (manifest, records) =
        rest.split_at(usize::from(u16::from_le_bytes([*a, *b])).min(rest.len()));
    file("manifest.json", manifest);
    file(&Manifest::file_name(0), records);
    let Ok(pack) = PackFiles::open(directory(), false) else { return };
    for (layer, experts) in pack.experts().into_iter().enumerate().take(2) {
        let bytes = pack.record_bytes(layer);
        if bytes > MOST {
            continue;
        }
        let mut memory = AlignedBytes::pages(bytes);
        for expert in (0..experts.min(4)).chain([experts]) {
            let key = ExpertKey { layer: layer as u32, expert: expert as u32 };
            let _ = pack.read(key, memory.as_mut_slice());
        }
    }
});
