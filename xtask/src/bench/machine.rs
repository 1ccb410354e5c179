//! The machine: its processor, and how fast it reads memory.

use serde::Serialize;
use std::{fs, hint::black_box, sync::Barrier, thread, time::Instant};

/// What a figure was measured on.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Machine {
    pub(crate) cpu: String,
    pub(crate) features: Vec<&'static str>,
    pub(crate) cores: usize,
    /// Processes that were running or waiting to, before anything was measured.
    pub(crate) load: Option<f64>,
}

/// Features that decide which kernels run, as the kernel names them.
const FEATURES: [&str; 12] = [
    "avx2",
    "avx_vnni",
    "avx512f",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "amx_int8",
    "amx_bf16",
    "asimddp",
    "i8mm",
    "bf16",
    "sve",
];

impl Machine {
    pub(crate) fn this() -> Self {
        let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let field = |name: &str| {
            let line = info.lines().find(|line| line.starts_with(name))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        let flags = field("flags").or_else(|| field("Features")).unwrap_or_default();
        let has = |feature: &&str| flags.split_whitespace().any(|flag| flag == *feature);
        let load = fs::read_to_string("/proc/loadavg").ok();
        Self {
            cpu: field("model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
            features: FEATURES.into_iter().filter(has).collect(),
            cores: thread::available_parallelism().map_or(1, usize::from),
            load: load.and_then(|text| text.split(' ').next()?.parse().ok()),
        }
    }
}

/// Words that a thread reads in one pass: 256 MiB, more than any cache holds of it.
const WORDS: usize = 1 << 25;
const PASSES: usize = 8;

/// Bytes a second that so many threads read together, each its own memory, front to back; the best
/// of some passes.
pub(crate) fn read_bandwidth(threads: usize) -> f64 {
    let threads = threads.max(1);
    let together = Barrier::new(threads);
    let pass = |words: &[u64]| {
        together.wait();
        let start = Instant::now();
        black_box(sum(words));
        together.wait();
        start.elapsed().as_secs_f64()
    };
    let reader = |first: u64| {
        let words: Vec<u64> = (0..WORDS as u64).map(|i| i ^ first).collect();
        (0..PASSES).map(|_| pass(&words)).fold(f64::INFINITY, f64::min)
    };
    let seconds = thread::scope(|scope| {
        let handles: Vec<_> =
            (0..threads as u64).map(|first| scope.spawn(move || reader(first))).collect();
        let times = handles.into_iter().filter_map(|handle| handle.join().ok());
        times.fold(0.0, f64::max)
    });
    (threads * WORDS * size_of::<u64>()) as f64 / seconds
}

/// Four streams at a time keep the prefetchers busy, and sixteen sums the vector units.
fn sum(words: &[u64]) -> u64 {
    const LANES: usize = 8;
    let quarter = words.len() / 4;
    let (low, high) = words.split_at(2 * quarter);
    let ((a, b), (c, d)) = (low.split_at(quarter), high.split_at(quarter));
    let mut sums = [[0_u64; LANES]; 4];
    let parts = a.chunks_exact(LANES).zip(b.chunks_exact(LANES));
    for ((a, b), (c, d)) in parts.zip(c.chunks_exact(LANES).zip(d.chunks_exact(LANES))) {
        for i in 0..LANES {
            sums[0][i] = sums[0][i].wrapping_add(a[i]);
            sums[1][i] = sums[1][i].wrapping_add(b[i]);
            sums[2][i] = sums[2][i].wrapping_add(c[i]);
            sums[3][i] = sums[3][i].wrapping_add(d[i]);
        }
    }
    sums.iter().flatten().fold(0, |sum, &x| sum.wrapping_add(x))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_read() {
        let words: Vec<u64> = (1..=4096).collect();
        assert_eq!(sum(&words), 4096 * 4097 / 2);
    }

    #[test]
    fn the_processor_has_a_name() {
        assert!(!Machine::this().cpu.is_empty());
    }
}
