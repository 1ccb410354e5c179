//! Speculative decoding without a change of the output: what to draft, and how much of it to verify.
//!
//! A step of a model costs little more for a few tokens of a sequence than for one. So a [`Drafter`]
//! proposes what may come next, the engine computes the proposal's logits in one step, and draws at each
//! position as it would without a proposal: a drafted token is accepted if and only if it is what was
//! drawn. Nothing in here can change a token, only the time that it takes.
//!
#![doc = include_str!("../README.md")]

mod book;
mod controller;
mod costs;
mod drafter;
mod index;
mod likeliest;
mod model;
mod mtp;
mod suffix;
mod track;

pub use controller::{Controller, Proposal, Verified};
pub use costs::Costs;
pub use drafter::{Computed, Draft, DraftError, DraftInput, Drafter};
pub use index::{Match, SuffixIndex};
pub use model::{DraftModelError, ModelDrafter};
pub use mtp::MtpDrafter;
pub use suffix::SuffixDrafter;
