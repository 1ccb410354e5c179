//! `bf16` weights in twelve bits, without loss.
//!
//! The upper byte of a `bf16` is its sign and its exponent but for the last bit. Weights that were
//! trained are of like size, and few of its 256 values occur (that exponents hold under three bits of
//! information is what DFloat11 lives on: Zhang et al., 2025). So a panel has a table of sixteen upper
//! bytes, eight with either sign, and of a weight the lower byte is kept and an index into the table.
//! Eight magnitudes, each four times the one before, are a range of 2^16. The few weights outside, of a
//! normal distribution one in ten thousand, are exceptions: they stand in a list of their panel and are
//! put right after unpacking (Zukowski et al., Super-Scalar RAM-CPU Cache Compression, 2006).
//!
//! ```text
//! weight  [panel: 64 outputs][pair of inputs] blocks
//! block   192 bytes:
//!         [64]  lower bytes of outputs 0..32      [4 lanes][2 registers][8]
//!         [64]  lower bytes of outputs 32..64     the same
//!         [64]  indices of the same weights: outputs 0..32 in the lower halves of bytes
//! ```
//! where a register is 32 weights, `[16 outputs][2 inputs]`, of which a lane is eight. So bytes
//! interleaved within lanes, as AVX-512 and AVX2 do it, are the words of the plain layout.

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512;
#[cfg(test)]
mod tests;

use super::pack::{BLOCK, CHUNK, LINE, PANEL, TILE, put_row};
#[cfg(target_arch = "x86_64")]
use crate::features::{Avx2, Avx512, Avx512Vbmi};
use crate::{AlignedBytes, pool, shared::SharedOut};
use half::bf16;

/// Bytes of a block.
pub(super) const CODED: usize = BLOCK * 3 / 2;
/// Blocks of a chunk.
pub(super) const BLOCKS: usize = CHUNK / 2;
/// One weight of so many may be an exception: a block in eight then has one, and takes a few times
/// as long to unpack, about half of what decoding gains.
const RARE: usize = 1024;
/// How many panels are looked at before a matrix is coded.
const SAMPLES: usize = 8;
/// Stands for no index.
const NONE: u8 = 0x80;

/// 32 inputs of a panel in the plain layout.
#[repr(C, align(64))]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Chunk(pub(super) [bf16; CHUNK * PANEL]);

impl Chunk {
    pub(super) const ZERO: Self = Self([bf16::ZERO; CHUNK * PANEL]);

    /// The weights of a pair of inputs.
    fn block(&self, pair: usize) -> [bf16; BLOCK] {
        std::array::from_fn(|i| self.0[Self::place(pair * BLOCK + i)])
    }

    /// Where a weight stands, by its index in a chunk's blocks.
    const fn place(i: usize) -> usize {
        let (pair, i) = (i / BLOCK, i % BLOCK);
        i / LINE * TILE + pair * LINE + i % LINE
    }

    /// Writes one of its exceptions to its index.
    pub(super) fn correct(&mut self, exception: Exception) {
        let weight = &mut self.0[Self::place(exception.place() % (CHUNK * PANEL))];
        *weight = bf16::from_le_bytes([weight.to_le_bytes()[0], exception.high()]);
    }

    /// The weights of chunks that follow each other.
    pub(super) fn weights(chunks: &[Self]) -> &[bf16] {
        // SAFETY: a chunk is an array of them, without padding.
        unsafe { std::slice::from_raw_parts(chunks.as_ptr().cast(), size_of_val(chunks) / 2) }
    }

    /// The weights of the chunks, mutable.
    pub(crate) fn weights_mut(chunks: &mut [Self]) -> &mut [bf16] {
        let n = size_of_val(chunks) / 2;
        // SAFETY: a chunk is an array of bfloats without padding, any bytes are bfloats, and the
        // borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(chunks.as_mut_ptr().cast(), n) }
    }
}

/// A weight whose upper byte is not in the table: that byte, and above it the weight's index in its
/// panel's blocks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Exception(u32);

impl Exception {
    /// As many weights of a panel can be told apart.
    const PLACES: usize = 1 << 24;

    fn new(place: usize, high: usize) -> Self {
        Self((place << 8 | high) as u32)
    }

    pub(super) fn place(self) -> usize {
        (self.0 >> 8) as usize
    }

    /// Which of its panel's chunks it is in.
    pub(super) fn chunk(self) -> usize {
        self.place() / (CHUNK * PANEL)
    }

    pub(super) fn high(self) -> u8 {
        self.0 as u8
    }
}

/// How a panel's blocks are read.
#[derive(Debug)]
struct Code {
    /// Upper bytes.
    table: [u8; 16],
    /// In the order of their indices.
    exceptions: Box<[Exception]>,
}

/// A coded matrix; its inputs are whole chunks.
#[derive(Debug)]
pub(super) struct Coded {
    cols: usize,
    data: AlignedBytes,
    panels: Vec<Code>,
}

