//! Experts as payloads of records: the images of their maps, one after the other, each at a multiple of 64.

use crate::{ModelError, Precision, experts::ExpertSource, feed_forward::Dense};
use std::error::Error;
use taper_moe_streaming::{ExpertError, ExpertKey, HEADER_BYTES, LayerEntry};
use taper_tensor::{Bytes, Linear, LinearLayout, cpu::maps::IMAGE_ALIGN};

/// Any repacked arithmetic: they all read one order.
const PACKED: Precision = Precision::Int8;

/// What the payloads of a layer are.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Shape {
    maps: Vec<LinearLayout>,
    limit: Option<f32>,
}

impl Shape {
    /// That of the first expert, which all others must have.
    pub(super) fn of(source: &ExpertSource) -> Result<Self, ModelError> {
        let maps = packed(source, 0)?;
        let layouts = maps.iter().map(|map| map.layout().ok_or(ModelError::NoImage));
        Ok(Self { maps: layouts.collect::<Result<_, _>>()?, limit: source.limit() })
    }

    /// Weights of an expert.
    pub(super) fn parameters(&self) -> u64 {
        let of = |map: &LinearLayout| {
            let (rows, cols) = map.matrix.shape();
            rows as u64 * cols as u64
        };
        self.maps.iter().map(of).sum()
    }

    /// Where each map lies in a payload, and where that ends.
    fn places(&self) -> Result<(Vec<std::ops::Range<usize>>, usize), ModelError> {
        let (mut at, mut places) = (0usize, Vec::with_capacity(self.maps.len()));
        for map in &self.maps {
            let end = at + map.bytes()?;
            places.push(at..end);
            at = end.next_multiple_of(IMAGE_ALIGN);
        }
        Ok((places, at))
    }

    /// Bytes of a payload.
    pub(super) fn payload(&self) -> Result<usize, ModelError> {
        Ok(self.places()?.1)
    }

    /// What a manifest says of the layer.
    pub(super) fn entry(&self, name: &str, experts: usize) -> Result<LayerEntry, ModelError> {
        let maps = self.maps.iter().map(LinearLayout::to_string).collect();
        Ok(LayerEntry { name: name.to_owned(), experts, payload: self.payload()?, maps })
    }

    /// Makes the payload of an expert, of the checkpoint.
    pub(super) fn write(
        &self,
        source: &ExpertSource,
        expert: usize,
        payload: &mut [u8],
    ) -> Result<(), ModelError> {
        let maps = packed(source, expert)?;
        let (places, _) = self.places()?;
        payload.fill(0);
        for ((map, layout), place) in maps.iter().zip(&self.maps).zip(places) {
            let to = payload.get_mut(place).filter(|_| map.layout() == Some(*layout));
            map.write_image(to.ok_or(ModelError::NoImage)?)?;
        }
        Ok(())
    }

    /// The expert of a payload, over its memory.
    fn read(&self, precision: Precision, payload: &Bytes) -> Result<Dense, ModelError> {
        let (places, _) = self.places()?;
        let mut maps = Vec::with_capacity(self.maps.len());
        for (layout, place) in self.maps.iter().zip(places) {
            let image = payload.slice(place).ok_or(ModelError::NoImage)?;
            maps.push(Linear::from_image(*layout, precision, &image)?);
        }
        crate::experts::expert(maps, self.limit)
    }
}

/// The maps of an expert as kernels read them.
fn packed(source: &ExpertSource, expert: usize) -> Result<Vec<Linear>, ModelError> {
    source.want(expert);
    Ok(source.maps(expert)?.into_iter().map(|map| map.for_image(PACKED)).collect())
}

/// What the payloads of all layers are.
#[derive(Debug)]
pub(super) struct Shapes(Vec<Shape>);

impl Shapes {
    pub(super) fn new(layers: Vec<Shape>) -> Self {
        Self(layers)
    }

    pub(super) fn get(&self, layer: u32) -> Option<&Shape> {
        self.0.get(layer as usize)
    }

    /// The expert of a record.
    pub(super) fn expert(
        &self,
        key: ExpertKey,
        precision: Precision,
        record: &Bytes,
    ) -> Result<Dense, Box<dyn Error + Send + Sync>> {
        let shape = self.get(key.layer).ok_or(ExpertError::Missing { key })?;
        let end = HEADER_BYTES + shape.payload()?;
        let payload = record.slice(HEADER_BYTES..end).ok_or(ModelError::NoImage)?;
        Ok(shape.read(precision, &payload)?)
    }
}
