//! How the rows of a compressed cache are stored.

/// How one side's rows are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowFormat {
    /// Halves, row after row.
    Halves,
    /// Affine codes of 4 or 8 bits.
    Affine {
        /// Bits an element.
        bits: usize,
        /// Elements that share a scale.
        group: usize,
    },
    /// Scalar codes of 1 to 5 bits of rotated rows.
    Scalar {
        /// Bits an element.
        bits: usize,
    },
    /// Trellis codes of 2 to 4 bits of rotated rows.
    Trellis {
        /// Bits an element.
        bits: usize,
        /// First rows of a block that stay halves until there is a centre; 0 for values, which
        /// have none.
        young: usize,
    },
    /// Trellis codes of 3 bits of rotated rows, of nine bits of state.
    Wide {
        /// As of other trellis codes.
        young: usize,
    },
    /// Scalar codes of rotated rows with one bit less, and a bit for the signs of what they leave,
    /// rotated a second time; keys only.
    Sketched {
        /// Bits an element, 2 to 5.
        bits: usize,
    },
}

impl RowFormat {
    /// As the kernels number it.
    pub(super) fn number(self) -> u32 {
        match self {
            Self::Halves => 0,
            Self::Affine { bits: 4, .. } => 2,
            Self::Affine { .. } => 3,
            Self::Scalar { bits } => 10 + bits as u32,
            Self::Trellis { bits, .. } => 20 + bits as u32,
            Self::Wide { .. } => 33,
            Self::Sketched { bits } => 40 + bits as u32,
        }
    }

    pub(super) fn group(self) -> u32 {
        if let Self::Affine { group, .. } = self { group as u32 } else { 1 }
    }

    /// First rows of a block that stay halves.
    pub(super) fn young(self) -> u32 {
        match self {
            Self::Trellis { young, .. } | Self::Wide { young } => young as u32,
            _ => 0,
        }
    }

    /// Whether rows are rotated.
    #[must_use]
    pub fn is_rotated(self) -> bool {
        !matches!(self, Self::Halves | Self::Affine { .. })
    }
}

/// One side of a compressed cache.
#[derive(Debug, Clone)]
pub struct CodedSide {
    /// How rows are stored.
    pub format: RowFormat,
    /// Bytes of a head region, a multiple of 16.
    pub region: usize,
    /// What codes stand for, before a row's scale; at most 64, or 512 of wide trellis codes.
    pub levels: Vec<f32>,
    /// Levels are whole multiples of it, up to 127; of a sketched side, no larger than it.
    pub step: f32,
    /// Where one scalar code ends and the next begins; at most 32.
    pub thresholds: Vec<f32>,
}

/// A rotation by random signs and Hadamard matrices.
#[derive(Debug, Clone, Default)]
pub struct Signs {
    /// Signs of each round, one per element.
    pub rounds: Vec<Vec<f32>>,
    /// Paley's matrix `[order, order]`; empty for order 1.
    pub paley: Vec<f32>,
    /// Rows of Paley's matrix.
    pub order: usize,
}

/// What there are no kernels for, if that is what these formats of keys and values are.
pub(super) fn refused(k: RowFormat, v: RowFormat) -> Option<&'static str> {
    let wide = |format| matches!(format, RowFormat::Wide { .. });
    match v {
        RowFormat::Sketched { .. } => Some("kv cache with a sketch of values"),
        _ if wide(k) != wide(v) => Some("kv cache with nine bits of state on one side"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sketches_are_of_keys_and_wide_codes_of_both() {
        let (sketch, wide) = (RowFormat::Sketched { bits: 4 }, RowFormat::Wide { young: 0 });
        assert_eq!(refused(sketch, RowFormat::Halves), None);
        assert_eq!(refused(wide, wide), None);
        assert!(refused(RowFormat::Halves, sketch).is_some_and(|what| what.contains("sketch")));
        assert!(refused(wide, RowFormat::Halves).is_some_and(|what| what.contains("nine bits")));
        assert!(refused(RowFormat::Halves, wide).is_some());
    }
}
