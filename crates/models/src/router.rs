//! Which experts a token goes through, and how much each counts.

use crate::{ModelError, config};

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

/// What a router's logits are made to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Score {
    Softmax,
    /// Each for itself (DeepSeek V3).
    Sigmoid,
    /// The best one, weighted by a softmax over those that are not much worse, then the best of the others the same
    /// way (SparseMixer, arXiv 2409.12136; Phi 3.5).
    SparseMixer {
        /// How much worse, relative to the best one, or to the other where that is larger.
        spread: f32,
    },
}

/// Experts are chosen from the best groups only (DeepSeek V2 and V3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Groups {
    pub(crate) count: usize,
    /// Groups to choose from.
    pub(crate) kept: usize,
    /// A group counts as much as so many of its best experts together.
    pub(crate) best: usize,
}

impl Route {
    /// A softmax over all experts.
    pub(crate) fn softmax(chosen: usize, normalise: bool) -> Self {
        Self {
            chosen,
            score: Score::Softmax,
            normalise: normalise.then_some(0.0),
            least: 0.0,
            scale: 1.0,
            bias: None,
            groups: None,
            soft_cap: None,
            weighs_input: false,
        }
    }

    /// A sigmoid of each, with a selection bias as Hugging Face names it, and no groups.
    pub(crate) fn sigmoid(chosen: usize, normalise: bool) -> Self {
        let bias = Some("gate.e_score_correction_bias");
        let normalise = normalise.then_some(1e-20);
        Self { score: Score::Sigmoid, bias, normalise, ..Self::softmax(chosen, false) }
    }

