//! Pixtral and Mistral 3: images of any size in patches, positions of two axes, and for Mistral 3 merged patches.

use super::{Parts, Sources, projector::Projector, vit::kept_layers};
use crate::{
    VisionError,
    encoder::{Prepared, Processor, Rows, Tower},
    layers::{
        Activation, Block, BlockNames, BlockShape, Grid, Linear, Norm, NormKind, PatchEmbedding,
        Rope, cut, frequencies,
    },
    resize::{Filter, resize},
    settings::{CLIP, Scaling},
};
use candle_core::{Device, Result, Tensor};
use serde_json::Value;
use taper_base::{ImageError, PreparedImage, RgbImage, TokenId};

const NAMES: BlockNames = BlockNames {
    norms: ["attention_norm", "ffn_norm"],
    qkv: &["attention.q_proj", "attention.k_proj", "attention.v_proj"],
    out: "attention.o_proj",
    mlp: &["feed_forward.gate_proj", "feed_forward.up_proj", "feed_forward.down_proj"],
    qk_norms: None,
    scales: None,
};
const EPS: f64 = 1e-5;

pub(super) fn build(sources: &Sources<'_>) -> std::result::Result<Parts, VisionError> {
    let (config, vision) = (sources.config, sources.vision);
    let is_mistral = config.text_or("model_type", "")? == "mistral3";
    let (hidden, heads) =
        (vision.count_or("hidden_size", 1024)?, vision.count_or("num_attention_heads", 16)?);
    let head_dim = vision.count_or("head_dim", hidden / heads)?;
    let patch = vision.side_or("patch_size", if is_mistral { 14 } else { 16 })?;
    let shape = BlockShape {
        hidden,
        heads,
        head_dim,
        inner: vision.count_or("intermediate_size", 4096)?,
        norm: NormKind::Rms,
        eps: EPS,
        act: Activation::read(vision, "hidden_act", "gelu")?,
    };
    let weights = sources.below(
        &[
            "model.vision_tower",
            "vision_tower",
            "model.vision_tower.vision_model",
            "vision_tower.vision_model",
        ],
        "patch_conv",
    )?;
    let depth = vision.count_or("num_hidden_layers", 24)?;
    let kept = kept_layers(config, depth, -1)?;
    let [kept] = kept[..] else {
        return Err(VisionError::Field {
            field: "vision_feature_layer".to_owned(),
            value: format!("{kept:?}"),
            expected: "one layer is needed",
        });
    };
    let merge = if is_mistral { config.count_or("spatial_merge_size", 2)? } else { 1 };
    let text = config.section("text_config");
    let output = text.count_or("hidden_size", 5120)?;
    let projector =
        sources.below(&["model.multi_modal_projector", "multi_modal_projector"], "linear_1")?;
    let merger = match is_mistral {
        true => Some(Merger {
            norm: Norm::load(
                &projector,
                "norm",
                hidden,
                NormKind::Rms,
                text.float_or("rms_norm_eps", 1e-5)?,
            )?,
            map: Linear::load(
                &projector,
                "patch_merger.merging_layer",
                hidden * merge * merge,
                hidden,
            )?,
            side: merge,
        }),
        false => None,
    };
    let tower = Pixtral {
        patch: PatchEmbedding::load(&weights, "patch_conv", hidden, &[3, patch, patch])?,
        patch_side: patch,
        norm: Norm::load(&weights, "ln_pre", hidden, NormKind::Rms, EPS)?,
        blocks: Block::load_all(&weights.at("transformer.layers"), kept, &NAMES, &shape)?,
        frequencies: frequencies(head_dim, theta(sources)?),
        merger,
        projector: Projector::load(
            &projector,
            [hidden, output, output],
            Activation::read(config, "projector_hidden_act", "gelu")?,
            false,
        )?,
        device: weights.device().clone(),
    };
    let image_token = sources.token_of(&["image_token_index", "image_token_id"], "[IMG]")?;
    let fields = sources.processor;
    let processor = Patches {
        scaling: Scaling::read(fields, Filter::Bicubic, CLIP)?,
        longest: match fields.section("size").get("longest_edge") {
            Some(_) => fields.section("size").count("longest_edge")?,
            None => fields.side_or("size", 1024)?,
        },
        side: patch * merge,
        patch,
        image_token,
        line: sources.token("[IMG_BREAK]")?,
        end: sources.token("[IMG_END]")?,
    };
    Ok(Parts {
        processor: Box::new(processor),
        tower: Box::new(tower),
        placeholder: image_token,
        image_token,
        hidden: output,
        idle: &["transformer.layers."],
    })
}

