//! GPTQ over a whole model: every layer's matrices are quantized for the inputs that a text gives them, after the
//! layers before were.

use crate::{ModelError, layerwise::Layerwise};
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    mem,
    sync::{Arc, Mutex, PoisonError},
};
use taper_base::TokenId;
use taper_tensor::{
    AffineFormat, AffineParts, AffineWeight, Bytes, Compensation, DType, Gram, ScaleMethod,
    TensorError,
    cpu::{
        RowSource,
        maps::{Observer, Watch},
    },
    gptq as compensate, ops, quantize_by,
};
use taper_weights::{Checkpoint, ConvertError, Matrices, Matrix};

/// What is added to the diagonal of a Hessian, as a part of its mean.
const DAMPING: f32 = 0.01;
/// A Hessian of fewer rows than this part of its inputs says too little of them.
const LEAST_ROWS: usize = 4;

/// Why a model cannot be calibrated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CalibrationError {
    /// The model cannot be loaded or run.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A matrix cannot be read or written.
    #[error(transparent)]
    Convert(#[from] ConvertError),
    /// A matrix cannot be quantized.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// No choice of bits is as small.
    #[error("{asked} bits a weight cannot be reached; the least is {least:.2}")]
    TooFewBits {
        /// What was asked for.
        asked: f64,
        /// With the fewest bits that are tried in every layer.
        least: f64,
    },
    /// There are no tokens.
    #[error("the calibration text has no tokens")]
    NoText,
}

/// How matrices were quantized.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GptqReport {
    /// Matrices that were quantized for their inputs.
    pub compensated: usize,
    /// Matrices, such as those of seldom chosen experts, that too few rows went through.
    pub too_few_rows: usize,
}

/// Sums over the inputs of every matrix of a layer.
#[derive(Debug)]
struct Recorder {
    wanted: HashSet<String>,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    grams: Vec<Gram>,
    /// The sums that a matrix shares with those that read the same.
    of: BTreeMap<(Arc<str>, usize), usize>,
}

impl Observer for Recorder {
    fn see(&self, maps: &[&Watch], inputs: usize, x: &[f32]) {
        let maps = maps.iter().filter(|map| self.wanted.contains(&*map.tensor));
        let keys: Vec<_> = maps.map(|map| (map.tensor.clone(), map.index)).collect();
        let Some(first) = keys.first() else { return };
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let Seen { grams, of } = &mut *seen;
        let gram = *of.entry(first.clone()).or_insert_with(|| {
            grams.push(Gram::new(inputs));
            grams.len() - 1
        });
        for key in keys {
            of.entry(key).or_insert(gram);
        }
        grams[gram].add(x);
    }
}

/// Quantizes the matrices of all layers, and of the head, for the inputs that they have where the model reads `text`.
/// `progress(done, total)` counts sequences through layers.
///
/// Memory holds what the residual stream has of the text, the Hessians of a layer's inputs, and a layer's weights.
///
/// # Errors
/// The model cannot be run, a matrix cannot be read or written, or the text is empty.
pub fn gptq(
    weights: &Checkpoint,
    text: &[Vec<TokenId>],
    matrices: &mut Matrices<'_>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<GptqReport, CalibrationError> {
    let mut model = Layerwise::new(weights, text)?;
    if model.sequences() == 0 {
        return Err(CalibrationError::NoText);
    }
    let counts: HashMap<String, usize> =
        matrices.names().map(|(name, count)| (name.to_owned(), count)).collect();
    let wanted = counts.keys().cloned().collect();
    let recorder = Arc::new(Recorder { wanted, seen: Mutex::default() });
    let watched = weights.watched_by(recorder.clone());
    let total = (2 * model.layers() * model.sequences()) as u64;
    let mut done = 0;
    let mut step = || {
        done += 1;
        progress(done, total);
    };
    let mut report = GptqReport::default();
    for _ in 0..model.layers() {
        model.look(&watched, &mut step)?;
        let quantized = layer(recorder.take(), &counts, matrices, &mut report)?;
        model.advance(&weights.with_values(quantized).map_err(ModelError::from)?, &mut step)?;
    }
    let (head, rows) = model.ends(weights)?;
    let watch = Watch { tensor: head.into(), index: 0, observer: recorder.clone() };
    for rows in &rows {
        let cols = rows.dims().last().copied().unwrap_or(0);
        ops::with_host_f32(rows, |x| recorder.see(&[&watch], cols, x))?;
    }
    layer(recorder.take(), &counts, matrices, &mut report)?;
    // Experts that no token chose: a tensor that has some of its matrices must have all.
    for (name, count) in counts {
        for index in (0..count).filter(|&index| matrices.lacks(&name, index)).collect::<Vec<_>>() {
            if let Some(matrix) = matrices.read(&name, index)? {
                report.too_few_rows += 1;
                matrices.write(&name, index, &least_squares(&matrix)?)?;
            }
        }
    }
    Ok(report)
}

