//! Which experts a token goes through, and how much each counts: on the host here, on a GPU by a kernel that gives the
//! same bits.

use crate::gpu::Resident;
use multiversion::multiversion;
use taper_base::exp;

/// How a router chooses.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Routing {
    /// Experts that a token goes through.
    pub chosen: usize,
    /// What logits are made to.
    pub score: Score,
    /// The weights of the chosen ones are made to sum to one; this is added to the sum that divides them.
    pub normalise: Option<f32>,
    /// What divides them is at least this.
    pub least: f32,
    /// Weights are multiplied by it.
    pub scale: f32,
    /// Groups, of which only the best are chosen from.
    pub groups: Option<Groups>,
    /// Logits are `cap * tanh(logit / cap)`, with this cap, before anything is made of them (Laguna).
    pub soft_cap: Option<f32>,
}

/// What a router's logits are made to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Score {
    /// A softmax over all.
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
pub struct Groups {
    /// How many there are, each of as many neighbours.
    pub count: usize,
    /// Groups to choose from.
    pub kept: usize,
    /// A group counts as much as so many of its best experts together.
    pub best: usize,
}

/// A way of choosing, and the numbers that a layer stores for it.
#[derive(Debug, Clone)]
pub struct Router {
    pub(crate) routing: Routing,
    pub(crate) bias: Option<Resident>,
    pub(crate) factors: Option<Resident>,
}

impl Routing {
    /// A softmax over all experts.
    #[must_use]
    pub fn softmax(chosen: usize, normalise: bool) -> Self {
        Self {
            chosen,
            score: Score::Softmax,
            normalise: normalise.then_some(0.0),
            least: 0.0,
            scale: 1.0,
            groups: None,
            soft_cap: None,
        }
    }
}

impl Router {
    /// `bias` is added to each expert's score for the choice alone, and `factors` are multiplied with the weights.
    #[must_use]
    pub fn new(routing: Routing, bias: Option<Vec<f32>>, factors: Option<Vec<f32>>) -> Self {
        let [bias, factors] = [bias, factors].map(|values| values.map(Resident::new));
        Self { routing, bias, factors }
    }

    /// Whether it is a softmax over all or over the chosen ones, and nothing else.
    pub(crate) fn is_plain(&self) -> bool {
        let plain = Routing::softmax(self.routing.chosen, self.routing.normalise.is_some());
        self.routing == plain && self.bias.is_none() && self.factors.is_none()
    }

    /// The experts of a row of logits, the best first, and their weights. Where two are equal, the first expert is
    /// taken; what is not a number comes first.
    ///
    /// # Shapes
    /// As many logits as there are experts, biases and factors.
    #[must_use]
    pub fn choose(&self, logits: &[f32]) -> Vec<(usize, f32)> {
        let mut chosen = self.routing.choose(logits, self.bias.as_ref().map(Resident::host));
        if let Some(factors) = &self.factors {
            chosen.iter_mut().for_each(|(expert, weight)| *weight *= factors.host()[*expert]);
        }
        chosen
    }
}

impl Routing {
    fn choose(&self, logits: &[f32], bias: Option<&[f32]>) -> Vec<(usize, f32)> {
        let capped: Vec<f32>;
        let logits = match self.soft_cap {
            Some(cap) => {
                let tanh = |x: f32| 2.0 * sigmoid(2.0 * x / cap) - 1.0;
                capped = logits.iter().map(|&x| cap * tanh(x)).collect();
                &capped
            }
            None => logits,
        };
        if let Score::SparseMixer { spread } = self.score {
            return sparse_mixer(logits, spread, self.chosen);
        }
        let mut scores = self.score.of(logits);
        if bias.is_some() && self.score == Score::Softmax {
            let total = sum(&scores);
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
        let mut order = best_first(&choice);
        order.truncate(self.chosen);
        let total = match (self.normalise, self.score) {
            (Some(more), _) => {
                let chosen: Vec<_> = order.iter().map(|&e| scores[e]).collect();
                sum(&chosen).max(self.least) + more
            }
            (None, Score::Sigmoid) => 1.0,
            (None, _) => sum(&scores),
        };
        order.into_iter().map(|e| (e, scores[e] / total * self.scale)).collect()
    }
}

impl Score {
    /// Scores of logits; those of a softmax still want to be divided by their sum.
    fn of(self, logits: &[f32]) -> Vec<f32> {
        let mut scores = logits.to_vec();
        match self {
            Self::Softmax | Self::SparseMixer { .. } => {
                let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                exponentials(&mut scores, max);
            }
            Self::Sigmoid => sigmoids(&mut scores),
        }
        scores
    }
}

/// Every `e^(x - max)`.
#[multiversion(targets("x86_64+avx512f+avx512dq+avx512vl", "x86_64+avx2+fma"))]
fn exponentials(scores: &mut [f32], max: f32) {
    scores.iter_mut().for_each(|x| *x = exponential(*x - max));
}

#[multiversion(targets("x86_64+avx512f+avx512dq+avx512vl", "x86_64+avx2+fma"))]
fn sigmoids(scores: &mut [f32]) {
    scores.iter_mut().for_each(|x| *x = sigmoid(*x));
}

/// `e^x` of `x <= 0`; what is not a number stays so.
#[inline(always)]
fn exponential(x: f32) -> f32 {
    if x.is_nan() { x } else { exp(x) }
}

#[inline(always)]
fn sigmoid(x: f32) -> f32 {
    let e = exponential(if x < 0.0 { x } else { -x });
    (if x < 0.0 { e } else { 1.0 }) / (1.0 + e)
}

/// Added from the first to the last, as the kernel does.
fn sum(x: &[f32]) -> f32 {
    x.iter().fold(0.0, |sum, x| sum + x)
}

fn best_first(x: &[f32]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..x.len()).collect();
    order.sort_by(|&a, &b| x[b].total_cmp(&x[a]).then(a.cmp(&b)));
    order
}

