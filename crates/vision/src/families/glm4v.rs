//! GLM-4V: squares of patches are merged by a convolution and a gated layer.

use super::{
    Parts, Sources,
    qwen_vl::{Counts, SquareProcessor},
};
use crate::{
    VisionError,
    encoder::{Rows, Tower},
    layers::{
        Activation, Block, BlockNames, BlockShape, Grid, Linear, Mlp, Norm, NormKind,
        PatchEmbedding, Rope, Sampling, resampled,
    },
};
use candle_core::{Device, Result, Tensor};
use serde_json::json;
use taper_base::PreparedImage;

const NAMES: BlockNames = BlockNames {
    norms: ["norm1", "norm2"],
    qkv: &["attn.qkv"],
    out: "attn.proj",
    mlp: &["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"],
    qk_norms: None,
    scales: None,
};

pub(super) fn build(sources: &Sources<'_>) -> std::result::Result<Parts, VisionError> {
    let vision = sources.vision;
    let weights = sources.below(
        &["model.visual", "visual", "vision_tower", "model.vision_tower"],
        "patch_embed.proj",
    )?;
    let (hidden, heads) =
        (vision.count_or("hidden_size", 1536)?, vision.count_or("num_heads", 12)?);
    let output = vision.count_or("out_hidden_size", 4096)?;
    let act = Activation::read(vision, "hidden_act", "silu")?;
    let eps = vision.float_or("rms_norm_eps", 1e-5)?;
    let norm = NormKind::Rms;
    // The layers' width within is the output's; intermediate_size is the merger's.
    let (head_dim, inner) = (hidden / heads, output);
    let shape = BlockShape { hidden, heads, head_dim, inner, norm, eps, act };
    let merge = vision.count_or("spatial_merge_size", 2)?;
    let (patch, frames) =
        (vision.side_or("patch_size", 14)?, vision.side_or("temporal_patch_size", 2)?);
    let side = vision.side_or("image_size", 336)? / patch;
    let rope = vision.section("rope_parameters");
    rope.require("rope_type", &["axial", "default"], "axial")?;
    let merger = weights.at("merger");
    let widths = [output, vision.count_or("intermediate_size", 13_696)?, output];
    let tower = Glm {
        patch: PatchEmbedding::load(
            &weights,
            "patch_embed.proj",
            hidden,
            &[3, frames, patch, patch],
        )?,
        norms: [
            Norm::load(&weights, "post_conv_layernorm", hidden, norm, eps)?,
            Norm::load(&weights, "post_layernorm", hidden, norm, eps)?,
        ],
        positions: weights.matrix("embeddings.position_embedding", side * side, hidden)?,
        side,
        blocks: Block::load_all(
            &weights.at("blocks"),
            vision.count_or("depth", 24)?,
            &NAMES,
            &shape,
        )?,
        downsample: PatchEmbedding::load(&weights, "downsample", output, &[hidden, merge, merge])?,
        project: Linear::load(&merger, "proj", output, output)?,
        norm: Norm::load(&merger, "post_projection_norm", output, NormKind::Layer, 1e-5)?,
        mlp: Mlp::load(&merger, &["gate_proj", "up_proj", "down_proj"], widths, act)?,
        merge,
        head_dim,
        theta: rope.float_or("rope_theta", 10_000.0)?,
        device: weights.device().clone(),
    };
    let fields = sources.processor;
    for (name, ours) in
        [("patch_size", patch), ("merge_size", merge), ("temporal_patch_size", frames)]
    {
        fields.expect(name, &json!(ours))?;
    }
    let image_token = sources.token_of(&["image_token_id"], "<|image|>")?;
    let sizes = [patch, merge, frames];
    Ok(Parts {
        processor: Box::new(SquareProcessor::read(fields, sizes, Counts::Frames, image_token)?),
        tower: Box::new(tower),
        placeholder: image_token,
        image_token,
        hidden: output,
        idle: &["inv_freq"],
    })
}

#[derive(Debug)]
struct Glm {
    patch: PatchEmbedding,
    /// Before and behind the layers.
    norms: [Norm; 2],
    positions: Tensor,
    side: usize,
    blocks: Vec<Block>,
    downsample: PatchEmbedding,
    project: Linear,
    norm: Norm,
    mlp: Mlp,
    merge: usize,
    head_dim: usize,
    theta: f64,
    device: Device,
}

impl Tower for Glm {
    fn forward(&self, image: &PreparedImage) -> Result<Rows> {
        let Some([1, height, width]) = image.grid else {
            candle_core::bail!("the image has no grid");
        };
        let (height, width) = (height as usize * self.merge, width as usize * self.merge);
        let grid = Grid { height, width, merge: self.merge };
        let pixels = Tensor::from_slice(&image.pixels, image.shape.as_slice(), &self.device)?;
        let mut x = self.norms[0].forward(&self.patch.forward(&pixels)?)?;
        x = (x + resampled(&self.positions, self.side, grid, Sampling::Cubic)?)?;
        let rope = Rope::axial(&grid.positions(), self.head_dim, self.theta, &self.device)?;
        for block in &self.blocks {
            x = block.forward(&x, Some(&rope), &[grid.patches()])?;
        }
        x = self.norms[1].forward(&x)?;
        let hidden = x.dim(1)?;
        // The convolution counts channels first.
        let x = x.reshape(((), self.merge * self.merge, hidden))?.transpose(1, 2)?.contiguous()?;
        let x = self.downsample.forward(&x.flatten_from(1)?)?;
        let x = self.norm.forward(&self.project.forward(&x)?)?;
        Ok(self.mlp.forward(&Activation::Gelu.forward(&x)?)?.into())
    }
}
