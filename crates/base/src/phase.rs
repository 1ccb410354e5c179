//! Prefill or decode.

/// Whether a token belongs to its request's prompt or to its output.
///
/// A backend may prefill in another arithmetic than it decodes in, as thousands of rows at once
/// want other instructions than one. A token's phase depends on its request alone: the tokens of a
/// prompt are [`Self::Prefill`], however the prompt is chunked, and those that follow are
/// [`Self::Decode`], even when they are computed again after a preemption.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Phase {
    /// A token of the prompt.
    Prefill,
    /// A token that was generated.
    #[default]
    Decode,
}
