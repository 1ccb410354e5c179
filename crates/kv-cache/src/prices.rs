//! Bits for each layer's keys and values, by what an error there costs.
//!
//! The divergence of a model grows, to first order, with the sum over layers and sides of a price
//! times the codec's relative squared error. So each further bit goes where it takes off most.

/// Relative squared error of a unit row by bits: taper's trellis codes, and affine codes at 8
/// (`docs/kv-codecs.md`, Gaussian rows).
const ERRORS: [(u8, f64); 4] = [(2, 0.0900), (3, 0.0232), (4, 0.0061), (8, 2.9e-5)];

/// What a relative squared error of one costs, by layer.
#[derive(Debug, Clone, PartialEq)]
pub struct Prices {
    /// Price of an error in the keys, by layer.
    pub k: Vec<f64>,
    /// Price of an error in the values, by layer.
    pub v: Vec<f64>,
}

impl Prices {
    /// Layers at each end that cost [`Self::END`] times as much, as vLLM keeps them at 8 bits.
    const ENDS: usize = 2;
    const END: f64 = 2.0;
    /// Price of keys, where values cost 1: most models lose more by errors of keys.
    const KEYS: f64 = 2.0;

    /// For models that were not measured.
    #[must_use]
    pub fn usual(layers: usize) -> Self {
        let end = |l: usize| if l.min(layers - 1 - l) < Self::ENDS { Self::END } else { 1.0 };
        let v: Vec<f64> = (0..layers).map(end).collect();
        Self { k: v.iter().map(|p| p * Self::KEYS).collect(), v }
    }

    /// Names of `taper` codecs by layer, of at most `bits` an element in the mean, 2 at least.
    #[must_use]
    pub fn share_out(&self, bits: f64) -> Vec<String> {
        let prices: Vec<f64> = self.k.iter().chain(&self.v).copied().collect();
        let mut steps = vec![0; prices.len()];
        let mut left = (bits - f64::from(ERRORS[0].0)) * prices.len() as f64;
        loop {
            // The gain of a bit falls from step to step, so the best next step is the best choice.
            let next = (0..prices.len()).filter_map(|side| {
                let (from, to) = (ERRORS[steps[side]], ERRORS.get(steps[side] + 1)?);
                let more = f64::from(to.0 - from.0);
                (more <= left + 1e-9).then(|| (side, more, prices[side] * (from.1 - to.1) / more))
            });
            let best = next.reduce(|best, one| if one.2 > best.2 { one } else { best });
            let Some((side, more, _)) = best else { break };
            steps[side] += 1;
            left -= more;
        }
        let (k, v) = steps.split_at(self.k.len());
        let name = |(&k, &v): (&usize, &usize)| match (ERRORS[k].0, ERRORS[v].0) {
            (k, v) if k == v => format!("taper{k}"),
            (k, v) => format!("taper{k}v{v}"),
        };
        k.iter().zip(v).map(name).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_go_where_they_take_off_most_and_are_not_exceeded() {
        let equal = Prices { k: vec![1.0; 4], v: vec![1.0; 4] };
        assert_eq!(equal.share_out(3.0), ["taper3"; 4]);
        assert_eq!(equal.share_out(2.0), ["taper2"; 4]);
        assert_eq!(equal.share_out(0.0), ["taper2"; 4], "there are no fewer");
        assert_eq!(equal.share_out(8.0), ["taper8"; 4]);
        let keys = Prices { k: vec![2.0; 4], v: vec![1.0; 4] };
        assert_eq!(keys.share_out(3.5), ["taper4v3"; 4]);
        let dear = Prices { k: vec![900.0, 1.0, 1.0], v: vec![1.0; 3] };
        assert_eq!(dear.share_out(3.0)[0], "taper8v2");
        let usual = Prices::usual(8).share_out(3.25);
        assert_eq!(usual.iter().filter(|name| *name == "taper4v3").count(), 4, "{usual:?}");
        assert!(usual[2..6].iter().all(|name| name == "taper3"), "{usual:?}");
        for layers in 1..5 {
            assert_eq!(Prices::usual(layers).share_out(4.0), vec!["taper4"; layers]);
        }
    }
}
