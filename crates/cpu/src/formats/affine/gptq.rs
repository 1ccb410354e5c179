//! GPTQ (Frantar et al. 2022): what rounding one weight does to the outputs, the weights after it make up for.
//!
//! The form is that of LDLQ (Chee et al. 2023), which gives the same codes: with `H = L D Lᵀ` of the Hessian of the
//! inputs, taken from the last weight of the order to the first, each weight is rounded after
//! `Σ (w - q) L` of the weights before it was added to it, and the error of the outputs is `Σ D (rounding error)²`.
//! No inverse is needed.
//!
//! Groups go in the order of their inputs' weight, and so do the inputs of a group. Scales of a group are chosen
//! when its turn comes, for the least error in that sum.

use super::{
    AffineFormat, AffineParts,
    gram::{Gram, Rows},
    quantize::{code, pack, storing},
    search::fitted,
};
use crate::{DType, Result, TensorError, matmul, pool};

/// Rows of a panel of the factorization.
const PANEL: usize = 64;
/// Rows of the rest that are updated at a time.
const STRIP: usize = 256;
/// How often more damping is tried where the Hessian has no factor.
const TRIES: usize = 6;

/// What the errors of each weight of a row are made up for with.
#[derive(Debug, Clone)]
pub struct Compensation {
    group: usize,
    /// The input at each place. The last place goes first.
    order: Vec<u32>,
    /// `D` of each place.
    weights: Vec<f32>,
    /// Of each group of places: `L` of its rows, `[places before it, group]`, turned.
    before: Vec<Vec<f32>>,
    /// Of each group of places: `L` within it, `[group, group]`, turned: a row is what later places add to one.
    within: Vec<Vec<f32>>,
}

impl Compensation {
    /// From the sums over a map's inputs, for groups of this size; `damping` is added to the diagonal, as a part of
    /// its mean. `None` where the sums have no factor even with more damping.
    #[must_use]
    pub fn new(gram: Gram, group: usize, damping: f32) -> Option<Self> {
        let cols = gram.cols();
        if group == 0 || cols == 0 || !cols.is_multiple_of(group) {
            return None;
        }
        let sums = gram.into_sums();
        let diagonal: Vec<f32> = (0..cols).map(|i| sums[i * cols + i]).collect();
        let mean = diagonal.iter().map(|&x| f64::from(x)).sum::<f64>() / cols as f64;
        if !(mean.is_finite() && mean > 0.0) {
            return None;
        }
        let order = order(&diagonal, group);
        let mut damping = f64::from(damping);
        let factor = (0..TRIES).find_map(|_| {
            let mut factor = vec![0.0; cols * cols];
            let mut rows: Vec<_> = factor.chunks_exact_mut(cols).collect();
            pool::for_each(&mut rows, |r, row| {
                let from = &sums[order[r] as usize * cols..][..cols];
                row.iter_mut().zip(&order).for_each(|(to, &c)| *to = from[c as usize]);
                row[r] += (damping * mean) as f32;
            });
            damping *= 10.0;
            factorize(&mut factor, cols).then_some(factor)
        })?;
        Some(Self::of_factor(&factor, cols, group, order))
    }

    fn of_factor(factor: &[f32], cols: usize, group: usize, order: Vec<u32>) -> Self {
        let pivots: Vec<f32> = (0..cols).map(|i| factor[i * cols + i]).collect();
        let unit = |row: usize, col: usize| factor[row * cols + col] / pivots[col];
        let groups = cols / group;
        let before = pool::map(groups, |g| {
            let places =
                (0..g * group).flat_map(|col| (0..group).map(move |i| (g * group + i, col)));
            places.map(|(row, col)| unit(row, col)).collect()
        });
        let within = pool::map(groups, |g| {
            let first = g * group;
            let places = (0..group).flat_map(|col| (0..group).map(move |row| (row, col)));
            let one = |(row, col)| if row > col { unit(first + row, first + col) } else { 0.0 };
            places.map(one).collect()
        });
        Self { group, order, weights: pivots.iter().map(|p| p * p).collect(), before, within }
    }
}

