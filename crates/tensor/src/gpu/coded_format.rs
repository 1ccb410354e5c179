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
            Self::Sketched { bits } => 40 + bits as u32,
        }
    }

    pub(super) fn group(self) -> u32 {
        if let Self::Affine { group, .. } = self { group as u32 } else { 1 }
    }

    /// Whether rows are rotated.
    #[must_use]
    pub fn is_rotated(self) -> bool {
        matches!(self, Self::Scalar { .. } | Self::Trellis { .. } | Self::Sketched { .. })
    }
}

/// One side of a compressed cache.
#[derive(Debug, Clone)]
pub struct CodedSide {
    /// How rows are stored.
    pub format: RowFormat,
    /// Bytes of a head region, a multiple of 16.
    pub region: usize,
    /// What codes stand for, before a row's scale; at most 64.
    pub levels: Vec<f32>,
    /// Levels are whole multiples of it, up to 127; of a sketched side, no larger than it.
    pub step: f32,
    /// Where one scalar code ends and the next begins; at most 32.
    pub thresholds: Vec<f32>,
}

/// A rotation by random signs and Hadamard matrices.
#[derive(Debug, Clone, Default)]
pub struct Signs {
    /// Of each round, an element each.
    pub rounds: Vec<Vec<f32>>,
    /// Paley's matrix `[order, order]`; empty for order 1.
    pub paley: Vec<f32>,
    /// Of Paley's matrix.
    pub order: usize,
}
