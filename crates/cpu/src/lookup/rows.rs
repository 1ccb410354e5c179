//! The products, over lanes of a tile's sixteen rows.

use super::{
    Block, PackedTable, TOGETHER,
    pack::{Kind, TILE},
    portable::inputs,
};

/// From so many rows of activations on, codes are looked up once for all of them.
const MANY: usize = 9;
/// Inputs whose entries are looked up at a time, an even number.
const PIECE: usize = 128;

/// Lanes of sixteen rows.
pub(super) trait Rows: Copy {
    /// Rows of activations that are multiplied together: sums leave room for the weights.
    const MOST: usize;

    unsafe fn zero() -> Self;
    unsafe fn splat(x: *const f32) -> Self;
    unsafe fn load(p: *const f32) -> Self;
    unsafe fn store(self, p: *mut f32);
    /// `self * x + sum`
    unsafe fn mul_add(self, x: Self, sum: Self) -> Self;
    unsafe fn add(self, other: Self) -> Self;
    /// The entries that the low halves of sixteen bytes name, and those of the high ones.
    unsafe fn halves(table: &[f32; 16], codes: *const u8) -> [Self; 2];
    /// Sixteen bytes of E4M3, 256 times too small.
    unsafe fn small(codes: *const u8) -> Self;
    /// The values that sixteen bytes name. One load each, as it is done once a group: AVX2's gathers came out wrong
    /// under qemu 7.2.
    #[inline(always)]
    unsafe fn named(values: &[f32; 256], bytes: *const u8) -> Self {
        // SAFETY: the caller has sixteen readable bytes, and is compiled for the level.
        unsafe {
            let value = |i: usize| values[usize::from(*bytes.add(i))];
            Self::load(std::array::from_fn::<f32, TILE, _>(value).as_ptr())
        }
    }
}

/// As [`super::portable::tile`].
///
/// # Safety
/// The caller is compiled for what `R` needs; `x` is whole rows of `w`, and `out` has as many.
#[inline(always)]
pub(super) unsafe fn tile<R: Rows>(w: &PackedTable, tile: usize, x: &[f32], out: &mut Block) {
    // SAFETY: the caller keeps the contract.
    unsafe {
        match x.len() / w.cols().max(1) < MANY {
            true => few::<R>(w, tile, x, out),
            false => many::<R>(w, tile, x, out),
        }
    }
}

/// Sums of products with even and with odd inputs.
type Sums = [[f32; TILE]; 2];

/// Looks the codes of some inputs up once, and multiplies them with all rows.
#[inline(always)]
unsafe fn many<R: Rows>(w: &PackedTable, tile: usize, x: &[f32], out: &mut Block) {
    let cols = w.cols();
    let mut entries = [[0.0f32; TILE]; PIECE];
    let rows = x.len() / cols.max(1);
    // SAFETY: pieces are inside of their records, and rows of activations have all inputs.
    unsafe {
        for (first, codes, sides) in w.records(tile) {
            let mut sums: [Sums; TOGETHER] = [[[0.0; TILE]; 2]; TOGETHER];
            let all = inputs(w, codes);
            for at in (0..all).step_by(PIECE) {
                let some = PIECE.min(all - at);
                look_up::<R>(w, codes, at, &mut entries[..some]);
                let (mut x, mut sums) = (x.chunks_exact(cols), sums.iter_mut());
                macro_rules! step {
                    ($m:literal) => {
                        while $m <= R::MOST && x.len() >= $m && sums.len() >= $m {
                            let x = std::array::from_fn::<_, $m, _>(|_| {
                                x.next().map_or(std::ptr::null(), |x| x[first + at..].as_ptr())
                            });
                            let sums = std::array::from_fn::<_, $m, _>(|_| {
                                sums.next().map_or(std::ptr::null_mut(), |s| s.as_mut_ptr())
                            });
                            multiply::<R, $m>(&entries[..some], x, sums);
                        }
                    };
                }
                step!(8);
                step!(4);
                step!(2);
                step!(1);
            }
            let scales = scales::<R>(w, sides);
            for ([even, odd], out) in sums.iter().zip(out.iter_mut()).take(rows) {
                let total = R::load(out.as_ptr());
                let sum = R::load(even.as_ptr()).add(R::load(odd.as_ptr()));
                sum.mul_add(scales, total).store(out.as_mut_ptr());
            }
        }
    }
}

