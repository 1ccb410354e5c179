//! Prompt or answer.

/// What a token is to its request.
///
/// A backend may multiply prompts in another arithmetic than answers, as thousands of rows at once want
/// other instructions than one. A token's phase depends on its request alone: the tokens of a prompt
/// are [`Self::Prefill`], however it is cut into steps, and those that follow are [`Self::Decode`],
/// even when they are computed again after a preemption.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Phase {
    /// A token of the prompt.
    Prefill,
    /// A token that was generated.
    #[default]
    Decode,
}
