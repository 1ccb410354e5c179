//! Coded weights to `bf16` and back, in AVX-512: a table look-up and an interleaving for 32 weights.

use super::{
    super::pack::{BLOCK, LINE, TILE, tile_line},
    CODED, Chunk, CodedPanel, Exception, NONE,
};
use crate::ahead::{Ahead, Far};
use half::bf16;
use std::arch::x86_64::*;

/// A block of 64 outputs and two inputs, sixteen outputs a register.
pub(in super::super) type Registers = [__m512i; 4];

/// As [`super::encode_portable`].
///
/// # Safety
/// The machine has AVX-512 F, BW and VBMI.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c")]
pub(super) unsafe fn encode(
    block: &[bf16; BLOCK],
    indices: &[u8; 128],
    to: &mut [u8; CODED],
) -> bool {
    let (block, to) = (block.as_ptr().cast::<__m512i>(), to.as_mut_ptr().cast::<__m512i>());
    let indices = indices.as_ptr().cast::<__m512i>();
    // SAFETY: four registers of weights, two of indices, and room for three.
    unsafe {
        let indices = [indices.read_unaligned(), indices.add(1).read_unaligned()];
        let mut coded = [_mm512_setzero_si512(); 2];
        for (half, coded) in coded.iter_mut().enumerate() {
            let a = block.add(2 * half).read_unaligned();
            let b = block.add(2 * half + 1).read_unaligned();
            let byte = _mm512_set1_epi16(0xff);
            let low = _mm512_packus_epi16(_mm512_and_si512(a, byte), _mm512_and_si512(b, byte));
            to.add(half).write_unaligned(low);
            let high = _mm512_packus_epi16(_mm512_srli_epi16::<8>(a), _mm512_srli_epi16::<8>(b));
            let index = _mm512_permutex2var_epi8(indices[0], high, indices[1]);
            let sign = _mm512_and_si512(_mm512_srli_epi16::<4>(high), _mm512_set1_epi8(8));
            *coded = _mm512_or_si512(index, sign);
        }
        let (low, high) = (_mm512_set1_epi8(15), _mm512_slli_epi16::<4>(coded[1]));
        // Bits of `low` are of the first, the others of the second.
        to.add(2).write_unaligned(_mm512_ternarylogic_epi64::<0xac>(low, high, coded[0]));
        const { assert!(NONE == 0x80) };
        _mm512_movepi8_mask(_mm512_or_si512(coded[0], coded[1])) != 0
    }
}

/// The plain layout of a panel, but for its exceptions.
///
/// # Safety
/// The machine has AVX-512 F and BW, and `out` is as many chunks as the panel.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
pub(super) unsafe fn panel(from: CodedPanel<'_>, out: &mut [Chunk]) {
    let upper = table(from);
    let (blocks, out) = (from.blocks().as_ptr(), out.as_mut_ptr().cast::<u16>());
    for i in 0..from.blocks().len() / CODED {
        // SAFETY: the caller promises that the machine has AVX-512 F and BW, and `out` is as many
        // chunks as the panel.
        unsafe { unpack(blocks.add(i * CODED), upper, out.add(tile_line(i, 0))) };
    }
}

/// A block without exceptions to its lines of a chunk; prefetches one that comes later.
///
/// # Safety
/// `from` is one, and `to` the first of the lines.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
pub(in super::super) unsafe fn unpack(from: *const u8, table: __m512i, to: *mut u16) {
    Far::ask(from);
    Far::ask(from.wrapping_add(64));
    Far::ask(from.wrapping_add(128));
    // SAFETY: the caller promises that `from` is one, and `to` the first of the lines.
    unsafe { store::<TILE>(block(from, table), to) };
}

/// The upper bytes, in each lane of a register.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
pub(in super::super) fn table(panel: CodedPanel<'_>) -> __m512i {
    // SAFETY: sixteen bytes.
    _mm512_broadcast_i32x4(unsafe { _mm_loadu_si128(panel.table().as_ptr().cast()) })
}

/// A block without exceptions.
///
/// # Safety
/// `from` is one.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
pub(in super::super) unsafe fn block(from: *const u8, table: __m512i) -> Registers {
    // SAFETY: the caller promises that `from` is one.
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
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
pub(in super::super) unsafe fn corrected(
    from: *const u8,
    table: __m512i,
    exceptions: &[Exception],
) -> Registers {
    #[repr(align(64))]
    struct Aligned([[u8; 2]; BLOCK]);
    let mut words = Aligned([[0; 2]; BLOCK]);
    // SAFETY: `from` is a coded block, as `block` needs it, and `words` has room for a block.
    unsafe {
        store::<LINE>(block(from, table), words.0.as_mut_ptr().cast());
        for e in exceptions {
            words.0[e.place() % BLOCK][1] = e.high();
        }
        let words = words.0.as_ptr().cast::<__m512i>();
        [words.read(), words.add(1).read(), words.add(2).read(), words.add(3).read()]
    }
}

/// # Safety
/// `to` has room for a block whose lines are `APART`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
unsafe fn store<const APART: usize>(block: Registers, to: *mut u16) {
    for (i, words) in block.iter().enumerate() {
        // SAFETY: the caller promises that `to` has room for a block whose lines are `APART`.
        unsafe { _mm512_storeu_si512(to.add(APART * i).cast(), *words) };
    }
}