/// The entries of some inputs of a record, from one of an even number on.
#[inline(always)]
unsafe fn look_up<R: Rows>(w: &PackedTable, codes: &[u8], at: usize, out: &mut [[f32; TILE]]) {
    // SAFETY: a record has sixteen bytes for each pair of inputs, or each input.
    unsafe {
        match &w.kind {
            Kind::Halves(table) => {
                for (pair, out) in out.as_chunks_mut::<2>().0.iter_mut().enumerate() {
                    let codes = codes[(at / 2 + pair) * TILE..][..TILE].as_ptr();
                    let [low, high] = R::halves(table, codes);
                    low.store(out[0].as_mut_ptr());
                    high.store(out[1].as_mut_ptr());
                }
            }
            Kind::Bytes(_) => {
                for (k, out) in out.iter_mut().enumerate() {
                    R::small(codes[(at + k) * TILE..][..TILE].as_ptr()).store(out.as_mut_ptr());
                }
            }
        }
    }
}

/// Adds the products of entries with `M` rows to their sums.
#[inline(always)]
unsafe fn multiply<R: Rows, const M: usize>(
    entries: &[[f32; TILE]],
    x: [*const f32; M],
    sums: [*mut [f32; TILE]; M],
) {
    // SAFETY: each row has an input for each entry, and sums of even and of odd ones.
    unsafe {
        let mut even = sums.map(|sums| R::load(sums.cast()));
        let mut odd = sums.map(|sums| R::load(sums.add(1).cast()));
        let (pairs, last) = entries.as_chunks::<2>();
        for (pair, [low, high]) in pairs.iter().enumerate() {
            let (low, high) = (R::load(low.as_ptr()), R::load(high.as_ptr()));
            for m in 0..M {
                let x = x[m].add(2 * pair);
                even[m] = low.mul_add(R::splat(x), even[m]);
                odd[m] = high.mul_add(R::splat(x.add(1)), odd[m]);
            }
        }
        if let [last] = last {
            let entry = R::load(last.as_ptr());
            for m in 0..M {
                even[m] = entry.mul_add(R::splat(x[m].add(2 * pairs.len())), even[m]);
            }
        }
        for m in 0..M {
            even[m].store(sums[m].cast());
            odd[m].store(sums[m].add(1).cast());
        }
    }
}

/// The scales of a record's rows.
#[inline(always)]
unsafe fn scales<R: Rows>(w: &PackedTable, sides: &[u8]) -> R {
    // SAFETY: a record has sixteen scales.
    unsafe {
        match &w.names {
            Some(values) => R::named(values, sides.as_ptr()),
            None => R::load(sides.as_ptr().cast()),
        }
    }
}

#[inline(always)]
unsafe fn few<R: Rows>(w: &PackedTable, tile: usize, x: &[f32], out: &mut Block) {
    let mut rows = x.chunks_exact(w.cols());
    let mut out = out.as_flattened_mut().chunks_exact_mut(TILE);
    // SAFETY: each block has its rows of activations and of outputs.
    unsafe {
        macro_rules! step {
            ($m:literal) => {
                while $m <= R::MOST && rows.len() >= $m && out.len() >= $m {
                    let x = std::array::from_fn::<_, $m, _>(|_| {
                        rows.next().map_or(std::ptr::null(), <[f32]>::as_ptr)
                    });
                    let to = std::array::from_fn::<_, $m, _>(|_| {
                        out.next().map_or(std::ptr::null_mut(), <[f32]>::as_mut_ptr)
                    });
                    block::<R, $m>(w, tile, x, to);
                }
            };
        }
        step!(8);
        step!(4);
        step!(2);
        step!(1);
    }
}

/// `M` rows of activations against a tile.
#[inline(always)]
unsafe fn block<R: Rows, const M: usize>(
    w: &PackedTable,
    tile: usize,
    x: [*const f32; M],
    out: [*mut f32; M],
) {
    // SAFETY: a record has sixteen bytes for each pair of inputs or each input, and sixteen scales; rows of
    // activations have all inputs.
    unsafe {
        let mut total = [R::zero(); M];
        for (first, codes, sides) in w.records(tile) {
            let (mut even, mut odd) = ([R::zero(); M], [R::zero(); M]);
            match &w.kind {
                Kind::Halves(table) => {
                    for pair in 0..codes.len() / TILE {
                        let [low, high] = R::halves(table, codes.as_ptr().add(pair * TILE));
                        for m in 0..M {
                            let x = x[m].add(first + 2 * pair);
                            even[m] = low.mul_add(R::splat(x), even[m]);
                            odd[m] = high.mul_add(R::splat(x.add(1)), odd[m]);
                        }
                    }
                }
                Kind::Bytes(_) => {
                    for k in 0..codes.len() / TILE {
                        let entry = R::small(codes.as_ptr().add(k * TILE));
                        for m in 0..M {
                            let x = R::splat(x[m].add(first + k));
                            let sum = if k % 2 == 0 { &mut even[m] } else { &mut odd[m] };
                            *sum = entry.mul_add(x, *sum);
                        }
                    }
                }
            }
            let scales = scales::<R>(w, sides);
            for m in 0..M {
                total[m] = even[m].add(odd[m]).mul_add(scales, total[m]);
            }
        }
        for m in 0..M {
            total[m].store(out[m]);
        }
    }
}
