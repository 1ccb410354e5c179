//! Checks of the choice of experts.

use super::{Pair, data::Rng};
use std::fmt;
use taper_tensor::{
    Result, Tensor,
    gpu::Gpu,
    routing::{Groups, Router, Routing, Score},
};

/// A router, and how many tokens ask it.
#[derive(Debug, Clone)]
pub(super) struct Case {
    tokens: usize,
    experts: usize,
    routing: Routing,
    biased: bool,
    factored: bool,
}

pub(super) fn cases(quick: bool) -> Vec<Case> {
    let softmax = |chosen| Routing::softmax(chosen, false);
    let sigmoid = |chosen| Routing { score: Score::Sigmoid, ..softmax(chosen) };
    let groups = |count, kept, best| Some(Groups { count, kept, best });
    let mixer = |spread| Routing { score: Score::SparseMixer { spread }, ..softmax(2) };
    let normalise = Some(1e-20);
    // Tokens, experts, the choice, and whether there are biases and factors.
    let mut all = vec![
        (3, 8, softmax(2), [false, false]),
        (2, 130, Routing::softmax(7, true), [false, false]),
        (5, 6, Routing::softmax(2, true), [false, true]),
        (3, 12, Routing { scale: 2.0, least: 0.4, ..Routing::softmax(3, true) }, [true, false]),
        (3, 20, Routing { scale: 6.0, ..softmax(4) }, [true, false]),
        (4, 16, Routing { groups: groups(4, 2, 1), scale: 16.0, ..softmax(3) }, [false, false]),
        (
            3,
            256,
            Routing { normalise, scale: 2.5, groups: groups(8, 4, 2), ..sigmoid(8) },
            [true, false],
        ),
        (
            2,
            160,
            Routing { normalise: Some(0.5), groups: groups(4, 1, 3), ..sigmoid(4) },
            [false, false],
        ),
        (3, 8, sigmoid(1), [false, false]),
        (3, 40, Routing { soft_cap: Some(2.0), normalise, ..sigmoid(5) }, [true, true]),
        (4, 16, mixer(0.02), [false, false]),
        (4, 5, mixer(0.3), [false, false]),
        (1, 1024, Routing { normalise, ..sigmoid(12) }, [true, false]),
    ];
    if quick {
        all.pop();
    }
    let case = |(tokens, experts, routing, [biased, factored]): (_, _, _, [bool; 2])| Case {
        tokens,
        experts,
        routing,
        biased,
        factored,
    };
    all.into_iter().map(case).collect()
}

impl Case {
    /// The bits of the host, but for the weights of the plain softmax.
    pub(super) fn tolerance(&self) -> f64 {
        let Routing { chosen, normalise, .. } = self.routing;
        let plain = self.routing == Routing::softmax(chosen, normalise.is_some());
        if plain && !self.biased && !self.factored { 1e-6 } else { 0.0 }
    }

    pub(super) fn run(&self, gpu: &Gpu, rng: &mut Rng) -> Result<Vec<Pair>> {
        let Self { tokens, experts, .. } = *self;
        // Quarters, so that there are equal ones, and some of half that size.
        let quarters = |rng: &mut Rng| (rng.normal() * 8.0).round() / 4.0;
        let logits: Vec<f32> = (0..tokens * experts).map(|_| quarters(rng)).collect();
        let sixteenths = |rng: &mut Rng| (rng.normal() * 4.0).round() / 16.0;
        let bias = self.biased.then(|| (0..experts).map(|_| sixteenths(rng)).collect());
        let factors = self.factored.then(|| rng.vector(experts));
        let router = Router::new(self.routing, bias, factors);
        let there = Tensor::from_vec(logits.clone(), &[tokens, experts])?.to_gpu(gpu)?;
        let got = router.choose_there(&there)?;
        let rows = logits.chunks(experts).zip(got);
        let pair = |(logits, got): (&[f32], Vec<(usize, f32)>)| {
            let mut want = router.choose(logits);
            want.sort_by_key(|(expert, _)| *expert);
            let flat = |chosen: &[(usize, f32)]| -> Vec<f32> {
                chosen.iter().flat_map(|&(expert, weight)| [expert as f32, weight]).collect()
            };
            Pair { got: flat(&got), want: flat(&want) }
        };
        Ok(rows.map(pair).collect())
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}, {:?}", self.routing.chosen, self.experts, self.routing.score)?;
        let parts = [("biased", self.biased), ("factored", self.factored)];
        parts.iter().filter(|part| part.1).try_for_each(|part| write!(f, ", {}", part.0))
    }
}
