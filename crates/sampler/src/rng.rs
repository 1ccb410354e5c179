//! Draws that depend on a seed and a position only.
//!
//! Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"), the
//! counter-based generator of cuRAND and PyTorch: there is no state to save, so that a draw is the
//! same in every run, in every batch, after a preemption, and on a device that draws by itself.

/// 64 random bits for the output token at `position` (the first is 0) of a request with `seed`.
///
/// Philox4x32-10 with the seed as its key and the position as the low half of its counter; words 0
/// and 1 of the block, word 0 low. As a uniform number in [0, 1) this is `bits / 2^64`.
#[must_use]
pub fn draw_bits(seed: u64, position: u64) -> u64 {
    let [p0, p1] = words(position);
    let [w0, w1, _, _] = philox([p0, p1, 0, 0], words(seed));
    u64::from(w1) << 32 | u64::from(w0)
}

/// 64 more random bits, where those before drew a token that a filter drops: a step of SplitMix64
/// (Steele, Lea and Flood 2014).
pub(crate) fn redraw(bits: u64) -> u64 {
    let mut z = bits.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Low word, high word.
fn words(x: u64) -> [u32; 2] {
    [x as u32, (x >> 32) as u32]
}

fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let [lo0, hi0] = words(0xD251_1F53 * u64::from(counter[0]));
        let [lo1, hi1] = words(0xCD9E_8D57 * u64::from(counter[2]));
        counter = [hi1 ^ counter[1] ^ key[0], lo1, hi0 ^ counter[3] ^ key[1], lo0];
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    counter
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `kat_vectors` of Random123.
    #[test]
    fn known_answers() {
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(
            philox([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox(
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0]
            ),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    /// The first numbers of `java.util.SplittableRandom`'s generator from 0 on: the state is a multiple of its step.
    #[test]
    fn redraws_are_those_of_split_mix() {
        let step = 0x9E37_79B9_7F4A_7C15;
        assert_eq!([redraw(0), redraw(step)], [0xE220_A839_7B1D_CDAF, 0x6E78_9E6A_A1B9_65F4]);
    }

    #[test]
    fn draws_differ_by_seed_and_position() {
        let mut seen: Vec<u64> =
            (0..64).flat_map(|s| (0..64).map(move |p| draw_bits(s, p))).collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 64 * 64);
    }
}
