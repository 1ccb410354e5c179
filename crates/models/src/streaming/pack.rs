//! Packs: a model's experts as kernels read them, one record each.

use super::{LayerOfExperts, Streams, record::Shape};
use crate::{
    LoadOptions, ModelError,
    decoder::Decoder,
    families::{Described, described},
    mixers::StateIds,
    source::Source,
};
use std::path::{Path, PathBuf};
use taper_moe_streaming::{ExpertError, ExpertKey, PAGE, PackWriter, SourceFile, Written};
use taper_weights::Checkpoint;

/// What was packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackReport {
    /// Layers with experts.
    pub layers: usize,
    /// Records written now.
    pub records: usize,
    /// Records that an earlier attempt had left.
    pub resumed: usize,
    /// Bytes of all records.
    pub bytes: u64,
}

/// Writes the experts of a model into the directory `out`, and the hashes of its `files` into the manifest. Memory is
/// one expert's. Where `out` has a part of the pack, the rest is written. `progress(done, total)` counts bytes.
///
/// # Errors
/// The model has no experts, or cannot be loaded; `out` has a whole pack, or a part of another one; a file cannot be
/// read or written.
pub fn pack_experts(
    weights: &Checkpoint,
    out: &Path,
    files: &[PathBuf],
    progress: &mut dyn FnMut(u64, u64),
) -> Result<PackReport, ModelError> {
    let layers = layers(weights)?;
    let mut entries = Vec::with_capacity(layers.len());
    for (layer, shape) in &layers {
        entries.push(shape.entry(&layer.name, layer.source.experts())?);
    }
    let size = |path: &PathBuf| path.metadata().map_or(0, |data| data.len());
    let hashed: u64 = files.iter().map(size).sum();
    let records = entries.iter().map(|e| (e.experts * e.record_bytes(PAGE)) as u64);
    let (total, mut done) = (hashed + records.sum::<u64>(), 0);
    let mut step = |bytes| {
        done += bytes;
        progress(done, total);
    };
    let files = files.iter().map(|path| SourceFile::of(path, &mut step));
    let files = files.collect::<Result<_, _>>()?;
    let mut writer = PackWriter::new(out, files)?;
    for (number, ((layer, shape), entry)) in (0u32..).zip(layers.iter().zip(entries)) {
        let fill = |expert: usize, payload: &mut [u8]| {
            let key = ExpertKey { layer: number, expert: expert as u32 };
            let wrap = |source: ModelError| ExpertError::Expert { key, source: source.into() };
            shape.write(&layer.source, expert, payload).map_err(wrap)
        };
        writer.layer(entry, fill, &mut step)?;
    }
    let Written { records, resumed, bytes, .. } = writer.finish()?;
    Ok(PackReport { layers: layers.len(), records, resumed, bytes })
}

/// The layers with experts.
fn layers(weights: &Checkpoint) -> Result<Vec<(LayerOfExperts, Shape)>, ModelError> {
    let Described { spec, names, .. } = described(weights, LoadOptions::EXACT, false)?;
    let streams = Streams::new(weights);
    let source = Source::new(weights, spec.renames, spec.inputs_first).streamed(Some(&streams));
    let model = Decoder::without_layers(spec, source, &names, LoadOptions::EXACT)?;
    let mut ids = StateIds::default();
    for i in 0..model.spec().layers.len() {
        model.layer(i, source, &names, &mut ids, LoadOptions::EXACT)?;
    }
    let (layers, _) = streams.into_layers();
    match layers.is_empty() {
        true => Err(ModelError::NoExperts),
        false => Ok(layers),
    }
}
