//! What to quantize, and how finely.

use super::ConvertError;
use taper_tensor::{AffineFormat, DType, ScaleMethod};

/// Types of matrices in GGUF files that are written, by ggml's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
#[expect(non_camel_case_types, reason = "ggml's names")]
pub enum GgufType {
    /// Halves.
    F16,
    /// 4 bits, and a scale for 32 weights.
    Q4_0,
    /// 8 bits, and a scale for 32 weights.
    Q8_0,
    /// 4 bits, and a scale and a minimum of 6 bits for 32 weights. Rows of no multiple of 256 become Q8_0.
    Q4_K,
}

/// What becomes of matrices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum TargetFormat {
    /// They are quantized, each layer that the options say nothing else of in this format.
    Affine(AffineFormat),
    /// They are quantized in MLX's mode `mxfp4`: four bits, and a power of two for 32 weights.
    Mxfp4,
    /// The destination is a GGUF file, whose matrices are of this type.
    Gguf(GgufType),
    /// They are written as floats of this type, and so is everything else.
    Dense(DType),
    /// Blocks of a GGUF file become the codes, scales and biases that Taper computes with when it
    /// serves the file. Q4_0 to Q8_0 keep their values; scales of Q4_K and Q5_K are rounded to f16,
    /// and Q2_K, Q3_K and Q6_K become 8 bits in groups of 32. IQ4_NL and IQ4_XS become 8 bits, and
    /// MXFP4 5, with scales in f16. Floats stay floats.
    Stored,
}

/// How to convert. Begin with [`Self::new`] or [`Self::with_target`], and set fields.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ConvertOptions {
    /// What becomes of matrices.
    pub target: TargetFormat,
    /// mlx-lm's mixed recipes (`mixed_3_6`, `mixed_4_6`, ...): more bits for the head, and for
    /// value and down projections of the first and last eighth and every third layer between.
    pub high_bits: Option<u8>,
    /// Layers with a format of their own; where several match, the last one counts.
    pub overrides: Vec<Override>,
    /// How the scales of matrices are chosen that are quantized.
    pub method: ScaleMethod,
    /// A file is begun anew before it would grow beyond this.
    pub max_shard_bytes: u64,
}

impl ConvertOptions {
    /// One format for every matrix, in files of 5 GiB, as mlx-lm has them.
    #[must_use]
    pub fn new(format: AffineFormat) -> Self {
        Self::with_target(TargetFormat::Affine(format))
    }

    /// One target for every matrix, in files of 5 GiB.
    #[must_use]
    pub fn with_target(target: TargetFormat) -> Self {
        let (high_bits, overrides, method) = (None, Vec::new(), ScaleMethod::Range);
        Self { target, high_bits, overrides, method, max_shard_bytes: 5 << 30 }
    }

    pub(super) fn check(&self) -> Result<(), ConvertError> {
        let TargetFormat::Affine(format) = self.target else {
            let own = self.high_bits.is_some() || !self.overrides.is_empty();
            return if own { Err(ConvertError::OverrideAlone) } else { Ok(()) };
        };
        let high = self.high_bits.map(|bits| AffineFormat { bits, ..format });
        let own = self.overrides.iter().filter_map(|o| o.format);
        let mut all = [format].into_iter().chain(high).chain(own);
        // A group divides itself, so this asks whether the format exists.
        match all.find(|f| f.check(f.group).is_err()) {
            Some(format) => Err(ConvertError::UnknownFormat { format }),
            None => Ok(()),
        }
    }
}

/// A format for the layers that a pattern matches.
#[derive(Debug, Clone)]
pub struct Override {
    /// Consecutive segments of a layer's name, `*` for any one: `v_proj`, `layers.0`,
    /// `layers.*.mlp.down_proj`.
    pub pattern: String,
    /// `None` keeps the source's floats.
    pub format: Option<AffineFormat>,
}

impl Override {
    /// Whether the pattern occurs in `layer`, such as `model.layers.0.mlp.down_proj`.
    #[must_use]
    pub fn matches(&self, layer: &str) -> bool {
        let segments: Vec<_> = layer.split('.').collect();
        let pattern: Vec<_> = self.pattern.split('.').collect();
        let fits = |window: &[&str]| window.iter().zip(&pattern).all(|(s, p)| *p == "*" || s == p);
        segments.windows(pattern.len()).any(fits)
    }
}

/// Whether mlx-lm's mixed recipes give `layer`, one of `layers`, the higher width.
pub(super) fn is_sensitive(layer: &str, layers: usize) -> bool {
    let index = layer.split('.').find_map(|s| s.parse::<usize>().ok()).unwrap_or(0);
    let (first, last) = (layers / 8, 7 * layers / 8);
    let deep = index < first || index >= last || (index - first) % 3 == 2;
    let named = ["v_proj", "v_a_proj", "v_b_proj", "down_proj"].iter().any(|n| layer.contains(n));
    (named && deep) || layer.contains("lm_head")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_whole_segments() {
        let matches = |pattern: &str, layer| {
            Override { pattern: pattern.to_owned(), format: None }.matches(layer)
        };
        assert!(matches("v_proj", "model.layers.3.self_attn.v_proj"));
        assert!(!matches("v_proj", "model.layers.3.self_attn.qkv_proj"));
        assert!(matches("layers.1", "model.layers.1.self_attn.v_proj"));
        assert!(!matches("layers.1", "model.layers.11.self_attn.v_proj"));
        assert!(matches("layers.*.mlp.down_proj", "model.layers.11.mlp.down_proj"));
        assert!(!matches("layers.*.down_proj", "model.layers.11.mlp.down_proj"));
        assert!(!matches("a.b.c.d", "a.b"));
        assert!(!matches("", "lm_head"));
    }

    #[test]
    fn sensitive_layers_are_those_of_mlx_lm() {
        let deep: Vec<_> = (0..16)
            .filter(|i| is_sensitive(&format!("model.layers.{i}.mlp.down_proj"), 16))
            .collect();
        assert_eq!(deep, [0, 1, 4, 7, 10, 13, 14, 15]);
        assert!(is_sensitive("lm_head", 16));
        assert!(!is_sensitive("model.layers.0.mlp.up_proj", 16));
    }
}
