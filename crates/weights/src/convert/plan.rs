//! Which tensors are written, in what form, and where: everything but the arithmetic.

use super::{ConvertError, ConvertOptions, options::is_sensitive};
use crate::shard::RawTensor;
use safetensors::Dtype;
use serde_json::{Map, Value, json};
use std::{collections::HashMap, ops::Range};
use taper_tensor::AffineFormat;

/// A tensor of the source, or the same of every expert, and what becomes of it.
#[derive(Debug)]
pub(super) struct Entry<'a> {
    /// In the destination.
    pub(super) name: String,
    /// One, or one an expert: mlx-lm stacks those.
    pub(super) raws: Vec<&'a RawTensor>,
    /// `None`: copied.
    pub(super) format: Option<AffineFormat>,
    /// One for a copy; codes, scales and biases otherwise.
    pub(super) outputs: Vec<Output>,
}

/// A tensor of the destination.
#[derive(Debug)]
pub(super) struct Output {
    pub(super) name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    pub(super) bytes: u64,
    /// From the start of the file's data.
    pub(super) offset: u64,
}

/// The whole conversion.
#[derive(Debug)]
pub(super) struct Plan<'a> {
    pub(super) entries: Vec<Entry<'a>>,
    /// Layers whose format is not the model's, in order.
    pub(super) own_formats: Vec<(String, AffineFormat)>,
    /// Matrices that the model's groups do not divide.
    pub(super) left_dense: Vec<String>,
    /// Entries of each file.
    pub(super) shards: Vec<Range<usize>>,
}

impl<'a> Plan<'a> {
    pub(super) fn new(
        tensors: &'a HashMap<String, RawTensor>,
        tied: bool,
        options: &ConvertOptions,
    ) -> Result<Self, ConvertError> {
        // What mlx-lm drops: a head that is the embedding, and frequencies that are computed.
        let dropped =
            |name: &str| (tied && name == "lm_head.weight") || name.contains("rotary_emb.inv_freq");
        let mut sorted: Vec<_> = tensors.iter().filter(|(name, _)| !dropped(name)).collect();
        sorted.sort_by_key(|(name, _)| natural(name));
        let sorted = stacked(sorted)?;
        let choice = Choice::new(&sorted, options);
        let (entries, shards, own_formats) = (Vec::new(), Vec::new(), Vec::new());
        let mut plan = Self { entries, own_formats, left_dense: Vec::new(), shards };
        let mut matched = vec![false; options.overrides.len()];
        for (name, raws) in sorted {
            let format = match layer_of(&name, raws[0])? {
                None => None,
                Some((layer, cols)) => {
                    for (hit, o) in matched.iter_mut().zip(&options.overrides) {
                        *hit |= o.matches(layer);
                    }
                    plan.layer(layer, cols, &choice)?
                }
            };
            let outputs = outputs(&name, &raws, format);
            plan.entries.push(Entry { name, raws, format, outputs });
        }
        if let Some((_, o)) = matched.iter().zip(&options.overrides).find(|(hit, _)| !**hit) {
            return Err(ConvertError::UnmatchedOverride { pattern: o.pattern.clone() });
        }
        if plan.entries.iter().all(|e| e.format.is_none()) {
            return Err(ConvertError::NothingToQuantize { group: options.format.group });
        }
        plan.lay_out(options.max_shard_bytes);
        Ok(plan)
    }

    /// The format of a matrix, noted where config.json must say it.
    fn layer(
        &mut self,
        layer: &str,
        cols: usize,
        choice: &Choice<'_>,
    ) -> Result<Option<AffineFormat>, ConvertError> {
        let default = choice.options.format;
        let Some(own) = choice.own(layer) else {
            if cols.is_multiple_of(default.group) {
                return Ok(Some(default));
            }
            self.left_dense.push(layer.to_owned());
            return Ok(None);
        };
        if let Some(format) = own {
            let (layer, group) = (layer.to_owned(), format.group);
            if !cols.is_multiple_of(group) {
                return Err(ConvertError::OverrideGroup { layer, group, cols });
            }
            self.own_formats.push((layer, format));
        }
        Ok(own)
    }

