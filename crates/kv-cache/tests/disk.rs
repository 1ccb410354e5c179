//! Prefixes on disk: found by another cache, and only when they are whole and the right ones.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Arc, mpsc},
};
use taper_base::{LayerId, SeqId, TokenId};
use taper_kv_cache::{
    DiskTier, ExactRoom, ImageSpan, KvCache, KvCacheError, KvConfig, KvScheme, NotRestored,
    Restoring, SeqRange, UnitName, Unread, Written,
};
use taper_kv_codecs::{Exact, KvGeometry};
use taper_tensor::{Tensor, ops};

const BLOCK: usize = 32;
const LAYERS: usize = 2;
const LIMIT: u64 = 1 << 30;

fn cache(codecs: &[&str], exact: Option<Exact>, tier: &Arc<DiskTier>, model: &str) -> KvCache {
    let geometry = KvGeometry { kv_heads: 2, head_dim: 64, block_tokens: BLOCK };
    let codecs: Vec<_> = codecs.iter().map(|c| taper_kv_codecs::parse(c).unwrap()).collect();
    let room = |tokens| ExactRoom::for_sequences(tokens, 4, 512, BLOCK);
    let config = KvConfig {
        exact: exact.map(room),
        prefix_caching: true,
        ..KvConfig::new(KvScheme::of_layers(&codecs).unwrap(), LAYERS, geometry, 64)
    };
    KvCache::new(config).with_disk(Arc::clone(tier), model)
}

/// Rows that depend on the token and its position.
fn compute(cache: &mut KvCache, seq: SeqId, tokens: &[TokenId]) {
    cache.grow(seq, tokens.len()).unwrap();
    let mut session = cache.session(&[SeqRange { seq, start: 0, len: tokens.len() }]).unwrap();
    for layer in 0..LAYERS as u16 {
        let side = |side: f32| {
            let value = |i: usize| (tokens[i / 128] as f32 * 0.37 + i as f32 * side).sin();
            let rows = (0..tokens.len() * 128).map(|i| value(i) + f32::from(layer)).collect();
            Tensor::from_vec(rows, &[tokens.len(), 2, 64]).unwrap()
        };
        session.store(LayerId(layer), &side(0.011), &side(0.017)).unwrap();
    }
    cache.publish(seq, tokens);
}

/// Reads all units of a prompt that the disk has, and says how many could be used.
fn restore(cache: &mut KvCache, tokens: &[TokenId]) -> usize {
    let (mut restored, mut so_far) = (0, Restoring::default());
    let units = cache.on_disk(SeqId(90), tokens);
    for &(unit, name) in &units {
        let (sender, rows) = mpsc::channel();
        cache.load(name, move |rows| sender.send(rows).unwrap());
        match rows.recv().unwrap() {
            Ok(rows)
                if cache.restore(SeqId(90), tokens, (unit, name), (&rows, &mut so_far)).is_ok() =>
            {
                restored += 1;
            }
            _ => {
                cache.forget_units(units.iter().map(|unit| unit.1));
                break;
            }
        }
    }
    cache.restored(&so_far);
    restored
}

/// All stored bytes of a sequence's leading blocks, layer by layer, by attending to them.
fn seen(cache: &mut KvCache, seq: SeqId, tokens: &[TokenId]) -> Vec<f32> {
    use taper_kv_cache::StateSession;
    use taper_kv_codecs::AttnParams;
    use taper_tensor::Projected;
    let start = tokens.len() - 1;
    cache.grow(seq, tokens.len()).unwrap();
    let mut session = cache.session(&[SeqRange { seq, start, len: 1 }]).unwrap();
    let params = AttnParams::new(0.2);
    let row = |heads: usize, by: f32| {
        let row = (0..heads * 64).map(|i| (i as f32 * by).cos()).collect();
        Tensor::from_vec(row, &[1, heads * 64]).unwrap()
    };
    let [q, k, v] = [row(4, 0.3), row(2, 0.1), row(2, 0.2)];
    let rows = Projected { q: &q, k: &k, v: &v, head_dim: 64, norms: None, rope: None, next: None };
    let attend = |layer| {
        let out = session.attend(LayerId(layer), &rows, &params);
        ops::with_host_f32(&out.unwrap(), <[f32]>::to_vec).unwrap()
    };
    (0..LAYERS as u16).flat_map(attend).collect()
}