fn least_squares(matrix: &Matrix) -> Result<AffineParts, TensorError> {
    let Matrix { values, cols, format, dtype, .. } = matrix;
    quantize_by(ScaleMethod::LeastSquares, values, *cols, *format, *dtype)
}

impl Recorder {
    fn take(&self) -> Seen {
        mem::take(&mut *self.seen.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Quantizes what was seen, and returns the values that it has now, by tensor.
fn layer(
    seen: Seen,
    counts: &HashMap<String, usize>,
    matrices: &mut Matrices<'_>,
    report: &mut GptqReport,
) -> Result<Vec<(String, Vec<f32>)>, CalibrationError> {
    let Seen { grams, mut of } = seen;
    // Of tensors with several matrices, those too that nothing went through.
    let names: HashSet<_> = of.keys().map(|(name, _)| name.clone()).collect();
    for name in names {
        for index in 0..counts.get(&*name).copied().unwrap_or(1) {
            of.entry((name.clone(), index)).or_insert(usize::MAX);
        }
    }
    let mut own: Vec<_> = grams.into_iter().map(Inputs::new).collect();
    let mut values = BTreeMap::<Arc<str>, Vec<f32>>::new();
    for ((name, index), gram) in of {
        let Some(matrix) = matrices.read(&name, index)? else { continue };
        let compensation = own.get_mut(gram).and_then(|inputs| inputs.compensation(&matrix));
        let parts = match compensation {
            Some(own) => {
                report.compensated += 1;
                compensate(&matrix.values, matrix.format, matrix.dtype, own)?
            }
            None => {
                report.too_few_rows += 1;
                least_squares(&matrix)?
            }
        };
        matrices.write(&name, index, &parts)?;
        // In the order of their numbers.
        let Matrix { values: own, cols, format, dtype, .. } = &matrix;
        let shape = (own.len() / (*cols).max(1), *cols);
        values.entry(name).or_default().extend(read(*format, *dtype, shape, parts)?);
    }
    Ok(values.into_iter().map(|(name, values)| (name.to_string(), values)).collect())
}

/// The inputs of some matrices, and what follows from them for groups of some size.
struct Inputs {
    gram: Gram,
    made: Option<(usize, Option<Compensation>)>,
}

impl Inputs {
    fn new(gram: Gram) -> Self {
        Self { gram, made: None }
    }

    /// `None` where too little is known of the inputs.
    fn compensation(&mut self, matrix: &Matrix) -> Option<&Compensation> {
        let group = matrix.format.group;
        if self.gram.cols() != matrix.cols || self.gram.rows() < matrix.cols / LEAST_ROWS {
            return None;
        }
        if self.made.as_ref().is_none_or(|(made, _)| *made != group) {
            self.made = Some((group, Compensation::new(self.gram.clone(), group, DAMPING)));
        }
        self.made.as_ref()?.1.as_ref()
    }
}

/// The values of a quantized matrix of this shape.
pub(crate) fn read(
    format: AffineFormat,
    dtype: DType,
    (rows, cols): (usize, usize),
    parts: AffineParts,
) -> Result<Vec<f32>, TensorError> {
    let side = |bytes| (dtype, Bytes::from_vec(bytes));
    let (codes, scales) = (Bytes::from_vec(parts.codes), side(parts.scales));
    let weight = AffineWeight::new(format, (rows, cols), codes, scales, side(parts.biases))?;
    let mut out = vec![0.0; rows * cols];
    weight.read_rows(0, &mut out);
    Ok(out)
}
