//! Towers of CLIP's shape: square images, learned positions, layers. CLIP, SigLIP and InternViT differ in names.

use crate::{
    Fields, VisionError,
    layers::{Block, BlockNames, BlockShape, Norm, NormKind, PatchEmbedding, cut},
    weights::Weights,
};
use candle_core::{D, Result, Tensor};

/// How a tower's tensors are called.
#[derive(Debug, Clone, Copy)]
pub(super) struct VitNames {
    pub(super) patch: &'static str,
    pub(super) class: Option<&'static str>,
    /// A tensor, with `.weight` where it is called so.
    pub(super) positions: &'static str,
    /// A norm before the layers.
    pub(super) pre: Option<&'static str>,
    pub(super) layers: &'static str,
    pub(super) block: BlockNames,
    /// A norm behind the layers.
    pub(super) post: Option<&'static str>,
}

/// Layers of CLIP and SigLIP.
pub(super) const BLOCK: BlockNames = BlockNames {
    norms: ["layer_norm1", "layer_norm2"],
    qkv: &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    out: "self_attn.out_proj",
    mlp: &["mlp.fc1", "mlp.fc2"],
    qk_norms: None,
    scales: None,
};

/// SigLIP: no class token, and a norm behind the layers.
pub(super) const SIGLIP: VitNames = VitNames {
    patch: "embeddings.patch_embedding",
    class: None,
    positions: "embeddings.position_embedding.weight",
    pre: None,
    layers: "encoder.layers",
    block: BLOCK,
    post: Some("post_layernorm"),
};

/// CLIP: a class token, and a norm before the layers.
pub(super) const CLIP: VitNames = VitNames {
    class: Some("embeddings.class_embedding"),
    pre: Some("pre_layrnorm"),
    post: None,
    ..SIGLIP
};

/// Sizes of a tower's images.
#[derive(Debug, Clone, Copy)]
pub(super) struct VitSizes {
    /// Of an image, in pixels.
    pub(super) image: usize,
    /// Of a patch, in pixels.
    pub(super) patch: usize,
}

impl VitSizes {
    pub(super) fn read(
        vision: Fields<'_>,
        image: usize,
        patch: usize,
    ) -> std::result::Result<Self, VisionError> {
        Ok(Self {
            image: vision.side_or("image_size", image)?,
            patch: vision.side_or("patch_size", patch)?,
        })
    }

    /// Patches along a side.
    pub(super) fn side(self) -> usize {
        self.image / self.patch
    }
}

/// A tower for square images of one size.
#[derive(Debug)]
pub(super) struct Vit {
    patch: PatchEmbedding,
    class: Option<Tensor>,
    /// `[1, patches and class, hidden]`.
    positions: Tensor,
    pre: Option<Norm>,
    blocks: Vec<Block>,
    post: Option<Norm>,
    pub(super) sizes: VitSizes,
    pub(super) hidden: usize,
}

impl Vit {
    /// With the first `depth` layers; the norm behind layers only with all of them.
    pub(super) fn load(
        weights: &Weights<'_>,
        names: &VitNames,
        shape: &BlockShape,
        sizes: VitSizes,
        depth: usize,
    ) -> std::result::Result<Self, VisionError> {
        let hidden = shape.hidden;
        let norm = |name: &str| Norm::load(weights, name, hidden, shape.norm, shape.eps);
        let class = match names.class {
            Some(name) => Some(weights.stored(name)?.reshape((1, hidden))?),
            None => None,
        };
        let rows = sizes.side() * sizes.side() + usize::from(class.is_some());
        let positions = weights.stored(names.positions)?;
        if positions.elem_count() != rows * hidden {
            return weights.misshapen(names.positions, &[rows, hidden], positions.dims());
        }
        Ok(Self {
            patch: PatchEmbedding::load(
                weights,
                names.patch,
                hidden,
                &[3, sizes.patch, sizes.patch],
            )?,
            class,
            positions: positions.reshape((1, rows, hidden))?,
            pre: names.pre.map(norm).transpose()?,
            blocks: Block::load_all(&weights.at(names.layers), depth, &names.block, shape)?,
            post: names.post.map(norm).transpose()?,
            sizes,
            hidden,
        })
    }

