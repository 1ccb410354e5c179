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
/// Blocks of rows that are multiplied together.
pub(super) const TOGETHER: usize = 3;
/// Steps of inputs of these blocks that stay in the first-level cache while a panel's outputs go by. What
/// comes from the second-level cache takes as long as the products.
const NEAR: usize = 8;

/// Tile registers, or what stands for them in a test.
pub(super) trait Unit {
    /// The products of [`TOGETHER`] blocks of rows, or fewer, with two times sixteen outputs. Rows of `out`
    /// are a panel long, and a block's follow those of the one before; sums are added to what is there if
    /// there is `more`. `beside` runs meanwhile.
    ///
    /// # Safety
    /// Each of `x` points to `chunks` tiles of activations, `w` to 32 outputs of as many in a
    /// panel, `out` to these outputs of sixteen rows a block, and the unit is ready.
    unsafe fn sums(
        x: &[*const bf16],
        w: *const bf16,
        chunks: usize,
        out: (*mut f32, bool),
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
    // SAFETY: the assertions give the shapes; the machine has the unit, and its registers are laid
    // out.
    unsafe {
        for i in (0..blocks).step_by(TOGETHER) {
            let together = (blocks - i).min(TOGETHER);
            for k in (0..chunks).step_by(NEAR) {
                let from: [_; TOGETHER] =
                    std::array::from_fn(|b| x.wrapping_add((i + b) * block + k * TILE));
                for first in (0..PANEL).step_by(2 * OUTPUTS) {
                    U::sums(
                        &from[..together],
                        w.add(k * STEP + first / OUTPUTS * pack::TILE),
                        (chunks - k).min(NEAR),
                        (out.add(i * ROWS * PANEL + first), k > 0),
                        beside,
                    );
                }
            }
        }
    }
}
