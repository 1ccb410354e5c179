//! Bits for each layer, by what quantizing it does to the logits.
//!
//! One layer at a time is quantized, and the model run over a text: what the logits then diverge by is the layer's
//! sensitivity. With other bits it is taken to be in proportion to the squared error of the weights, and
//! that of several layers to be the sum (Malinovskii et al. 2024 show both for small errors). The bits
//! are spent one step at a time where a bit gains most.

use crate::{CalibrationError, ModelError, calibrate::read, layerwise::Layerwise};
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    mem,
    sync::{Arc, Mutex, PoisonError},
};
use taper_base::TokenId;
use taper_tensor::{
    AffineFormat, ScaleMethod, TensorError,
    cpu::maps::{Observer, Watch},
    pool, quantize_by,
};
use taper_weights::{Checkpoint, Matrices, QuantizedLayer};

/// Of so many rows one's logits are compared.
const STEP: usize = 4;

/// What was measured of a layer, and what follows.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Sensitivity {
    /// As config.json names it.
    pub layer: String,
    /// How many weights it has.
    pub weights: u64,
    /// Bits that it was measured with.
    pub probed: u8,
    /// Mean KL divergence of the logits, in nats, where only this layer is quantized, with those bits.
    pub kl: f64,
    /// Bits that it gets.
    pub bits: u8,
}

/// The tensors that some layer reads something with.
#[derive(Debug, Default)]
struct Names(Mutex<HashSet<Arc<str>>>);

impl Observer for Names {
    fn see(&self, maps: &[&Watch], _: usize, _: &[f32]) {
        let mut names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        names.extend(maps.iter().map(|map| map.tensor.clone()));
    }
}

/// A layer that was measured: its divergence, and its squared error with each number of bits.
struct Measured {
    layer: QuantizedLayer,
    kl: f64,
    errors: BTreeMap<u8, f64>,
    bits: u8,
}

