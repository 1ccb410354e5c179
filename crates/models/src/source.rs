//! A checkpoint's tensors by one set of names.

use crate::streaming::Streams;
use taper_tensor::{Bytes, DType, Embedding, Linear, Weight};
use taper_weights::{Checkpoint, ExpertMaps, WeightsError};

/// What a family calls tensors that have other names in Llama: `(Llama's, the family's)`, whole parts between dots.
/// Each is applied once, in this order.
pub(crate) type Renames = &'static [(&'static str, &'static str)];

/// A checkpoint whose tensors are asked for by Llama's names, whatever its family calls them.
///
/// Every method takes such a name, and is otherwise [`Checkpoint`]'s of its name. Errors tell the file's own name.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Source<'a> {
    weights: &'a Checkpoint,
    renames: Renames,
    inputs_first: bool,
    streams: Option<&'a Streams>,
}

type Result<T> = std::result::Result<T, WeightsError>;

impl<'a> Source<'a> {
    /// With `inputs_first`, maps are stored as `[inputs, outputs]`.
    pub(crate) fn new(weights: &'a Checkpoint, renames: Renames, inputs_first: bool) -> Self {
        Self { weights, renames, inputs_first, streams: None }
    }

    /// A view of the checkpoint by other names.
    pub(crate) fn with(self, renames: Renames) -> Self {
        Self { renames, ..self }
    }

    /// A view of the checkpoint whose experts are streamed, if there is somebody to do so.
    pub(crate) fn streamed(self, streams: Option<&'a Streams>) -> Self {
        Self { streams, ..self }
    }

    /// The checkpoint, by the family's own names.
    pub(crate) fn checkpoint(&self) -> &'a Checkpoint {
        self.weights
    }

    /// Who streams experts; `None` where they are resident.
    pub(crate) fn streams(&self) -> Option<&'a Streams> {
        self.streams
    }

    /// What the file calls a tensor, or a module: the family's name, or Llama's if only that is there.
    pub(crate) fn own(&self, name: &str) -> String {
        let own = self.renamed(name);
        let there =
            |name: &str| self.weights.has(name) || self.weights.has(&format!("{name}.weight"));
        if own != name && !there(&own) && there(name) { name.to_owned() } else { own }
    }

    /// What the family calls a tensor, or a module.
    fn renamed(&self, name: &str) -> String {
        let renames = self.renames.iter();
        renames.fold(name.to_owned(), |name, (from, to)| renamed(&name, from, to))
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.weights.has(&self.own(name))
    }

    pub(crate) fn floats(&self, name: &str) -> Result<(DType, &'a [usize], Bytes)> {
        self.weights.floats(&self.own(name))
    }

    pub(crate) fn vector(&self, name: &str, n: usize) -> Result<Vec<f32>> {
        self.weights.vector(&self.own(name), n)
    }

    pub(crate) fn array(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
        self.weights.array(&self.own(name), shape)
    }

    /// The `n` floats of a small tensor of any shape.
    pub(crate) fn flat(&self, name: &str, n: usize) -> Result<Vec<f32>> {
        let shape = self.floats(name)?.1;
        let fits = shape.iter().try_fold(1usize, |all, &d| all.checked_mul(d)) == Some(n);
        match fits {
            true => self.array(name, shape),
            false => self.array(name, &[n]),
        }
    }

    pub(crate) fn weight(&self, prefix: &str, rows: usize, cols: usize) -> Result<Weight> {
        self.weights.weight(&self.own(prefix), rows, cols)
    }

    /// A map from `inputs` to `outputs`, which adapters find by the family's name.
    pub(crate) fn linear(
        &self,
        prefix: &str,
        inputs: usize,
        outputs: usize,
        bias: bool,
    ) -> Result<Linear> {
        let own = self.own(prefix);
        let linear = match self.inputs_first {
            true => self.weights.linear_of_inputs(&own, inputs, outputs, bias)?,
            false => self.weights.linear(&own, inputs, outputs, bias)?,
        };
        Ok(linear.named(&self.renamed(prefix)))
    }

    pub(crate) fn embedding(&self, prefix: &str, rows: usize, cols: usize) -> Result<Embedding> {
        self.weights.embedding(&self.own(prefix), rows, cols)
    }

    pub(crate) fn stacked(
        &self,
        prefix: &str,
        count: usize,
        shape: (usize, usize),
        bias: bool,
    ) -> Result<ExpertMaps> {
        self.weights.stacked(&self.own(prefix), count, shape, bias)
    }

    pub(crate) fn transposed(
        &self,
        name: &str,
        count: usize,
        shape: (usize, usize),
        part: (usize, usize),
    ) -> Result<ExpertMaps> {
        self.weights.transposed(&self.own(name), count, shape, part)
    }

    pub(crate) fn transposed_halves(
        &self,
        name: &str,
        count: usize,
        shape: (usize, usize),
        part: (usize, usize),
    ) -> Result<ExpertMaps> {
        self.weights.transposed_halves(&self.own(name), count, shape, part)
    }

    pub(crate) fn fused(
        &self,
        name: &str,
        count: usize,
        shape: (usize, usize),
        part: (usize, usize),
    ) -> Result<ExpertMaps> {
        self.weights.fused(&self.own(name), count, shape, part)
    }
}

/// `name` with `to` in place of the first `from` that is whole parts between dots.
fn renamed(name: &str, from: &str, to: &str) -> String {
    let whole = |&at: &usize| {
        let (before, after) = (&name[..at], &name[at + from.len()..]);
        (before.is_empty() || before.ends_with('.')) && (after.is_empty() || after.starts_with('.'))
    };
    let found = name.match_indices(from).map(|(at, _)| at).find(whole);
    found.map_or_else(
        || name.to_owned(),
        |at| format!("{}{to}{}", &name[..at], &name[at + from.len()..]),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_parts_are_renamed_once() {
        let name = "model.layers.1.mlp.up_proj.weight";
        assert_eq!(renamed(name, "mlp.up_proj", "ff.w3"), "model.layers.1.ff.w3.weight");
        assert_eq!(renamed(name, "up", "w3"), name);
        assert_eq!(renamed(name, "layers.1", "h.1"), "model.h.1.mlp.up_proj.weight");
        assert_eq!(renamed("norm.norm", "norm", "n"), "n.norm");
        assert_eq!(renamed("a.weight", "weight", "w"), "a.w");
    }
}
