//! Every level against the definition, and the definition against plain sums.

mod affine;

use super::*;
use crate::Floats;

fn random(n: usize, seed: u64) -> Vec<u32> {
    let mut s = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        s ^= s << 13;
        s ^= s >> 7;
        s ^= s << 17;
        (s >> 32) as u32
    };
    (0..n).map(|_| next()).collect()
}

fn bytes(n: usize, seed: u64) -> Vec<u8> {
    random(n, seed).into_iter().map(|x| x as u8).collect()
}

fn floats(n: usize, seed: u64) -> Vec<f32> {
    random(n, seed).into_iter().map(|x| x as f32 / u32::MAX as f32 * 4.0 - 2.0).collect()
}

/// Scalar codes of 1 to 5 bits, and trellises of 2 to 4.
fn codes() -> Vec<(usize, usize)> {
    (1..=5).map(|b| (b, 0)).chain((2..=4).map(|b| (b, 6 - b))).collect()
}

fn table(bits: usize, lead: usize) -> [i8; 64] {
    let all = bytes(64, 9);
    std::array::from_fn(|i| all[if lead == 0 { i % (1 << bits) } else { i }] as i8)
}

/// The window of an element, bit by bit along the ring.
fn window(ring: &[u8], bits: usize, lead: usize, element: usize) -> usize {
    let total = 16 * bits;
    let bit = |i: usize| usize::from(ring[i / 8] >> (i % 8) & 1);
    (0..bits + lead).map(|i| bit((bits * element + total - lead + i) % total) << i).sum()
}

#[test]
fn windows_follow_the_ring_in_both_orders_on_every_level() {
    for (bits, lead) in codes() {
        let table = table(bits, lead);
        let windows = Windows::new(bits, lead, &table);
        let packed = bytes(5 * windows.tile_bytes(), 3);
        for level in CodeLevel::available() {
            let (mut rows, mut elements) = (vec![0; 5 * TILE], vec![0; 5 * TILE]);
            windows.expand(level, Order::Rows, Codes::last(&packed), &mut rows);
            windows.expand(level, Order::Elements, Codes::last(&packed), &mut elements);
            for (tile, packed) in packed.chunks_exact(windows.tile_bytes()).enumerate() {
                for (row, ring) in packed.chunks_exact(2 * bits).enumerate() {
                    for e in 0..RING {
                        let want = table[window(ring, bits, lead, e)];
                        assert_eq!((rows[tile * TILE + row * RING + e] ^ 0x80) as i8, want);
                        assert_eq!(elements[tile * TILE + e * TILE_ROWS + row] as i8, want);
                    }
                }
            }
        }
    }
}

#[test]
fn wide_windows_follow_the_row_on_every_level() {
    let table: [i8; WIDE_STATES] = std::array::from_fn(|i| bytes(WIDE_STATES, 9)[i] as i8);
    let windows = WideWindows::new(&table);
    for rings in [1, 2, 5, 8] {
        let packed = bytes(3 * rings * windows.tile_bytes(), 3);
        for level in CodeLevel::available() {
            let (mut rows, mut elements) = (vec![0; 3 * rings * TILE], vec![0; 3 * rings * TILE]);
            windows.expand(level, Order::Rows, rings, Codes::last(&packed), &mut rows);
            windows.expand(level, Order::Elements, rings, Codes::last(&packed), &mut elements);
            for row in 0..3 * TILE_ROWS {
                let first = |ring: usize| row / TILE_ROWS * rings + ring;
                // The row's bits, one after the other.
                let bits: Vec<_> = (0..rings * 48)
                    .map(|i| {
                        let byte = first(i / 48) * 24 + row % TILE_ROWS * 6 + i % 48 / 8;
                        packed[byte] >> (i % 8) & 1
                    })
                    .collect();
                for e in 0..rings * RING {
                    let bit = |b: usize| bits[(3 * e + b + bits.len() - 6) % bits.len()];
                    let state = (0..9).map(|b| usize::from(bit(b)) << b).sum::<usize>();
                    let tile = first(e / RING) * TILE;
                    let at = (row % TILE_ROWS, e % RING);
                    assert_eq!((rows[tile + at.0 * RING + at.1] ^ 0x80) as i8, table[state]);
                    assert_eq!(elements[tile + at.1 * TILE_ROWS + at.0] as i8, table[state]);
                }
            }
        }
    }
}