/// Inputs by place: those that weigh most are last, group by group.
fn order(diagonal: &[f32], group: usize) -> Vec<u32> {
    let weight = |g: usize| diagonal[g * group..][..group].iter().sum::<f32>();
    let mut groups: Vec<usize> = (0..diagonal.len() / group).collect();
    groups.sort_by(|&a, &b| weight(a).total_cmp(&weight(b)).then(a.cmp(&b)));
    let inputs = groups.into_iter().flat_map(|g| {
        let mut inputs: Vec<u32> = (0..group).map(|i| (g * group + i) as u32).collect();
        let own = |&i: &u32| diagonal[i as usize];
        inputs.sort_by(|a, b| own(a).total_cmp(&own(b)).then(a.cmp(b)));
        inputs
    });
    inputs.collect()
}

/// Cholesky's factor in the lower triangle, in place; false where a pivot is not positive.
fn factorize(a: &mut [f32], n: usize) -> bool {
    for first in (0..n).step_by(PANEL) {
        let wide = PANEL.min(n - first);
        let (top, rest) = a.split_at_mut((first + wide) * n);
        let head = &mut top[first * n..];
        for r in 0..wide {
            for c in 0..=r {
                let dot = |k: usize| {
                    f64::from(head[r * n + first + k]) * f64::from(head[c * n + first + k])
                };
                let left = f64::from(head[r * n + first + c]) - (0..c).map(dot).sum::<f64>();
                let pivot = head[c * n + first + c];
                head[r * n + first + c] = match r == c {
                    true if left > 0.0 && left.is_finite() => left.sqrt() as f32,
                    true => return false,
                    false => (left / f64::from(pivot)) as f32,
                };
            }
        }
        let rows = rest.len() / n;
        let mut panel = vec![0.0; rows * wide];
        let mut below: Vec<_> =
            rest.chunks_exact_mut(n).zip(panel.chunks_exact_mut(wide)).collect();
        pool::for_each(&mut below, |_, (row, own)| {
            for c in 0..wide {
                let pivots = &head[c * n + first..][..=c];
                let dot: f32 = own[..c].iter().zip(pivots).map(|(x, y)| x * y).sum();
                own[c] = (row[first + c] - dot) / pivots[c];
            }
            row[first..first + wide].copy_from_slice(own);
        });
        for strip in (0..rows).step_by(STRIP) {
            let high = STRIP.min(rows - strip);
            let upto = strip + high;
            let mut products = vec![0.0; high * upto];
            let others = Rows { values: &panel[..upto * wide], cols: wide };
            matmul(&panel[strip * wide..upto * wide], &others, None, &mut products);
            let mut own: Vec<_> = rest[strip * n..upto * n].chunks_exact_mut(n).collect();
            pool::for_each(&mut own, |r, row| {
                let less = &products[r * upto..][..upto];
                row[first + wide..][..upto].iter_mut().zip(less).for_each(|(x, less)| *x -= less);
            });
        }
    }
    true
}

/// A row on its way.
struct Row<'a> {
    /// Weights by place, with what is added to them so far.
    targets: Vec<f32>,
    values: &'a [f32],
    codes: &'a mut [u8],
    scales: &'a mut [u8],
    biases: &'a mut [u8],
}

