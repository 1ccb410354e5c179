//! InternVL: one square, or tiles and a thumbnail; InternViT, squares of patches as one row.

use super::{
    Parts, Sources,
    projector::Projector,
    vit::{Vit, VitNames, VitSizes, block_shape, kept_layers},
};
use crate::{
    VisionError,
    encoder::{Prepared, Processor, Rows, Tower},
    layers::{Activation, BlockNames, BlockShape, NormKind, squares},
    resize::{Filter, resize},
    settings::{CLIP, Scaling, crop},
};
use candle_core::{Device, Result, Tensor};
use serde_json::json;
use taper_base::{ImageError, PreparedImage, RgbImage, TokenId};

const BLOCK: BlockNames = BlockNames {
    norms: ["layernorm_before", "layernorm_after"],
    qkv: &["attention.q_proj", "attention.k_proj", "attention.v_proj"],
    out: "attention.projection_layer",
    mlp: &["mlp.fc1", "mlp.fc2"],
    qk_norms: None,
    scales: Some(["lambda_1", "lambda_2"]),
};
const NAMES: VitNames = VitNames {
    patch: "embeddings.patch_embeddings.projection",
    class: Some("embeddings.cls_token"),
    positions: "embeddings.position_embeddings",
    pre: None,
    layers: "encoder.layer",
    block: BLOCK,
    post: None,
};

pub(super) fn build(sources: &Sources<'_>) -> std::result::Result<Parts, VisionError> {
    let (config, vision) = (sources.config, sources.vision);
    let weights = sources.below(&["model.vision_tower", "vision_tower"], NAMES.patch)?;
    let norm = match vision.text_or("norm_type", "layer_norm")? {
        "rms_norm" => NormKind::Rms,
        _ => NormKind::Layer,
    };
    let shape = BlockShape { norm, ..block_shape(vision, "gelu", 1e-6)? };
    let sizes = VitSizes::read(vision, 448, 14)?;
    let depth = vision.count_or("num_hidden_layers", 24)?;
    let qk_norms = vision.flag_or("use_qk_norm", false)?;
    let keep = kept_layers(config, depth, -1)?;
    let names = VitNames {
        block: BlockNames {
            qk_norms: qk_norms.then_some(["attention.q_norm", "attention.k_norm"]),
            ..BLOCK
        },
        post: (!vision.flag_or("use_mean_pooling", true)?).then_some("layernorm"),
        ..NAMES
    };
    config.require("vision_feature_select_strategy", &["default"], "default")?;
    vision.expect("use_absolute_position_embeddings", &json!(true))?;
    let ratio = config.float_or("downsample_ratio", 0.5)?;
    let side = (1.0 / ratio) as usize;
    let hidden = config.section("text_config").count("hidden_size")?;
    let inputs = shape.hidden * side * side;
    let projector =
        sources.below(&["model.multi_modal_projector", "multi_modal_projector"], "linear_1")?;
    let act = Activation::read(config, "projector_hidden_act", "gelu")?;
    let run = keep.iter().copied().max().unwrap_or(depth);
    let tower = Intern {
        vit: Vit::load(&weights, &names, &shape, sizes, run)?,
        keep,
        side,
        projector: Projector::load(&projector, [inputs, hidden, hidden], act, true)?,
        device: weights.device().clone(),
    };
    let image_token = sources.token_of(&["image_token_id"], "<IMG_CONTEXT>")?;
    let fields = sources.processor;
    let rows = (sizes.side() / side.max(1)).pow(2);
    fields.expect("image_seq_length", &json!(rows))?;
    let processor = Tiles {
        scaling: Scaling::read(fields, Filter::Bicubic, CLIP)?,
        side: fields.side_or("size", sizes.image)? as u32,
        // InternVL's processor cuts images whatever the file says of it.
        tiles: [fields.count_or("min_patches", 1)?, fields.count_or("max_patches", 12)?],
        rows,
        image_token,
        begin: sources.token("<img>")?,
        end: sources.token("</img>")?,
    };
    fields.section("size").expect("height", &json!(sizes.image))?;
    Ok(Parts {
        processor: Box::new(processor),
        tower: Box::new(tower),
        placeholder: image_token,
        image_token,
        hidden,
        idle: &["mask_token"],
    })
}

#[derive(Debug)]
struct Intern {
    vit: Vit,
    keep: Vec<usize>,
    side: usize,
    projector: Projector,
    device: Device,
}

impl Tower for Intern {
    fn forward(&self, image: &PreparedImage) -> Result<Rows> {
        let pixels = Tensor::from_slice(&image.pixels, image.shape.as_slice(), &self.device)?;
        let x = self.vit.forward(&pixels, &self.keep, false)?;
        let (n, side, hidden) = (x.dim(0)?, self.vit.sizes.side(), self.vit.hidden);
        let x = squares(&x.reshape((n, side, side, hidden))?, self.side)?;
        Ok(self.projector.forward(&x)?.into())
    }
}

/// `GotOcr2ImageProcessor` of transformers.
#[derive(Debug)]
struct Tiles {
    scaling: Scaling,
    side: u32,
    /// The least and the most.
    tiles: [usize; 2],
    rows: usize,
    image_token: TokenId,
    begin: TokenId,
    end: TokenId,
}

/// Columns and rows, of as many tiles as are allowed, whose ratio is closest to the image's. Of two that are equally
/// close the larger one is taken if the image has more than half of its pixels.
pub(super) fn closest_grid(image: &RgbImage, side: u32, [least, most]: [usize; 2]) -> (u32, u32) {
    let (w, h) = (f64::from(image.width), f64::from(image.height));
    let most = most as u32;
    let mut grids: Vec<_> = (1..=most).flat_map(|w| (1..=most).map(move |h| (w, h))).collect();
    grids.retain(|&(w, h)| (least as u32..=most).contains(&(w * h)));
    grids.sort_by_key(|&(w, h)| w * h);
    let mut best = ((1, 1), f64::INFINITY);
    for (cols, rows) in grids {
        let difference = (w / h - f64::from(cols) / f64::from(rows)).abs();
        let pixels = f64::from(side) * f64::from(side) * f64::from(cols * rows);
        if difference < best.1 || (difference == best.1 && w * h > 0.5 * pixels) {
            best = ((cols, rows), difference);
        }
    }
    best.0
}

impl Processor for Tiles {
    fn prepare(&self, image: &RgbImage) -> std::result::Result<Prepared, ImageError> {
        let (side, filter) = (self.side, self.scaling.filter);
        let (cols, rows) = closest_grid(image, side, self.tiles);
        let whole = resize(image, cols * side, rows * side, filter);
        let mut pixels = Vec::new();
        for (row, col) in (0..rows).flat_map(|row| (0..cols).map(move |col| (row, col))) {
            pixels.extend(self.scaling.planes(&crop(&whole, col * side, row * side, side, side)));
        }
        let mut tiles = (cols * rows) as usize;
        if tiles > 1 {
            pixels.extend(self.scaling.planes(&resize(image, side, side, filter)));
            tiles += 1;
        }
        let images = vec![self.image_token; tiles * self.rows];
        let side = side as usize;
        Ok(Prepared {
            expansion: [&[self.begin], &images[..], &[self.end]].concat(),
            grid: None,
            pixels,
            shape: vec![tiles, 3, side, side],
        })
    }
}
