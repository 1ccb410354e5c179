//! Products of `bf16` operands, 32 by 32 sums at a time.

/// Lines of a tile, and pairs of `bf16` in a line.
pub(super) const SIDE: usize = 16;
/// Elements that the product of two tiles sums over.
pub(super) const CHUNK: usize = 2 * SIDE;
/// Lines and columns of a product.
pub(super) const BLOCK: usize = 2 * SIDE;

/// Sixteen lines of sixteen pairs of `bf16`; a pair's first is in the low bits.
#[derive(Debug, Default, Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Tile(pub(super) [[u32; SIDE]; SIDE]);

/// 32 elements that are summed over, of 32 lines of a left operand or 32 columns of a right one:
///
/// ```text
/// left   [half of the lines][16 lines][16 pairs]
/// right  [half of the columns][16 pairs][16 columns]
/// ```
pub(super) type Chunk = [Tile; 2];

/// Sums, `[line][column]`.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Sums(pub(super) [[f32; BLOCK]; BLOCK]);

impl Sums {
    pub(super) const ZERO: Self = Self([[0.0; BLOCK]; BLOCK]);
}

/// What multiplies.
pub(super) trait Unit {
    /// Keeps the unit ready for this thread.
    type Ready;

    /// Makes it ready.
    ///
    /// # Safety
    /// The machine has the unit.
    unsafe fn ready() -> Self::Ready;

    /// `sums = left * right`, or `sums += left * right` to `ADD`. A sum is of the chunks in order, and
    /// depends on its line and its column alone.
    ///
    /// # Safety
    /// The unit is ready; each operand has so many chunks, at least one.
    unsafe fn multiply<const ADD: bool>(
        left: *const Chunk,
        right: *const Chunk,
        chunks: usize,
        sums: *mut Sums,
    );
}