impl Coded {
    /// Whether coding a matrix pays: exceptions are rare. They are counted in some panels.
    pub(super) fn pays(from: &[bf16], cols: usize) -> bool {
        let panel = PANEL * cols;
        if from.is_empty() || !cols.is_multiple_of(CHUNK) || panel > Exception::PLACES {
            return false;
        }
        let panels = from.len().div_ceil(panel);
        let looked_at = || (0..panels).step_by(panels.div_ceil(SAMPLES));
        let (mut weights, mut exceptions) = (0, 0);
        for from in looked_at().filter_map(|p| from.chunks(panel).nth(p)) {
            let counts = histogram(from, cols);
            let covered: usize = frequent(&counts).iter().map(|&m| counts[usize::from(m)]).sum();
            let all: usize = counts.iter().sum();
            weights += all;
            exceptions += all - covered;
        }
        exceptions * RARE <= weights
    }

    /// # Panics
    /// When `from` is not rows of `cols`, or these are no whole chunks or too many.
    pub(super) fn new(from: &[bf16], cols: usize) -> Self {
        assert!(cols.is_multiple_of(CHUNK) && from.len().is_multiple_of(cols), "whole chunks");
        assert!(PANEL * cols <= Exception::PLACES, "places of exceptions");
        let (panels, size) = (from.len().div_ceil(PANEL * cols), cols / 2 * CODED);
        let mut data = AlignedBytes::for_weights(panels * size);
        let to = SharedOut::new(data.as_mut_slice());
        let panels = pool::map(panels, |panel| {
            let from = &from[panel * PANEL * cols..];
            // SAFETY: each task has its own panel, of zeros.
            let to = unsafe { to.slice(panel * size, size) };
            Code::new(&from[..from.len().min(PANEL * cols)], cols, to)
        });
        Self { cols, data, panels }
    }

    pub(super) fn bytes(&self) -> usize {
        self.data.len() + self.panels.iter().map(Code::bytes).sum::<usize>()
    }

    /// The blocks of all panels.
    pub(super) fn blocks(&self) -> &[u8] {
        self.data.as_slice()
    }

    pub(super) fn panel(&self, panel: usize) -> CodedPanel<'_> {
        let size = self.cols / 2 * CODED;
        let blocks = &self.data.as_slice()[panel * size..][..size];
        CodedPanel { blocks, code: &self.panels[panel] }
    }
}

impl Code {
    /// Codes the rows of a panel.
    fn new(from: &[bf16], cols: usize, to: &mut [u8]) -> Self {
        let (table, indices) = tables(frequent(&histogram(from, cols)));
        let mut exceptions = Vec::new();
        let mut chunk = Chunk::ZERO;
        for (first, to) in (0..cols).step_by(CHUNK).zip(to.chunks_exact_mut(BLOCKS * CODED)) {
            for (row, from) in from.chunks_exact(cols).enumerate() {
                put_row(&from[first..first + CHUNK], row, true, &mut chunk.0);
            }
            for (b, to) in to.as_chunks_mut().0.iter_mut().enumerate() {
                let block = chunk.block(b);
                if encode(&block, &indices, to) {
                    let place = first * PANEL + b * BLOCK;
                    let weights = (0..from.len() / cols * 2).map(|i| (i, upper(block[i])));
                    let missing = weights.filter(|&(_, high)| index(&indices, high) & NONE != 0);
                    exceptions.extend(missing.map(|(i, high)| Exception::new(place + i, high)));
                }
            }
        }
        Self { table, exceptions: exceptions.into() }
    }

    fn bytes(&self) -> usize {
        size_of::<Self>() + size_of_val(&*self.exceptions)
    }
}

/// The blocks of a coded panel.
#[derive(Debug, Clone, Copy)]
pub(super) struct CodedPanel<'a> {
    blocks: &'a [u8],
    code: &'a Code,
}

impl<'a> CodedPanel<'a> {
    pub(super) fn chunks(self) -> usize {
        self.blocks.len() / (BLOCKS * CODED)
    }