#[test]
fn wide_walks_find_what_was_planted_alike_on_every_level() {
    let table: [f32; WIDE_STATES] = std::array::from_fn(|i| floats(WIDE_STATES, 11)[i]);
    let trellis = WideTrellis::new(&table);
    for n in [16, 80, 128] {
        let symbols: Vec<_> = random(n, 5).iter().map(|s| (s % 8) as usize).collect();
        let state =
            |s: &[usize], i: usize| s[i] << 6 | s[(i + n - 1) % n] << 3 | s[(i + n - 2) % n];
        let x: Vec<_> = (0..n).map(|i| table[state(&symbols, i)]).collect();
        for level in CodeLevel::available() {
            let mut got = vec![0; n];
            trellis.encode(level, &x, &mut got);
            let got: Vec<_> = got.into_iter().map(usize::from).collect();
            let miss: f32 = (0..n).map(|i| (table[state(&got, i)] - x[i]).powi(2)).sum();
            assert!(miss < 1e-6, "{n}, {level:?}: {miss}");
        }
        // Other rows have no such walk; every level finds the same one.
        let x = floats(n, 21);
        let walks = CodeLevel::available().into_iter().map(|level| {
            let mut got = vec![0; n];
            trellis.encode(level, &x, &mut got);
            got
        });
        let walks: Vec<_> = walks.collect();
        assert!(walks.windows(2).all(|w| w[0] == w[1]));
    }
}

#[test]
fn nibbles_stand_in_the_order_of_the_expanded_bytes() {
    let table: [i8; 16] = std::array::from_fn(|i| bytes(16, 8)[i] as i8);
    let (windows, packed) = (Windows::nibbles(&table), bytes(3 * 32, 4));
    for level in CodeLevel::available() {
        let mut out = vec![0; 3 * TILE];
        windows.expand(level, Order::Elements, Codes::last(&packed), &mut out);
        for (i, &got) in out.iter().enumerate() {
            let byte = packed[i / TILE * 32 + i % 32];
            let code = if i % TILE < 32 { byte & 15 } else { byte >> 4 };
            assert_eq!(got as i8, table[usize::from(code)]);
        }
    }
}

#[test]
fn centres_and_scales_on_every_level() {
    for n in [8, 20, 64, 80, 128, 200] {
        let packed = bytes((n * 7usize).div_ceil(8), 3);
        for level in CodeLevel::available() {
            let mut out = vec![0.0; n];
            unpack_centre(level, &packed, 0.5, &mut out);
            for (i, &got) in out.iter().enumerate() {
                let bit = |at: usize| i32::from(packed[at / 8] >> (at % 8) & 1);
                let code: i32 = (0..7).map(|b| bit(7 * i + b) << b).sum();
                assert_eq!(got, (code - 63) as f32 * 0.5, "{level:?}, {i} of {n}");
            }
            let (q, mut room, mut dots) = (floats(7 * n, 5), vec![0.0; n], [0.0; 7]);
            centre_dots(level, &packed, 0.5, &q, &mut room, &mut dots);
            for (q, got) in q.chunks_exact(n).zip(dots) {
                let mut want = [0.0];
                dot_rows(q, DenseRows::last(Floats::F32(&out)), n, (&mut want, 1));
                assert_eq!(got, want[0], "{level:?}, {n}");
            }
        }
    }
}

#[test]
fn scales_are_powers_and_alike_on_every_level() {
    let codes: Vec<_> = (0..=255).chain([0, 7, 200]).collect();
    for base in [-32_768, -3100, -2500, -700, -128, -1, 0, 23, 24, 2000, 3000, 32_767] {
        let mut first = vec![0.0; codes.len()];
        powers(CodeLevel::Portable, &codes, base, 0.75, &mut first);
        for level in CodeLevel::available() {
            let mut out = vec![9.0; codes.len()];
            powers(level, &codes, base, 0.75, &mut out);
            assert_eq!(out, first, "{level:?}");
        }
        for (&got, &code) in first.iter().zip(&codes) {
            let step = (base + i32::from(code)).clamp(-126 * OCTAVE, 128 * OCTAVE - 1);
            let power = (f64::from(step) / f64::from(OCTAVE)).exp2();
            let want = if code == 0 { 0.0 } else { 0.75 * power };
            let near = (f64::from(got) - want).abs() <= want * 3e-7;
            assert!(near, "{base}, {code}: {got} {want}");
        }
    }
}

#[test]
fn hadamard_products_on_every_level() {
    for len in [1usize, 2, 8, 16, 64, 128, 512] {
        let (x, before, after) = (floats(3 * len, 5), floats(3 * len, 6), floats(3 * len, 7));
        for level in CodeLevel::available() {
            let mut y = x.clone();
            sylvester(level, &mut y, len, &before, &after);
            let x: Vec<_> = x.iter().zip(&before).map(|(x, f)| x * f).collect();
            let rows = x.chunks_exact(len).zip(y.chunks_exact(len));
            for ((x, y), after) in rows.zip(after.chunks_exact(len)) {
                for (i, y) in y.iter().enumerate() {
                    let sign = |j: usize| if (i & j).count_ones() % 2 == 1 { -1.0 } else { 1.0 };
                    let sum: f32 = x.iter().enumerate().map(|(j, x)| sign(j) * x).sum();
                    assert!((y - sum * after[i]).abs() < 1e-3, "{len}");
                }
            }
        }
    }
}