/// All files but the one that is locked.
fn files(dir: &Path) -> Vec<PathBuf> {
    let all = fs::read_dir(dir).unwrap().map(|e| e.unwrap().path());
    let mut files: Vec<_> = all.filter(|path| !path.ends_with("lock")).collect();
    files.sort();
    files
}

fn prompt() -> Vec<TokenId> {
    (0..301).map(|i| i * 7 % 97).collect()
}

#[test]
fn another_cache_finds_the_same_rows() {
    let exact = Some(Exact { sink_tokens: 32, recent_tokens: 64 });
    for (codecs, exact, unit) in [
        (&["f16", "f16"], None, 32),
        (&["taper3", "taper3"], exact, 64),
        (&["turbo4v2", "f16"], exact, 64),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let (tokens, whole) = (prompt(), 300 / unit);
        let want = {
            let tier = Arc::new(DiskTier::open(dir.path(), LIMIT).unwrap());
            let mut first = cache(codecs, exact, &tier, "model");
            assert_eq!(restore(&mut first, &tokens[..300]), 0);
            compute(&mut first, SeqId(1), &tokens[..300]);
            seen(&mut first, SeqId(1), &tokens)
        };
        assert_eq!(files(dir.path()).len(), whole, "{codecs:?}");
        let tier = Arc::new(DiskTier::open(dir.path(), LIMIT).unwrap());
        let mut second = cache(codecs, exact, &tier, "model");
        assert_eq!(restore(&mut second, &tokens[..300]), whole, "{codecs:?}");
        assert_eq!(second.usage().used_blocks, 0, "nobody holds them yet");
        assert_eq!(second.on_disk(SeqId(90), &tokens[..300]), [], "they are in memory now");
        assert_eq!(second.adopt(SeqId(7), &tokens[..300]), whole * unit);
        // The rest of the prompt is computed, and then both say the same, bit for bit.
        let rest = whole * unit;
        let mut alone = cache(codecs, exact, &tier, "another model");
        compute(&mut alone, SeqId(1), &tokens[..rest]);
        let at_rest = &tokens[..rest + 1];
        let found = seen(&mut second, SeqId(7), at_rest);
        assert_eq!(found, seen(&mut alone, SeqId(1), at_rest), "{codecs:?}");
        assert_eq!(want.len(), found.len());
        // Other weights, other codecs and other tokens find nothing.
        assert_eq!(cache(codecs, exact, &tier, "x").on_disk(SeqId(90), &tokens), []);
        assert_eq!(cache(&["f32", "f32"], None, &tier, "model").on_disk(SeqId(90), &tokens), []);
        assert_eq!(second.on_disk(SeqId(90), &tokens[1..]), []);
    }
}

#[test]
fn salts_keep_prefixes_apart_on_disk_too() {
    let dir = tempfile::tempdir().unwrap();
    let tokens = prompt();
    let open = || Arc::new(DiskTier::open(dir.path(), LIMIT).unwrap());
    {
        let mut first = cache(&["f16", "f16"], None, &open(), "model");
        first.set_salt(SeqId(1), Some("mine".into()));
        compute(&mut first, SeqId(1), &tokens[..128]);
    }
    let mut second = cache(&["f16", "f16"], None, &open(), "model");
    assert_eq!(restore(&mut second, &tokens[..128]), 0, "without a salt");
    second.set_salt(SeqId(90), Some("yours".into()));
    assert_eq!(restore(&mut second, &tokens[..128]), 0, "with another");
    second.set_salt(SeqId(90), Some("mine".into()));
    assert_eq!(restore(&mut second, &tokens[..128]), 4);
    assert_eq!(second.adopt(SeqId(2), &tokens[..128]), 0, "in memory likewise");
    assert_eq!(second.adopt(SeqId(90), &tokens[..128]), 128);
}

