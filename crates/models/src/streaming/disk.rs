//! Experts of a checkpoint as it lies: read and repacked each time.

use super::{LayerOfExperts, record::Shapes};
use crate::ModelError;
use std::sync::Arc;
use taper_moe_streaming::{
    ExpertDisk, ExpertError, ExpertKey, HEADER_BYTES, LayerEntry, PAGE, padded,
};

/// A checkpoint as a disk of records.
#[derive(Debug)]
pub(super) struct CheckpointDisk {
    layers: Vec<LayerOfExperts>,
    shapes: Arc<Shapes>,
    payloads: Vec<usize>,
}

impl CheckpointDisk {
    pub(super) fn new(layers: Vec<LayerOfExperts>, shapes: Arc<Shapes>) -> Self {
        let payload = |layer| shapes.get(layer).and_then(|shape| shape.payload().ok());
        let payloads = (0..layers.len() as u32).map(|layer| payload(layer).unwrap_or(0)).collect();
        Self { layers, shapes, payloads }
    }

    /// What a manifest of them says.
    pub(super) fn entries(&self) -> Vec<LayerEntry> {
        let entry = |(number, layer): (u32, &LayerOfExperts)| {
            self.shapes.get(number)?.entry(&layer.name, layer.source.experts()).ok()
        };
        (0u32..).zip(&self.layers).filter_map(entry).collect()
    }

    /// An expert of a layer, another one in each.
    pub(super) fn sample(&self, layer: usize) -> ExpertKey {
        let experts = self.layers.get(layer).map_or(1, |layer| layer.source.experts());
        ExpertKey { layer: layer as u32, expert: (layer * 7 % experts.max(1)) as u32 }
    }

    fn fill(&self, key: ExpertKey, payload: &mut [u8]) -> Result<(), ModelError> {
        let layer = self.layers.get(key.layer as usize).ok_or(ExpertError::Missing { key })?;
        let shape = self.shapes.get(key.layer).ok_or(ExpertError::Missing { key })?;
        shape.write(&layer.source, key.expert as usize, payload)
    }
}

impl ExpertDisk for CheckpointDisk {
    fn experts(&self) -> Vec<usize> {
        self.layers.iter().map(|layer| layer.source.experts()).collect()
    }

    fn record_bytes(&self, layer: u32) -> usize {
        padded(self.payloads.get(layer as usize).copied().unwrap_or(0), PAGE)
    }

    fn read(&self, key: ExpertKey, to: &mut [u8]) -> Result<(), ExpertError> {
        let payload = self.payloads.get(key.layer as usize).copied().unwrap_or(0);
        let payload = to.get_mut(HEADER_BYTES..HEADER_BYTES + payload);
        let payload = payload.ok_or(ExpertError::Missing { key })?;
        let wrap = |source: ModelError| ExpertError::Expert { key, source: source.into() };
        self.fill(key, payload).map_err(wrap)
    }
}
