//! The backend over a device that does its work late and in an odd order.

use super::{
    LAUNCHES, STAGED, WORK,
    fake::{FakeOptions, FakeUse, Run, with_kernels},
};
use crate::{
    Bytes, Result,
    gpu::{Buffer, Gpu, Launch, Operand},
};
use proptest::prelude::*;
use std::sync::Arc;
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

fn launch(gpu: &Gpu, a: &Buffer, b: &Buffer, out: &Buffer, work: usize) -> Result<()> {
    let launch = Launch {
        family: "",
        kernel: "mix",
        grid: [1; 3],
        threads: 32,
        operands: &[Operand::In(a, 0), Operand::In(b, 0), Operand::Out(out, 0)],
        params: &[0; 4],
    };
    gpu.launch_work(&launch, work)
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
                    for i in 0..WORDS {
                        model[out][i] = model[a][i].wrapping_mul(3).wrapping_add(model[b][i]);
                    }
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
fn the_error_of_any_command_buffer_is_told_once() {
    for seed in 1..20 {
        let (gpu, _) = gpu(FakeOptions { seed, fails: Some(1), ..FakeOptions::default() });
        let [a, b, out] = [(); 3].map(|()| gpu.upload(&[1u32; WORDS]).unwrap());
        for _ in 0..LAUNCHES[0] + LAUNCHES[1] {
            launch(&gpu, &a, &b, &out, 0).unwrap();
        }
        assert!(gpu.counters().commits >= 2);
        let error = out.read::<u32>(0, WORDS).unwrap_err().to_string();
        assert!(error.contains("command buffer 1 failed"), "{error}");
        gpu.wait().unwrap();
        launch(&gpu, &a, &b, &out, 0).unwrap();
        assert_eq!(words(&out), [4; WORDS]);
    }
}

#[test]
fn memory_that_is_not_there_is_an_error_and_nothing_is_lost() {
    let (gpu, seen) = gpu(FakeOptions { memory: 1 << 20, ..FakeOptions::default() });
    let first = gpu.allocate(600 << 10).unwrap();
    assert!(gpu.allocate(600 << 10).unwrap_err().to_string().contains("614400 bytes"));
    assert_eq!(gpu.memory().unwrap().free, (1 << 20) - (600 << 10));
    drop(first);
    gpu.allocate(600 << 10).unwrap();
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

/// What is as good as a map: whole pages that stay for ever.
#[repr(align(16384))]
struct Pages([u8; 16384]);

static PAGES: Pages = Pages([1; 16384]);

struct Map;

// SAFETY: a static stays where it is, is whole pages, and nobody writes it.
unsafe impl ByteOwner for Map {
    fn bytes(&self) -> &[u8] {
        &PAGES.0
    }

    fn is_mapped(&self) -> bool {
        true
    }
}

#[test]
fn mapped_bytes_are_read_where_they_lie_and_stay_until_work_is_done() {
    let (gpu, seen) = gpu(FakeOptions::default());
    let (a, at) = gpu.adopt(&Bytes::new(Arc::new(Map), 16..80).unwrap()).unwrap().unwrap();
    let out = gpu.allocate(16).unwrap();
    let operands = [Operand::In(&a, at), Operand::In(&a, at), Operand::Out(&out, 0)];
    let run = Launch {
        family: "",
        kernel: "mix",
        grid: [1; 3],
        threads: 32,
        operands: &operands,
        params: &[0; 4],
    };
    gpu.launch(&run).unwrap();
    drop(a);
    assert_eq!(words(&out), [0x0404_0404; WORDS]);
    assert_eq!((gpu.counters().adopted, seen.faults().len()), (64, 0));
    drop((out, gpu));
    assert_eq!(seen.bytes(), 0);
}

#[test]
fn a_device_that_goes_waits_for_its_work() {
    let (gpu, seen) = gpu(FakeOptions::default());
    let [a, b, out] = [(); 3].map(|()| gpu.upload(&[1u32; WORDS]).unwrap());
    launch(&gpu, &a, &b, &out, 0).unwrap();
    drop((a, b, out, gpu));
    assert_eq!((seen.faults(), seen.bytes()), (Vec::new(), 0));
}
