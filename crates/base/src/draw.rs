//! Choices that a device makes: what it is told, and what comes back.

use crate::{TokenId, TokenMask};

/// One choice by temperature, `min_p`, `top_k`, `top_p`, `typical_p` and a draw, for a device that has
/// the row.
///
/// The device computes what `taper_sampler::Sampler` documents: masses in units of 2^-40 of the
/// likeliest token's, tokens ranked by logit (for `typical_p` by their distance from the mean) and then
/// by id, draws over ascending ids, the bits after a token that is refused by SplitMix64.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceDraw {
    /// What changes of the row before.
    pub edits: DeviceEdits,
    /// What logits are multiplied by; 0 takes the likeliest token, and no filter is in force.
    pub inv_t: f32,
    /// Tokens whose scaled logit is further below the likeliest's are not kept.
    pub min_d: f32,
    /// The likeliest so many tokens are kept; 0 keeps all.
    pub top_k: u32,
    /// Share of the mass that is kept, in units of 2^-32; 0 keeps all.
    pub top_p: u32,
    /// Share of the mass that typical sampling keeps, in units of 2^-32; 0 keeps all. It is applied last.
    pub typical_p: u32,
    /// Random bits of the draw.
    pub bits: u64,
    /// Whether log probabilities are wanted, and for how many of the likeliest tokens.
    pub logprobs: Option<u8>,
}

/// Bias, penalties, bans and a mask of a row, in the order that `taper_sampler::Sampler` documents.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct DeviceEdits {
    /// The tokens that change, each once.
    pub tokens: Vec<DeviceEdit>,
    /// Divides positive logits of tokens seen, and multiplies others.
    pub repetition: f32,
    /// Is taken off for each time that a token stands in the output.
    pub frequency: f32,
    /// Is taken off once of tokens that stand in the output.
    pub presence: f32,
    /// The only tokens that may be chosen.
    pub mask: Option<TokenMask>,
}

impl DeviceEdits {
    /// Whether the row stays as it comes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty() && self.mask.is_none()
    }
}

/// What changes of one token's logit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DeviceEdit {
    /// The token.
    pub token: TokenId,
    /// Is added; `-0.0`, which changes no number, where there is none.
    pub bias: f32,
    /// How often the token stands in the output, if penalties are its: it is there or in the prompt.
    pub seen: Option<u32>,
    /// The token is not to be chosen.
    pub banned: bool,
}

impl DeviceDraw {
    /// Whether it is the likeliest token of a row, edited or not, and nothing else.
    #[must_use]
    pub fn is_argmax(&self) -> bool {
        self.inv_t == 0.0 && self.logprobs.is_none()
    }
}

/// What log probabilities of a row are made of.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceLogits {
    /// Logit of the chosen token.
    pub logit: f32,
    /// The largest.
    pub max: f32,
    /// Mass of the row at temperature 1, in units of 2^-40 of the likeliest token's.
    pub mass: u64,
    /// The likeliest tokens of finite logit, likeliest first, as many as were asked for.
    pub top: Vec<(f32, TokenId)>,
}