    /// Whether it is one that GPUs have.
    pub(crate) fn is_plain(&self) -> bool {
        let Self { score, scale, bias, groups, soft_cap, weighs_input, .. } = *self;
        let chooses = score == Score::Softmax && bias.is_none() && groups.is_none();
        chooses && scale == 1.0 && soft_cap.is_none() && !weighs_input
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

    /// The experts of a row of logits, and their weights. `bias` is added for the choice alone. Where two are
    /// equal, the first expert is taken; what is not a number comes first.
    pub(crate) fn choose(&self, logits: &[f32], bias: Option<&[f32]>) -> Vec<(usize, f32)> {
        let capped: Vec<f32>;
        let logits = match self.soft_cap {
            Some(cap) => {
                capped = logits.iter().map(|x| cap * (x / cap).tanh()).collect();
                &capped
            }
            None => logits,
        };
        if let Score::SparseMixer { spread } = self.score {
            return sparse_mixer(logits, spread, self.chosen);
        }
        let mut scores = self.score.of(logits);
        if bias.is_some() && self.score == Score::Softmax {
            let total: f32 = scores.iter().sum();
            scores.iter_mut().for_each(|score| *score /= total);
        }
        let mut choice = match bias {
            Some(bias) => scores.iter().zip(bias).map(|(s, b)| s + b).collect(),
            None if self.groups.is_some() => scores.clone(),
            None => logits.to_vec(),
        };
        if let Some(groups) = self.groups {
            groups.mask(&mut choice);
        }
        let mut order: Vec<usize> = (0..logits.len()).collect();
        order.sort_by(|&a, &b| choice[b].total_cmp(&choice[a]).then(a.cmp(&b)));
        order.truncate(self.chosen);
        let sum = |experts: &[usize]| experts.iter().map(|&e| scores[e]).sum::<f32>();
        let total = match (self.normalise, self.score) {
            (Some(more), _) => sum(&order).max(self.least) + more,
            (None, Score::Sigmoid) => 1.0,
            (None, _) => scores.iter().sum(),
        };
        order.into_iter().map(|e| (e, scores[e] / total * self.scale)).collect()
    }
}

impl Score {
    /// Scores of logits; those of a softmax still want to be divided by their sum.
    fn of(self, logits: &[f32]) -> Vec<f32> {
        match self {
            Self::Softmax | Self::SparseMixer { .. } => {
                let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                logits.iter().map(|x| (x - max).exp()).collect()
            }
            Self::Sigmoid => logits.iter().map(|x| 1.0 / (1.0 + (-x).exp())).collect(),
        }
    }
}

/// The best experts one after the other, with the weights of [`Score::SparseMixer`]. Where two are equal, the first
/// is taken; what is not a number comes first.
fn sparse_mixer(logits: &[f32], spread: f32, chosen: usize) -> Vec<(usize, f32)> {
    let mut left: Vec<usize> = (0..logits.len()).collect();
    left.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
    let one = |i: usize| {
        let left = left.get(i..)?;
        let (&best, max) = left.first().map(|best| (best, logits[*best]))?;
        let far = |x: f32| (max - x) / x.abs().max(max) > spread;
        let near = left.iter().map(|&e| logits[e]).filter(|&x| !far(x));
        Some((best, 1.0 / near.map(|x| (x - max).exp()).sum::<f32>()))
    };
    (0..chosen).filter_map(one).collect()
}

impl Groups {
    /// Leaves nothing to choose outside of the best groups.
    fn mask(self, choice: &mut [f32]) {
        let size = choice.len() / self.count;
        let score = |group: &[f32]| {
            let mut sorted = group.to_vec();
            sorted.sort_by(|a, b| b.total_cmp(a));
            sorted.iter().take(self.best).sum::<f32>()
        };
        let scores: Vec<f32> = choice.chunks_exact(size).map(score).collect();
        let mut order: Vec<usize> = (0..self.count).collect();
        order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]).then(a.cmp(&b)));
        for &group in &order[self.kept..] {
            choice[group * size..][..size].fill(f32::NEG_INFINITY);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(got: &[(usize, f32)], want: &[(usize, f32)]) -> bool {
        let same = |(g, w): (&(usize, f32), &(usize, f32))| g.0 == w.0 && (g.1 - w.1).abs() < 1e-6;
        got.len() == want.len() && got.iter().zip(want).all(same)
    }

    #[test]
    fn the_largest_logits_are_chosen_and_weighted() {
        let logits = [0.0, 2f32.ln(), 0.0, 5f32.ln()];
        let plain = Route::softmax(2, false).choose(&logits, None);
        assert!(near(&plain, &[(3, 5.0 / 9.0), (1, 2.0 / 9.0)]), "{plain:?}");
        let summed = Route::softmax(2, true).choose(&logits, None);
        assert!(near(&summed, &[(3, 5.0 / 7.0), (1, 2.0 / 7.0)]), "{summed:?}");
        let equal = Route::softmax(2, false).choose(&[1.0; 4], None);
        assert!(near(&equal, &[(0, 0.25), (1, 0.25)]), "{equal:?}");
    }

    #[test]
    fn what_is_not_a_number_shows() {
        let chosen = Route::softmax(1, true).choose(&[0.0, f32::NAN, 1.0], None);
        assert!(chosen[0].0 == 1 && chosen[0].1.is_nan());
    }

    #[test]
    fn a_bias_chooses_and_does_not_weigh() {
        let route = Route { scale: 2.5, ..Route::sigmoid(2, true) };
        let logits = [0.0, 3f32.ln(), 0.0, -(3f32.ln())];
        let chosen = route.choose(&logits, Some(&[0.0, -1.0, 0.1, 0.5]));
        assert!(near(&chosen, &[(3, 2.5 / 3.0), (2, 5.0 / 3.0)]), "{chosen:?}");
    }

    #[test]
    fn experts_that_are_much_worse_do_not_count() {
        let route = Route { score: Score::SparseMixer { spread: 0.2 }, ..Route::softmax(2, false) };
        // Of those near 2, e^-0.2 is to be divided by; 1.8 is alone without the best one.
        let chosen = route.choose(&[1.0, 2.0, 1.8, -2.0], None);
        assert!(near(&chosen, &[(1, 1.0 / (1.0 + (-0.2f32).exp())), (2, 1.0)]), "{chosen:?}");
        // Of negative ones, the other's size counts.
        let chosen = route.choose(&[-1.0, -1.2, -2.0], None);
        let first = 1.0 / (1.0 + (-0.2f32).exp());
        assert!(near(&chosen, &[(0, first), (1, 1.0)]), "{chosen:?}");
        let equal = route.choose(&[0.0; 3], None);
        assert!(near(&equal, &[(0, 1.0 / 3.0), (1, 0.5)]), "{equal:?}");
    }

    #[test]
    fn logits_are_capped_and_sums_have_a_least() {
        let route = Route { soft_cap: Some(1.0), ..Route::sigmoid(1, false) };
        let chosen = route.choose(&[100.0, 0.0], None);
        assert!(near(&chosen, &[(0, 1.0 / (1.0 + (-1f32).exp()))]), "{chosen:?}");
        let route = Route { least: 0.5, ..Route::softmax(1, true) };
        let chosen = route.choose(&[0.0, 9f32.ln()], Some(&[1.0, 0.0]));
        assert!(near(&chosen, &[(0, 0.2)]), "{chosen:?}");
    }

    #[test]
    fn groups_are_chosen_by_their_best() {
        let groups = Some(Groups { count: 2, kept: 1, best: 2 });
        let route = Route { groups, ..Route::sigmoid(1, false) };
        // The best expert is in the group whose best two are worse; both groups are below zero.
        let bias = [-1.2, -3.0, -1.3, -1.3];
        let chosen = route.choose(&[0.0; 4], Some(&bias));
        assert!(near(&chosen, &[(2, 0.5)]), "{chosen:?}");
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
