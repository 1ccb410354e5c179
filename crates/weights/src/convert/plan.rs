//! Which tensors are written, in what form, and where: everything but the arithmetic.

use super::{
    ConvertError, ConvertOptions, GgufType, TargetFormat,
    fused::Fused,
    names::{Part, layer_of, natural, stacked},
    options::is_sensitive,
    source::{Coded, Source},
};
use crate::{
    checkpoint::{self, Checkpoint, is_of_caches},
    gguf::{blocks::BlockType, names::Changes, write},
};
use safetensors::Dtype;
use serde_json::{Map, Value, json};
use std::{collections::HashSet, ops::Range};
use taper_tensor::{AffineFormat, DType};

/// Weights of a scale of MXFP4.
const MXFP4_GROUP: usize = 32;

/// A tensor of the source, or the same of every expert, and what becomes of it.
#[derive(Debug)]
pub(super) struct Entry<'a> {
    /// In the destination.
    pub(super) name: String,
    /// One, or one an expert: mlx-lm stacks those.
    pub(super) sources: Vec<Part<'a>>,
    pub(super) form: Form,
    /// One for a copy; codes, scales and, of affine codes, biases otherwise.
    pub(super) outputs: Vec<Output>,
    /// The file that it is in.
    pub(super) shard: usize,
    /// What changes in the numbers.
    pub(super) changes: Changes,
}

impl Entry<'_> {
    /// Matrices in it: one an expert.
    pub(super) fn count(&self) -> usize {
        match &*self.sources {
            [only] if only.source.shape().len() == 3 => only.source.shape()[0],
            all => all.len(),
        }
    }
}

/// What becomes of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Copy,
    Cast(DType),
    Quantize(AffineFormat),
    /// MLX's mode `mxfp4`.
    Mxfp4,
    /// Blocks of ggml.
    Blocks(BlockType),
    /// Blocks of a GGUF file, in the format that these become.
    Repack(AffineFormat),
}

impl Form {
    pub(super) fn format(self) -> Option<AffineFormat> {
        match self {
            Self::Quantize(format) | Self::Repack(format) => Some(format),
            Self::Copy | Self::Cast(_) | Self::Mxfp4 | Self::Blocks(_) => None,
        }
    }

    pub(super) fn is_quantized(self) -> bool {
        !matches!(self, Self::Copy | Self::Cast(_))
    }
}