#[test]
fn images_keep_prefixes_apart_on_disk_too() {
    let dir = tempfile::tempdir().unwrap();
    let tokens = prompt();
    let open = || Arc::new(DiskTier::open(dir.path(), LIMIT).unwrap());
    let image = |name| [ImageSpan { tokens: 40..70, hash: [name; 32] }].into();
    {
        let mut first = cache(&["f16", "f16"], None, &open(), "model");
        first.set_images(SeqId(1), image(1));
        compute(&mut first, SeqId(1), &tokens[..128]);
    }
    let mut second = cache(&["f16", "f16"], None, &open(), "model");
    let units = |c: &KvCache| c.on_disk(SeqId(90), &tokens[..128]).len();
    assert_eq!(units(&second), 1, "what is before the image");
    second.set_images(SeqId(90), image(2));
    assert_eq!(units(&second), 1, "another image");
    second.set_images(SeqId(90), image(1));
    assert_eq!(restore(&mut second, &tokens[..128]), 4);
    assert_eq!(second.adopt(SeqId(90), &tokens[..128]), 128);
    assert_eq!(second.adopt(SeqId(2), &tokens[..128]), 32, "in memory likewise");
}

#[test]
fn damaged_and_foreign_files_are_not_used() {
    let dir = tempfile::tempdir().unwrap();
    let tokens = prompt();
    let open = || Arc::new(DiskTier::open(dir.path(), LIMIT).unwrap());
    let all_codecs = ["f16", "f16"];
    let mut names = Vec::new();
    {
        let tier = open();
        let mut first = cache(&all_codecs, None, &tier, "model");
        compute(&mut first, SeqId(1), &tokens[..128]);
        drop(first);
        drop(tier);
        let tier = open();
        for (_, unit) in cache(&all_codecs, None, &tier, "model").on_disk(SeqId(90), &tokens[..128])
        {
            names.push(unit);
        }
    }
    assert_eq!(names.len(), 4);
    fs::write(dir.path().join("notes.txt"), "mine").unwrap();
    let good: Vec<(PathBuf, Vec<u8>)> = files(dir.path())
        .into_iter()
        .filter(|f| f.extension().is_some_and(|e| e == "kv"))
        .map(|f| (f.clone(), fs::read(&f).unwrap()))
        .collect();
    let damages: [fn(&mut Vec<u8>); 6] = [
        |file| file.truncate(file.len() / 2),
        |file| file.clear(),
        |file| file[5000] ^= 1,
        |file| file[0] = b'x',
        |file| file[9] ^= 1,
        |file| file.push(0),
    ];
    for damage in damages {
        for (path, bytes) in &good {
            let mut bytes = bytes.clone();
            damage(&mut bytes);
            fs::write(path, bytes).unwrap();
        }
        let tier = open();
        let mut second = cache(&all_codecs, None, &tier, "model");
        assert_eq!(restore(&mut second, &tokens[..128]), 0);
        assert!(!tier.holds(&names[0]), "it is known to be of no use");
        // What is computed instead replaces the damaged file.
        compute(&mut second, SeqId(1), &tokens[..128]);
        drop((second, tier));
        let tier = open();
        assert_eq!(restore(&mut cache(&all_codecs, None, &tier, "model"), &tokens[..128]), 4);
    }
    assert_eq!(fs::read(dir.path().join("notes.txt")).unwrap(), b"mine");
}

#[test]
fn the_longest_unused_make_room() {
    let dir = tempfile::tempdir().unwrap();
    let name = |i: u32| UnitName::root("model").next(&[i]);
    let rows = vec![vec![7; 400], vec![8; 500]];
    let tier = DiskTier::open(dir.path(), 3500).unwrap();
    let wait = |tier: &DiskTier, i: u32| {
        let (sender, got) = mpsc::channel();
        tier.load(name(i), move |rows| sender.send(rows).unwrap());
        got.recv().unwrap()
    };
    for i in 0..3 {
        tier.store(name(i), 2, rows.clone());
    }
    drop(tier);
    let tier = DiskTier::open(dir.path(), 3500).unwrap();
    assert!(tier.bytes() <= 3500 && (0..3).all(|i| tier.holds(&name(i))));
    assert_eq!(wait(&tier, 0), Ok(rows.clone()));
    tier.store(name(3), 2, rows.clone());
    tier.store(name(9), 2, vec![vec![1; 10_000]]);
    drop(tier);
    let tier = DiskTier::open(dir.path(), 3500).unwrap();
    let held: Vec<_> = [0, 1, 2, 3, 9].into_iter().filter(|&i| tier.holds(&name(i))).collect();
    assert_eq!(held.len(), 3, "{held:?}: one made room, and what never fits was not kept");
    assert!(held.contains(&0) && held.contains(&3), "{held:?}");
    drop(tier);
    // A smaller limit takes effect at the start.
    let tier = DiskTier::open(dir.path(), 1200).unwrap();
    assert_eq!((files(dir.path()).len(), wait(&tier, 3)), (1, Ok(rows)));
}