#[test]
fn every_level_gives_the_same_bits() {
    for (rows, n, d) in
        [(1, 4, 16), (2, 20, 32), (3, 12, 128), (4, 64, 128), (7, 60, 80), (9, 64, 256)]
    {
        let mut q = Int8Queries::default();
        q.set(&floats(rows * d, 1), d);
        let (tiles, gamma) = (bytes(n * d, 2), floats(n, 3));
        let (weights, scale) = (bytes(rows * n, 4), floats(rows, 5));
        let run = |level| {
            let (mut scores, mut acc) = (vec![0.0; rows * n], floats(rows * d, 6));
            let offsets = floats(rows, 9);
            let offsets = (rows % 2 == 1).then_some(&offsets[..]);
            let scaling = Scaling { gamma: &gamma, offsets };
            dots(level, &q, &tiles, scaling, (&mut scores, n));
            add_weighted(level, &weights, &scale, &tiles, &mut acc);
            let p: Vec<_> = floats(rows * n, 7).iter().map(|x| x.abs()).collect();
            let gamma: Vec<_> = floats(n, 8).iter().map(|x| x.abs()).collect();
            let (mut w, mut scales) = (vec![0; rows * n], vec![0.0; rows]);
            weigh(level, (&p, n), &gamma, 1e-6, &mut w, &mut scales);
            (scores, acc, w, scales)
        };
        let want = run(CodeLevel::Portable);
        for level in CodeLevel::available() {
            assert_eq!(run(level), want, "{level:?} {rows} {n} {d}");
        }
    }
}

#[test]
fn products_over_packed_codes_have_the_same_bits_on_every_level() {
    let nibbles = Windows::nibbles(&std::array::from_fn(|i| bytes(16, 8)[i] as i8));
    let windows =
        codes().into_iter().map(|(bits, lead)| Windows::new(bits, lead, &table(bits, lead)));
    for windows in windows.chain([nibbles]) {
        for (rows, n, d) in [(1, 4, 16), (2, 20, 80), (3, 32, 128), (4, 28, 48), (5, 64, 128)] {
            let mut q = Int8Queries::default();
            q.set(&floats(rows * d, 1), d);
            let (packed, gamma) = (bytes(n * d / TILE * windows.tile_bytes(), 2), floats(n, 3));
            let (weights, scale) = (bytes(rows * n, 4), floats(rows, 5));
            let run = |level| {
                // Rows of scores are further apart than they are long.
                let (mut scores, mut acc) = (vec![0.0; rows * (n + 3)], floats(rows * d, 6));
                let (codes, mut room) = (Codes::last(&packed), vec![0; n * d]);
                let out = (&mut scores[..], n + 3);
                let offsets = floats(rows, 9);
                let offsets = (rows % 2 == 1).then_some(&offsets[..]);
                let scaling = Scaling { gamma: &gamma, offsets };
                windows.dots(level, &q, codes, scaling, &mut room, out);
                windows.add_weighted(level, &weights, &scale, codes, &mut room, &mut acc);
                (scores, acc)
            };
            let want = run(CodeLevel::Portable);
            for level in CodeLevel::available() {
                assert_eq!(run(level), want, "{level:?} {} {rows} {n} {d}", windows.bits());
            }
        }
    }
}

#[test]
fn dot_products_and_sums_are_those_of_the_floats() {
    let (rows, n, d) = (3, 8, 48);
    let x = floats(rows * d, 1);
    let mut q = Int8Queries::default();
    q.set(&x, d);
    let tiles = bytes(n * d, 2);
    let gamma = floats(n, 3);
    let mut scores = vec![0.0; rows * n];
    let offsets = [100.0, -50.0, 0.0];
    let scaling = Scaling { gamma: &gamma, offsets: Some(&offsets) };
    dots(CodeLevel::Portable, &q, &tiles, scaling, (&mut scores, n));
    for row in 0..rows {
        for j in 0..n {
            let entry = |e: usize| {
                let tile = (j / TILE_ROWS * (d / RING) + e / RING) * TILE;
                f32::from((tiles[tile + j % TILE_ROWS * RING + e % RING] ^ 0x80) as i8)
            };
            let sum: f32 = (0..d).map(|e| x[row * d + e] * entry(e)).sum();
            let want = sum * gamma[j] + offsets[row];
            let got = scores[row * n + j];
            assert!((got - want).abs() < 30.0, "{got} {want}");
        }
    }
}

