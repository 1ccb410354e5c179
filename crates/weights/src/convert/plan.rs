//! Which tensors are written, in what form, and where: everything but the arithmetic.

use super::{ConvertError, ConvertOptions, TargetFormat, options::is_sensitive, source::Source};
use crate::checkpoint::Checkpoint;
use safetensors::Dtype;
use serde_json::{Map, Value, json};
use std::{
    collections::{HashMap, HashSet},
    ops::Range,
};
use taper_tensor::{AffineFormat, DType};

/// A tensor of the source, or the same of every expert, and what becomes of it.
#[derive(Debug)]
pub(super) struct Entry<'a> {
    /// In the destination.
    pub(super) name: String,
    /// One, or one an expert: mlx-lm stacks those.
    pub(super) sources: Vec<Source<'a>>,
    pub(super) form: Form,
    /// One for a copy; codes, scales and biases otherwise.
    pub(super) outputs: Vec<Output>,
}

/// What becomes of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Copy,
    Cast(DType),
    Quantize(AffineFormat),
    /// Blocks of a GGUF file, in the format that these become.
    Repack(AffineFormat),
}

impl Form {
    pub(super) fn format(self) -> Option<AffineFormat> {
        match self {
            Self::Quantize(format) | Self::Repack(format) => Some(format),
            Self::Copy | Self::Cast(_) => None,
        }
    }
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
    /// The model's format.
    pub(super) format: Option<AffineFormat>,
    /// Layers whose format is not the model's, in order.
    pub(super) own_formats: Vec<(String, AffineFormat)>,
    /// Matrices that the model's groups do not divide.
    pub(super) left_dense: Vec<String>,
    /// Entries of each file.
    pub(super) shards: Vec<Range<usize>>,
}

impl<'a> Plan<'a> {
    pub(super) fn new(
        source: &'a Checkpoint,
        from_gguf: bool,
        tied: bool,
        options: &ConvertOptions,
    ) -> Result<Self, ConvertError> {
        // What mlx-lm drops: a head that is the embedding, and frequencies that are computed.
        let dropped =
            |name: &str| (tied && name == "lm_head.weight") || name.contains("rotary_emb.inv_freq");
        let floats = source.tensors().iter().map(|(name, raw)| (name, Source::Floats(raw)));
        let blocks = source.blocks().iter().map(|(name, b)| (name, Source::Blocks(b)));
        let mut sorted: Vec<_> = floats.chain(blocks).filter(|(name, _)| !dropped(name)).collect();
        sorted.sort_by_key(|(name, _)| natural(name));
        let sorted = stacked(sorted)?;
        let choice = Choice::new(&sorted, from_gguf, options);
        let format = match options.target {
            TargetFormat::Affine(format) => Some(format),
            TargetFormat::Dense(_) | TargetFormat::Stored => None,
        };
        let (entries, shards, own_formats) = (Vec::new(), Vec::new(), Vec::new());
        let mut plan = Self { entries, format, own_formats, left_dense: Vec::new(), shards };
        let mut matched = vec![false; options.overrides.len()];
        for (name, sources) in sorted {
            let form = plan.form(&name, sources[0], &choice, &mut matched)?;
            let outputs = outputs(&name, &sources, form);
            plan.entries.push(Entry { name, sources, form, outputs });
        }
        if let Some((_, o)) = matched.iter().zip(&options.overrides).find(|(hit, _)| !**hit) {
            return Err(ConvertError::UnmatchedOverride { pattern: o.pattern.clone() });
        }
        match plan.format {
            Some(format) if plan.entries.iter().all(|e| e.form.format().is_none()) => {
                return Err(ConvertError::NothingToQuantize { group: format.group });
            }
            Some(_) => {}
            None => plan.choose_format(),
        }
        plan.check_names()?;
        plan.lay_out(options.max_shard_bytes);
        Ok(plan)
    }

    /// Stacked experts and scales get names that other tensors of the source may have.
    fn check_names(&self) -> Result<(), ConvertError> {
        let mut names = HashSet::new();
        let mut outputs = self.entries.iter().flat_map(|e| &e.outputs);
        match outputs.find(|o| !names.insert(&o.name)) {
            Some(o) => Err(ConvertError::NameTwice { name: o.name.clone() }),
            None => Ok(()),
        }
    }