    /// Cuts the entries into files and gives every output its place.
    fn lay_out(&mut self, max_bytes: u64) {
        let (mut first, mut size) = (0, 0);
        for (i, entry) in self.entries.iter().enumerate() {
            let bytes: u64 = entry.outputs.iter().map(|o| o.bytes).sum();
            if i > first && size + bytes > max_bytes {
                self.shards.push(first..i);
                (first, size) = (i, 0);
            }
            size += bytes;
        }
        self.shards.push(first..self.entries.len());
        for shard in &self.shards {
            let entries = self.entries[shard.clone()].iter_mut();
            let mut outputs: Vec<_> = entries.flat_map(|e| &mut e.outputs).collect();
            // Wider elements first, so that each stands at a multiple of its size.
            outputs.sort_by_key(|o| std::cmp::Reverse(o.dtype));
            let mut offset = 0;
            for output in outputs {
                output.offset = offset;
                offset += output.bytes;
            }
        }
    }

    /// The header of file `shard`, with its length before it.
    pub(super) fn header(&self, shard: usize) -> Vec<u8> {
        let entries = self.entries[self.shards[shard].clone()].iter();
        let mut outputs: Vec<_> = entries.flat_map(|e| &e.outputs).collect();
        outputs.sort_by_key(|o| (o.offset, o.bytes));
        let mut header = Map::new();
        header.insert("__metadata__".to_owned(), json!({"format": "mlx"}));
        for o in outputs {
            let ends = [o.offset, o.offset + o.bytes];
            let value = json!({"dtype": o.dtype, "shape": o.shape, "data_offsets": ends});
            header.insert(o.name.clone(), value);
        }
        let mut text = Value::Object(header).to_string().into_bytes();
        // The data begin at a cache line, and so do codes whose rows are whole lines.
        text.resize((text.len() + 8).next_multiple_of(64) - 8, b' ');
        let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
        bytes.append(&mut text);
        bytes
    }

    /// Weights of the source that are kept.
    pub(super) fn parameters(&self) -> u64 {
        self.raws().map(|raw| raw.shape.iter().product::<usize>() as u64).sum()
    }

    pub(super) fn output_bytes(&self) -> u64 {
        self.entries.iter().flat_map(|e| &e.outputs).map(|o| o.bytes).sum()
    }

    pub(super) fn source_bytes(&self) -> u64 {
        self.raws().map(|raw| raw.bytes.len() as u64).sum()
    }

    fn raws(&self) -> impl Iterator<Item = &RawTensor> {
        self.entries.iter().flat_map(|e| e.raws.iter().copied())
    }
}

/// What the options say of a layer.
struct Choice<'a> {
    options: &'a ConvertOptions,
    layers: usize,
}

impl<'a> Choice<'a> {
    fn new(tensors: &[Tensors<'_>], options: &'a ConvertOptions) -> Self {
        let index = |name: &str| name.split('.').find_map(|s| s.parse::<usize>().ok());
        let last = tensors.iter().filter_map(|(name, _)| index(name)).max();
        Self { options, layers: last.map_or(0, |last| last.saturating_add(1)) }
    }

    /// The layer's own format (`Some(None)`: floats), or `None` where it has the model's.
    fn own(&self, layer: &str) -> Option<Option<AffineFormat>> {
        let options = self.options;
        let chosen = options.overrides.iter().rev().find(|o| o.matches(layer));
        let high = || {
            let bits = options.high_bits.filter(|_| is_sensitive(layer, self.layers))?;
            Some(Some(AffineFormat { bits, ..options.format }))
        };
        // What chooses among experts: mlx-lm's own choice, where no recipe takes its place.
        let router = || {
            let router = options.high_bits.is_none() && layer.ends_with("mlp.gate");
            router.then_some(Some(AffineFormat { bits: 8, group: 64 }))
        };
        chosen.map(|o| o.format).or_else(router).or_else(high)
    }
}

/// A name in the destination, and what goes there.
type Tensors<'a> = (String, Vec<&'a RawTensor>);

