//! C9, C15, C16: what lies in the pages.

use crate::support::{ONE_HEAD, Stored, distance, gaussian, near, softmax, square};
use taper_kv_codecs::{KvCodec, KvGeometry, PagedCodec, Scheme, SideFormat, parse};

/// Keys `b + g` with `|b| = ratio |g|`: the rows, and `g`.
fn biased(tokens: usize, ratio: f32, seed: u64) -> (Vec<f32>, Vec<f32>) {
    let varying = gaussian(tokens * 128, seed);
    let bias: Vec<_> = gaussian(128, seed + 1);
    let length = (square(&bias) / 128.0).sqrt() as f32;
    let rows = varying.iter().enumerate().map(|(i, g)| g + bias[i % 128] / length * ratio);
    (rows.collect(), varying)
}

/// Error of the stored keys relative to what varies.
fn error_of_varying(name: &str, ratio: f32) -> f64 {
    let (k, varying) = biased(1024, ratio, 5);
    let stored = Stored::new(name, ONE_HEAD, &k, &varying);
    distance(&k, &stored.decode().0) / square(&varying)
}

#[test]
fn c09_centred_keys_do_not_mind_a_bias() {
    for ratio in [10.0, 30.0] {
        let (four, three) = (error_of_varying("taper4", ratio), error_of_varying("taper3", ratio));
        println!("bias {ratio}: taper4 {four:.5}, taper3 {three:.5}");
        assert!(four <= 0.0100, "{ratio}: {four}");
        assert!(three <= 0.036, "{ratio}: {three}");
        assert!(error_of_varying("turbo4", ratio) > 0.5, "not centred");
    }
    // Without a bias there is nothing to gain, and nothing is lost.
    assert!(error_of_varying("taper4", 0.0) < 0.0072);
}

#[test]
fn c09_a_centre_changes_no_softmax() {
    let (k, varying) = biased(256, 30.0, 7);
    let q = gaussian(128, 8);
    let p = |k: &[f32]| {
        let score = |k: &[f32]| crate::support::dot(&q, k) / 128f64.sqrt();
        softmax(&k.chunks_exact(128).map(score).collect::<Vec<_>>())
    };
    p(&k).iter().zip(p(&varying)).for_each(|(a, b)| near(*a, b, 1e-5));
}

#[test]
fn c09_the_bytes_do_not_depend_on_how_many_rows_come_at_a_time() {
    let g = KvGeometry { kv_heads: 2, ..ONE_HEAD };
    for name in ["turbo4", "taper4", "taper3", "taper2", "affine8", "turbo3-qjl"] {
        let (k, v) = (gaussian(150 * 256, 1), gaussian(150 * 256, 2));
        let whole = Stored::new(name, g, &k, &v);
        let mut single = Stored::new(name, g, &k, &v);
        single.pages.k.as_mut_slice().fill(0xa5);
        single.pages.v.as_mut_slice().fill(0x5a);
        let mut at = 0;
        for n in [1, 1, 14, 3, 40, 7, 64, 20].into_iter().cycle() {
            let n = n.min(150 - at);
            let rows = |x: &[f32]| crate::support::rows(g, &x[at * 256..(at + n) * 256]);
            let slots: Vec<_> = (at..at + n).collect();
            single.codec.encode(g, &rows(&k), &rows(&v), &slots, &mut single.pages).unwrap();
            at += n;
            if at == 150 {
                break;
            }
        }
        assert_eq!(whole.decode(), single.decode(), "{name}");
    }
}

