//! What maps read, shown to somebody: how a model's inputs are known when its weights are quantized.

use super::{Input, Map, Matrix};
use std::{fmt, sync::Arc};

/// Is shown the inputs of maps.
pub trait Observer: fmt::Debug + Send + Sync {
    /// Maps that are applied together have read rows.
    ///
    /// # Shapes
    /// `x [t, inputs]`.
    fn see(&self, maps: &[&Watch], inputs: usize, x: &[f32]);
}

/// A map's name, and who is shown what it reads.
#[derive(Debug, Clone)]
pub struct Watch {
    /// The tensor that the map is of, or is a part of.
    pub tensor: Arc<str>,
    /// Which of the maps in that tensor, where it has several.
    pub index: usize,
    /// Who is shown the inputs.
    pub observer: Arc<dyn Observer>,
}

/// Shows the input to who wants to see what these maps read.
pub(super) fn show<'a>(maps: &[Map<'a>], x: &mut Input<'_>) {
    let watch = |map: &Map<'a>| match map.matrix {
        Matrix::Watched(_, watch) => Some(watch),
        _ => None,
    };
    let watches: Vec<_> = maps.iter().filter_map(watch).collect();
    if let (Some(first), Some(map)) = (watches.first(), maps.first()) {
        first.observer.see(&watches, map.matrix.cols(), x.floats());
    }
}
