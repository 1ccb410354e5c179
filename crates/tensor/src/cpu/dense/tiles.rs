//! A panel's outputs from tile registers: sixteen rows of activations against sixteen outputs, 32
//! inputs an instruction.

use super::{
    beside::Beside,
    pack::{self, CHUNK, OUTPUTS, PANEL},
    rounded::{ROWS, TILE},
};
use half::bf16;

/// Elements between two tiles of the same outputs: what 32 inputs are of a panel.
pub(super) const STEP: usize = CHUNK * PANEL;

/// Tile registers, or what stands for them in a test.
pub(super) trait Unit {
    /// The products of one or two blocks of rows with two times sixteen outputs. Rows of `out` are
    /// a panel long, and the second block's follow the first's. `beside` gets its turns meanwhile.
    ///
    /// # Safety
    /// Each of `x` points to `chunks` tiles of activations, `w` to 32 outputs of as many in a
    /// panel, `out` to these outputs of sixteen rows a block, and the unit is ready.
    unsafe fn sums(
        x: &[*const bf16],
        w: *const bf16,
        chunks: usize,
        out: *mut f32,
        beside: &mut impl Beside,
    );
}

/// The products of blocks of sixteen rows with a panel; rows of `out` are a panel long.
///
/// # Safety
/// The unit is ready: the machine has it, and registers are laid out.
///
/// # Panics
/// When the panel has another number of inputs, or `out` is too short.
pub(super) unsafe fn panel<U: Unit>(
    x: &[bf16],
    w: &[bf16],
    out: &mut [f32],
    beside: &mut impl Beside,
) {
    let chunks = w.len() / STEP;
    let block = chunks * TILE;
    let blocks = x.len() / block;
    assert!(w.len() == chunks * STEP && x.len() == blocks * block, "same inputs");
    assert!(out.len() >= blocks * ROWS * PANEL, "room for the outputs");
    let (x, w, out) = (x.as_ptr(), w.as_ptr(), out.as_mut_ptr());
    // SAFETY: the assertions, and the caller's promise.
    unsafe {
        for i in (0..blocks).step_by(2) {
            let from = [x.add(i * block), x.wrapping_add((i + 1) * block)];
            for first in (0..PANEL).step_by(2 * OUTPUTS) {
                let out = out.add(i * ROWS * PANEL + first);
                U::sums(
                    &from[..(blocks - i).min(2)],
                    w.add(first / OUTPUTS * pack::TILE),
                    chunks,
                    out,
                    beside,
                );
            }
        }
    }
}