/// Experts' tensors together, as MLX has them: `experts.3.up_proj` to `switch_mlp.up_proj`.
fn stacked<'a>(sorted: Vec<(&String, &'a RawTensor)>) -> Result<Vec<Tensors<'a>>, ConvertError> {
    let (mut all, mut places) = (Vec::<Tensors<'a>>::new(), HashMap::<String, usize>::new());
    for (name, raw) in sorted {
        if name.ends_with(".experts.gate_up_proj") && raw.shape.len() == 3 {
            return Err(ConvertError::Layout { what: "experts that are transposed (gpt-oss)" });
        }
        let Some((before, (number, after))) =
            name.split_once(".experts.").and_then(|(b, rest)| Some((b, rest.split_once('.')?)))
        else {
            all.push((name.clone(), vec![raw]));
            continue;
        };
        let to = format!("{before}.switch_mlp.{after}");
        let place = *places.entry(to.clone()).or_insert_with(|| {
            all.push((to, Vec::new()));
            all.len() - 1
        });
        let raws = &mut all[place].1;
        let fits = raws.first().is_none_or(|r| r.shape == raw.shape && r.dtype == raw.dtype);
        if number.parse() != Ok(raws.len()) || !fits || raw.shape.len() != 2 {
            return Err(ConvertError::Layout { what: "experts that are not all of one kind" });
        }
        raws.push(raw);
    }
    Ok(all)
}

/// The layer and row length of a matrix that MLX holds in a `Linear` or an `Embedding`.
fn layer_of<'a>(name: &'a str, raw: &RawTensor) -> Result<Option<(&'a str, usize)>, ConvertError> {
    let (Some(layer), &[_, cols]) = (name.strip_suffix(".weight"), raw.shape.as_slice()) else {
        return Ok(None);
    };
    if !matches!(raw.dtype, Dtype::F32 | Dtype::F16 | Dtype::BF16) {
        let got = format!("{:?}", raw.dtype);
        return Err(ConvertError::DType { name: name.to_owned(), got });
    }
    Ok((cols > 0).then_some((layer, cols)))
}

fn outputs(name: &str, raws: &[&RawTensor], format: Option<AffineFormat>) -> Vec<Output> {
    let (raw, count) = (raws[0], raws.len());
    let stack = |shape: &[usize]| match count {
        1 => shape.to_vec(),
        _ => [&[count], shape].concat(),
    };
    let output = |name: String, dtype, shape: Vec<usize>, bytes: usize| Output {
        name,
        dtype,
        shape,
        bytes: bytes as u64,
        offset: 0,
    };
    let (Some(format), &[rows, cols]) = (format, raw.shape.as_slice()) else {
        let bytes = count * raw.bytes.len();
        return vec![output(name.to_owned(), raw.dtype, stack(&raw.shape), bytes)];
    };
    let (layer, row) = (name.strip_suffix(".weight").unwrap_or(name), format.row_bytes(cols));
    let (groups, size) = (cols / format.group, raw.dtype.bitsize() / 8);
    let part = |suffix| {
        let bytes = count * rows * groups * size;
        output(format!("{layer}.{suffix}"), raw.dtype, stack(&[rows, groups]), bytes)
    };
    let codes = output(name.to_owned(), Dtype::U32, stack(&[rows, row / 4]), count * rows * row);
    vec![codes, part("scales"), part("biases")]
}

/// Sorts layer 2 before layer 10.
fn natural(name: &str) -> Vec<(u64, &str)> {
    name.split('.').map(|s| (s.parse().unwrap_or(u64::MAX), s)).collect()
}
