//! The latest queries of a sequence.

use std::collections::BTreeMap;

/// Queries of some positions of each layer, scaled.
#[derive(Debug, Default)]
pub struct Queries {
    layers: BTreeMap<usize, BTreeMap<usize, Vec<f32>>>,
}

impl Queries {
    /// Takes a position's query, `[heads, head_dim]`, in place of what was there.
    pub fn put(&mut self, layer: usize, position: usize, query: Vec<f32>) {
        self.layers.entry(layer).or_default().insert(position, query);
    }

    /// Layers that have queries.
    pub fn layers(&self) -> impl Iterator<Item = usize> {
        self.layers.keys().copied()
    }

    /// A layer's queries of the positions from `from` up to before `to`.
    #[must_use]
    pub fn of(&self, layer: usize, from: usize, to: usize) -> Vec<&[f32]> {
        let Some(queries) = self.layers.get(&layer).filter(|_| from < to) else {
            return Vec::new();
        };
        queries.range(from..to).map(|(_, query)| query.as_slice()).collect()
    }

    /// Forgets the positions before one.
    pub fn forget_before(&mut self, position: usize) {
        for queries in self.layers.values_mut() {
            *queries = queries.split_off(&position);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_queries_stay() {
        let mut queries = Queries::default();
        (3..9).for_each(|at| queries.put(1, at, vec![at as f32]));
        queries.put(1, 8, vec![80.0]);
        assert_eq!(queries.of(1, 6, 9), [&[6.0][..], &[7.0], &[80.0]]);
        queries.forget_before(8);
        assert_eq!(queries.of(1, 0, 9), [&[80.0]]);
        assert_eq!(queries.of(0, 0, 9), [&[0.0; 0][..]; 0]);
        assert_eq!(queries.of(1, 9, 9), [&[0.0; 0][..]; 0]);
        assert_eq!(queries.layers().collect::<Vec<_>>(), [1]);
    }
}
