//! Trains the levels of a trellis code: Lloyd's iteration over closed walks on Gaussian rows.
//!
//! ```sh
//! cargo run --release -p taper-kv-codecs --example train_trellis -- 3
//! cargo run --release -p taper-kv-codecs --example train_trellis -- 3 wide
//! ```
//! Prints the levels of the best of several starts, and their unbiased error. Levels start as
//! normal quantiles dealt out so that the branches of every memory cover the whole range.

use taper_kv_codecs::TrellisCode;

/// Elements of a training row.
const DIM: usize = 128;

fn gaussian(n: usize, seed: u64) -> Vec<f32> {
    let mut s = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut uniform = || {
        s ^= s << 13;
        s ^= s >> 7;
        s ^= s << 17;
        ((s >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    };
    (0..n)
        .map(|_| {
            let (a, b) = (uniform(), uniform());
            ((-2.0 * a.ln()).sqrt() * (2.0 * std::f64::consts::PI * b).cos()) as f32
        })
        .collect()
}

/// The code of a table: 64 levels, or the 512 of the wide code.
fn code(bits: usize, table: &[f32]) -> TrellisCode {
    match <&[f32; 64]>::try_from(table) {
        Ok(table) => TrellisCode::with_table(bits, table),
        Err(_) => TrellisCode::with_wide_table(&std::array::from_fn(|i| table[i])),
    }
}

/// One round: the mean of the elements that each state stands for, and the mean error.
fn round(bits: usize, table: &[f32], x: &[f32]) -> (Vec<f32>, f64) {
    let code = code(bits, table);
    let (mut sums, mut counts) = (vec![0.0f64; table.len()], vec![0.0f64; table.len()]);
    let mut error = 0.0;
    for row in x.chunks_exact(DIM) {
        let deviation = (row.iter().map(|x| x * x).sum::<f32>() / DIM as f32).sqrt();
        let walk = code.encode_scaled(row, &[1.0]);
        error += f64::from(walk.error) / (x.len() / DIM) as f64;
        for (state, x) in code.states(&walk.symbols).into_iter().zip(row) {
            sums[usize::from(state)] += f64::from(x / deviation);
            counts[usize::from(state)] += 1.0;
        }
    }
    let mean = |i: usize| if counts[i] > 0.0 { (sums[i] / counts[i]) as f32 } else { table[i] };
    ((0..table.len()).map(mean).collect(), error)
}

/// Normal quantiles in `2^bits` slices: each memory has a branch into every slice, in an order of
/// its own, and each branch an index of its own in the slice.
fn start(bits: usize, state_bits: usize, seed: u64) -> Vec<f32> {
    let (memories, branches) = (1usize << (state_bits - bits), 1usize << bits);
    let mut sorted = gaussian(64 << state_bits, 5);
    sorted.sort_by(f32::total_cmp);
    let shuffled = |n: usize, seed: u64| {
        let keys = gaussian(n, seed);
        let mut order: Vec<_> = (0..n).collect();
        order.sort_by(|&a, &b| keys[a].total_cmp(&keys[b]));
        order
    };
    let seed = 1000 * (seed + 1);
    let places: Vec<_> = (0..branches).map(|s| shuffled(memories, seed + s as u64)).collect();
    let mut table = vec![0.0; 1 << state_bits];
    for memory in 0..memories {
        let slices = shuffled(branches, seed + 100 + memory as u64);
        for (branch, slice) in slices.into_iter().enumerate() {
            let state = memory | branch << (state_bits - bits);
            table[state] = sorted[(slice * memories + places[slice][memory]) * 64 + 32];
        }
    }
    table
}

fn main() {
    let bits = std::env::args().nth(1).and_then(|b| b.parse().ok()).unwrap_or(4);
    let wide = std::env::args().nth(2).is_some();
    let shipped = if wide { TrellisCode::wide() } else { TrellisCode::new(bits) };
    let (state_bits, tries) = (shipped.state_bits(), if wide { 8 } else { 80 });
    let (small, large) = (gaussian(DIM * 500, 77), gaussian(DIM * 12_000, 78));
    let run = |mut table: Vec<f32>, x: &[f32], rounds: usize| {
        let mut error = f64::INFINITY;
        for _ in 0..rounds {
            let (next, now) = round(bits, &table, x);
            (table, error) = (next, now);
        }
        (table, error)
    };
    let starts = (0..tries).map(|seed| run(start(bits, state_bits, seed), &small, 8));
    let mut best: Vec<_> = starts.collect();
    best.sort_by(|a, b| a.1.total_cmp(&b.1));
    let errors: Vec<_> = best.iter().map(|b| format!("{:.5}", b.1)).collect();
    println!("starts: {}", errors.join(" "));
    let finalists = best.into_iter().take(3).map(|(table, _)| run(table, &large, 25));
    let known = run(shipped.table().to_vec(), &large, 15);
    println!("from the shipped table: {:.5}", known.1);
    let (table, error) = finalists
        .chain([known])
        .fold((Vec::new(), f64::INFINITY), |a, b| if b.1 < a.1 { b } else { a });
    println!("unbiased error at {bits} bits: {error:.5}");
    let row = |row: &[f32]| row.iter().map(|x| format!("{x:.5}")).collect::<Vec<_>>().join(", ");
    table.chunks(16).for_each(|x| println!("    {},", row(x)));
}
