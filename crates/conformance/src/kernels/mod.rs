//! Every kernel against the CPU, on random and awkward shapes: what `cargo xtask kernels` runs on the
//! host runner, and `taper doctor` on a GPU.

mod attention;
mod data;
mod elements;
mod experts;
mod heads;
mod products;
mod recurrent;
mod routes;
mod rows;
mod sampling;

use data::Rng;
use taper_tensor::gpu::Gpu;
use taper_tensor::{Result, Tensor};

/// One kernel in one form.
#[derive(Debug, Clone)]
pub(crate) struct Check {
    /// The file of kernels it belongs to.
    pub(crate) family: &'static str,
    /// The kernel and its shape.
    pub(crate) name: String,
    /// Largest error allowed, as [`Outcome::error`] is measured.
    pub(crate) tolerance: f64,
    case: Case,
}

/// How far from the CPU a kernel was.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Outcome {
    /// Largest difference of an element, as a share of the reference's largest; infinite if any
    /// element of either is no number, or there is none.
    pub error: f64,
    /// Whether it is within the check's tolerance.
    pub passed: bool,
}

impl Outcome {
    /// Of what a kernel gave and what it should have. Nothing to compare is a failure too.
    pub(crate) fn of<'a>(
        pairs: impl Iterator<Item = (&'a [f32], &'a [f32])>,
        tolerance: f64,
    ) -> Self {
        let worst = pairs.map(|(got, want)| error(got, want)).reduce(f64::max);
        let error = worst.unwrap_or(f64::INFINITY);
        Self { error, passed: error <= tolerance }
    }
}

/// Largest difference relative to the largest number wanted.
fn error(got: &[f32], want: &[f32]) -> f64 {
    // `f64::max` passes over NaN, so a reference that is broken would excuse anything.
    if got.len() != want.len() || want.is_empty() || got.iter().chain(want).any(|x| !x.is_finite())
    {
        return f64::INFINITY;
    }
    let largest = want.iter().map(|w| f64::from(w.abs())).fold(f64::MIN_POSITIVE, f64::max);
    let pairs = got.iter().zip(want);
    pairs.map(|(&g, &w)| f64::from((g - w).abs())).fold(0.0, f64::max) / largest
}

#[derive(Debug, Clone)]
enum Case {
    Product(products::Case),
    Rows(rows::Case),
    Elements(elements::Case),
    Attention(attention::Case),
    Sampling(sampling::Case),
    Experts(experts::Case),
    Heads(heads::Case),
    Route(routes::Case),
    Recurrent(recurrent::Case),
}

/// All checks of what a GPU may be asked to run; `quick` has fewer shapes, for slow devices.
pub(crate) fn checks(gpu: &Gpu, quick: bool) -> Vec<Check> {
    let (fast, wide) = (gpu.has_fast_tiles(), gpu.has_wide_tiles());
    let mut all = Vec::new();
    let products = products::cases(quick).into_iter().map(Case::Product);
    let rows = rows::cases().into_iter().map(Case::Rows);
    let elements = elements::cases().into_iter().map(Case::Elements);
    let attention = attention::cases(quick).into_iter().filter(|case| case.fits(gpu));
    let attention = attention.map(Case::Attention);
    let sampling = sampling::cases(quick).into_iter().map(Case::Sampling);
    let experts = experts::cases(quick).into_iter().map(Case::Experts);
    let routes = routes::cases(quick).into_iter().map(Case::Route);
    let more = attention::more_cases().into_iter().filter(|case| case.fits(gpu));
    let more = rows::more_cases().into_iter().map(Case::Rows).chain(more.map(Case::Attention));
    let more = more.chain(heads::cases(quick).into_iter().map(Case::Heads));
    let more = more.chain(recurrent::cases().into_iter().map(Case::Recurrent));
    let prompts = attention::prompts().into_iter().filter(|case| case.fits(gpu));
    let more = more.chain(prompts.map(Case::Attention));
    let first = products.chain(rows).chain(elements).chain(attention).chain(sampling);
    for case in first.chain(experts).chain(routes).chain(more) {
        let (family, name, tolerance) = match &case {
            Case::Product(c) => (c.family(fast, wide), c.to_string(), c.tolerance()),
            Case::Rows(c) => (c.family(), c.to_string(), 1e-5),
            Case::Elements(c) => (c.family(), c.to_string(), 1e-5),
            Case::Attention(c) => (c.family(), c.to_string(), c.tolerance()),
            // The same tokens, the same log probabilities: whole numbers are summed.
            Case::Experts(c) => (c.family(fast, wide), c.to_string(), c.tolerance()),
            Case::Heads(c) => ("head_maps", c.to_string(), 2e-5),
            Case::Route(c) => ("route", c.to_string(), c.tolerance()),
            Case::Recurrent(c) => (c.family(), c.to_string(), 1e-4),
            Case::Sampling(c) => (c.family(), c.to_string(), 0.0),
        };
        all.push(Check { family, name, tolerance, case });
    }
    all
}

impl Check {
    /// Runs it with random data of a seed.
    ///
    /// # Errors
    /// The kernel could not be run.
    pub(crate) fn run(&self, gpu: &Gpu, seed: u64) -> Result<Outcome> {
        let mut rng = Rng::new(seed);
        let pairs = match &self.case {
            Case::Product(case) => case.run(gpu, &mut rng)?,
            Case::Rows(case) => case.run(gpu, &mut rng)?,
            Case::Elements(case) => case.run(gpu, &mut rng)?,
            Case::Attention(case) => case.run(gpu, &mut rng)?,
            Case::Sampling(case) => case.run(gpu, &mut rng)?,
            Case::Experts(case) => case.run(gpu, &mut rng)?,
            Case::Heads(case) => case.run(gpu, &mut rng)?,
            Case::Route(case) => case.run(gpu, &mut rng)?,
            Case::Recurrent(case) => case.run(gpu, &mut rng)?,
        };
        Ok(Outcome::of(pairs.iter().map(|p| (&*p.got, &*p.want)), self.tolerance))
    }
}

/// What a kernel gave, and what it should have.
#[derive(Debug)]
struct Pair {
    got: Vec<f32>,
    want: Vec<f32>,
}

impl Pair {
    fn of(got: &Tensor, want: &Tensor) -> Result<Self> {
        if got.dims() != want.dims() {
            return Err(taper_tensor::TensorError::shape(
                "check",
                format!("{:?}", want.dims()),
                got.dims(),
            ));
        }
        let flat = |x: &Tensor| x.to_vec();
        Ok(Self { got: flat(got)?, want: flat(want)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_numbers_that_were_compared_pass() {
        let passes = |pairs: &[(&[f32], &[f32])]| Outcome::of(pairs.iter().copied(), 0.1).passed;
        let good: (&[f32], &[f32]) = (&[1.0, 2.0], &[1.0, 2.1]);
        assert!(passes(&[good]) && passes(&[good, (&[0.0], &[0.0])]));
        assert!(!passes(&[]), "no pairs");
        let (nan, inf) = (f32::NAN, f32::INFINITY);
        let bad: [(&[f32], &[f32]); 8] = [
            (&[], &[]),
            (&[1.0], &[]),
            (&[1.0], &[1.0, 1.0]),
            (&[1.0, 1.0], &[1.0, nan]),
            (&[nan], &[nan]),
            (&[inf], &[inf]),
            (&[1.0], &[inf]),
            (&[1.0], &[2.0]),
        ];
        for pair in bad {
            assert!(!passes(&[pair]), "{pair:?}");
            assert!(!passes(&[good, pair, good]), "{pair:?} among others");
        }
    }
}
