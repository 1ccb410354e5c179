//! LLaVA: CLIP or SigLIP, hidden states of some layers, two maps. With Pixtral's tower it is Pixtral.

use super::{
    Parts, Sources, pixtral,
    projector::Projector,
    square::SquareImage,
    vit::{CLIP, SIGLIP, Vit, VitNames, VitSizes, block_shape, kept_layers},
};
use crate::{
    VisionError,
    encoder::{Rows, Tower},
    layers::Activation,
    resize::Filter,
    settings,
};
use candle_core::{Device, Result, Tensor};
use serde_json::json;
use taper_base::PreparedImage;

pub(super) fn build(sources: &Sources<'_>) -> std::result::Result<Parts, VisionError> {
    let vision = sources.vision;
    let (names, act, eps) = match vision.text_or("model_type", "clip_vision_model")? {
        "clip_vision_model" => (CLIP, "quick_gelu", 1e-5),
        "siglip_vision_model" => (VitNames { post: None, ..SIGLIP }, "gelu_pytorch_tanh", 1e-6),
        "pixtral" => return pixtral::build(sources),
        other => return Err(VisionError::ModelType { model_type: other.to_owned() }),
    };
    let (config, depth) = (sources.config, vision.count_or("num_hidden_layers", 24)?);
    let keep = kept_layers(config, depth, -2)?;
    let class = config.text_or("vision_feature_select_strategy", "default")? == "full";
    let sizes = VitSizes::read(vision, 336, 14)?;
    let shape = block_shape(vision, act, eps)?;
    let weights = sources.below(
        &[
            "model.vision_tower.vision_model",
            "vision_tower.vision_model",
            "model.vision_tower",
            "vision_tower",
        ],
        names.patch,
    )?;
    let run = keep.iter().copied().max().unwrap_or(depth);
    let hidden = config.section("text_config").count_or("hidden_size", 4096)?;
    let projector =
        sources.below(&["model.multi_modal_projector", "multi_modal_projector"], "linear_1")?;
    let act = Activation::read(config, "projector_hidden_act", "gelu")?;
    let tower = Llava {
        vit: Vit::load(&weights, &names, &shape, sizes, run)?,
        class,
        projector: Projector::load(
            &projector,
            [shape.hidden * keep.len(), hidden, hidden],
            act,
            false,
        )?,
        keep,
        device: weights.device().clone(),
    };
    let image_token = sources.token_of(&["image_token_index", "image_token_id"], "<image>")?;
    let with_class = usize::from(class && names.class.is_some());
    let rows = sizes.side().pow(2) + with_class;
    // Layers whose output is not asked for are idle, and so is the norm behind them.
    sources.processor.expect("patch_size", &json!(sizes.patch))?;
    Ok(Parts {
        processor: Box::new(SquareImage::read(
            sources.processor,
            sizes.image,
            Filter::Bicubic,
            settings::CLIP,
            vec![image_token; rows],
        )?),
        tower: Box::new(tower),
        placeholder: image_token,
        image_token,
        hidden,
        idle: &["position_ids", "post_layernorm", ".head.", "encoder.layers."],
    })
}

#[derive(Debug)]
struct Llava {
    vit: Vit,
    keep: Vec<usize>,
    class: bool,
    projector: Projector,
    device: Device,
}

impl Tower for Llava {
    fn forward(&self, image: &PreparedImage) -> Result<Rows> {
        let pixels = Tensor::from_slice(&image.pixels, image.shape.as_slice(), &self.device)?;
        let x = self.vit.forward(&pixels, &self.keep, self.class)?;
        Ok(self.projector.forward(&x.flatten_to(1)?)?.into())
    }
}