    fn form(
        &mut self,
        name: &str,
        source: Source<'_>,
        choice: &Choice<'_>,
        matched: &mut [bool],
    ) -> Result<Form, ConvertError> {
        let layer = layer_of(name, source)?;
        let format = match (choice.options.target, layer) {
            (TargetFormat::Dense(dtype), _) => return Ok(Form::Cast(dtype)),
            (TargetFormat::Stored, _) | (_, None) => None,
            (TargetFormat::Affine(default), Some((layer, cols))) => {
                for (hit, o) in matched.iter_mut().zip(&choice.options.overrides) {
                    *hit |= o.matches(layer);
                }
                self.layer(layer, cols, default, choice)?
            }
        };
        Ok(match (format, source) {
            (Some(format), _) => Form::Quantize(format),
            (None, Source::Blocks(blocks)) if choice.options.target == TargetFormat::Stored => {
                Form::Repack(blocks.kind.format())
            }
            (None, Source::Blocks(_)) => Form::Cast(DType::F16),
            // GGUF has norms in F32 whatever the model had, and MLX would compute in F32 with them.
            (None, Source::Floats(_)) if choice.from_gguf && source.narrows() => {
                Form::Cast(DType::F16)
            }
            (None, Source::Floats(_)) => Form::Copy,
        })
    }

    /// The format that most layers have becomes the model's.
    fn choose_format(&mut self) {
        let layers = self.entries.iter().filter_map(|e| {
            Some((e.name.strip_suffix(".weight").unwrap_or(&e.name).to_owned(), e.form.format()?))
        });
        let layers: Vec<_> = layers.collect();
        let count = |format: AffineFormat| layers.iter().filter(|(_, f)| *f == format).count();
        self.format = layers.iter().map(|(_, f)| *f).max_by_key(|f| (count(*f), f.bits));
        let own = layers.into_iter().filter(|(_, f)| Some(*f) != self.format);
        self.own_formats = own.collect();
    }

    /// The format of a matrix, noted where config.json must say it.
    fn layer(
        &mut self,
        layer: &str,
        cols: usize,
        default: AffineFormat,
        choice: &Choice<'_>,
    ) -> Result<Option<AffineFormat>, ConvertError> {
        let Some(own) = choice.own(layer, default) else {
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
        self.sources().map(|source| source.elements() as u64).sum()
    }

    pub(super) fn output_bytes(&self) -> u64 {
        self.entries.iter().flat_map(|e| &e.outputs).map(|o| o.bytes).sum()
    }

    pub(super) fn source_bytes(&self) -> u64 {
        self.sources().map(|source| source.bytes().len() as u64).sum()
    }

    fn sources(&self) -> impl Iterator<Item = Source<'a>> {
        self.entries.iter().flat_map(|e| e.sources.iter().copied())
    }
}

/// What the options say of a layer.
struct Choice<'a> {
    options: &'a ConvertOptions,
    from_gguf: bool,
    layers: usize,
}