#[test]
fn what_is_written_is_counted() {
    let dir = tempfile::tempdir().unwrap();
    let name = |i: u32| UnitName::root("model").next(&[i]);
    let tier = DiskTier::open(dir.path(), LIMIT).unwrap();
    assert_eq!(tier.written(), Written::default());
    // The second is there already, and is not written again.
    for (i, blocks) in [(0, 2), (0, 2), (1, 8)] {
        tier.store(name(i), blocks, vec![vec![3; 1000]]);
    }
    while !tier.holds(&name(1)) {
        std::thread::yield_now();
    }
    assert_eq!(tier.written(), Written { blocks: 10, bytes: tier.bytes() });
}

fn store_one(tier: &DiskTier, i: u32) -> UnitName {
    let name = UnitName::root("model").next(&[i]);
    tier.store(name, 1, vec![vec![7; 1000]]);
    let start = std::time::Instant::now();
    while !tier.holds(&name) && start.elapsed().as_secs() < 10 {
        std::thread::yield_now();
    }
    name
}

#[cfg(unix)]
#[test]
fn files_are_their_owners_alone_also_in_a_directory_that_was_there() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let tier = DiskTier::open(dir.path(), LIMIT).unwrap();
    store_one(&tier, 1);
    let files = files(dir.path());
    assert_eq!(files.len(), 1);
    assert_eq!(fs::metadata(&files[0]).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn a_directory_that_was_removed_is_made_again() {
    let dir = tempfile::tempdir().unwrap();
    let inner = dir.path().join("prefixes");
    let tier = DiskTier::open(&inner, LIMIT).unwrap();
    fs::remove_dir_all(&inner).unwrap();
    let name = store_one(&tier, 1);
    assert!(tier.holds(&name));
    assert_eq!(files(&inner).len(), 1);
}

/// A limit is for the directory, whoever writes there; a file that another process has removed is
/// one that is not there.
#[test]
fn processes_share_a_limit() {
    let dir = tempfile::tempdir().unwrap();
    let [one, two] = [0, 1].map(|_| DiskTier::open(dir.path(), 3500).unwrap());
    let first = store_one(&one, 1);
    for i in 2..4 {
        store_one(&one, i);
    }
    // Files of others are counted every two seconds.
    std::thread::sleep(std::time::Duration::from_millis(2100));
    for i in 4..6 {
        store_one(&two, i);
    }
    assert!(files(dir.path()).len() <= 3, "{:?}", files(dir.path()));
    let (sender, got) = mpsc::channel();
    one.load(first, move |rows| sender.send(rows).unwrap());
    assert_eq!(got.recv().unwrap(), Err(Unread::Gone));
    assert!(!one.holds(&first));
}

/// Pages that are nowhere but in files have a directory that nobody else removes files from.
#[test]
fn a_directory_is_shared_or_one_process_s_alone() {
    let dir = tempfile::tempdir().unwrap();
    let in_use = |opened: Result<DiskTier, KvCacheError>| {
        assert!(matches!(opened, Err(KvCacheError::DiskInUse { .. })), "{opened:?}");
    };
    let shared = [0, 1].map(|_| DiskTier::open(dir.path(), LIMIT).unwrap());
    in_use(DiskTier::open_alone(dir.path(), LIMIT));
    drop(shared);
    let alone = DiskTier::open_alone(dir.path(), LIMIT).unwrap();
    in_use(DiskTier::open(dir.path(), LIMIT));
    in_use(DiskTier::open_alone(dir.path(), LIMIT));
    drop(alone);
    DiskTier::open(dir.path(), LIMIT).unwrap();
}

/// A read that fails says nothing about the file: it may be the process that has too many files open.
#[test]
fn a_file_that_cannot_be_read_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let tier = DiskTier::open(dir.path(), LIMIT).unwrap();
    let name = store_one(&tier, 1);
    let path = files(dir.path()).remove(0);
    let moved = dir.path().join("moved");
    let load = || {
        let (sender, got) = mpsc::channel();
        tier.load(name, move |rows| sender.send(rows).unwrap());
        got.recv().unwrap()
    };
    // Reading a directory is an error, also for root.
    fs::rename(&path, &moved).unwrap();
    fs::create_dir(&path).unwrap();
    assert_eq!(load(), Err(Unread::Failed));
    assert!(tier.holds(&name));
    fs::remove_dir(&path).unwrap();
    fs::rename(&moved, &path).unwrap();
    assert!(load().is_ok());
    fs::write(&path, "damaged").unwrap();
    assert_eq!(load(), Err(Unread::Gone));
    assert!(!tier.holds(&name) && !path.exists());
}

