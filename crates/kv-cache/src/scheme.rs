//! Which codec each layer has.

use crate::KvCacheError;
use std::{collections::BTreeMap, fmt, sync::Arc};
use taper_kv_codecs::{BlockBytes, KvCodec, KvGeometry};

/// A codec for all layers, and others for some. Layers are counted as the cache counts them: those
/// without keys and values have no number.
#[derive(Debug, Clone)]
pub struct KvScheme {
    default: Arc<dyn KvCodec>,
    layers: BTreeMap<usize, Arc<dyn KvCodec>>,
}

/// `f16` for all layers.
impl Default for KvScheme {
    fn default() -> Self {
        taper_kv_codecs::f16().into()
    }
}

impl From<Arc<dyn KvCodec>> for KvScheme {
    fn from(default: Arc<dyn KvCodec>) -> Self {
        Self { default, layers: BTreeMap::new() }
    }
}

impl KvScheme {
    /// One codec a layer, from the first on; layers beyond the last have the most frequent one.
    ///
    /// # Errors
    /// There is none.
    pub fn of_layers(codecs: &[Arc<dyn KvCodec>]) -> Result<Self, KvCacheError> {
        let mut counts = BTreeMap::<&str, usize>::new();
        codecs.iter().for_each(|c| *counts.entry(c.name()).or_default() += 1);
        let most = codecs.iter().rev().max_by_key(|c| counts[c.name()]);
        let Some(default) = most.cloned() else { return Err(KvCacheError::NoLayers) };
        let others = codecs.iter().enumerate().filter(|(_, c)| c.name() != default.name());
        let layers = others.map(|(layer, codec)| (layer, Arc::clone(codec))).collect();
        Ok(Self { default, layers })
    }

    /// The codec of a layer.
    #[must_use]
    pub fn codec(&self, layer: usize) -> &Arc<dyn KvCodec> {
        self.layers.get(&layer).unwrap_or(&self.default)
    }

    /// Bits an element, where every layer has the same for keys and values. What a scale takes is
    /// not counted: `turbo4` has 4.
    #[must_use]
    pub fn bits(&self) -> Option<usize> {
        let bits = taper_kv_codecs::bits(self.default.name());
        bits.filter(|_| self.layers.is_empty())
    }

    /// Bytes of an exact block over layers of these shapes; those of exact codecs have none.
    pub(crate) fn exact_block_bytes(&self, layers: impl Iterator<Item = KvGeometry>) -> u64 {
        layers.enumerate().filter_map(|(l, g)| self.codec(l).exact_block_bytes(g)).map(both).sum()
    }
}

fn both(block: BlockBytes) -> u64 {
    (block.k + block.v) as u64
}

/// `taper3`, or `taper3 (0-1: taper4, 27: f16)`.
impl fmt::Display for KvScheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.default.name())?;
        let mut runs: Vec<(usize, usize, &str)> = Vec::new();
        for (&layer, codec) in &self.layers {
            match runs.last_mut() {
                Some((_, last, name)) if *last + 1 == layer && *name == codec.name() => {
                    *last = layer;
                }
                _ => runs.push((layer, layer, codec.name())),
            }
        }
        for (i, (first, last, name)) in runs.iter().enumerate() {
            f.write_str(if i == 0 { " (" } else { ", " })?;
            match first == last {
                true => write!(f, "{first}: {name}")?,
                false => write!(f, "{first}-{last}: {name}")?,
            }
        }
        if runs.is_empty() { Ok(()) } else { f.write_str(")") }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::KvConfig;

    #[test]
    fn layers_differ_and_bytes_add_up() {
        let codec = |name| taper_kv_codecs::parse(name).unwrap();
        let names = ["taper4", "taper4", "taper3", "taper3", "taper3", "f16"];
        let scheme = KvScheme::of_layers(&names.map(codec)).unwrap();
        assert_eq!(scheme.to_string(), "taper3 (0-1: taper4, 5: f16)");
        assert_eq!(scheme.bits(), None);
        let g = KvGeometry { kv_heads: 2, head_dim: 64, block_tokens: 32 };
        let bytes = |name| both(codec(name).block_bytes(g));
        let sum = names.map(bytes).iter().sum::<u64>();
        let config = KvConfig::new(scheme.clone(), 6, g, 1);
        assert_eq!(config.bytes_per_block(), sum);
        let exact = both(codec("taper4").exact_block_bytes(g).unwrap());
        assert_eq!(scheme.exact_block_bytes([g; 6].into_iter()), 5 * exact, "f16 is exact itself");
        let one = KvScheme::from(codec("turbo4"));
        assert_eq!((one.to_string().as_str(), one.bits()), ("turbo4", Some(4)));
        assert_eq!(KvScheme::from(codec("auto")).bits(), Some(16));
        assert_eq!(KvScheme::from(codec("taper4v3")).bits(), None);
        assert!(matches!(KvScheme::of_layers(&[]), Err(KvCacheError::NoLayers)));
    }
}