    /// Other rows of positions, by the number of the patch.
    pub(super) fn pick_positions(&mut self, rows: &[u32]) -> Result<()> {
        let rows = Tensor::new(rows, self.positions.device())?;
        self.positions = self.positions.index_select(&rows, 1)?;
        Ok(())
    }

    /// Images `[n, 3, size, size]` to hidden states `[n, patches, hidden]`: those behind as many layers as `keep` says,
    /// in that order, side by side. With `class`, the class token is the first row of an image.
    pub(super) fn forward(&self, images: &Tensor, keep: &[usize], class: bool) -> Result<Tensor> {
        let n = images.dim(0)?;
        let patches = self.sizes.side() * self.sizes.side();
        let mut x = self.patch.forward(&cut(images, self.sizes.patch)?)?;
        x = x.reshape((n, patches, self.hidden))?;
        if let Some(token) = &self.class {
            x = Tensor::cat(&[&token.expand((n, 1, self.hidden))?, &x], 1)?;
        }
        x = x.broadcast_add(&self.positions)?;
        let rows = x.dim(1)?;
        x = x.reshape((n * rows, self.hidden))?;
        if let Some(norm) = &self.pre {
            x = norm.forward(&x)?;
        }
        let segments: Vec<_> = (1..=n).map(|i| i * rows).collect();
        let mut kept = vec![x.clone(); keep.len()];
        for (depth, block) in (1..).zip(&self.blocks) {
            x = block.forward(&x, None, &segments)?;
            let last = depth == self.blocks.len();
            for (kept, _) in kept.iter_mut().zip(keep).filter(|(_, own)| **own == depth) {
                *kept = match &self.post {
                    Some(norm) if last => norm.forward(&x)?,
                    _ => x.clone(),
                };
            }
        }
        let x = Tensor::cat(&kept, D::Minus1)?.reshape((n, rows, ()))?;
        if self.class.is_some() && !class { x.narrow(1, 1, patches) } else { Ok(x) }
    }
}

/// Reads the sizes of layers that CLIP and SigLIP have, with the family's activation.
pub(super) fn block_shape(
    vision: Fields<'_>,
    act: &'static str,
    eps: f64,
) -> std::result::Result<BlockShape, VisionError> {
    let hidden = vision.count_or("hidden_size", 1024)?;
    let heads = vision.count_or("num_attention_heads", 16)?;
    if hidden % heads != 0 {
        return Err(VisionError::Field {
            field: "num_attention_heads".to_owned(),
            value: heads.to_string(),
            expected: "heads that fill hidden_size are needed",
        });
    }
    Ok(BlockShape {
        hidden,
        heads,
        head_dim: hidden / heads,
        inner: vision.count_or("intermediate_size", 4 * hidden)?,
        norm: NormKind::Layer,
        eps: vision.float_or("layer_norm_eps", eps)?,
        act: crate::layers::Activation::read(vision, "hidden_act", act)?,
    })
}

/// `vision_feature_layer`s as numbers of layers that were run; negative ones count from the end.
pub(super) fn kept_layers(
    config: Fields<'_>,
    depth: usize,
    default: i64,
) -> std::result::Result<Vec<usize>, VisionError> {
    let name = "vision_feature_layer";
    let all = match config.get(name) {
        None => vec![Some(default)],
        Some(serde_json::Value::Array(all)) => all.iter().map(serde_json::Value::as_i64).collect(),
        Some(one) => vec![one.as_i64()],
    };
    let number = |layer: Option<i64>| {
        let layer = layer?;
        let from = if layer < 0 { depth as i64 + 1 } else { 0 };
        usize::try_from(from + layer).ok().filter(|&kept| kept <= depth)
    };
    let kept: Option<Vec<_>> = all.into_iter().map(number).collect();
    kept.filter(|kept| !kept.is_empty()).ok_or_else(|| VisionError::Field {
        field: name.to_owned(),
        value: config.get(name).map_or_else(String::new, ToString::to_string),
        expected: "numbers of layers are needed",
    })
}
