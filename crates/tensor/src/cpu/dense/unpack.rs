//! Coded weights to `bf16`, in AVX-512: a table look-up and an interleaving for 32 weights.

use super::{
    coded::{CODED, Chunk, CodedPanel, Exception},
    pack::BLOCK,
};
use std::arch::x86_64::*;

/// A block of 64 outputs and two inputs, sixteen outputs a register.
pub(super) type Registers = [__m512i; 4];

pub(super) fn available() -> bool {
    is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw")
}

/// The plain layout of a panel, but for its exceptions.
///
/// # Safety
/// The machine has AVX-512 F and BW, and `out` is as many chunks as the panel.
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn panel(from: CodedPanel<'_>, out: &mut [Chunk]) {
    let upper = table(from);
    let (blocks, out) = (from.blocks().as_ptr(), out.as_mut_ptr().cast::<u16>());
    for i in 0..from.blocks().len() / CODED {
        // SAFETY: the caller's promise.
        unsafe { store(block(blocks.add(i * CODED), upper), out.add(i * BLOCK)) };
    }
}

/// The upper bytes, in each lane of a register.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn table(panel: CodedPanel<'_>) -> __m512i {
    // SAFETY: sixteen bytes.
    _mm512_broadcast_i32x4(unsafe { _mm_loadu_si128(panel.table().as_ptr().cast()) })
}

/// A block without exceptions.
///
/// # Safety
/// `from` is one.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn block(from: *const u8, table: __m512i) -> Registers {
    // SAFETY: the caller's promise.
    let [first, second, indices] = unsafe {
        [
            _mm512_loadu_si512(from.cast()),
            _mm512_loadu_si512(from.add(64).cast()),
            _mm512_loadu_si512(from.add(128).cast()),
        ]
    };
    let (half, above) = (_mm512_set1_epi8(15), _mm512_srli_epi16::<4>(indices));
    let low = _mm512_shuffle_epi8(table, _mm512_and_si512(indices, half));
    let high = _mm512_shuffle_epi8(table, _mm512_and_si512(above, half));
    [
        _mm512_unpacklo_epi8(first, low),
        _mm512_unpackhi_epi8(first, low),
        _mm512_unpacklo_epi8(second, high),
        _mm512_unpackhi_epi8(second, high),
    ]
}

/// A block with its exceptions.
///
/// # Safety
/// As [`block`].
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn corrected(
    from: *const u8,
    table: __m512i,
    exceptions: &[Exception],
) -> Registers {
    #[repr(align(64))]
    struct Aligned([[u8; 2]; BLOCK]);
    let mut words = Aligned([[0; 2]; BLOCK]);
    // SAFETY: the caller's promise, and there is room for a block.
    unsafe {
        store(block(from, table), words.0.as_mut_ptr().cast());
        for e in exceptions {
            words.0[e.place() % BLOCK][1] = e.high();
        }
        let words = words.0.as_ptr().cast::<__m512i>();
        [words.read(), words.add(1).read(), words.add(2).read(), words.add(3).read()]
    }
}

/// # Safety
/// `to` has room for a block.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn store(block: Registers, to: *mut u16) {
    for (i, words) in block.iter().enumerate() {
        // SAFETY: the caller's promise.
        unsafe { _mm512_storeu_si512(to.add(32 * i).cast(), *words) };
    }
}