/// Bits of every layer of `matrices`, so that the whole model has at most `target` bits a weight.
/// `progress(done, total)` counts layers.
///
/// # Errors
/// The model cannot be run, a matrix cannot be read, the text is empty, or the target is below what the fewest
/// bits give.
pub fn choose_bits(
    weights: &Checkpoint,
    text: &[Vec<TokenId>],
    matrices: &Matrices<'_>,
    target: f64,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Vec<Sensitivity>, CalibrationError> {
    let layers = matrices.layers();
    let (others, all) = matrices.others();
    let probed = probed(target);
    let tried = AffineFormat::BITS.into_iter().filter(|bits| *bits + 1 >= probed);
    let tried: Vec<u8> = tried.collect();
    let least = layers.iter().map(|l| l.bits(tried[0])).sum::<u64>() + others;
    let budget = (target * all as f64) as u64;
    if budget < least {
        let least = least as f64 / all.max(1) as f64;
        return Err(CalibrationError::TooFewBits { asked: target, least });
    }
    let mut model = Layerwise::new(weights, text)?;
    if model.sequences() == 0 {
        return Err(CalibrationError::NoText);
    }
    let (places, reads) = dense(&mut model, weights)?;
    let logits = model.logits(STEP)?;
    let total = layers.len() as u64;
    progress(0, total);
    let mut measured = Vec::new();
    for (i, layer) in layers.into_iter().enumerate() {
        let (values, errors) = quantized(&layer, matrices, probed, &tried)?;
        let overlay = weights.with_values(values).map_err(ModelError::from)?;
        let own = layer.tensors.iter().find_map(|name| reads.get(name.as_str()));
        let others = match own {
            Some(&at) => {
                model.go_to(&places[at]);
                model.advance(&overlay, &mut || ())?;
                rest(&mut model, weights)?;
                model.logits(STEP)?
            }
            // The token table, the head, and what is more than a map.
            None => {
                let mut model = Layerwise::new(&overlay, text)?;
                rest(&mut model, &overlay)?;
                model.logits(STEP)?
            }
        };
        let kl = divergence(&logits, &others, model.vocab());
        measured.push(Measured { layer, kl, errors, bits: tried[0] });
        progress(i as u64 + 1, total);
    }
    spend(&mut measured, &tried, budget - least, probed);
    let said = |m: Measured| {
        let QuantizedLayer { layer, weights, .. } = m.layer;
        Sensitivity { layer, weights, probed, kl: m.kl, bits: m.bits }
    };
    Ok(measured.into_iter().map(said).collect())
}

/// Bits to measure with: those that most layers will have about.
fn probed(target: f64) -> u8 {
    let under = AffineFormat::BITS.into_iter().rev().find(|bits| f64::from(*bits) <= target);
    under.unwrap_or(2).min(4)
}

/// The places before all layers, and which layer reads something with which tensor.
fn dense(
    model: &mut Layerwise,
    weights: &Checkpoint,
) -> Result<(Vec<crate::layerwise::Place>, HashMap<String, usize>), ModelError> {
    let names = Arc::new(Names::default());
    let watched = weights.watched_by(names.clone());
    let (mut places, mut reads) = (Vec::new(), HashMap::new());
    for i in 0..model.layers() {
        places.push(model.place());
        model.advance(&watched, &mut || ())?;
        let seen = mem::take(&mut *names.0.lock().unwrap_or_else(PoisonError::into_inner));
        reads.extend(seen.into_iter().map(|name| (name.to_string(), i)));
    }
    Ok((places, reads))
}

/// Runs the layers that are left.
fn rest(model: &mut Layerwise, weights: &Checkpoint) -> Result<(), ModelError> {
    while model.is_before_end() {
        model.advance(weights, &mut || ())?;
    }
    Ok(())
}

/// Values by tensor, and squared errors by bits.
type Probe = (Vec<(String, Vec<f32>)>, BTreeMap<u8, f64>);

/// The layer's values with the bits to measure, and its squared errors with all that are tried.
fn quantized(
    layer: &QuantizedLayer,
    matrices: &Matrices<'_>,
    probed: u8,
    tried: &[u8],
) -> Result<Probe, CalibrationError> {
    let counts: HashMap<_, _> = matrices.names().collect();
    let (mut all, mut errors) = (Vec::new(), BTreeMap::new());
    for name in &layer.tensors {
        let mut values = Vec::new();
        for index in 0..counts.get(name.as_str()).copied().unwrap_or(0) {
            let Some(matrix) = matrices.read(name, index)? else { continue };
            let with = |bits: u8| -> Result<Vec<f32>, TensorError> {
                let format = AffineFormat { bits, ..matrix.format };
                let (values, cols, dtype) = (&matrix.values, matrix.cols, matrix.dtype);
                let parts = quantize_by(ScaleMethod::Range, values, cols, format, dtype)?;
                read(format, dtype, (values.len() / cols.max(1), cols), parts)
            };
            for &bits in tried {
                let own = with(bits)?;
                let off = own.iter().zip(&matrix.values).map(|(a, b)| f64::from(a - b).powi(2));
                *errors.entry(bits).or_insert(0.0) += off.sum::<f64>();
                if bits == probed {
                    values.extend(own);
                }
            }
        }
        all.push((name.clone(), values));
    }
    Ok((all, errors))
}

/// The mean KL divergence of rows of logits from others.
fn divergence(truth: &[f32], others: &[f32], vocab: usize) -> f64 {
    let vocab = vocab.max(1);
    let rows = truth.len() / vocab;
    let logs = |row: &[f32]| {
        let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = row.iter().map(|x| f64::from(x - max).exp()).sum();
        (f64::from(max), sum.ln())
    };
    let one = |r: usize| {
        let (p, q) = (&truth[r * vocab..][..vocab], &others[r * vocab..][..vocab]);
        let ((p_max, p_sum), (q_max, q_sum)) = (logs(p), logs(q));
        let each = p.iter().zip(q).map(|(p, q)| {
            let (p, q) = (f64::from(*p) - p_max - p_sum, f64::from(*q) - q_max - q_sum);
            p.exp() * (p - q)
        });
        each.sum::<f64>()
    };
    pool::map(rows, one).iter().sum::<f64>() / rows.max(1) as f64
}

/// Gives more bits, step by step, where a bit gains most.
fn spend(all: &mut [Measured], tried: &[u8], mut budget: u64, probed: u8) {
    loop {
        let next = |m: &Measured| {
            let more = tried.iter().copied().find(|bits| *bits > m.bits)?;
            let cost = m.layer.bits(more) - m.layer.bits(m.bits);
            let error = |bits: u8| m.errors.get(&bits).copied().unwrap_or(0.0);
            let at = |bits: u8| m.kl.max(0.0) * error(bits) / error(probed).max(f64::MIN_POSITIVE);
            let gain = (at(m.bits) - at(more)) / cost.max(1) as f64;
            (cost <= budget).then_some((more, cost, gain))
        };
        let steps = all.iter().enumerate().filter_map(|(i, m)| Some((i, next(m)?)));
        let Some((i, (more, cost, _))) = steps.max_by(|a, b| a.1.2.total_cmp(&b.1.2)) else {
            return;
        };
        all[i].bits = more;
        budget -= cost;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divergence_is_of_whole_distributions() {
        let truth = [0.0f32, 0.0, 5.0, 5.0];
        assert!(divergence(&truth, &[1.0, 1.0, 0.0, 0.0], 2).abs() < 1e-12);
        // Half of the rows: ln 2 - (ln 3 / 2 + ln 1.5 / 2) + ... against three to one.
        let other = divergence(&truth, &[3f32.ln(), 0.0, 5.0, 5.0], 2);
        let expected = 0.5 * (0.5 * (0.5f64 / 0.75).ln() + 0.5 * (0.5f64 / 0.25).ln());
        assert!((other - expected).abs() < 1e-6, "{other} {expected}");
    }

    #[test]
    fn probes_have_the_bits_below_the_target() {
        for (target, bits) in [(1.0, 2), (2.5, 2), (3.4, 3), (4.5, 4), (6.5, 4), (9.0, 4)] {
            assert_eq!(probed(target), bits, "{target}");
        }
    }
}
