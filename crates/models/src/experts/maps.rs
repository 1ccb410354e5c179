//! Where a checkpoint has the maps of experts.

use super::{ExpertSpec, Fused};
use crate::{
    ModelError,
    feed_forward::{Dense, Gated, Plain},
    source::Source,
    spec::Spec,
};
use std::sync::Arc;
use taper_tensor::{Linear, LinearGroup};
use taper_weights::{Checkpoint, ExpertMaps};

/// The maps of a layer's experts, which are made of the checkpoint when they are asked for.
#[derive(Debug)]
pub(crate) struct ExpertSource {
    experts: usize,
    /// Gate, where there is one, up and down.
    maps: Vec<Maps>,
    limit: Option<f32>,
}

/// One map of every expert.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there are three a layer")]
enum Maps {
    /// In one tensor.
    Stacked(ExpertMaps),
    /// In a tensor each, which were read.
    Read(Vec<Linear>),
    /// In a tensor each, of these names.
    Each { weights: Arc<Checkpoint>, names: Vec<String>, shape: (usize, usize), bias: bool },
}

impl ExpertSource {
    /// The maps of the experts below `at`.
    pub(crate) fn new(
        model: &Spec,
        spec: ExpertSpec,
        weights: Source<'_>,
        at: &str,
    ) -> Result<Self, ModelError> {
        let (hidden, inner) = (model.hidden, spec.intermediate);
        let up = find(spec, weights, at, "up_proj", (hidden, inner))?;
        let down = find(spec, weights, at, "down_proj", (inner, hidden))?;
        let maps = match model.gated_mlp {
            true => vec![find(spec, weights, at, "gate_proj", (hidden, inner))?, up, down],
            false => vec![up, down],
        };
        Ok(Self { experts: spec.experts, maps, limit: spec.limits[0] })
    }

    /// How many experts there are.
    pub(crate) fn experts(&self) -> usize {
        self.experts
    }

    /// All experts.
    pub(crate) fn all(&self) -> Result<Vec<Dense>, ModelError> {
        let all: Vec<_> = self.maps.iter().map(Maps::all).collect::<Result<_, _>>()?;
        let mut all: Vec<_> = all.into_iter().map(Vec::into_iter).collect();
        let one = |_| {
            let own = all.iter_mut().filter_map(Iterator::next).collect();
            expert(own, self.limit)
        };
        (0..self.experts).map(one).collect()
    }

    /// The maps of an expert as they are stored.
    pub(crate) fn maps(&self, expert: usize) -> Result<Vec<Linear>, ModelError> {
        self.maps.iter().map(|maps| maps.get(expert)).collect()
    }

    /// Hints that an expert will be asked for soon.
    pub(crate) fn want(&self, expert: usize) {
        for maps in &self.maps {
            if let Maps::Stacked(maps) = maps {
                maps.want(expert);
            }
        }
    }

    /// Limit of the activation of each.
    pub(crate) fn limit(&self) -> Option<f32> {
        self.limit
    }
}

/// An expert of its maps, with a limit of its activation.
pub(crate) fn expert(maps: Vec<Linear>, limit: Option<f32>) -> Result<Dense, ModelError> {
    let got = maps.len();
    let two = match <[Linear; 3]>::try_from(maps) {
        Ok([gate, up, down]) => {
            let gate_up = LinearGroup::new([gate, up])?;
            return Ok(Dense::Gated(Gated { gate_up, down, limit, scales: None }));
        }
        Err(maps) => <[Linear; 2]>::try_from(maps),
    };
    let bad = |_| ModelError::Batch { what: "maps of an expert", expected: 2, got };
    let [up, down] = two.map_err(bad)?;
    Ok(Dense::Plain(Plain { up: LinearGroup::new([up])?, down }))
}

impl Maps {
    fn all(&self) -> Result<Vec<Linear>, ModelError> {
        match self {
            Self::Stacked(maps) => Ok(maps.all()?),
            Self::Read(maps) => Ok(maps.clone()),
            Self::Each { names, .. } => (0..names.len()).map(|i| self.get(i)).collect(),
        }
    }

    fn get(&self, index: usize) -> Result<Linear, ModelError> {
        let missing = |expected| ModelError::Batch { what: "experts", expected, got: index };
        match self {
            Self::Stacked(maps) => Ok(maps.get(index)?),
            Self::Read(maps) => maps.get(index).cloned().ok_or(missing(maps.len())),
            Self::Each { weights, names, shape: (inputs, outputs), bias } => {
                let name = names.get(index).ok_or(missing(names.len()))?;
                Ok(weights.linear(name, *inputs, *outputs, *bias)?)
            }
        }
    }
}

/// One map of every expert: a tensor each, as Hugging Face has most, stacked, as MLX has them, or gate and up of all
/// in one, as transformers writes Qwen 3.5 and gpt-oss.
fn find(
    spec: ExpertSpec,
    weights: Source<'_>,
    at: &str,
    name: &str,
    shape: (usize, usize),
) -> Result<Maps, ModelError> {
    let ExpertSpec { experts: n, bias, names, .. } = spec;
    for place in ["switch_mlp", "experts", "experts.switch_glu"] {
        let prefix = format!("{at}.{place}.{name}");
        if weights.has(&format!("{prefix}.weight")) {
            return Ok(Maps::Stacked(weights.stacked(&prefix, n, shape, bias)?));
        }
    }
    let (fused, part) = match name {
        "gate_proj" => ("gate_up_proj", (0, 2)),
        "up_proj" => ("gate_up_proj", (1, 2)),
        _ => (name, (0, 1)),
    };
    let sorted = format!("{at}.switch_mlp.{fused}.weight");
    if weights.has(&sorted) {
        return Ok(Maps::Stacked(weights.fused(&sorted, n, shape, part)?));
    }
    let all = format!("{at}.experts.{fused}");
    if weights.has(&all) {
        return Ok(Maps::Stacked(match names.fused {
            Fused::Interleaved => weights.transposed(&all, n, shape, part)?,
            Fused::Transposed => {
                let turned = [n, shape.0, shape.1.saturating_mul(part.1)];
                // transformers may have turned them when it saved them.
                match weights.floats(&all)?.1 == turned {
                    true => weights.transposed_halves(&all, n, shape, part)?,
                    false => weights.fused(&all, n, shape, part)?,
                }
            }
            Fused::Rows => weights.fused(&all, n, shape, part)?,
        }));
    }
    let [gate, up, down] = names.maps;
    let own = match name {
        "gate_proj" => gate,
        "up_proj" => up,
        _ => down,
    };
    let name = |e| format!("{at}.experts.{e}.{own}");
    let read = |e| weights.linear(&name(e), shape.0, shape.1, bias);
    match weights.streams() {
        None => Ok(Maps::Read((0..n).map(read).collect::<Result<_, _>>()?)),
        Some(streams) => {
            // Checks them, and notes that they are used.
            (0..n).try_for_each(|e| read(e).map(drop))?;
            let names = (0..n).map(|e| weights.own(&name(e))).collect();
            Ok(Maps::Each { weights: streams.weights(), names, shape, bias })
        }
    }
}
