//! Qwen 2, 2.5, 3 and 3.5 VL: patches in squares that are merged into one row each.

mod processor;
mod tower;
mod windows;

use super::{Parts, Sources};
use crate::{
    VisionError,
    layers::{Activation, Block, BlockNames, BlockShape, NormKind, PatchEmbedding},
    weights::Weights,
};
pub(super) use processor::{Counts, SquareProcessor};
use serde_json::json;
use tower::{Merger, MergerNames, Table, Tower};
use windows::Windows;

const NAMES: BlockNames = BlockNames {
    norms: ["norm1", "norm2"],
    qkv: &["attn.qkv"],
    out: "attn.proj",
    mlp: &["mlp.linear_fc1", "mlp.linear_fc2"],
    qk_norms: None,
    scales: None,
};
const MERGER: MergerNames = MergerNames { norm: "norm", maps: ["linear_fc1", "linear_fc2"] };
const OLD_MERGER: MergerNames = MergerNames { norm: "ln_q", maps: ["mlp.0", "mlp.2"] };
const EPS: f64 = 1e-6;

/// Qwen 3 and 3.5: positions are learned and interpolated, and layers of Qwen 3 are read by DeepStack.
pub(super) fn qwen3_vl(sources: &Sources<'_>) -> Result<Parts, VisionError> {
    let vision = sources.vision;
    let hidden = vision.count("hidden_size")?;
    let shape = BlockShape {
        inner: vision.count("intermediate_size")?,
        norm: NormKind::Layer,
        act: Activation::read(vision, "hidden_act", "gelu_pytorch_tanh")?,
        ..shape(sources, hidden)?
    };
    let weights = weights(sources)?;
    let output = vision.count("out_hidden_size")?;
    let (mut tower, merged) = base(sources, &weights, &NAMES, &shape, 16)?;
    let positions = vision.count("num_position_embeddings")?;
    tower.table = Some(Table {
        rows: weights.matrix("pos_embed", positions, hidden)?,
        side: positions.isqrt(),
    });
    for (i, &layer) in vision.numbers_or("deepstack_visual_indexes", &[])?.iter().enumerate() {
        let weights = weights.at("deepstack_merger_list").at(i);
        let merger = Merger::load(&weights, &MERGER, [merged, output], merged, NormKind::Layer)?;
        tower.deep.push((layer, merger));
    }
    let merger = weights.at("merger");
    tower.merger = Some(Merger::load(&merger, &MERGER, [merged, output], hidden, NormKind::Layer)?);
    parts(sources, tower, output, (16, true))
}

/// Qwen 2.5: most layers attend within windows.
pub(super) fn qwen2_5_vl(sources: &Sources<'_>) -> Result<Parts, VisionError> {
    const GATED: BlockNames =
        BlockNames { mlp: &["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"], ..NAMES };
    let vision = sources.vision;
    let hidden = vision.count("hidden_size")?;
    let shape = BlockShape {
        inner: vision.count("intermediate_size")?,
        norm: NormKind::Rms,
        act: Activation::read(vision, "hidden_act", "silu")?,
        ..shape(sources, hidden)?
    };
    let weights = weights(sources)?;
    let output = vision.count("out_hidden_size")?;
    let (mut tower, merged) = base(sources, &weights, &GATED, &shape, 14)?;
    let patch = vision.side_or("patch_size", 14)?;
    tower.windows = Some(Windows {
        side: (vision.count_or("window_size", 112)? / tower.merge / patch).max(1),
        full: vision.numbers_or("fullatt_block_indexes", &[7, 15, 23, 31])?,
    });
    let merger = weights.at("merger");
    tower.merger =
        Some(Merger::load(&merger, &OLD_MERGER, [merged, output], hidden, NormKind::Rms)?);
    parts(sources, tower, output, (14, false))
}

