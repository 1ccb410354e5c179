//! Writing tensors to their places.

use super::{
    ConvertError,
    names::Part,
    plan::{Entry, Form, Plan},
    source::Source,
    staging::{Staging, write_error},
};
use crate::{
    WeightsError, checkpoint,
    gguf::{names::Changes, write::encode},
};
use half::{bf16, f16};
use std::{
    borrow::Cow,
    collections::HashSet,
    fs::File,
    io::{Seek, SeekFrom, Write},
    path::PathBuf,
};
use taper_tensor::{
    AffineFormat, AffineParts, DType, ScaleMethod, cpu::quantize_mxfp4, quantize_by,
};

/// The files of a conversion, with their headers, whose tensors are written in any order.
#[derive(Debug)]
pub(super) struct Shards {
    all: Vec<Shard>,
}

#[derive(Debug)]
struct Shard {
    name: String,
    path: PathBuf,
    file: File,
    /// Where the data begin.
    start: u64,
}

impl Shards {
    /// Begins files of these names with these headers.
    pub(super) fn create(
        headers: Vec<(String, Vec<u8>)>,
        stage: &Staging,
    ) -> Result<Self, ConvertError> {
        let one = |(name, header): (String, Vec<u8>)| {
            let path = stage.path(&name);
            let mut file = File::create(&path).map_err(write_error(&path))?;
            file.write_all(&header).map_err(write_error(&path))?;
            Ok(Shard { name, path, file, start: header.len() as u64 })
        };
        Ok(Self { all: headers.into_iter().map(one).collect::<Result<_, ConvertError>>()? })
    }

    /// Writes bytes at an offset of a file's data.
    pub(super) fn put(
        &mut self,
        shard: usize,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), ConvertError> {
        let Some(Shard { path, file, start, .. }) = self.all.get_mut(shard) else { return Ok(()) };
        let written = file.seek(SeekFrom::Start(*start + offset));
        written.and_then(|_| file.write_all(bytes)).map_err(write_error(path))
    }

    /// Ends all files, and returns their names.
    fn finish(self) -> Result<Vec<String>, ConvertError> {
        let finish = |shard: Shard| {
            shard.file.sync_all().map_err(write_error(&shard.path))?;
            Ok(shard.name)
        };
        self.all.into_iter().map(finish).collect()
    }
}