    pub(super) fn blocks(self) -> &'a [u8] {
        self.blocks
    }

    pub(super) fn table(self) -> &'a [u8; 16] {
        &self.code.table
    }

    pub(super) fn exceptions(self) -> &'a [Exception] {
        &self.code.exceptions
    }

    /// The plain layout. Rows that a last panel lacks are any values.
    ///
    /// # Panics
    /// When `out` is not as many chunks.
    pub(super) fn decode(self, out: &mut [Chunk]) {
        assert_eq!(out.len(), self.chunks(), "a panel");
        #[cfg(target_arch = "x86_64")]
        if Avx512::detect().is_some() {
            // SAFETY: the machine has what it takes, and there are as many chunks.
            unsafe { avx512::panel(self, out) };
            return self.correct(out);
        }
        #[cfg(target_arch = "x86_64")]
        if Avx2::detect().is_some() {
            // SAFETY: the machine has what it takes, and there are as many chunks.
            unsafe { avx2::panel(self, out) };
            return self.correct(out);
        }
        self.decode_portable(out);
    }

    /// The definition.
    pub(super) fn decode_portable(self, out: &mut [Chunk]) {
        let blocks = self.blocks().as_chunks::<CODED>().0;
        for (out, blocks) in out.iter_mut().zip(blocks.chunks_exact(BLOCKS)) {
            for (pair, block) in blocks.iter().enumerate() {
                for i in 0..BLOCK {
                    out.0[Chunk::place(pair * BLOCK + i)] = weight(block, i, self.table());
                }
            }
        }
        self.correct(out);
    }

    /// Writes the exceptions to their indices.
    fn correct(self, out: &mut [Chunk]) {
        self.exceptions().iter().for_each(|e| out[e.chunk()].correct(*e));
    }

    /// The weights of an output.
    pub(super) fn read_row(self, row: usize, out: &mut [f32]) {
        let blocks = self.blocks().as_chunks::<CODED>().0;
        for (out, block) in out.as_chunks_mut::<2>().0.iter_mut().zip(blocks) {
            for (k, out) in out.iter_mut().enumerate() {
                *out = weight(block, 2 * row + k, self.table()).to_f32();
            }
        }
        for e in self.exceptions() {
            let (pair, i) = (e.place() / BLOCK, e.place() % BLOCK);
            if i / 2 == row {
                let low = blocks[pair][byte(i)];
                out[2 * pair + i % 2] = bf16::from_le_bytes([low, e.high()]).to_f32();
            }
        }
    }
}

fn upper(x: bf16) -> usize {
    usize::from(x.to_bits() >> 8)
}

/// How often each upper byte without its sign occurs in rows of `cols`, counted in every fourth chunk.
fn histogram(from: &[bf16], cols: usize) -> [usize; 128] {
    // Four counters each: increments of one address wait for each other.
    let mut counts = [[0u32; 128]; 4];
    for row in from.chunks_exact(cols) {
        for four in row.chunks_exact(CHUNK).step_by(4).flat_map(|chunk| chunk.as_chunks::<4>().0) {
            for (counts, &x) in counts.iter_mut().zip(four) {
                counts[upper(x) & 127] += 1;
            }
        }
    }
    std::array::from_fn(|m| counts.iter().map(|c| c[m] as usize).sum())
}

/// The eight most frequent.
fn frequent(counts: &[usize; 128]) -> [u8; 8] {
    let mut order: [u8; 128] = std::array::from_fn(|m| m as u8);
    order.sort_by_key(|&m| std::cmp::Reverse(counts[usize::from(m)]));
    std::array::from_fn(|i| order[i])
}

/// The table of upper bytes, and the index of each of them without its sign.
fn tables(frequent: [u8; 8]) -> ([u8; 16], [u8; 128]) {
    let table = std::array::from_fn(|i| frequent[i % 8] | if i < 8 { 0 } else { 0x80 });
    let mut indices = [NONE; 128];
    for (i, &high) in frequent.iter().enumerate() {
        indices[usize::from(high)] = i as u8;
    }
    (table, indices)
}

fn index(indices: &[u8; 128], high: usize) -> u8 {
    indices[high & 127] | (high >> 4 & 8) as u8
}

/// Codes a block, and says whether it has weights that are exceptions.
fn encode(block: &[bf16; BLOCK], indices: &[u8; 128], to: &mut [u8; CODED]) -> bool {
    #[cfg(target_arch = "x86_64")]
    if Avx512Vbmi::detect().is_some() {
        // SAFETY: the machine has what it takes.
        return unsafe { avx512::encode(block, indices, to) };
    }
    #[cfg(target_arch = "x86_64")]
    if Avx2::detect().is_some() {
        // SAFETY: the machine has what it takes.
        return unsafe { avx2::encode(block, indices, to) };
    }
    encode_portable(block, indices, to)
}

/// The definition.
fn encode_portable(block: &[bf16; BLOCK], indices: &[u8; 128], to: &mut [u8; CODED]) -> bool {
    let (low, coded) = to.split_at_mut(BLOCK);
    let mut seen = 0;
    for i in 0..BLOCK {
        low[byte(i)] = block[i].to_bits() as u8;
    }
    for i in 0..BLOCK / 2 {
        let pair = [block[i], block[i + BLOCK / 2]].map(|x| index(indices, upper(x)));
        seen |= pair[0] | pair[1];
        coded[byte(i)] = pair[0] & 15 | pair[1] << 4;
    }
    seen & NONE != 0
}

/// A weight of a block by its index there, if it is no exception.
fn weight(block: &[u8; CODED], i: usize, table: &[u8; 16]) -> bf16 {
    let pair = block[BLOCK + byte(i % (BLOCK / 2))];
    let index = if i < BLOCK / 2 { pair & 15 } else { pair >> 4 };
    bf16::from_le_bytes([block[byte(i)], table[usize::from(index)]])
}

/// Where the lower byte of a weight stands in its block.
const fn byte(i: usize) -> usize {
    let (half, register, lane) = (i / 64, i / 32 % 2, i / 8 % 4);
    half * 64 + lane * 16 + register * 8 + i % 8
}