/// What cannot be removed takes room still: a directory does not outgrow its limit because of it.
#[test]
fn files_that_cannot_be_removed_count() {
    let dir = tempfile::tempdir().unwrap();
    let tier = DiskTier::open(dir.path(), 3500).unwrap();
    for i in 1..4 {
        store_one(&tier, i);
    }
    let full = tier.bytes();
    for path in files(dir.path()) {
        // No directory is unlinked, also not by root.
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
    }
    for i in 4..8 {
        tier.store(UnitName::root("model").next(&[i]), 1, vec![vec![7; 1000]]);
    }
    drop(tier);
    let written = files(dir.path()).iter().filter(|path| path.is_file()).count();
    assert_eq!((full / 1000, written), (3, 0));
}

/// Units that have no room in memory stay on disk, where they serve another time.
#[test]
fn a_unit_without_room_is_not_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let tokens = prompt();
    let tier = Arc::new(DiskTier::open(dir.path(), LIMIT).unwrap());
    compute(&mut cache(&["f16", "f16"], None, &tier, "model"), SeqId(1), &tokens[..128]);
    let mut full = cache(&["f16", "f16"], None, &tier, "model");
    let mut units = Vec::new();
    while units.len() < 4 {
        units = full.on_disk(SeqId(90), &tokens[..128]);
    }
    full.grow(SeqId(1), 63 * BLOCK).unwrap();
    let rows = |cache: &KvCache, name| {
        let (sender, got) = mpsc::channel();
        cache.load(name, move |rows| sender.send(rows).unwrap());
        got.recv().unwrap().unwrap()
    };
    let [first, second] = [0, 1].map(|i| rows(&full, units[i].1));
    let mut so_far = Restoring::default();
    let mut restore = |unit: usize, rows: &Vec<Vec<u8>>| {
        full.restore(SeqId(90), &tokens, units[unit], (rows, &mut so_far))
    };
    assert_eq!(restore(0, &first), Ok(()));
    assert_eq!(restore(0, &first), Ok(()), "it is there");
    assert_eq!(restore(1, &vec![vec![0; 3]; 2]), Err(NotRestored::Unfit));
    assert_eq!(restore(2, &second), Err(NotRestored::NoRoom), "the one before is missing");
    full.grow(SeqId(1), 64 * BLOCK).unwrap();
    let mut so_far = Restoring::default();
    let restored = full.restore(SeqId(90), &tokens, units[0], (&first, &mut so_far));
    assert_eq!(restored, Err(NotRestored::NoRoom));
    let restored = full.restore(SeqId(90), &tokens, units[1], (&second, &mut so_far));
    assert_eq!(restored, Err(NotRestored::NoRoom));
}

#[test]
fn a_directory_that_cannot_be_used_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "x").unwrap();
    assert!(matches!(DiskTier::open(&file, LIMIT), Err(KvCacheError::Disk { .. })));
}
