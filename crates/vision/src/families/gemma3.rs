//! Gemma 3 and PaliGemma: SigLIP over one square; Gemma averages squares of patches.

use super::{
    Parts, Sources,
    square::SquareImage,
    vit::{SIGLIP, Vit, VitSizes, block_shape},
};
use crate::{
    VisionError,
    encoder::{Rows, Tower},
    layers::{Linear, Norm, squares},
    resize::Filter,
    settings::HALVES,
    weights::Weights,
};
use candle_core::{Device, Result, Tensor};
use serde_json::json;
use taper_base::{PreparedImage, TokenId};

const TOWERS: &[&str] = &[
    "model.vision_tower.vision_model",
    "vision_tower.vision_model",
    "model.vision_tower",
    "vision_tower",
];
const PROJECTORS: &[&str] = &["model.multi_modal_projector", "multi_modal_projector"];
const IDLE: &[&str] = &["position_ids", ".head."];

pub(super) fn gemma3(sources: &Sources<'_>) -> std::result::Result<Parts, VisionError> {
    let config = sources.config;
    let (vit, depth, hidden) = siglip(sources)?;
    let rows = config.count_or("mm_tokens_per_image", 256)?;
    let pool = vit.sizes.side() / rows.isqrt().max(1);
    let weights = sources.below(PROJECTORS, "mm_input_projection_weight")?;
    let eps = sources.vision.float_or("layer_norm_eps", 1e-6)?;
    let map = weights.tensor("mm_input_projection_weight", &[vit.hidden, hidden])?;
    let projector = Projector {
        norm: Some((Norm::from_one(&weights, "mm_soft_emb_norm", vit.hidden, eps)?, pool)),
        map: Linear::new(map.t()?.contiguous()?, None)?,
    };
    sources.processor.expect("do_pan_and_scan", &json!(false))?;
    let image_token =
        sources.token_of(&["image_token_index", "image_token_id"], "<image_soft_token>")?;
    let begin = sources.token_of(&["boi_token_index", "boi_token_id"], "<start_of_image>")?;
    let end = sources.token_of(&["eoi_token_index", "eoi_token_id"], "<end_of_image>")?;
    let blank_line = sources.token("\n\n")?;
    let images = vec![image_token; rows];
    let expansion = [&[blank_line, begin], &images[..], &[end, blank_line]].concat();
    parts(
        sources,
        (vit, depth, hidden),
        projector,
        expansion,
        [begin, image_token],
        Filter::Bilinear,
    )
}

pub(super) fn paligemma(sources: &Sources<'_>) -> std::result::Result<Parts, VisionError> {
    let (vit, depth, hidden) = siglip(sources)?;
    let weights = sources.below(PROJECTORS, "linear")?;
    let projector =
        Projector { norm: None, map: Linear::load(&weights, "linear", vit.hidden, hidden)? };
    let image_token = sources.token_of(&["image_token_index", "image_token_id"], "<image>")?;
    let rows = vit.sizes.side().pow(2);
    sources.processor.expect("image_seq_length", &json!(rows))?;
    let expansion = vec![image_token; rows];
    parts(sources, (vit, depth, hidden), projector, expansion, [image_token; 2], Filter::Bicubic)
}

/// The tower, its layers, and the language model's width.
fn siglip(sources: &Sources<'_>) -> std::result::Result<(Vit, usize, usize), VisionError> {
    let vision = sources.vision;
    let weights: Weights<'_> = sources.below(TOWERS, SIGLIP.patch)?;
    let sizes = VitSizes::read(vision, 224, 14)?;
    let shape = block_shape(vision, "gelu_pytorch_tanh", 1e-6)?;
    let depth = vision.count_or("num_hidden_layers", 27)?;
    let vit = Vit::load(&weights, &SIGLIP, &shape, sizes, depth)?;
    let hidden = sources.config.section("text_config").count_or("hidden_size", 2304)?;
    Ok((vit, depth, hidden))
}

fn parts(
    sources: &Sources<'_>,
    (vit, depth, hidden): (Vit, usize, usize),
    projector: Projector,
    expansion: Vec<TokenId>,
    [placeholder, image_token]: [TokenId; 2],
    filter: Filter,
) -> std::result::Result<Parts, VisionError> {
    let device = sources.weights.device().clone();
    Ok(Parts {
        processor: Box::new(SquareImage::read(
            sources.processor,
            vit.sizes.image,
            filter,
            HALVES,
            expansion,
        )?),
        tower: Box::new(Gemma { vit, depth, projector, device }),
        placeholder,
        image_token,
        hidden,
        idle: IDLE,
    })
}

#[derive(Debug)]
struct Projector {
    /// A norm over the mean of squares of patches, and the squares' side.
    norm: Option<(Norm, usize)>,
    map: Linear,
}

#[derive(Debug)]
struct Gemma {
    vit: Vit,
    depth: usize,
    projector: Projector,
    device: Device,
}

impl Tower for Gemma {
    fn forward(&self, image: &PreparedImage) -> Result<Rows> {
        let pixels = Tensor::from_slice(&image.pixels, image.shape.as_slice(), &self.device)?;
        let mut x = self.vit.forward(&pixels, &[self.depth], false)?.flatten_to(1)?;
        if let Some((norm, pool)) = &self.projector.norm {
            let (side, hidden) = (self.vit.sizes.side(), self.vit.hidden);
            let together = squares(&x.reshape((1, side, side, hidden))?, *pool)?;
            let mean = together.reshape(((), pool * pool, hidden))?.mean(1)?;
            x = norm.forward(&mean)?;
        }
        Ok(self.projector.map.forward(&x)?.into())
    }
}
