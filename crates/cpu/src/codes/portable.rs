//! The definition of the code kernels, in plain Rust.

use super::{Int8Queries, RING, Scaling, TILE, TILE_ROWS, windows::Plan};

pub(super) fn expand(plan: &Plan, tile_bytes: usize, codes: &[u8], out: &mut [u8]) {
    for (tile, out) in codes.chunks_exact(tile_bytes).zip(out.chunks_exact_mut(TILE)) {
        for word in 0..TILE / 8 {
            let mut bytes = [0; 8];
            for (b, &at) in bytes.iter_mut().zip(&plan.gather[word * 8..][..8]) {
                *b = tile[usize::from(at)];
            }
            let bits = u64::from_le_bytes(bytes);
            let shifts = &plan.shift[word * 8..][..8];
            for (out, &shift) in out[word * 8..].iter_mut().zip(shifts) {
                *out = plan.table[(bits.rotate_right(u32::from(shift)) & 63) as usize];
            }
        }
    }
}

pub(super) fn expand_nibbles(plan: &Plan, codes: &[u8], out: &mut [u8]) {
    for (tile, out) in codes.chunks_exact(TILE / 2).zip(out.chunks_exact_mut(TILE)) {
        let (low, high) = out.split_at_mut(TILE / 2);
        for ((&code, low), high) in tile.iter().zip(low).zip(high) {
            *low = plan.table[usize::from(code & 15)];
            *high = plan.table[usize::from(code >> 4)];
        }
    }
}

pub(super) fn dots(
    q: &Int8Queries,
    tiles: &[u8],
    scaling: Scaling<'_>,
    (out, stride): (&mut [f32], usize),
) {
    let padded = q.width();
    for (row, codes) in q.codes.chunks_exact(padded).enumerate() {
        for (group, tiles) in tiles.chunks_exact(padded * TILE_ROWS).enumerate() {
            for r in 0..TILE_ROWS {
                let mut sum = -q.offsets[row];
                for (tile, q) in tiles.chunks_exact(TILE).zip(codes.chunks_exact(RING)) {
                    let x = &tile[r * RING..][..RING];
                    sum += q.iter().zip(x).map(|(&a, &b)| i32::from(a) * i32::from(b)).sum::<i32>();
                }
                let j = group * TILE_ROWS + r;
                out[row * stride + j] = scaling.score(row, j, sum as f32 * q.scales[row]);
            }
        }
    }
}

pub(super) fn add_weighted(weights: &[u8], scale: &[f32], tiles: &[u8], acc: &mut [f32]) {
    let (n, padded) = (weights.len() / scale.len(), acc.len() / scale.len());
    let mut sums = vec![0i32; padded];
    for ((w, s), acc) in weights.chunks_exact(n).zip(scale).zip(acc.chunks_exact_mut(padded)) {
        sums.fill(0);
        for (w, tiles) in w.chunks_exact(TILE_ROWS).zip(tiles.chunks_exact(padded * TILE_ROWS)) {
            for (sum, x) in sums.iter_mut().zip(tiles.chunks_exact(TILE_ROWS)) {
                *sum +=
                    w.iter().zip(x).map(|(&w, &x)| i32::from(w) * i32::from(x as i8)).sum::<i32>();
            }
        }
        for (a, &sum) in acc.iter_mut().zip(&sums) {
            *a += sum as f32 * s;
        }
    }
}