#[test]
fn c15_sizes_are_exact() {
    let bytes = |name: &str| {
        let side = |f: SideFormat| f.head_bytes(ONE_HEAD) as f64 / 64.0;
        let scheme = Scheme::parse(name).unwrap();
        (side(scheme.k), side(scheme.v))
    };
    assert_eq!(bytes("turbo4"), (66.0, 66.0));
    assert_eq!(bytes("turbo3"), (50.0, 50.0));
    assert_eq!(bytes("turbo2"), (34.0, 34.0));
    assert_eq!(bytes("turbo4v2"), (66.0, 34.0));
    assert_eq!(bytes("affine8"), (136.0, 136.0));
    assert_eq!(bytes("affine4g32"), (80.0, 80.0));
    assert_eq!(bytes("turbo0v4"), (256.0, 66.0));
    assert_eq!(bytes("turbo3-qjl"), (52.0, 50.0));
    // Codes, a byte of scale, a share of the block's base and centre.
    let share = |n: f64| n / 64.0;
    assert_eq!(bytes("taper4"), (65.0 + share(118.0), 65.0 + share(2.0)));
    assert_eq!(bytes("taper3"), (49.0 + share(118.0), 49.0 + share(2.0)));
    let both = |name| bytes(name).0 + bytes(name).1;
    assert!(both("taper4") <= both("turbo4"));
    assert!(both("taper3") <= both("turbo3"));
    assert!(both("taper2") <= both("turbo2"));
    assert!(512.0 / both("turbo3") >= 4.6 && 512.0 / both("turbo4v2") >= 4.9);
    assert!(512.0 / both("taper3") >= 4.9);
    for name in ["turbo4", "taper3v2", "affine8", "turbo4-qjl"] {
        let g = KvGeometry { kv_heads: 5, head_dim: 80, block_tokens: 32 };
        let (codec, scheme) = (parse(name).unwrap(), Scheme::parse(name).unwrap());
        let block = codec.block_bytes(g);
        assert_eq!((block.k, block.v), (5 * scheme.k.head_bytes(g), 5 * scheme.v.head_bytes(g)));
    }
}

#[test]
fn c16_every_stored_byte_is_in_use() {
    let (k, v, q) = (gaussian(64 * 128, 1), gaussian(64 * 128, 2), gaussian(2 * 128, 3));
    for name in
        ["turbo4", "turbo3", "turbo4v2", "taper4", "taper3", "taper2", "affine8", "turbo3-qjl"]
    {
        let mut stored = Stored::new(name, ONE_HEAD, &k, &v);
        let before = stored.attend(&q, 0.09);
        let (dk, dv) = stored.decode();
        let half = |x: f32, y: f32| (x - y).abs() < 1e-3 * x.abs();
        let same = k.iter().zip(&dk).filter(|(x, y)| half(**x, **y)).count();
        assert!(same < k.len() / 10, "{name}: keys are halves");
        assert!(distance(&v, &dv) > 0.0);
        stored.pages.k.as_mut_slice()[1000] ^= 0x11;
        let other_k = stored.attend(&q, 0.09);
        assert_ne!(before, other_k, "{name}: keys");
        stored.pages.v.as_mut_slice()[1000] ^= 0x11;
        assert_ne!(other_k, stored.attend(&q, 0.09), "{name}: values");
    }
}

#[test]
fn scales_follow_rows_of_any_length() {
    // Rows whose lengths rise and fall by factors of thousands, and zero rows between them.
    let lengths = [0.0, 1e-3, 5.0, 0.02, 0.0, 900.0, 1.0, 700.0];
    let mut v = gaussian(64 * 128, 4);
    for (i, row) in v.chunks_exact_mut(128).enumerate() {
        row.iter_mut().for_each(|x| *x *= lengths[i % 8]);
    }
    for name in ["taper4", "turbo4", "affine8"] {
        let stored =
            Stored::with(PagedCodec::new(name, Scheme::parse(name).unwrap()), ONE_HEAD, &v, &v);
        let back = stored.decode().1;
        for (i, (row, back)) in v.chunks_exact(128).zip(back.chunks_exact(128)).enumerate() {
            // One byte of scale reaches down to about a 250th of a block's typical row.
            let floor = if name == "taper4" { (900.0f64 / 100.0).powi(2) * 128.0 } else { 1e-9 };
            let off = distance(row, back);
            assert!(off <= 0.05 * square(row) + floor, "{name} row {i}: {off} of {}", square(row));
        }
    }
}
