//! The backend over a device that does its work late and in an odd order.

use super::{
    STAGED, WORK,
    fake::{FakeOptions, FakeUse, Run, with_kernels},
    state::LAUNCHES,
};
use crate::{
    Bytes, Result,
    gpu::{Buffer, Gpu, Launch, Operand},
};
use proptest::prelude::*;
use std::{
    alloc::{Layout, alloc},
    ptr::NonNull,
    slice,
    sync::Arc,
};
use taper_cpu::ByteOwner;

/// Words of each buffer in these tests.
const WORDS: usize = 4;

/// `out = 3 a + b`, of words.
fn mix(run: &Run, at: &[*mut u8], _: u64) -> std::result::Result<(), String> {
    assert_eq!((run.kernel.as_str(), at.len()), ("mix", 3));
    let [a, b, out] = [at[0], at[1], at[2]].map(<*mut u8>::cast::<u32>);
    for i in 0..WORDS {
        // SAFETY: each buffer has so many words.
        unsafe { *out.add(i) = (*a.add(i)).wrapping_mul(3).wrapping_add(*b.add(i)) };
    }
    Ok(())
}

fn gpu(options: FakeOptions) -> (Gpu, FakeUse) {
    with_kernels(Box::new(mix), options)
}

const MIX: Launch<'_> =
    Launch { family: "", kernel: "mix", grid: [1; 3], threads: 32, operands: &[], params: &[0; 4] };

fn launch(gpu: &Gpu, a: &Buffer, b: &Buffer, out: &Buffer, work: usize) -> Result<()> {
    let operands = &[Operand::In(a, 0), Operand::In(b, 0), Operand::Out(out, 0)];
    gpu.launch_work(&Launch { operands, ..MIX }, work)
}

fn words(buffer: &Buffer) -> Vec<u32> {
    buffer.read(0, WORDS).unwrap()
}

/// What a program asks for.
#[derive(Debug, Clone, Copy)]
enum Ask {
    Write(usize, u32),
    Launch(usize, usize, usize),
    Read(usize),
    /// Gives a buffer back, and takes another with new contents.
    Renew(usize, u32),
    Wait,
}

fn asks() -> impl Strategy<Value = Vec<Ask>> {
    let at = || 0..5usize;
    let ask = prop_oneof![
        3 => (at(), any::<u32>()).prop_map(|(at, word)| Ask::Write(at, word)),
        8 => (at(), at(), at()).prop_map(|(a, b, out)| Ask::Launch(a, b, out)),
        1 => at().prop_map(Ask::Read),
        2 => (at(), any::<u32>()).prop_map(|(at, word)| Ask::Renew(at, word)),
        1 => Just(Ask::Wait),
    ];
    proptest::collection::vec(ask, 1..150)
}

proptest! {
    /// Whatever the order in which work is done, the host reads what a program in order would give.
    #[test]
    fn results_are_those_of_work_done_in_order(asks in asks(), seed in any::<u64>()) {
        let (gpu, seen) = gpu(FakeOptions { seed, ..FakeOptions::default() });
        let mut model = [[7u32; WORDS]; 5];
        let mut buffers = model.map(|words| gpu.upload(&words).unwrap());
        for ask in asks {
            match ask {
                Ask::Write(at, word) => {
                    model[at][1] = word;
                    buffers[at].write(4, &word.to_ne_bytes()).unwrap();
                }
                Ask::Launch(a, b, out) if out != a && out != b => {
                    let mixed = model[a].iter().zip(model[b]);
                    let mixed: Vec<_> = mixed.map(|(a, b)| a.wrapping_mul(3).wrapping_add(b)).collect();
                    model[out].copy_from_slice(&mixed);
                    launch(&gpu, &buffers[a], &buffers[b], &buffers[out], 0).unwrap();
                }
                Ask::Launch(..) => {}
                Ask::Read(at) => prop_assert_eq!(words(&buffers[at]), model[at]),
                Ask::Renew(at, word) => {
                    model[at] = [word; WORDS];
                    buffers[at] = gpu.upload(&model[at]).unwrap();
                }
                Ask::Wait => gpu.wait().unwrap(),
            }
        }
        for (buffer, want) in buffers.iter().zip(&model) {
            prop_assert_eq!(words(buffer), want);
        }
        drop((buffers, gpu));
        prop_assert_eq!(seen.faults(), Vec::<String>::new());
        prop_assert_eq!(seen.bytes(), 0);
    }
}

#[test]
fn the_first_launches_are_sent_off_early_and_later_ones_together() {
    let (gpu, _) = gpu(FakeOptions::default());
    let [a, b, out] = [(); 3].map(|()| gpu.upload(&[1u32; WORDS]).unwrap());
    let mut commits = Vec::new();
    for i in 1..=LAUNCHES[0] + 2 * LAUNCHES[1] {
        launch(&gpu, &a, &b, &out, 0).unwrap();
        if gpu.counters().commits > commits.len() as u64 {
            commits.push(i);
        }
    }
    assert_eq!(commits, [16, 528, 1040]);
}