impl<'a> Choice<'a> {
    fn new(tensors: &[Tensors<'_>], from_gguf: bool, options: &'a ConvertOptions) -> Self {
        let index = |name: &str| name.split('.').find_map(|s| s.parse::<usize>().ok());
        let last = tensors.iter().filter_map(|(name, _)| index(name)).max();
        Self { options, from_gguf, layers: last.map_or(0, |last| last.saturating_add(1)) }
    }

    /// The layer's own format (`Some(None)`: floats), or `None` where it has the model's.
    fn own(&self, layer: &str, default: AffineFormat) -> Option<Option<AffineFormat>> {
        let options = self.options;
        let chosen = options.overrides.iter().rev().find(|o| o.matches(layer));
        let high = || {
            let bits = options.high_bits.filter(|_| is_sensitive(layer, self.layers))?;
            Some(Some(AffineFormat { bits, ..default }))
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
type Tensors<'a> = (String, Vec<Source<'a>>);

/// Mixtral's names of an expert's maps as MLX has them: `w3.weight` to `up_proj.weight`.
fn mlx_name(map: &str) -> String {
    let (name, rest) = map.split_once('.').unwrap_or((map, ""));
    match name {
        "w1" => format!("gate_proj.{rest}"),
        "w2" => format!("down_proj.{rest}"),
        "w3" => format!("up_proj.{rest}"),
        _ => map.to_owned(),
    }
}

/// Experts' tensors together, as MLX has them: `experts.3.up_proj` to `switch_mlp.up_proj`.
fn stacked<'a>(sorted: Vec<(&String, Source<'a>)>) -> Result<Vec<Tensors<'a>>, ConvertError> {
    let (mut all, mut places) = (Vec::<Tensors<'a>>::new(), HashMap::<String, usize>::new());
    for (name, source) in sorted {
        if name.ends_with(".experts.gate_up_proj") && source.shape().len() == 3 {
            return Err(ConvertError::Layout { what: "experts that are transposed (gpt-oss)" });
        }
        let Some((before, (number, after))) =
            name.split_once(".experts.").and_then(|(b, rest)| Some((b, rest.split_once('.')?)))
        else {
            all.push((name.clone(), vec![source]));
            continue;
        };
        let to = format!("{before}.switch_mlp.{}", mlx_name(after));
        let place = *places.entry(to.clone()).or_insert_with(|| {
            all.push((to, Vec::new()));
            all.len() - 1
        });
        let sources = &mut all[place].1;
        let same = |s: &Source<'_>| s.shape() == source.shape() && s.dtype() == source.dtype();
        let fits = sources.first().is_none_or(same);
        if number.parse() != Ok(sources.len()) || !fits || source.shape().len() != 2 {
            return Err(ConvertError::Layout { what: "experts that are not all of one kind" });
        }
        sources.push(source);
    }
    Ok(all)
}

/// The layer and row length of a matrix that MLX holds in a `Linear` or an `Embedding`, or of
/// experts' matrices that are stacked already.
fn layer_of<'a>(
    name: &'a str,
    source: Source<'_>,
) -> Result<Option<(&'a str, usize)>, ConvertError> {
    let Some(layer) = name.strip_suffix(".weight") else { return Ok(None) };
    let cols = match *source.shape() {
        [_, cols] => cols,
        [_, _, cols] if layer.contains(".switch_mlp.") => cols,
        _ => return Ok(None),
    };
    if !matches!(source.dtype(), Dtype::F32 | Dtype::F16 | Dtype::BF16) {
        let got = format!("{:?}", source.dtype());
        return Err(ConvertError::DType { name: name.to_owned(), got });
    }
    Ok((cols > 0).then_some((layer, cols)))
}

fn outputs(name: &str, sources: &[Source<'_>], form: Form) -> Vec<Output> {
    let (source, count) = (sources[0], sources.len());
    let shape = source.shape();
    let experts = Some(count).filter(|n| *n > 1);
    let output = |name: String, dtype: Dtype, shape: &[usize]| {
        let shape: Vec<usize> = experts.into_iter().chain(shape.iter().copied()).collect();
        // Not by whole bytes an element: some types have 4 bits, or 6.
        let bits = shape.iter().map(|&n| n as u64).product::<u64>() * dtype.bitsize() as u64;
        Output { name, dtype, shape, bytes: bits / 8, offset: 0 }
    };
    let (Some(format), [rows @ .., cols]) = (form.format(), shape) else {
        let dtype = match form {
            Form::Cast(DType::F32) => Dtype::F32,
            Form::Cast(DType::F16) => Dtype::F16,
            Form::Cast(DType::BF16) => Dtype::BF16,
            _ => source.dtype(),
        };
        return vec![output(name.to_owned(), dtype, shape)];
    };
    let layer = name.strip_suffix(".weight").unwrap_or(name);
    let with = |cols: usize| [rows, &[cols]].concat();
    let groups = with(cols / format.group);
    let part = |suffix| output(format!("{layer}.{suffix}"), source.dtype(), &groups);
    let codes = output(name.to_owned(), Dtype::U32, &with(format.row_bytes(*cols) / 4));
    vec![codes, part("scales"), part("biases")]
}

/// Sorts layer 2 before layer 10.
fn natural(name: &str) -> Vec<(u64, &str)> {
    name.split('.').map(|s| (s.parse().unwrap_or(u64::MAX), s)).collect()
}
