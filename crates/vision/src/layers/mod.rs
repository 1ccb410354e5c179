//! What towers are made of.

mod attention;
mod block;
mod inplace;
mod linear;
mod mlp;
mod norm;
mod patch;
mod positions;
mod rope;

pub(crate) use attention::{Attention, Segments, attend};
pub(crate) use block::{Block, BlockNames, BlockShape};
pub(crate) use linear::Linear;
pub(crate) use mlp::{Activation, Mlp};
pub(crate) use norm::{Norm, NormKind};
pub(crate) use patch::{PatchEmbedding, cut, squares};
pub(crate) use positions::{Grid, Sampling, resampled};
pub(crate) use rope::{Rope, frequencies};