#[test]
fn heavy_work_is_sent_off_by_itself() {
    let (gpu, _) = gpu(FakeOptions::default());
    let [a, b, out] = [(); 3].map(|()| gpu.upload(&[1u32; WORDS]).unwrap());
    for work in [WORK / 2, WORK / 2, WORK, WORK - 1] {
        launch(&gpu, &a, &b, &out, work as usize).unwrap();
    }
    assert_eq!(gpu.counters().commits, 2, "the last waits for more");
}

#[test]
fn bytes_go_straight_into_a_buffer_that_is_not_in_use() {
    let (gpu, _) = gpu(FakeOptions::default());
    let [a, b, out] = [(); 3].map(|()| gpu.upload(&[1u32; WORDS]).unwrap());
    assert_eq!(words(&a), [1; WORDS]);
    assert_eq!((gpu.counters().blits, gpu.counters().waits), (0, 0));
    launch(&gpu, &a, &b, &out, 0).unwrap();
    a.write(0, &[0; 16]).unwrap();
    launch(&gpu, &a, &b, &out, 0).unwrap();
    let seen = gpu.counters();
    assert_eq!(
        (seen.blits, seen.staged, seen.encoders),
        (1, 16, 2),
        "the launch reads what was there"
    );
    assert_eq!(words(&out), [1; WORDS]);
    a.write(0, &[0; 16]).unwrap();
    assert_eq!(gpu.counters().blits, 1, "all work is done");
}

#[test]
fn a_temporary_to_write_is_one_that_nothing_uses() {
    let (gpu, _) = gpu(FakeOptions::default());
    let [a, b, out] = [(); 3].map(|()| gpu.upload(&[1u32; WORDS]).unwrap());
    launch(&gpu, &a, &b, &out, 0).unwrap();
    drop(a);
    let fresh = gpu.upload(&[9u32; WORDS]).unwrap();
    assert_eq!(gpu.counters().blits, 0);
    assert_eq!((words(&out), words(&fresh)), (vec![4; WORDS], vec![9; WORDS]));
}

#[test]
fn an_error_is_told_to_all_that_may_depend_on_it_and_to_nobody_after() {
    for seed in 1..20 {
        let (gpu, _) = gpu(FakeOptions { seed, fails: Some(1), ..FakeOptions::default() });
        let [a, b, early, late, other] = [(); 5].map(|()| gpu.upload(&[1u32; WORDS]).unwrap());
        let mapped = gpu.adopt(&Bytes::new(Arc::new(Map::new()), 0..64).unwrap()).unwrap();
        for _ in 0..LAUNCHES[0] {
            launch(&gpu, &a, &b, &early, 0).unwrap();
        }
        (0..LAUNCHES[1]).for_each(|_| launch(&gpu, &early, &b, &late, 0).unwrap());
        assert!(gpu.counters().commits >= 2);
        // Waits, and leaves the error to whom it concerns.
        drop(mapped);
        assert!(gpu.memory().is_ok());
        assert_eq!(words(&other), [1; WORDS]);
        for buffer in [&late, &early, &late] {
            let error = buffer.read::<u32>(0, WORDS).unwrap_err().to_string();
            assert!(error.contains("command buffer 1 failed"), "{error}");
        }
        gpu.wait().unwrap();
        // What is done anew is sound.
        launch(&gpu, &a, &b, &early, 0).unwrap();
        launch(&gpu, &early, &b, &late, 0).unwrap();
        assert_eq!((words(&early), words(&late)), (vec![4; WORDS], vec![13; WORDS]));
    }
}

#[test]
fn whoever_waits_is_told_of_an_error_once() {
    let (gpu, _) = gpu(FakeOptions { fails: Some(1), ..FakeOptions::default() });
    let [a, b, out] = [(); 3].map(|()| gpu.upload(&[1u32; WORDS]).unwrap());
    launch(&gpu, &a, &b, &out, 0).unwrap();
    assert!(gpu.wait().unwrap_err().to_string().contains("command buffer 1 failed"));
    gpu.wait().unwrap();
    assert!(out.read::<u32>(0, WORDS).is_err(), "nothing was written");
}

#[test]
fn memory_that_is_not_there_is_an_error_and_nothing_is_lost() {
    let (gpu, seen) = gpu(FakeOptions { memory: 1 << 20, ..FakeOptions::default() });
    let first = gpu.allocate(600 << 10).unwrap();
    assert!(gpu.allocate(600 << 10).unwrap_err().to_string().contains("614400 bytes"));
    assert_eq!(gpu.memory().unwrap().free, (1 << 20) - (600 << 10));
    drop(first);
    // What the pool holds is given back before anything is refused.
    drop(gpu.temporary(512 << 10).unwrap());
    assert_eq!(seen.bytes(), 512 << 10);
    drop(gpu.allocate(600 << 10).unwrap());
    assert_eq!(seen.bytes(), 0);
}