/// Qwen 2.
pub(super) fn qwen2_vl(sources: &Sources<'_>) -> Result<Parts, VisionError> {
    const OLD: BlockNames = BlockNames { mlp: &["mlp.fc1", "mlp.fc2"], ..NAMES };
    let vision = sources.vision;
    let hidden = vision.count_or("embed_dim", 1280)?;
    let shape = BlockShape {
        inner: (hidden as f64 * vision.float_or("mlp_ratio", 4.0)?) as usize,
        norm: NormKind::Layer,
        act: Activation::read(vision, "hidden_act", "quick_gelu")?,
        ..shape(sources, hidden)?
    };
    let weights = weights(sources)?;
    let output = vision.count("hidden_size")?;
    let (mut tower, merged) = base(sources, &weights, &OLD, &shape, 14)?;
    let merger = weights.at("merger");
    tower.merger =
        Some(Merger::load(&merger, &OLD_MERGER, [merged, output], hidden, NormKind::Layer)?);
    parts(sources, tower, output, (14, false))
}

/// Below what the tower's tensors are; MLX calls it a vision tower.
fn weights<'a>(sources: &'a Sources<'_>) -> Result<Weights<'a>, VisionError> {
    sources.below(
        &["model.visual", "visual", "vision_tower", "model.vision_tower"],
        "patch_embed.proj",
    )
}

/// What all have in common; the rest is filled in.
fn shape(sources: &Sources<'_>, hidden: usize) -> Result<BlockShape, VisionError> {
    let heads = sources.vision.count_or("num_heads", 16)?;
    let head_dim = hidden / heads;
    if !head_dim.is_multiple_of(4) || head_dim * heads != hidden {
        return Err(VisionError::Field {
            field: "num_heads".to_owned(),
            value: heads.to_string(),
            expected: "heads of a multiple of 4 elements that fill hidden_size are needed",
        });
    }
    let (norm, act) = (NormKind::Layer, Activation::Gelu);
    Ok(BlockShape { hidden, heads, head_dim, inner: 0, norm, eps: EPS, act })
}

/// The tower without its merger, and the elements of a square of patches.
fn base(
    sources: &Sources<'_>,
    weights: &Weights<'_>,
    names: &BlockNames,
    shape: &BlockShape,
    patch: usize,
) -> Result<(Tower, usize), VisionError> {
    let vision = sources.vision;
    let merge = vision.count_or("spatial_merge_size", 2)?;
    let patch = vision.side_or("patch_size", patch)?;
    let channels = vision.count_or("in_channels", vision.count_or("in_chans", 3)?)?;
    let frames = vision.side_or("temporal_patch_size", 2)?;
    let rope = vision.section("rope_parameters");
    rope.require("rope_type", &["axial", "default"], "axial")?;
    let tower = Tower {
        patch: PatchEmbedding::load(
            weights,
            "patch_embed.proj",
            shape.hidden,
            &[channels, frames, patch, patch],
        )?,
        table: None,
        blocks: Block::load_all(
            &weights.at("blocks"),
            vision.count_or("depth", 32)?,
            names,
            shape,
        )?,
        windows: None,
        merger: None,
        deep: Vec::new(),
        merge,
        head_dim: shape.head_dim,
        theta: rope.float_or("rope_theta", 10_000.0)?,
        device: weights.device().clone(),
    };
    Ok((tower, shape.hidden * merge * merge))
}

fn parts(
    sources: &Sources<'_>,
    tower: Tower,
    hidden: usize,
    (patch, videos): (usize, bool),
) -> Result<Parts, VisionError> {
    let fields = sources.processor;
    for (name, ours) in [
        ("patch_size", sources.vision.side_or("patch_size", patch)?),
        ("merge_size", tower.merge),
        ("temporal_patch_size", sources.vision.side_or("temporal_patch_size", 2)?),
    ] {
        fields.expect(name, &json!(ours))?;
    }
    let image_token = sources.token_of(&["image_token_id"], "<|image_pad|>")?;
    let patch = sources.vision.side_or("patch_size", patch)?;
    let frames = sources.vision.side_or("temporal_patch_size", 2)?;
    let sizes = [patch, tower.merge, frames];
    let mut processor = SquareProcessor::read(fields, sizes, Counts::Image, image_token)?;
    if videos {
        processor = processor.with_videos(fields)?;
    }
    Ok(Parts {
        processor: Box::new(processor),
        tower: Box::new(tower),
        placeholder: image_token,
        image_token,
        hidden,
        idle: &["inv_freq"],
    })
}
