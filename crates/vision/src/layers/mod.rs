//! What towers are made of.

mod attention;
mod block;
mod linear;
mod mlp;
mod norm;
mod patch;
mod positions;
mod rope;

pub(crate) use attention::{Attention, Segments};
pub(crate) use block::{Block, BlockNames, BlockShape};
pub(crate) use linear::Linear;
pub(crate) use mlp::{Activation, Mlp};
pub(crate) use norm::{Norm, NormKind};
pub(crate) use patch::{PatchEmbedding, cut};
pub(crate) use positions::{Grid, interpolated};
pub(crate) use rope::Rope;
