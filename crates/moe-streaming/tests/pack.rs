//! Packs: written in parts, read from files, and refused when they are not what they should be.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{fs, path::Path};
use taper_cpu::AlignedBytes;
use taper_moe_streaming::{
    ExpertDisk, ExpertError, ExpertKey, LayerEntry, Manifest, PackFiles, PackWriter, SourceFile,
};

const PAYLOAD: usize = 5000;
const EXPERTS: usize = 6;

fn entry(layer: usize) -> LayerEntry {
    let maps = vec!["bytes".to_owned()];
    LayerEntry { name: format!("layers.{layer}"), experts: EXPERTS, payload: PAYLOAD, maps }
}

fn byte(layer: usize, expert: usize) -> u8 {
    (layer * 10 + expert) as u8
}

/// Writes the layers up to an expert of the last one; `None` is the disk that fails there.
fn write(dir: &Path, layers: usize, until: Option<usize>) -> Result<(usize, usize), ExpertError> {
    let mut writer = PackWriter::new(dir, Vec::new())?;
    let mut asked = 0;
    for layer in 0..layers {
        let fill = |expert: usize, payload: &mut [u8]| {
            if layer + 1 == layers && until == Some(expert) {
                let key = ExpertKey { layer: layer as u32, expert: expert as u32 };
                return Err(ExpertError::Missing { key });
            }
            asked += 1;
            payload.fill(byte(layer, expert));
            Ok(())
        };
        writer.layer(entry(layer), fill, |_| {})?;
    }
    let written = writer.finish()?;
    assert_eq!(written.records + written.resumed, layers * EXPERTS);
    Ok((asked, written.resumed))
}

fn check(dir: &Path, layers: usize) {
    let pack = PackFiles::open(dir, true).unwrap();
    assert_eq!(pack.experts(), vec![EXPERTS; layers]);
    let mut memory = AlignedBytes::pages(pack.record_bytes(0));
    for layer in 0..layers {
        for expert in 0..EXPERTS {
            let key = ExpertKey { layer: layer as u32, expert: expert as u32 };
            pack.read(key, memory.as_mut_slice()).unwrap();
            let payload = &memory.as_slice()[64..][..PAYLOAD];
            assert!(payload.iter().all(|&b| b == byte(layer, expert)), "{key}");
        }
    }
    let none = ExpertKey { layer: 0, expert: EXPERTS as u32 };
    let read = pack.read(none, memory.as_mut_slice());
    assert!(matches!(read, Err(ExpertError::Missing { .. })));
}

#[test]
fn packs_that_were_interrupted_are_gone_on_with() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("new/pack");
    assert!(matches!(write(&dir, 2, Some(3)), Err(ExpertError::Missing { .. })));
    assert!(!Manifest::is_in(&dir));
    assert!(matches!(PackFiles::open(&dir, true), Err(ExpertError::File { .. })));
    // Half a record is not one.
    let file = dir.join(Manifest::file_name(1));
    let half = fs::metadata(&file).unwrap().len() - 100;
    fs::OpenOptions::new().write(true).open(&file).unwrap().set_len(half).unwrap();
    // Of each layer the last record is made once more and compared.
    assert_eq!(write(&dir, 2, None).unwrap(), (1 + 1 + 4, 6 + 2));
    check(&dir, 2);
    assert!(matches!(write(&dir, 2, None), Err(ExpertError::File { .. })), "it is whole");
}

#[test]
fn a_pack_of_other_weights_is_not_gone_on_with() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), 1, Some(3)).unwrap_err();
    let mut writer = PackWriter::new(dir.path(), Vec::new()).unwrap();
    let other = |_: usize, payload: &mut [u8]| {
        payload.fill(99);
        Ok(())
    };
    let error = writer.layer(entry(0), other, |_| {}).unwrap_err();
    assert!(matches!(error, ExpertError::OtherModel { .. }));
    // Of other files, whatever their experts are.
    let other = dir.path().join("other");
    fs::write(&other, "x").unwrap();
    let source = vec![SourceFile::of(&other, |_| {}).unwrap()];
    let error = PackWriter::new(dir.path(), source).unwrap_err();
    assert!(matches!(error, ExpertError::OtherModel { .. }));
}

#[test]
fn damaged_files_are_found() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), 1, None).unwrap();
    check(dir.path(), 1);
    let file = dir.path().join(Manifest::file_name(0));
    let whole = fs::read(&file).unwrap();
    let record = whole.len() / EXPERTS;
    let mut memory = AlignedBytes::pages(record);
    let mut read = |expert: usize, checksums| {
        let pack = PackFiles::open(dir.path(), checksums).unwrap();
        let key = ExpertKey { layer: 0, expert: expert as u32 };
        pack.read(key, memory.as_mut_slice())
    };
    let mut flipped = whole.clone();
    flipped[2 * record + 1000] ^= 4;
    flipped[3 * record + 9] ^= 1;
    fs::write(&file, &flipped).unwrap();
    assert!(matches!(read(2, true), Err(ExpertError::Checksum { .. })));
    read(2, false).unwrap();
    assert!(matches!(read(3, false), Err(ExpertError::Header { .. })));
    read(1, true).unwrap();
    // Two records that changed places are not each other.
    let mut turned = whole.clone();
    turned[..2 * record].rotate_left(record);
    fs::write(&file, &turned).unwrap();
    assert!(matches!(read(0, false), Err(ExpertError::Header { .. })));
    fs::write(&file, &whole[..whole.len() - 1]).unwrap();
    let short = PackFiles::open(dir.path(), true);
    assert!(matches!(short, Err(ExpertError::Manifest { .. })));
    // Cut while it is open.
    fs::write(&file, &whole).unwrap();
    let pack = PackFiles::open(dir.path(), true).unwrap();
    let open = fs::OpenOptions::new().write(true).open(&file).unwrap();
    open.set_len(record as u64).unwrap();
    let key = ExpertKey { layer: 0, expert: 4 };
    let cut = pack.read(key, memory.as_mut_slice());
    assert!(matches!(cut, Err(ExpertError::Short { .. })));
}

#[test]
fn two_readers_share_a_pack() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), 2, None).unwrap();
    std::thread::scope(|scope| {
        (0..2).for_each(|_| {
            scope.spawn(|| check(dir.path(), 2));
        });
    });
}

#[test]
fn sources_are_named_by_their_hash() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.safetensors");
    fs::write(&path, "abc").unwrap();
    let mut seen = 0;
    let source = SourceFile::of(&path, |n| seen += n).unwrap();
    assert_eq!((source.name.as_str(), source.bytes, seen), ("a.safetensors", 3, 3));
    assert!(source.sha256.starts_with("ba7816bf8f01cfea"));
    assert!(SourceFile::of(&dir.path().join("b"), |_| {}).is_err());
}