/// Writes what is not `done` yet, and returns the names of all files.
pub(super) fn rest(
    plan: &Plan<'_>,
    mut shards: Shards,
    done: &HashSet<usize>,
    method: ScaleMethod,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Vec<String>, ConvertError> {
    let (mut sum, total) = (0, plan.source_bytes());
    progress(sum, total);
    let mut advance = |bytes| {
        sum += bytes;
        progress(sum, total);
    };
    for (i, entry) in plan.entries.iter().enumerate() {
        match done.contains(&i) {
            true => advance(entry.sources.iter().map(|part| part.source.size()).sum()),
            false => write_entry(entry, method, &mut shards, &mut advance)?,
        }
    }
    shards.finish()
}

fn write_entry(
    entry: &Entry<'_>,
    method: ScaleMethod,
    shards: &mut Shards,
    advance: &mut dyn FnMut(u64),
) -> Result<(), ConvertError> {
    let mut at: Vec<_> = entry.outputs.iter().map(|o| o.offset).collect();
    let mut put = |i: usize, bytes: &[u8]| {
        shards.put(entry.shard, at[i], bytes)?;
        at[i] += bytes.len() as u64;
        Ok(())
    };
    for Part { name, source } in &entry.sources {
        // A vector's elements are what rows are in a matrix.
        let cols = if source.shape().len() < 2 { 1 } else { source.matrix().1 };
        let head = entry.changes.neighbours.unwrap_or(1);
        match (entry.form, source) {
            (Form::Copy, Source::Floats(raw)) => {
                put(0, raw.bytes.as_slice())?;
                advance(source.size());
            }
            // What is copied is floats.
            (Form::Copy, _) => {}
            (Form::Cast(dtype), _) => source.read(name, head, &mut |values, bytes| {
                put(0, &cast(name, &changed(values, cols, entry.changes), dtype)?)?;
                advance(bytes);
                Ok(())
            })?,
            (Form::Blocks(kind), _) => source.read(name, head, &mut |values, bytes| {
                let blocks = encode(kind, &changed(values, cols, entry.changes));
                put(
                    0,
                    &blocks
                        .ok_or_else(|| ConvertError::OtherMatrix { name: (*name).to_owned() })?,
                )?;
                advance(bytes);
                Ok(())
            })?,
            (Form::Mxfp4, _) => source.read(name, 1, &mut |values, bytes| {
                let (codes, scales) = quantize_mxfp4(values);
                put(0, &codes)?;
                put(1, &scales)?;
                advance(bytes);
                Ok(())
            })?,
            (Form::Quantize(format), _) => {
                quantized(name, *source, (format, method), &mut put, advance)?;
            }
            (Form::Repack(_), _) => repacked(name, *source, &mut put, advance)?,
        }
    }
    Ok(())
}

/// Appends bytes to an output of an entry.
type Put<'a> = dyn FnMut(usize, &[u8]) -> Result<(), ConvertError> + 'a;

fn put_parts(parts: &AffineParts, put: &mut Put<'_>) -> Result<(), ConvertError> {
    let parts = [&parts.codes, &parts.scales, &parts.biases];
    parts.into_iter().enumerate().try_for_each(|(i, part)| put(i, part))
}

/// Quantizes a matrix; `put(i, bytes)` appends to codes, scales or biases.
fn quantized(
    name: &str,
    source: Source<'_>,
    (format, method): (AffineFormat, ScaleMethod),
    put: &mut Put<'_>,
    advance: &mut dyn FnMut(u64),
) -> Result<(), ConvertError> {
    let wrap = |source| WeightsError::Tensor { name: name.to_owned(), source };
    let dtype = checkpoint::float_type(name, source.dtype())?;
    let (_, cols) = source.matrix();
    source.read(name, 1, &mut |values, bytes| {
        let parts = quantize_by(method, values, cols, format, dtype).map_err(wrap)?;
        put_parts(&parts, put)?;
        advance(bytes);
        Ok(())
    })
}

/// Writes blocks of a GGUF file as the affine matrix that they are.
fn repacked(
    name: &str,
    source: Source<'_>,
    put: &mut Put<'_>,
    advance: &mut dyn FnMut(u64),
) -> Result<(), ConvertError> {
    let Source::Blocks(blocks) = source else { return Ok(()) };
    let (rows, cols) = source.matrix();
    let wrap = |source| WeightsError::Tensor { name: name.to_owned(), source };
    let parts = blocks.parts(rows, cols).map_err(wrap)?;
    let finite = |b: &[u8; 2]| f16::from_le_bytes(*b).is_finite();
    let mut sides = [&parts.scales, &parts.biases].into_iter();
    if !sides.all(|side| side.as_chunks().0.iter().all(finite)) {
        return Err(ConvertError::NotFinite { name: name.to_owned() });
    }
    put_parts(&parts, put)?;
    blocks.bytes.release();
    advance(source.size());
    Ok(())
}

/// Whole heads of rows as llama.cpp has them: rows that rotate together side by side, and 1 added to gains.
fn changed(values: &[f32], cols: usize, changes: Changes) -> Cow<'_, [f32]> {
    let added = if changes.plus_one { 1.0 } else { 0.0 };
    if changes == Changes::default() {
        return Cow::Borrowed(values);
    }
    let rows = values.len() / cols.max(1);
    let mut out = vec![0.0; values.len()];
    for (r, row) in values.chunks_exact(cols.max(1)).enumerate() {
        let to = changes.source(r);
        if to < rows {
            let out = &mut out[to * cols..][..cols];
            out.iter_mut().zip(row).for_each(|(out, x)| *out = x + added);
        }
    }
    Cow::Owned(out)
}

/// The bytes of values in another type.
fn cast(name: &str, values: &[f32], dtype: DType) -> Result<Vec<u8>, ConvertError> {
    let mut out = Vec::with_capacity(values.len() * dtype.size_in_bytes());
    let mut finite = true;
    for &value in values {
        match dtype {
            DType::F32 => out.extend(value.to_le_bytes()),
            DType::F16 => {
                let half = f16::from_f32(value);
                finite &= half.is_finite();
                out.extend(half.to_le_bytes());
            }
            DType::BF16 => {
                let half = bf16::from_f32(value);
                finite &= half.is_finite();
                out.extend(half.to_le_bytes());
            }
        }
    }
    match finite {
        true => Ok(out),
        false => Err(ConvertError::Overflow { name: name.to_owned(), dtype }),
    }
}