#[test]
fn rare_weights_vanish_and_others_are_within_half_a_step() {
    let p: Vec<_> = floats(70, 1).iter().map(|x| x.abs() * 1e-3).collect();
    let gamma: Vec<_> = floats(70, 2).iter().map(|x| x.abs()).collect();
    let (mut w, mut scale) = (vec![9; 70], [9.0]);
    weigh(CodeLevel::detect(), (&p, 70), &gamma, 0.01, &mut w, &mut scale);
    assert!(scale == [0.0] && w.iter().all(|&w| w == 0));
    weigh(CodeLevel::detect(), (&p, 70), &gamma, 1e-6, &mut w, &mut scale);
    for i in 0..70 {
        assert!((f32::from(w[i]) * scale[0] - p[i] * gamma[i]).abs() <= 0.501 * scale[0]);
    }
}

#[test]
fn walks_are_closed_and_none_is_nearer() {
    // Against all walks of a small alphabet: one ring whose best walk is planted.
    for bits in 2..=4 {
        let table: [f32; 64] = std::array::from_fn(|i| floats(64, 11)[i]);
        let trellis = Trellis::new(bits, &table);
        let symbols: Vec<u8> =
            random(5 * RING, 5).iter().map(|s| (s % (1 << bits)) as u8).collect();
        let values = |symbols: &[u8]| -> Vec<f32> {
            let mut out = Vec::new();
            for ring in symbols.chunks_exact(RING) {
                let mut packed = vec![0u8; 2 * bits];
                for (t, &o) in ring.iter().enumerate() {
                    for b in 0..bits {
                        packed[(t * bits + b) / 8] |= (o >> b & 1) << ((t * bits + b) % 8);
                    }
                }
                out.extend((0..RING).map(|t| table[window(&packed, bits, 6 - bits, t)]));
            }
            out
        };
        let x = values(&symbols);
        for level in CodeLevel::available() {
            let mut got = vec![0; x.len()];
            trellis.encode(level, &x, &mut got);
            let miss: f32 = values(&got).iter().zip(&x).map(|(a, b)| (a - b).powi(2)).sum();
            assert!(miss < 1e-6, "{bits} bits, {level:?}: {miss}");
        }
    }
}

#[test]
fn every_level_finds_walks_as_near() {
    for bits in 2..=4 {
        let table: [f32; 64] = std::array::from_fn(|i| floats(64, 11)[i] * 40.0);
        let trellis = Trellis::new(bits, &table);
        // Not whole groups of any level.
        let x: Vec<_> = floats(203 * RING, 3).iter().map(|x| x * 40.0).collect();
        let missed = |level| -> Vec<f32> {
            let mut symbols = vec![0; x.len()];
            trellis.encode(level, &x, &mut symbols);
            let rings = symbols.chunks_exact(RING).zip(x.chunks_exact(RING));
            let miss = |(symbols, x): (&[u8], &[f32])| {
                let mut state = 0;
                let mut all = 0.0;
                // The first time around only fills the state.
                for i in 0..2 * RING {
                    let symbol = usize::from(symbols[i % RING]);
                    state = state >> bits | symbol << (6 - bits);
                    all += if i < RING { 0.0 } else { (x[i - RING] - table[state]).powi(2) };
                }
                all
            };
            rings.map(miss).collect()
        };
        let best = missed(CodeLevel::Portable);
        for level in CodeLevel::available() {
            for (got, best) in missed(level).iter().zip(&best) {
                assert!((got / best - 1.0).abs() < 2e-4, "{bits} bits, {level:?}: {got} {best}");
            }
            // A ring's walk does not depend on the others.
            let mut together = vec![0; x.len()];
            trellis.encode(level, &x, &mut together);
            for (x, together) in x.chunks_exact(RING).zip(together.chunks_exact(RING)) {
                let mut alone = [0; RING];
                trellis.encode(level, x, &mut alone);
                assert_eq!(alone, together, "{bits} bits, {level:?}");
            }
        }
    }
}

#[test]
fn strides_whose_product_wraps_are_refused() {
    for (len, stride) in [(8, 1 << 63), (8, usize::MAX), (7, 4), (8, 3)] {
        let refused = std::panic::catch_unwind(|| check_rows((len, stride), 3, 4));
        assert!(refused.is_err(), "{len} with a stride of {stride}");
    }
    check_rows((12, 4), 3, 4);
    check_rows((14, 5), 3, 4);
}
