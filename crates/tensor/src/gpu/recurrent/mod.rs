//! Recurrent layers on a GPU.

pub(super) mod conv;
pub(super) mod heads;
pub(super) mod scan;
pub(super) mod states;

pub(crate) use conv::Conv;
pub(crate) use heads::{HeadNorm, Heads, HeadsShape, MAX_KEY, Rule, Strided, gated_rows};
pub(crate) use scan::{Lru, MOST_STATE, Scan};
pub use states::{GpuStates, StateRuns, StateSlots};
