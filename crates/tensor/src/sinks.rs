//! Scores of attention without a value.

use crate::gpu::Resident;

/// Learned scores that join the softmax of each query head and have no value (gpt-oss).
#[derive(Debug, Clone, PartialEq)]
pub struct Sinks(Resident);

impl Sinks {
    /// One score for each query head.
    #[must_use]
    pub fn new(scores: Vec<f32>) -> Self {
        Self(Resident::new(scores))
    }

    /// The scores, head by head.
    #[must_use]
    pub fn scores(&self) -> &[f32] {
        self.0.host()
    }

    pub(crate) fn resident(&self) -> &Resident {
        &self.0
    }
}
