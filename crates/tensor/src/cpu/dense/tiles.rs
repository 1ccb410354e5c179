//! A panel's outputs from tile registers: both parts of eight rows of activations against sixteen
//! outputs, 32 inputs an instruction.

use super::{
    pack::{CHUNK, PANEL},
    split::ROWS,
};
use half::bf16;

/// Outputs of a tile register.
pub(super) const OUTPUTS: usize = 16;
/// Elements of a tile of activations.
pub(super) const TILE: usize = 2 * ROWS * CHUNK;
/// Elements between two tiles of a panel: the pairs of 32 inputs.
pub(super) const STEP: usize = CHUNK * PANEL;

/// What a block of rows gives for some outputs: a tile register of sums, part by part.
pub(super) type Sums = [f32; 2 * ROWS * OUTPUTS];

/// Tile registers, or what stands for them in a test.
pub(super) trait Unit {
    /// The sums of one or two blocks of rows with two times sixteen outputs: block 0 and outputs 0,
    /// block 0 and outputs 1, then block 1. With one block, the last two are not written.
    ///
    /// # Safety
    /// Each of `x` points to `chunks` tiles of activations, and `w` to 32 outputs of as many in a
    /// panel, and the unit is ready.
    unsafe fn sums(x: &[*const bf16], w: *const bf16, chunks: usize, out: &mut [Sums; 4]);
}

/// The products of blocks of eight rows with a panel; rows of `out` are a panel long.
///
/// # Safety
/// The unit is ready: the machine has it, and registers are laid out.
///
/// # Panics
/// When the panel has another number of inputs, or `out` is too short.
pub(super) unsafe fn panel<U: Unit>(x: &[bf16], w: &[bf16], out: &mut [f32]) {
    let chunks = w.len() / STEP;
    let blocks: Vec<_> = x.chunks_exact(chunks * TILE).collect();
    assert!(w.len() == chunks * STEP && x.len() == blocks.len() * chunks * TILE, "same inputs");
    assert!(out.len() >= blocks.len() * ROWS * PANEL, "room for the outputs");
    let mut sums = [[0.0; 2 * ROWS * OUTPUTS]; 4];
    // SAFETY: the assertions, and the caller's promise.
    unsafe {
        for (pair, blocks) in blocks.chunks(2).enumerate() {
            let from: Vec<_> = blocks.iter().map(|b| b.as_ptr()).collect();
            for first in (0..PANEL).step_by(2 * OUTPUTS) {
                U::sums(&from, w.as_ptr().add(2 * first), chunks, &mut sums);
                for (i, sums) in sums.iter().take(2 * blocks.len()).enumerate() {
                    let row = (2 * pair + i / 2) * ROWS;
                    add_parts(sums, &mut out[row * PANEL + first + i % 2 * OUTPUTS..]);
                }
            }
        }
    }
}

/// Adds the parts of each row.
fn add_parts(sums: &Sums, out: &mut [f32]) {
    let (rows, _) = sums.as_chunks::<{ 2 * OUTPUTS }>();
    for (row, out) in rows.iter().zip(out.chunks_mut(PANEL)) {
        let (near, rest) = row.split_at(OUTPUTS);
        out.iter_mut().zip(near).zip(rest).for_each(|((o, n), r)| *o = n + r);
    }
}
