//! Random identifiers and seeds, from the randomness the standard library seeds its maps with.

use std::hash::{BuildHasher, Hasher, RandomState};

/// 64 bits that nobody can guess cheaply and that do not repeat; not for cryptography.
pub(crate) fn random_u64() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// `prefix-` and 32 hexadecimal digits.
pub(crate) fn random_id(prefix: &str) -> String {
    format!("{prefix}-{:016x}{:016x}", random_u64(), random_u64())
}

/// `prefix_` and 32 hexadecimal digits: ids of the newer APIs.
pub(crate) fn item_id(prefix: &str) -> String {
    format!("{prefix}_{:016x}{:016x}", random_u64(), random_u64())
}

/// The seed of one choice. The first keeps the request's own, so that `n` does not change it; the
/// others are spread by SplitMix64's step, so that neighbouring seeds share no choices.
pub(crate) fn choice_seed(seed: u64, choice: u64) -> u64 {
    if choice == 0 {
        return seed;
    }
    let mut z = seed.wrapping_add(choice.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn seeds_of_choices_differ_and_repeat() {
        let all: HashSet<u64> =
            (0..8).flat_map(|s| (0..8).map(move |c| choice_seed(s, c))).collect();
        assert_eq!(all.len(), 64);
        assert_eq!(choice_seed(42, 0), 42);
        assert_eq!(choice_seed(42, 3), choice_seed(42, 3));
        assert_ne!(random_id("x"), random_id("x"));
    }
}
