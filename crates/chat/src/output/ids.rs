//! Ids of tool calls.

use std::hash::{BuildHasher, Hasher, RandomState};

/// Makes ids like `call_2Zx0..`: 24 letters and digits, the same for the same seed.
#[derive(Debug, Clone)]
pub struct ToolCallIds {
    state: u64,
}

impl ToolCallIds {
    /// Ids that follow from `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// Ids that differ from run to run.
    #[must_use]
    pub fn random() -> Self {
        // The standard library seeds its hash maps from the system.
        Self::new(RandomState::new().build_hasher().finish())
    }

    /// The next id.
    pub fn next_id(&mut self) -> String {
        const ALPHABET: &[u8; 62] =
            b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
        let mut id = String::from("call_");
        for _ in 0..3 {
            let mut bits = self.next_u64();
            for _ in 0..8 {
                id.push(char::from(ALPHABET[(bits % 62) as usize]));
                bits /= 62;
            }
        }
        id
    }

    /// SplitMix64 (Steele, Lea and Flood 2014).
    fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_reproducible_and_distinct() {
        let (mut a, mut b) = (ToolCallIds::new(7), ToolCallIds::new(7));
        let first = a.next_id();
        assert_eq!(first, b.next_id());
        assert_ne!(first, a.next_id());
        assert_eq!(first.len(), "call_".len() + 24);
        assert!(first["call_".len()..].chars().all(|c| c.is_ascii_alphanumeric()));
        assert_ne!(ToolCallIds::random().next_id(), ToolCallIds::random().next_id());
    }
}
