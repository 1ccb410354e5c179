//! How the families' routers choose.

use crate::{ModelError, config};
use taper_tensor::routing::Routing;

pub(crate) use taper_tensor::routing::{Groups, Score};

/// How a router chooses.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Route {
    /// Experts that a token goes through.
    pub(crate) chosen: usize,
    pub(crate) score: Score,
    /// The weights of the chosen ones are made to sum to one; this is added to the sum that divides them.
    pub(crate) normalise: Option<f32>,
    /// What divides them is at least this.
    pub(crate) least: f32,
    /// Weights are multiplied by it.
    pub(crate) scale: f32,
    /// What the tensor is called, below the block, that is added to scores for the choice alone.
    pub(crate) bias: Option<&'static str>,
    pub(crate) groups: Option<Groups>,
    /// Logits are `cap * tanh(logit / cap)`, with this cap, before anything is made of them (Laguna).
    pub(crate) soft_cap: Option<f32>,
    /// A weight multiplies what its expert reads, not what it gives (Llama 4).
    pub(crate) weighs_input: bool,
}

impl Route {
    /// A softmax over all experts.
    pub(crate) fn softmax(chosen: usize, normalise: bool) -> Self {
        let Routing { chosen, score, normalise, least, scale, groups, soft_cap } =
            Routing::softmax(chosen, normalise);
        let (bias, weighs_input) = (None, false);
        Self { chosen, score, normalise, least, scale, bias, groups, soft_cap, weighs_input }
    }

    /// A sigmoid of each, with a selection bias as Hugging Face names it, and no groups.
    pub(crate) fn sigmoid(chosen: usize, normalise: bool) -> Self {
        let bias = Some("gate.e_score_correction_bias");
        let normalise = normalise.then_some(1e-20);
        Self { score: Score::Sigmoid, bias, normalise, ..Self::softmax(chosen, false) }
    }

    /// What is the same wherever tensors are called otherwise.
    pub(crate) fn routing(&self) -> Routing {
        let Self { chosen, score, normalise, least, scale, groups, soft_cap, .. } = *self;
        Routing { chosen, score, normalise, least, scale, groups, soft_cap }
    }

    /// Refuses a choice of none, or of more than there are, and groups that do not divide the experts.
    pub(crate) fn check(&self, family: &'static str, experts: usize) -> Result<(), ModelError> {
        let bad = |field, value: String| Err(ModelError::Unsupported { family, field, value });
        let mut of = experts;
        if let Some(Groups { count, kept, best }) = self.groups {
            if count == 0 || !experts.is_multiple_of(count) || best > experts / count {
                return bad("n_group", format!("{count} of {experts} experts"));
            }
            if kept == 0 || kept > count {
                return bad("topk_group", format!("{kept} of {count}"));
            }
            of = experts / count * kept;
        }
        if self.chosen == 0 || self.chosen > of {
            return bad("num_experts_per_tok", format!("{} of {of}", self.chosen));
        }
        config::factors(family, &[("routed_scaling_factor", Some(self.scale))])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_that_do_not_divide_experts_and_choices_of_too_many_are_refused() {
        let groups = Some(Groups { count: 2, kept: 1, best: 2 });
        let route = Route { groups, ..Route::sigmoid(1, false) };
        assert!(route.check("x", 4).is_ok());
        for (count, kept, best) in [(0, 1, 1), (3, 1, 1), (2, 3, 1), (2, 0, 1), (4, 1, 2)] {
            let route = Route { groups: Some(Groups { count, kept, best }), ..route };
            assert!(route.check("x", 4).is_err(), "{count} {kept} {best}");
        }
        assert!(
            Route { chosen: 3, ..route }.check("x", 4).is_err(),
            "more than the kept groups have"
        );
    }
}
