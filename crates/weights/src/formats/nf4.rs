//! Codes of four bits as bitsandbytes stores them (QLoRA, arXiv 2305.14314).
//!
//! ```text
//! weight                u8 [out * in / 2, 1]   row after row, the high half first
//! weight.absmax         [out * in / 64]        f32, or u8 with what follows
//! weight.quant_map      f32 [16]               the numbers that codes stand for
//! weight.nested_absmax  f32 [out * in / 64 / 256]
//! weight.nested_quant_map f32 [256]
//! weight.quant_state.bitsandbytes__nf4  u8     JSON: shape, blocksize, nested_offset, nested_blocksize
//! ```

use super::{Asked, to_bytes};
use crate::{Checkpoint, WeightsError, checkpoint::expect_shape};
use safetensors::Dtype;
use serde::Deserialize;
use taper_tensor::{
    Bytes, DType, DenseWeight, TableFormat, TableScales, TableWeight, Weight, pool,
};

#[derive(Deserialize)]
struct State {
    shape: Vec<usize>,
    blocksize: usize,
    #[serde(default)]
    nested_blocksize: usize,
    #[serde(default)]
    nested_offset: f32,
}

const STATES: [&str; 2] =
    ["weight.quant_state.bitsandbytes__nf4", "weight.quant_state.bitsandbytes__fp4"];

/// The shape of a matrix of such codes, if it is one.
pub(super) fn shape(weights: &Checkpoint, prefix: &str) -> Option<Vec<usize>> {
    let mut states = STATES.iter().map(|part| format!("{prefix}.{part}"));
    let state = states.find_map(|name| weights.tensors().get(&name))?;
    serde_json::from_slice::<State>(state.bytes.as_slice()).ok().map(|state| state.shape)
}

/// How many codes are turned at a time.
const PIECE: usize = 1 << 16;

pub(super) fn load(asked: Asked<'_>) -> Result<Weight, WeightsError> {
    let shape @ (rows, cols) = asked.shape()?;
    let of = |kind| asked.maybe(kind).map(|raw| (kind, raw));
    let (kind, state) = STATES.into_iter().find_map(of).ok_or_else(|| {
        asked.bad("has weights of bytes, and none of the tensors that say what they stand for")
    })?;
    let name = if kind.ends_with("nf4") { "nf4" } else { "fp4" };
    let state: State = serde_json::from_slice(state.bytes.as_slice())
        .map_err(|_| asked.bad("has a quant_state that cannot be read"))?;
    expect_shape(&asked.name(kind), &state.shape, &[asked.rows, &[cols]].concat())?;
    let all = rows.checked_mul(cols).filter(|n| n % 2 == 0 && state.blocksize > 0);
    let all = all.ok_or_else(|| asked.bad("has an odd number of weights, or empty blocks"))?;
    let bytes = asked.bytes("weight", (Dtype::U8, "U8"), &[all / 2, 1])?;
    let table = asked.floats("weight.quant_map", 16)?;
    let scales = scales(asked, &state, all.div_ceil(state.blocksize))?;
    if !cols.is_multiple_of(state.blocksize) {
        // Blocks go on from row to row.
        let codes = bytes.as_slice().iter().flat_map(|b| [b >> 4, b & 15]);
        let value = |(i, c): (usize, u8)| table[usize::from(c)] * scales[i / state.blocksize];
        let values: Vec<f32> = codes.enumerate().map(value).collect();
        let dense = DenseWeight::new(shape, DType::F32, to_bytes(&values));
        return asked.wrap(dense).map(Weight::Dense);
    }
    let format = TableFormat { name, bits: 4, group: state.blocksize };
    let scales = TableScales::Floats(DType::F32, to_bytes(&scales));
    let codes = low_first(bytes.as_slice());
    bytes.release();
    asked.wrap(TableWeight::new(format, shape, codes, table.into(), scales)).map(Weight::Table)
}

/// The scale of each block.
fn scales(asked: Asked<'_>, state: &State, blocks: usize) -> Result<Vec<f32>, WeightsError> {
    let part = "weight.absmax";
    let raw = asked.tensor(part)?;
    if raw.dtype != Dtype::U8 {
        return asked.floats(part, blocks);
    }
    let codes = asked.bytes(part, (Dtype::U8, "U8"), &[blocks])?;
    let size = state.nested_blocksize;
    if size == 0 {
        return Err(asked.bad("has scales of scales in blocks of none"));
    }
    let numbers = asked.floats("weight.nested_quant_map", 256)?;
    let outer = asked.floats("weight.nested_absmax", blocks.div_ceil(size))?;
    let scale =
        |(i, &c): (usize, &u8)| numbers[usize::from(c)] * outer[i / size] + state.nested_offset;
    Ok(codes.as_slice().iter().enumerate().map(scale).collect())
}

/// The halves of each byte exchanged.
fn low_first(bytes: &[u8]) -> Bytes {
    let mut out = bytes.to_vec();
    let mut pieces: Vec<_> = out.chunks_mut(PIECE).collect();
    pool::for_each(&mut pieces, |_, piece| {
        piece.iter_mut().for_each(|b| *b = b.rotate_left(4));
    });
    Bytes::from_vec(out)
}