/// The base of angles, which older files have outside of the section of positions.
pub(super) fn theta(sources: &Sources<'_>) -> std::result::Result<f64, VisionError> {
    let rope = sources.vision.section("rope_parameters");
    match rope.get("rope_theta") {
        Some(Value::Number(_)) => rope.float_or("rope_theta", 10_000.0),
        _ => sources.vision.float_or("rope_theta", 10_000.0),
    }
}

#[derive(Debug)]
struct Merger {
    norm: Norm,
    map: Linear,
    side: usize,
}

impl Merger {
    /// `[height * width, hidden]`; a square's elements are side by side, all of the first, then all of the second.
    fn forward(&self, x: &Tensor, grid: Grid) -> Result<Tensor> {
        let (side, hidden) = (self.side, x.dim(1)?);
        let (rows, cols) = (grid.height / side, grid.width / side);
        let x = self.norm.forward(x)?.reshape(&[rows, side, cols, side, hidden][..])?;
        let x = x.permute([0, 2, 4, 1, 3])?.contiguous()?;
        self.map.forward(&x.reshape((rows * cols, hidden * side * side))?)
    }
}

#[derive(Debug)]
struct Pixtral {
    patch: PatchEmbedding,
    patch_side: usize,
    norm: Norm,
    blocks: Vec<Block>,
    frequencies: Vec<f32>,
    merger: Option<Merger>,
    projector: Projector,
    device: Device,
}

impl Pixtral {
    /// Even frequencies turn by the row in the image, odd ones by the column.
    fn rope(&self, grid: Grid) -> Result<Rope> {
        let of = |first: usize, at: u32| {
            self.frequencies.iter().skip(first).step_by(2).map(move |f| at as f32 * f)
        };
        let positions = grid.positions();
        let angles = positions.iter().flat_map(|&[y, x]| of(0, y).chain(of(1, x))).collect();
        Rope::new(angles, positions.len(), &self.device)
    }
}

impl Tower for Pixtral {
    fn forward(&self, image: &PreparedImage) -> Result<Rows> {
        let pixels = Tensor::from_slice(&image.pixels, image.shape.as_slice(), &self.device)?;
        let (_, _, height, width) = pixels.dims4()?;
        let grid =
            Grid { height: height / self.patch_side, width: width / self.patch_side, merge: 1 };
        let x = self.patch.forward(&cut(&pixels, self.patch_side)?)?;
        let mut x = self.norm.forward(&x)?;
        let rope = self.rope(grid)?;
        for block in &self.blocks {
            x = block.forward(&x, Some(&rope), &[grid.patches()])?;
        }
        if let Some(merger) = &self.merger {
            x = merger.forward(&x, grid)?;
        }
        Ok(self.projector.forward(&x)?.into())
    }
}

/// `PixtralImageProcessor` of transformers.
#[derive(Debug)]
struct Patches {
    scaling: Scaling,
    longest: usize,
    /// Of what becomes a token, in pixels.
    side: usize,
    patch: usize,
    image_token: TokenId,
    line: TokenId,
    end: TokenId,
}

impl Patches {
    fn size(&self, image: &RgbImage) -> (u32, u32) {
        let (mut w, mut h) = (f64::from(image.width), f64::from(image.height));
        let longest = self.longest as f64;
        let ratio = (w / longest).max(h / longest);
        if ratio > 1.0 {
            (w, h) = ((w / ratio).floor().max(1.0), (h / ratio).floor().max(1.0));
        }
        let side = self.side as u32;
        ((w as u32).div_ceil(side) * side, (h as u32).div_ceil(side) * side)
    }
}

impl Processor for Patches {
    fn prepare(&self, image: &RgbImage) -> std::result::Result<Prepared, ImageError> {
        let (width, height) = self.size(image);
        let image = resize(image, width, height, self.scaling.filter);
        let (width, height) = (width as usize, height as usize);
        let (cols, rows) = (width / self.side, height / self.side);
        debug_assert_eq!(self.side % self.patch, 0);
        let mut line = vec![self.image_token; cols];
        line.push(self.line);
        let mut expansion = line.repeat(rows);
        if let Some(last) = expansion.last_mut() {
            *last = self.end;
        }
        Ok(Prepared {
            expansion,
            grid: None,
            pixels: self.scaling.planes(&image),
            shape: vec![1, 3, height, width],
        })
    }
}