/// The best experts one after the other, with the weights of [`Score::SparseMixer`].
fn sparse_mixer(logits: &[f32], spread: f32, chosen: usize) -> Vec<(usize, f32)> {
    let order = best_first(logits);
    let one = |i: usize| {
        let left = order.get(i..)?;
        let (&best, max) = left.first().map(|best| (best, logits[*best]))?;
        let far = |x: f32| (max - x) / x.abs().max(max) > spread;
        let near = left.iter().map(|&e| logits[e]).filter(|&x| !far(x));
        Some((best, 1.0 / sum(&near.map(|x| exponential(x - max)).collect::<Vec<_>>())))
    };
    (0..chosen).filter_map(one).collect()
}

impl Groups {
    /// Leaves nothing to choose outside of the best groups.
    fn mask(self, choice: &mut [f32]) {
        let size = choice.len() / self.count;
        let score = |group: &[f32]| {
            let best: Vec<_> =
                best_first(group).into_iter().take(self.best).map(|e| group[e]).collect();
            sum(&best)
        };
        let scores: Vec<f32> = choice.chunks_exact(size).map(score).collect();
        for &group in best_first(&scores).iter().skip(self.kept) {
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

    fn sigmoid_of(chosen: usize, normalise: bool) -> Routing {
        let normalise = normalise.then_some(1e-20);
        Routing { score: Score::Sigmoid, normalise, ..Routing::softmax(chosen, false) }
    }

    #[test]
    fn the_largest_logits_are_chosen_and_weighted() {
        let logits = [0.0, 2f32.ln(), 0.0, 5f32.ln()];
        let plain = Routing::softmax(2, false).choose(&logits, None);
        assert!(near(&plain, &[(3, 5.0 / 9.0), (1, 2.0 / 9.0)]), "{plain:?}");
        let summed = Routing::softmax(2, true).choose(&logits, None);
        assert!(near(&summed, &[(3, 5.0 / 7.0), (1, 2.0 / 7.0)]), "{summed:?}");
        let equal = Routing::softmax(2, false).choose(&[1.0; 4], None);
        assert!(near(&equal, &[(0, 0.25), (1, 0.25)]), "{equal:?}");
        let factors = Some(vec![1.0, 3.0, 1.0, 2.0]);
        let factored = Router::new(Routing::softmax(2, true), None, factors).choose(&logits);
        assert!(near(&factored, &[(3, 10.0 / 7.0), (1, 6.0 / 7.0)]), "{factored:?}");
    }

    #[test]
    fn what_is_not_a_number_shows() {
        let chosen = Routing::softmax(1, true).choose(&[0.0, f32::NAN, 1.0], None);
        assert!(chosen[0].0 == 1 && chosen[0].1.is_nan());
        let chosen = sigmoid_of(1, false).choose(&[0.0, f32::NAN, 1.0], None);
        assert!(chosen[0].0 == 1 && chosen[0].1.is_nan());
    }

    #[test]
    fn a_bias_chooses_and_does_not_weigh() {
        let route = Routing { scale: 2.5, ..sigmoid_of(2, true) };
        let logits = [0.0, 3f32.ln(), 0.0, -(3f32.ln())];
        let chosen = route.choose(&logits, Some(&[0.0, -1.0, 0.1, 0.5]));
        assert!(near(&chosen, &[(3, 2.5 / 3.0), (2, 5.0 / 3.0)]), "{chosen:?}");
    }

    #[test]
    fn experts_that_are_much_worse_do_not_count() {
        let score = Score::SparseMixer { spread: 0.2 };
        let route = Routing { score, ..Routing::softmax(2, false) };
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
        let route = Routing { soft_cap: Some(1.0), ..sigmoid_of(1, false) };
        let chosen = route.choose(&[100.0, 0.0], None);
        assert!(near(&chosen, &[(0, 1.0 / (1.0 + (-1f32).exp()))]), "{chosen:?}");
        let route = Routing { least: 0.5, ..Routing::softmax(1, true) };
        let chosen = route.choose(&[0.0, 9f32.ln()], Some(&[1.0, 0.0]));
        assert!(near(&chosen, &[(0, 0.2)]), "{chosen:?}");
    }

    #[test]
    fn groups_are_chosen_by_their_best() {
        let groups = Some(Groups { count: 2, kept: 1, best: 2 });
        let route = Routing { groups, ..sigmoid_of(1, false) };
        // The best expert is in the group whose best two are worse; both groups are below zero.
        let bias = [-1.2, -3.0, -1.3, -1.3];
        let chosen = route.choose(&[0.0; 4], Some(&bias));
        assert!(near(&chosen, &[(2, 0.5)]), "{chosen:?}");
    }

    #[test]
    fn sigmoids_are_those_of_the_platform() {
        for x in [-200.0f32, -87.5, -3.0, -0.0, 0.0, 1e-8, 2.5, 90.0] {
            let want = 1.0 / (1.0 + (-f64::from(x)).exp());
            assert!((f64::from(sigmoid(x)) - want).abs() < 1e-7, "{x}");
        }
    }
}