/// A tensor of the destination.
#[derive(Debug)]
pub(super) struct Output {
    pub(super) name: String,
    dtype: Dtype,
    pub(super) shape: Vec<usize>,
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
        (coded, fused): (&'a Coded, &'a Fused),
        from_gguf: bool,
        options: &ConvertOptions,
    ) -> Result<Self, ConvertError> {
        let tied = source.config().get("tie_word_embeddings").and_then(Value::as_bool);
        let tied = tied.unwrap_or(false);
        // What mlx-lm drops: a head that is the embedding, and frequencies that are computed. And scales of caches.
        let dropped = |name: &str| {
            let raw = source.tensors().get(name);
            (tied && name == "lm_head.weight")
                || name.contains("rotary_emb.inv_freq")
                || raw.is_some_and(|raw| is_of_caches(name, &raw.bytes))
        };
        let whole = |name: &str| !coded.owns(name) && !fused.owns(name);
        let floats = source.tensors().iter().filter(|(name, _)| whole(name)).chain(&fused.0);
        let floats = floats.map(|(name, raw)| (name, Source::Floats(raw)));
        let blocks = source.blocks().iter().map(|(name, b)| (name, Source::Blocks(b)));
        let coded = coded.all.iter().map(|(name, c)| (name, Source::Coded(c, source)));
        let all = floats.chain(blocks).chain(coded).filter(|(name, _)| !dropped(name));
        let all = all.map(|(name, source)| Part { name, source });
        let mut sorted: Vec<_> = all.collect();
        sorted.sort_by_key(|part| natural(part.name));
        let sorted = stacked(sorted)?;
        let choice = Choice::new(&sorted, from_gguf, options);
        let format = match options.target {
            TargetFormat::Affine(format) => Some(format),
            _ => None,
        };
        let (entries, shards, own_formats) = (Vec::new(), Vec::new(), Vec::new());
        let mut plan = Self { entries, format, own_formats, left_dense: Vec::new(), shards };
        let mut matched = vec![false; options.overrides.len()];
        for (name, sources) in sorted {
            let form = plan.form(&name, sources[0].source, &choice, &mut matched)?;
            let outputs = outputs(&name, &sources, form);
            plan.entries.push(Entry {
                name,
                sources,
                form,
                outputs,
                shard: 0,
                changes: Changes::default(),
            });
        }
        if let Some((_, o)) = matched.iter().zip(&options.overrides).find(|(hit, _)| !**hit) {
            return Err(ConvertError::UnmatchedOverride { pattern: o.pattern.clone() });
        }
        match options.target {
            TargetFormat::Affine(format) => plan.expect_quantized(format.group)?,
            TargetFormat::Mxfp4 => plan.expect_quantized(MXFP4_GROUP)?,
            TargetFormat::Gguf(_) => {}
            TargetFormat::Dense(_) | TargetFormat::Stored => plan.choose_format(),
        }
        plan.check_names()?;
        match options.target {
            TargetFormat::Gguf(_) => plan.lay_out(u64::MAX, write::ALIGNMENT),
            _ => plan.lay_out(options.max_shard_bytes, 1),
        }
        Ok(plan)
    }

    fn expect_quantized(&self, group: usize) -> Result<(), ConvertError> {
        match self.entries.iter().any(|e| e.form.is_quantized()) {
            true => Ok(()),
            false => Err(ConvertError::NothingToQuantize { group }),
        }
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
            (TargetFormat::Gguf(kind), layer) => {
                let matrix = layer.filter(|(layer, _)| choice.router(layer).is_none());
                return Ok(matrix.map_or(Form::Cast(DType::F32), |(_, cols)| blocks(kind, cols)));
            }
            (TargetFormat::Stored, _) | (_, None) => None,
            (TargetFormat::Affine(default), Some((layer, cols))) => {
                for (hit, o) in matched.iter_mut().zip(&choice.options.overrides) {
                    *hit |= o.matches(layer);
                }
                self.layer(layer, cols, default, choice)?
            }
            (TargetFormat::Mxfp4, Some((layer, cols))) => match choice.router(layer) {
                Some(router) if cols.is_multiple_of(router.group) => {
                    self.own_formats.push((layer.to_owned(), router));
                    Some(router)
                }
                Some(_) => None,
                None if cols.is_multiple_of(MXFP4_GROUP) => return Ok(Form::Mxfp4),
                None => {
                    self.left_dense.push(layer.to_owned());
                    None
                }
            },
        };
        Ok(match (format, source) {
            (Some(format), _) => Form::Quantize(format),
            (None, Source::Blocks(blocks)) if choice.options.target == TargetFormat::Stored => {
                Form::Repack(blocks.kind.format())
            }
            (None, Source::Blocks(_)) => Form::Cast(DType::F16),
            (None, Source::Coded(coded, _)) => Form::Cast(coded.dtype),
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

    /// Cuts the entries into files and gives every output its place, at a multiple of `alignment`.
    fn lay_out(&mut self, max_bytes: u64, alignment: u64) {
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
        for (number, shard) in self.shards.iter().enumerate() {
            self.entries[shard.clone()].iter_mut().for_each(|entry| entry.shard = number);
            let entries = self.entries[shard.clone()].iter_mut();
            let mut outputs: Vec<_> = entries.flat_map(|e| &mut e.outputs).collect();
            // Wider elements first, so that each stands at a multiple of its size.
            outputs.sort_by_key(|o| std::cmp::Reverse(o.dtype));
            let mut offset = 0;
            for output in outputs {
                output.offset = offset;
                offset = (offset + output.bytes).next_multiple_of(alignment);
            }
        }
    }

    /// The names and headers of all safetensors files.
    pub(super) fn headers(&self) -> Vec<(String, Vec<u8>)> {
        let count = self.shards.len();
        let name = |i: usize| match count {
            1 => checkpoint::SINGLE.to_owned(),
            _ => format!("model-{:05}-of-{count:05}.safetensors", i + 1),
        };
        (0..count).map(|i| (name(i), self.header(i))).collect()
    }

    /// The header of file `shard`, with its length before it.
    fn header(&self, shard: usize) -> Vec<u8> {
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
        self.sources().map(Source::size).sum()
    }

    fn sources(&self) -> impl Iterator<Item = Source<'a>> {
        self.entries.iter().flat_map(|e| e.sources.iter().map(|part| part.source))
    }
}

