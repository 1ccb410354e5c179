//! Files of every format, sound ones and damaged ones.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail the test")]

use std::{fs, path::PathBuf};
use taper_audio::{DecodeError, DecodeLimits, decode};

const FORMATS: [&str; 8] = [
    "pcm24.wav",
    "float.wav",
    "stereo.flac",
    "mono.flac",
    "stereo.ogg",
    "mono.mp3",
    "mono.m4a",
    "mono.aac",
];

fn file(name: &str) -> Vec<u8> {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/audio/formats");
    fs::read(dir.join(name)).unwrap()
}

fn samples(name: &str) -> Vec<f32> {
    decode(&file(name), &DecodeLimits::default()).unwrap()
}

/// How alike two signals are, with one of them so many samples later.
fn likeness(a: &[f32], b: &[f32], later: usize) -> f64 {
    let pairs = || a.iter().zip(&b[later..]).map(|(a, b)| (f64::from(*a), f64::from(*b)));
    let product: f64 = pairs().map(|(a, b)| a * b).sum();
    let (aa, bb) = pairs().fold((0.0, 0.0), |(aa, bb), (a, b)| (aa + a * a, bb + b * b));
    product / f64::sqrt(aa * bb)
}

#[test]
fn every_format_is_heard() {
    let exact = samples("float.wav");
    assert_eq!(exact.len(), 16_000);
    assert_eq!(samples("mono.flac"), exact, "both are lossless");
    for (name, coder_delay) in [("mono.mp3", 2500), ("mono.m4a", 3000), ("mono.aac", 3000)] {
        let got = samples(name);
        assert!((15_500..19_000).contains(&got.len()), "{name}: {}", got.len());
        let most = coder_delay.min(got.len().saturating_sub(12_000));
        let best = (0..most).step_by(1).map(|later| likeness(&exact[..12_000], &got, later));
        let best = best.fold(0.0, f64::max);
        assert!(best > 0.97, "{name}: {best}");
    }
    // One second of two channels at 24 kHz.
    let stereo = samples("pcm24.wav");
    assert_eq!(stereo.len(), 16_000);
    assert_eq!(samples("stereo.flac").len(), 16_000);
    assert!(likeness(&stereo, &samples("stereo.flac"), 0) > 0.9999);
    let vorbis = samples("stereo.ogg");
    assert!(vorbis.len().abs_diff(16_000) < 1000, "{}", vorbis.len());
    let n = vorbis.len().min(15_000);
    assert!(likeness(&stereo[..n], &vorbis, 0) > 0.97);
}

#[test]
fn limits_are_kept() {
    let limits = DecodeLimits { seconds: 1, ..DecodeLimits::default() };
    assert!(decode(&file("mono.flac"), &limits).is_ok());
    let none = DecodeLimits { seconds: 0, ..limits };
    for name in FORMATS {
        let got = decode(&file(name), &none);
        assert_eq!(got, Err(DecodeError::TooLong { limit: 0 }), "{name}");
        let got = decode(&file(name), &DecodeLimits { bytes: 100, ..limits });
        assert!(matches!(got, Err(DecodeError::TooManyBytes { limit: 100, .. })), "{name}");
    }
}

#[test]
fn what_is_no_sound_is_refused() {
    let png = [0x89, b'P', b'N', b'G', 13, 10, 26, 10, 0, 0, 0, 13];
    let kinds: [&[u8]; 6] = [b"", b"R", b"RIFF", &png, b"hello, this is text", &[0; 100_000]];
    for bytes in kinds {
        assert!(decode(bytes, &DecodeLimits::default()).is_err(), "{} bytes", bytes.len());
    }
    // No frames at all.
    let mut empty = wav(16_000, 1, 16, &[]);
    assert!(decode(&empty, &DecodeLimits::default()).is_err());
    empty.extend([0; 3]);
    assert!(decode(&empty, &DecodeLimits::default()).is_err());
}

/// A WAV file whose header says this.
fn wav(rate: u32, channels: u16, bits: u16, data: &[u8]) -> Vec<u8> {
    let align = channels.wrapping_mul(bits / 8);
    let mut out = b"RIFF".to_vec();
    out.extend((36 + data.len() as u32).to_le_bytes());
    out.extend(b"WAVEfmt ");
    out.extend(16u32.to_le_bytes());
    out.extend(1u16.to_le_bytes());
    out.extend(channels.to_le_bytes());
    out.extend(rate.to_le_bytes());
    out.extend(rate.wrapping_mul(align.into()).to_le_bytes());
    out.extend(align.to_le_bytes());
    out.extend(bits.to_le_bytes());
    out.extend(b"data");
    out.extend((data.len() as u32).to_le_bytes());
    out.extend(data);
    out
}

#[test]
fn headers_that_claim_much_take_little() {
    let data = [1u8; 4000];
    assert_eq!(decode(&wav(16_000, 1, 16, &data), &DecodeLimits::default()).unwrap().len(), 2000);
    for (rate, channels, bits) in [
        (0, 1, 16),
        (1, 1, 16),
        (u32::MAX, 1, 16),
        (16_000, 0, 16),
        (16_000, 1, 0),
        (16_000, 1, 4096),
    ] {
        let got = decode(&wav(rate, channels, bits, &data), &DecodeLimits::default());
        assert!(got.is_err(), "{rate} {channels} {bits}: {:?}", got.map(|x| x.len()));
    }
    for channels in [33, 1000, u16::MAX] {
        // Whatever is made of it, it is made of 4000 bytes.
        let got = decode(&wav(16_000, channels, 16, &data), &DecodeLimits::default());
        assert!(got.is_err() || got.unwrap().len() <= 2000);
    }
    // Sizes of chunks far above the file's.
    for at in [4, 16, 40] {
        let mut file = wav(16_000, 1, 16, &data);
        file[at..at + 4].copy_from_slice(&u32::MAX.to_le_bytes());
        let got = decode(&file, &DecodeLimits::default());
        assert!(got.is_err() || got.unwrap().len() <= 2000, "{at}");
    }
}

/// `SplitMix64`.
fn random(state: &mut u64) -> usize {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)) as usize
}

#[test]
fn damage_never_panics_and_makes_no_more_sound_than_there_was() {
    let (mut state, mut tried, mut refused) = (1, 0, 0);
    for name in FORMATS {
        let whole = file(name);
        for round in 0..60 {
            let mut damaged = whole.clone();
            match round % 6 {
                0 => damaged.truncate(random(&mut state) % whole.len()),
                1 => {
                    let at = random(&mut state) % whole.len();
                    damaged[at] ^= 1 << (random(&mut state) % 8);
                }
                // Where headers are.
                2 => {
                    for _ in 0..4 {
                        let at = random(&mut state) % whole.len().min(200);
                        damaged[at] = random(&mut state) as u8;
                    }
                }
                3 => {
                    let at = random(&mut state) % (whole.len() - 8);
                    damaged[at..at + 4].fill(0xff);
                }
                4 => {
                    for _ in 0..whole.len() / 50 {
                        let at = random(&mut state) % whole.len();
                        damaged[at] = random(&mut state) as u8;
                    }
                }
                _ => {
                    let at = random(&mut state) % whole.len();
                    damaged.drain(at..(at + 100).min(whole.len()));
                }
            }
            tried += 1;
            match decode(&damaged, &DecodeLimits { seconds: 600, ..DecodeLimits::default() }) {
                Ok(samples) => assert!(samples.iter().all(|x| x.is_finite()), "{name} {round}"),
                Err(_) => refused += 1,
            }
        }
    }
    assert!(tried > 400 && refused > 20 && refused < tried, "{refused} of {tried}");
}
