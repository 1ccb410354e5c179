//! Damaged and hostile GGUF files: an error or a model, never a panic, and little memory.

#![allow(unsafe_code, clippy::unwrap_used, reason = "a test, which counts what is allocated")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    fs,
    path::Path,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};
use taper_weights::{Gguf, WeightsError};

/// Counts the bytes that are allocated, and the most there were.
struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);
/// One test at a time, since the counts are of all threads.
static ALONE: Mutex<()> = Mutex::new(());

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        PEAK.fetch_max(LIVE.fetch_add(layout.size(), Relaxed) + layout.size(), Relaxed);
        // SAFETY: the caller's layout has a size, as this function demands too.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the pointer is of `alloc` above, which had it from the system, with this layout.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The most bytes that `work` had at once.
fn peak(work: impl FnOnce()) -> usize {
    let before = LIVE.load(Relaxed);
    PEAK.store(before, Relaxed);
    work();
    PEAK.load(Relaxed) - before
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

fn pair(key: &str, kind: u32, value: &[u8]) -> Vec<u8> {
    [&text(key), &kind.to_le_bytes()[..], value].concat()
}

fn word(key: &str, value: &str) -> Vec<u8> {
    pair(key, 8, &text(value))
}

fn list(key: &str, kind: u32, count: usize, values: &[u8]) -> Vec<u8> {
    let head = [&kind.to_le_bytes()[..], &(count as u64).to_le_bytes()].concat();
    pair(key, 9, &[&head, values].concat())
}

/// Name, ggml's type, sizes (columns first), bytes.
type Tensor<'a> = (&'a str, u32, &'a [u64], Vec<u8>);

/// A file's header and data.
fn file(pairs: &[Vec<u8>], tensors: &[Tensor<'_>]) -> (Vec<u8>, Vec<u8>) {
    let mut header = [b"GGUF".as_slice(), &3u32.to_le_bytes()].concat();
    header.extend((tensors.len() as u64).to_le_bytes());
    header.extend((pairs.len() as u64).to_le_bytes());
    header.extend(pairs.concat());
    let mut data = Vec::new();
    for (name, kind, sizes, bytes) in tensors {
        header.extend(text(name));
        header.extend((sizes.len() as u32).to_le_bytes());
        header.extend(sizes.iter().flat_map(|n| n.to_le_bytes()));
        header.extend(kind.to_le_bytes());
        header.extend((data.len() as u64).to_le_bytes());
        data.extend(bytes);
        data.resize(data.len().next_multiple_of(32), 0);
    }
    header.resize(header.len().next_multiple_of(32), 0);
    (header, data)
}

/// A small model with lists of texts, numbers and whole numbers.
fn small() -> (Vec<u8>, Vec<u8>) {
    let number = |key: &str, n: u32| pair(&format!("llama.{key}"), 4, &n.to_le_bytes());
    let tokens = ["a", "b", "ab", "<s>"];
    let scores = [0.0f32, 0.0, -1.0, 0.0].map(f32::to_le_bytes).concat();
    let kinds = [1i32, 1, 1, 3].map(i32::to_le_bytes).concat();
    let pairs = [
        word("general.architecture", "llama"),
        number("block_count", 1),
        number("context_length", 128),
        number("embedding_length", 32),
        number("feed_forward_length", 64),
        list("llama.attention.head_count", 4, 2, &[1u32.to_le_bytes(); 2].concat()),
        word("tokenizer.ggml.model", "llama"),
        list("tokenizer.ggml.tokens", 8, tokens.len(), &tokens.map(text).concat()),
        list("tokenizer.ggml.scores", 6, 4, &scores),
        list("tokenizer.ggml.token_type", 5, 4, &kinds),
        pair("tokenizer.ggml.bos_token_id", 4, &3u32.to_le_bytes()),
    ];
    let tensors: [Tensor<'_>; 4] = [
        ("token_embd.weight", 0, &[32, 4], vec![0; 512]),
        ("blk.0.attn_q.weight", 8, &[32, 32], vec![7; 32 * 34]),
        ("rope_freqs.weight", 0, &[16], vec![0; 64]),
        ("output_norm.weight", 1, &[32], vec![0; 64]),
    ];
    file(&pairs, &tensors)
}

/// Opens a file and asks for all that it has; gives the first error.
fn use_all(path: &Path) -> Result<(), WeightsError> {
    let gguf = Gguf::open(path)?;
    let tokenizer = gguf.tokenizer_files();
    let _ = gguf.chat_template();
    let checkpoint = gguf.checkpoint()?;
    for info in checkpoint.list() {
        let _ = checkpoint.vector(&info.name, 32);
        let _ = checkpoint.weight(info.name.trim_end_matches(".weight"), 32, 32);
    }
    tokenizer.map(drop)
}

/// Uses a file of these bytes, and checks the memory that it takes and what an error says.
fn check(path: &Path, bytes: &[u8], what: &str) -> Result<(), WeightsError> {
    fs::write(path, bytes).unwrap();
    let mut result = Ok(());
    let most = peak(|| result = use_all(path));
    let bound = 16 * bytes.len() + (1 << 16);
    assert!(most <= bound, "{what}: {most} bytes for a file of {}", bytes.len());
    if let Err(error) = &result {
        let named = error.to_string().contains("model.gguf");
        assert!(named, "{what}: {error}");
    }
    result
}

#[test]
fn every_cut_is_an_error() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    let (header, data) = small();
    let whole = [header, data].concat();
    check(&path, &whole, "the whole file").unwrap();
    for n in 0..whole.len() {
        assert!(check(&path, &whole[..n], &format!("cut to {n}")).is_err(), "cut to {n}");
    }
}

#[test]
fn every_changed_byte_is_an_error_or_a_model() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    let (header, data) = small();
    let mut whole = [header.clone(), data].concat();
    for at in 0..header.len() {
        let was = whole[at];
        for byte in [0, 1, 9, 0x7f, 0x80, 0xff, was ^ 1] {
            whole[at] = byte;
            let _ = check(&path, &whole, &format!("byte {at} is {byte}"));
        }
        whole[at] = was;
    }
}

#[test]
fn long_lists_take_a_small_multiple_of_the_file() {
    const N: usize = 1 << 20;
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    let empty_list = [&0u32.to_le_bytes()[..], &0u64.to_le_bytes()].concat();
    let empty_key = |n: usize| pair(&format!("{n:07}"), 7, &[0]);
    let many_keys: Vec<_> = (0..N / 16).map(empty_key).collect();
    for (what, pairs) in [
        ("bytes", vec![list("x", 0, N, &vec![1; N])]),
        ("flags", vec![list("x", 7, N, &vec![1; N])]),
        ("texts", vec![list("x", 8, N / 8, &vec![0; N])]),
        ("lists", vec![list("x", 9, N / 12, &empty_list.repeat(N / 12))]),
        ("values", many_keys),
    ] {
        let (header, _) = file(&pairs, &[]);
        assert!(check(&path, &header, what).is_err(), "{what}: no model");
    }
}