/// What the options say of a layer.
struct Choice<'a> {
    options: &'a ConvertOptions,
    from_gguf: bool,
    layers: usize,
}

impl<'a> Choice<'a> {
    fn new(
        tensors: &[(String, Vec<Part<'_>>)],
        from_gguf: bool,
        options: &'a ConvertOptions,
    ) -> Self {
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
        chosen.map(|o| o.format).or_else(|| self.router(layer).map(Some)).or_else(high)
    }

    /// What chooses among experts: mlx-lm's own choice, where no recipe takes its place.
    fn router(&self, layer: &str) -> Option<AffineFormat> {
        let router = self.options.high_bits.is_none() && layer.ends_with("mlp.gate");
        router.then_some(AffineFormat { bits: 8, group: 64 })
    }
}

/// What rows of so many weights become; halves where no block divides them.
fn blocks(kind: GgufType, cols: usize) -> Form {
    let kinds: &[BlockType] = match kind {
        GgufType::F16 => &[],
        GgufType::Q4_0 => &[BlockType::Q4_0],
        GgufType::Q8_0 => &[BlockType::Q8_0],
        GgufType::Q4_K => &[BlockType::Q4_K, BlockType::Q8_0],
    };
    let fits = |kind: &&BlockType| cols.is_multiple_of(kind.block().0);
    kinds.iter().find(fits).map_or(Form::Cast(DType::F16), |kind| Form::Blocks(*kind))
}

fn outputs(name: &str, sources: &[Part<'_>], form: Form) -> Vec<Output> {
    let (source, count) = (sources[0].source, sources.len());
    let shape = source.shape();
    let experts = Some(count).filter(|n| *n > 1);
    let output = |name: String, dtype: Dtype, shape: &[usize]| {
        let shape: Vec<usize> = experts.into_iter().chain(shape.iter().copied()).collect();
        // Not by whole bytes an element: some types have 4 bits, or 6.
        let bits = shape.iter().map(|&n| n as u64).product::<u64>() * dtype.bitsize() as u64;
        Output { name, dtype, shape, bytes: bits / 8, offset: 0 }
    };
    if let Form::Blocks(kind) = form {
        let mut output = output(name.to_owned(), Dtype::U8, shape);
        let (weights, bytes) = kind.block();
        output.bytes = output.bytes / weights as u64 * bytes as u64;
        return vec![output];
    }
    let layer = name.strip_suffix(".weight").unwrap_or(name);
    if let (Form::Mxfp4, [rows @ .., cols]) = (form, shape) {
        let with = |cols: usize| [rows, &[cols]].concat();
        let scales = format!("{layer}.scales");
        return vec![
            output(name.to_owned(), Dtype::U32, &with(cols / 8)),
            output(scales, Dtype::U8, &with(cols / MXFP4_GROUP)),
        ];
    }
    let (Some(format), [rows @ .., cols]) = (form.format(), shape) else {
        let dtype = match form {
            Form::Cast(DType::F32) => Dtype::F32,
            Form::Cast(DType::F16) => Dtype::F16,
            Form::Cast(DType::BF16) => Dtype::BF16,
            _ => source.dtype(),
        };
        return vec![output(name.to_owned(), dtype, shape)];
    };
    let with = |cols: usize| [rows, &[cols]].concat();
    let groups = with(cols / format.group);
    let part = |suffix| output(format!("{layer}.{suffix}"), source.dtype(), &groups);
    let codes = output(name.to_owned(), Dtype::U32, &with(format.row_bytes(*cols) / 4));
    vec![codes, part("scales"), part("biases")]
}
