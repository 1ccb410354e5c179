//! AWQ (arXiv 2306.00978) as AutoAWQ's `gemm` version stores it: a word has one input's codes of eight
//! outputs.
//!
//! ```text
//! qweight i32 [in, out / 8]      output 8 c + j stands at bit 4 * ORDER[j] of word c
//! qzeros  i32 [groups, out / 8]  in the same order
//! scales      [groups, out]
//! ```

use super::{
    Asked,
    integers::{Groups, Integers},
    transposed,
};
use crate::WeightsError;
use safetensors::Dtype;
use taper_tensor::{Bytes, Weight, pool};

/// Where the eight outputs of a word stand, in units of four bits.
const ORDER: [u32; 8] = [0, 4, 1, 5, 2, 6, 3, 7];
const INTS: (Dtype, &str) = (Dtype::I32, "I32");

pub(super) fn load(asked: Asked<'_>) -> Result<Weight, WeightsError> {
    let (rows, cols) = asked.shape()?;
    let group = asked.weights.quantization().awq_group().unwrap_or(cols).min(cols);
    if !rows.is_multiple_of(8) || !cols.is_multiple_of(32) || !cols.is_multiple_of(group) {
        return Err(
            asked.bad("has a shape that words of eight outputs, or its groups, do not divide")
        );
    }
    let groups = cols / group.max(1);
    let words = asked.bytes("qweight", INTS, &[cols, rows / 8])?;
    let scales = asked.tensor("scales")?;
    crate::checkpoint::expect_shape(&asked.name("scales"), &scales.shape, &[groups, rows])?;
    let (dtype, scales) = asked.values("scales", scales)?;
    let zeros = match asked.maybe("qzeros") {
        // Without zero points codes are centred.
        None => vec![8.0; groups * rows],
        Some(_) => {
            let zeros = asked.bytes("qzeros", INTS, &[groups, rows / 8])?;
            let (zeros, _) = zeros.as_slice().as_chunks();
            let of = |word: &[u8; 4]| outputs(*word).map(f32::from);
            let zeros: Vec<f32> = zeros.iter().flat_map(of).collect();
            transposed(&zeros, rows)
        }
    };
    let codes = Bytes::from_vec(unpacked(words.as_slice(), rows, cols));
    words.release();
    let scales = (dtype, transposed(&scales, rows));
    Integers { bits: 4, codes, scales, zeros, groups: Groups::Of(group) }.weight(asked)
}

/// The eight outputs of a word, in order.
fn outputs(word: [u8; 4]) -> [u8; 8] {
    let word = u32::from_le_bytes(word);
    ORDER.map(|place| (word >> (4 * place) & 15) as u8)
}

/// Codes of each output, two inputs a byte.
fn unpacked(words: &[u8], rows: usize, cols: usize) -> Vec<u8> {
    let (words, _) = words.as_chunks::<4>();
    let row = cols / 2;
    let mut out = vec![0; rows * row];
    let mut eights: Vec<_> = out.chunks_exact_mut(8 * row).collect();
    pool::for_each(&mut eights, |c, out| {
        for (i, word) in words.iter().skip(c).step_by(rows / 8).enumerate() {
            for (j, code) in outputs(*word).into_iter().enumerate() {
                out[j * row + i / 2] |= code << (i % 2 * 4);
            }
        }
    });
    out
}