#[test]
fn staging_buffers_are_waited_for_before_they_fill_the_memory() {
    let (gpu, seen) = gpu(FakeOptions::default());
    let large = gpu.allocate(STAGED / 4).unwrap();
    let [b, out] = [(); 2].map(|()| gpu.upload(&[1u32; WORDS]).unwrap());
    let bytes = vec![0; STAGED / 4];
    for _ in 0..40 {
        launch(&gpu, &large, &b, &out, 0).unwrap();
        large.write(0, &bytes).unwrap();
    }
    assert!(gpu.counters().staged > 4 * STAGED as u64);
    assert!(seen.most_bytes() < 2 * STAGED as u64, "{}", seen.most_bytes());
}

/// What is as good as a map: a page that stays, and whose bytes become useless when the map goes.
struct Map(NonNull<u8>);

const PAGE: usize = 16384;

impl Map {
    fn new() -> Self {
        let layout = Layout::from_size_align(PAGE, PAGE).unwrap();
        // SAFETY: a page is not empty.
        let page = NonNull::new(unsafe { alloc(layout) }).unwrap();
        // SAFETY: the page is new, and so long.
        unsafe { page.write_bytes(1, PAGE) };
        Self(page)
    }
}

// SAFETY: nobody writes the page before the map goes.
unsafe impl Send for Map {}
// SAFETY: nobody writes the page before the map goes.
unsafe impl Sync for Map {}

// SAFETY: the page is never given back, is whole, and nobody writes it before the map goes.
unsafe impl ByteOwner for Map {
    fn bytes(&self) -> &[u8] {
        // SAFETY: the page is so long and was written.
        unsafe { slice::from_raw_parts(self.0.as_ptr(), PAGE) }
    }

    fn is_mapped(&self) -> bool {
        true
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the page is so long, and nobody borrows it any more.
        unsafe { self.0.write_bytes(0xee, PAGE) };
    }
}

#[test]
fn mapped_bytes_are_read_where_they_lie_and_stay_until_work_is_done() {
    for seed in 1..20 {
        let (gpu, seen) = gpu(FakeOptions { seed, ..FakeOptions::default() });
        let map = Bytes::new(Arc::new(Map::new()), 16..80).unwrap();
        let (a, at) = gpu.adopt(&map).unwrap().unwrap();
        let out = gpu.allocate(16).unwrap();
        let operands = [Operand::In(&a, at), Operand::In(&a, at), Operand::Out(&out, 0)];
        gpu.launch(&Launch { operands: &operands, ..MIX }).unwrap();
        drop((map, a));
        assert_eq!(words(&out), [0x0404_0404; WORDS]);
        assert_eq!((gpu.counters().adopted, seen.faults()), (64, Vec::new()));
        drop((out, gpu));
        assert_eq!(seen.bytes(), 0);
    }
}

#[test]
fn a_device_that_goes_waits_for_its_work() {
    let (gpu, seen) = gpu(FakeOptions::default());
    let [a, b, out] = [(); 3].map(|()| gpu.upload(&[1u32; WORDS]).unwrap());
    launch(&gpu, &a, &b, &out, 0).unwrap();
    drop((a, b, out, gpu));
    assert_eq!((seen.faults(), seen.bytes()), (Vec::new(), 0));
}

#[test]
fn bytes_that_are_no_whole_words_wait_for_their_buffer() {
    let (gpu, _) = gpu(FakeOptions::default());
    let [a, b, out] = [(); 3].map(|()| gpu.upload(&[1u32; WORDS]).unwrap());
    launch(&gpu, &a, &b, &out, 0).unwrap();
    a.write(1, &[1]).unwrap();
    assert_eq!((gpu.counters().blits, words(&a)[0], words(&out)[0]), (0, 0x101, 4));
}

#[test]
fn work_over_tiles_is_cut_where_it_would_take_too_long() {
    let (gpu, _) = gpu(FakeOptions { work: 100, ..FakeOptions::default() });
    let [a, b, out] = [(); 3].map(|()| gpu.upload(&[1u32; 3 * WORDS]).unwrap());
    let operands = &[Operand::In(&a, 0), Operand::In(&b, 0), Operand::Out(&out, 0)];
    let run = Launch { grid: [3, 1, 1], operands, ..MIX };
    // The kernel does a tile, whatever the grid; here the output's words stand for tiles.
    run.over_tiles(&gpu, (2, 4 * WORDS), 300).unwrap();
    assert_eq!(out.read::<u32>(0, 3 * WORDS).unwrap(), [4; 3 * WORDS]);
    assert_eq!((gpu.counters().launches, gpu.counters().commits), (3, 3));
    run.over_tiles(&gpu, (2, 4 * WORDS), 100).unwrap();
    assert_eq!(gpu.counters().launches, 4);
}

#[test]
fn buffers_of_another_device_are_refused() {
    let [(one, _), (other, _)] = [(); 2].map(|()| gpu(FakeOptions::default()));
    let [a, b] = [(); 2].map(|()| one.upload(&[1u32; WORDS]).unwrap());
    let out = other.upload(&[1u32; WORDS]).unwrap();
    let error = launch(&one, &a, &b, &out, 0).unwrap_err().to_string();
    assert!(error.contains("an operand is on another GPU"), "{error}");
}
