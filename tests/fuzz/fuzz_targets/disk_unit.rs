//! The file of a KV prefix on disk: its rows are what was written, or none.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::{
    fs,
    path::PathBuf,
    sync::{OnceLock, mpsc},
    time::Duration,
};
use taper_fuzz::directory;
use taper_kv_cache::{DiskTier, UnitName};

fn tier() -> &'static (DiskTier, UnitName, PathBuf, Vec<u8>) {
    static TIER: OnceLock<(DiskTier, UnitName, PathBuf, Vec<u8>)> = OnceLock::new();
    TIER.get_or_init(|| {
        let tier = DiskTier::open(directory(), 1 << 30).expect("a directory");
        let name = UnitName::root("fuzz");
        tier.store(name, 1, rows());
        while !tier.holds(&name) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut files =
            fs::read_dir(directory()).expect("a directory").map(|f| f.expect("a file").path());
        let path =
            files.find(|f| f.extension().is_some_and(|e| e == "kv")).expect("the unit's file");
        let bytes = fs::read(&path).expect("the unit's file");
        (tier, name, path, bytes)
    })
}

fn rows() -> Vec<Vec<u8>> {
    (0..3).map(|part| vec![part; 20]).collect()
}

fuzz_target!(|data: &[u8]| {
    let (tier, name, path, whole) = tier();
    // Changes of what was written, and any bytes at all.
    let bytes = match data {
        [0, edits @ ..] => {
            let mut bytes = whole.clone();
            for edit in edits.chunks_exact(3) {
                let at = usize::from(u16::from_le_bytes([edit[0], edit[1]])) % bytes.len();
                bytes[at] ^= edit[2];
            }
            bytes
        }
        _ => data.to_vec(),
    };
    fs::write(path, &bytes).expect("the unit's file");
    let (sender, answer) = mpsc::channel();
    tier.load(*name, move |rows| drop(sender.send(rows)));
    let read = answer.recv().expect("an answer");
    assert!(read.is_none_or(|read| bytes == *whole && read == rows()));
});