/// Quantizes a matrix so that its outputs change little for inputs like those that `compensation` is of. Values that
/// are not finite give codes without meaning, and never a panic.
///
/// # Shapes
/// `values`: `[rows, cols]`, row-major. `dtype` is that of the scales.
///
/// # Errors
/// The format does not exist or does not divide `cols`, `values` are no whole rows, or `compensation` is for other
/// groups or another number of inputs.
pub fn gptq(
    values: &[f32],
    format: AffineFormat,
    dtype: DType,
    compensation: &Compensation,
) -> Result<AffineParts> {
    let (cols, group) = (compensation.order.len(), format.group);
    format.check(cols)?;
    if group != compensation.group {
        let (bits, group) = (format.bits, compensation.group);
        return Err(TensorError::UnsupportedAffine { bits, group, row: cols });
    }
    if !values.len().is_multiple_of(cols) {
        let (got, what) = (values.len() * 4, "values to quantize");
        return Err(TensorError::Bytes { what, expected: got.next_multiple_of(cols * 4), got });
    }
    let rows = values.len() / cols;
    let (row, sides) = (format.row_bytes(cols), cols / group * dtype.size_in_bytes());
    let mut parts = AffineParts {
        codes: vec![0; rows * row],
        scales: vec![0; rows * sides],
        biases: vec![0; rows * sides],
    };
    let out = parts.codes.chunks_exact_mut(row).zip(parts.scales.chunks_exact_mut(sides));
    let out = out.zip(parts.biases.chunks_exact_mut(sides)).zip(values.chunks_exact(cols));
    let mut all: Vec<_> = out
        .map(|(((codes, scales), biases), values)| {
            let targets = compensation.order.iter().map(|&i| values[i as usize]).collect();
            Row { targets, values, codes, scales, biases }
        })
        .collect();
    for g in (0..cols / group).rev() {
        let mut errors = vec![0.0; rows * group];
        let mut both: Vec<_> = all.iter_mut().zip(errors.chunks_exact_mut(group)).collect();
        pool::for_each(&mut both, |_, (row, errors)| {
            round_group(row, errors, g, (format, dtype), compensation);
        });
        let left = g * group;
        if left == 0 {
            break;
        }
        let mut more = vec![0.0; rows * left];
        let before = Rows { values: &compensation.before[g], cols: group };
        matmul(&errors, &before, None, &mut more);
        pool::for_each(&mut all, |r, row| {
            let more = &more[r * left..][..left];
            row.targets[..left].iter_mut().zip(more).for_each(|(target, more)| *target += more);
        });
    }
    Ok(parts)
}

/// Chooses the scale of a group, and its codes one after the other.
fn round_group(
    row: &mut Row<'_>,
    errors: &mut [f32],
    g: usize,
    (format, dtype): (AffineFormat, DType),
    own: &Compensation,
) {
    let (AffineFormat { bits, group }, first) = (format, g * format.group);
    let steps = f32::from((1u16 << bits) - 1);
    let (order, weights) = (&own.order[first..][..group], &own.weights[first..][..group]);
    let targets = &row.targets[first..][..group];
    let within = &own.within[g];
    // What later places of the group add to a place, of their errors so far.
    let added = |place: usize, errors: &[f32]| -> f32 {
        let column = within[place * group..][..group].iter();
        column.zip(errors).skip(place + 1).map(|(l, e)| l * e).sum()
    };
    // What the weights would become without rounding is what the scale is to fit.
    let mut unrounded = [0.0; 128];
    for place in (0..group).rev() {
        unrounded[place] = targets[place] + added(place, errors);
        errors[place] = row.values[order[place] as usize] - unrounded[place];
    }
    let (scale, bias) = fitted(&unrounded[..group], weights, steps, dtype);
    let mut codes = [0u8; 128];
    for place in (0..group).rev() {
        let code = code(targets[place] + added(place, errors), scale, bias, steps);
        let input = order[place] as usize;
        codes[input % group] = code;
        errors[place] = row.values[input] - (f32::from(code) * scale + bias);
    }
    // All inputs of a group lie together, wherever its place is.
    let at = order[0] as usize / group;
    let (bytes, size) = (group / 8 * usize::from(bits), dtype.size_in_bytes());
    pack(&mut row.codes[at * bytes..][..bytes], bits, codes[..group].iter().copied());
    storing(dtype)(scale, &mut row.scales[at * size..][..size]);
    storing(dtype)(bias, &mut row.biases[at * size..][..size]);
}

#[cfg(test)]
mod tests;
