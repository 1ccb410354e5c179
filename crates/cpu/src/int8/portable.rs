//! The definition of the integer product, in plain Rust.

use super::{Int8Rows, PackedWeight, pack::TILE};
use std::ops::Range;

/// `out[i][j]` of a tile's sixteen outputs for some rows of `x`; `out` rows are `TILE` long.
pub(super) fn tile(
    w: &PackedWeight,
    tile: usize,
    x: &Int8Rows,
    rows: Range<usize>,
    out: &mut [f32],
) {
    let (group, groups) = (w.group, w.groups());
    for (i, out) in rows.zip(out.chunks_exact_mut(TILE)) {
        out.fill(0.0);
        for (g, record) in w.tile(tile).chunks_exact(w.record_bytes()).enumerate() {
            let codes = &x.codes()[i * x.cols + g * group..][..group];
            let (scale, sum) = (x.scales[i * groups + g], x.sums[i * groups + g]);
            for (r, acc) in out.iter_mut().enumerate() {
                let product =
                    |(k, &c): (usize, &i8)| i32::from(w.code(record, r, k)) * i32::from(c);
                let dot: i32 = codes.iter().enumerate().map(product).sum();
                let (s, b) = (w.float(record, r), w.float(record, TILE + r));
                *acc = b.mul_add(sum, (dot as f32).mul_add(s * scale, *acc));
            }
        }
    }
}
