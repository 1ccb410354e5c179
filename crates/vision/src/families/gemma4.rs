//! Gemma 4: images in any size within a number of patches, positions of two axes, means of squares of patches.

use super::{Parts, Sources};
use crate::{
    Fields, VisionError,
    encoder::{Prepared, Processor, Rows, Tower},
    layers::{Activation, Grid, Linear, Norm, NormKind, Rope, attend, squares},
    resize::{Filter, resize},
    settings::Scaling,
    weights::Weights,
};
use candle_core::{D, Device, Result, Tensor};
use serde_json::json;
use taper_base::{ImageError, PreparedImage, RgbImage, TokenId};

pub(super) fn build(sources: &Sources<'_>) -> std::result::Result<Parts, VisionError> {
    let (config, vision) = (sources.config, sources.vision);
    let weights =
        sources.below(&["model.vision_tower", "vision_tower"], "patch_embedder.input_proj")?;
    let embedder =
        sources.below(&["model.embed_vision", "embed_vision"], "embedding_projection")?;
    let shape = Shape::read(vision)?;
    let patch = vision.count_or("patch_size", 16)?;
    let pool = vision.count_or("pooling_kernel_size", 3)?;
    let positions = vision.count_or("position_embedding_size", 10_240)?;
    let depth = vision.count_or("num_hidden_layers", 16)?;
    let text = config.section("text_config").count("hidden_size")?;
    let inputs = 3 * patch * patch;
    let layers = (0..depth).map(|i| Layer::load(&weights.at("encoder.layers").at(i), &shape));
    let standard = match vision.flag_or("standardize", false)? {
        true => Some([
            weights.tensor("std_bias", &[shape.hidden])?,
            weights.tensor("std_scale", &[shape.hidden])?,
        ]),
        false => None,
    };
    let rope = vision.section("rope_parameters");
    rope.require("rope_type", &["axial", "default"], "axial")?;
    let tower = Gemma4 {
        patch: Linear::load(&weights, "patch_embedder.input_proj", inputs, shape.hidden)?,
        positions: weights
            .tensor("patch_embedder.position_embedding_table", &[2, positions, shape.hidden])?,
        layers: layers.collect::<std::result::Result<_, _>>()?,
        pool,
        standard,
        norm: Norm::plain(shape.hidden, shape.eps, weights.device())?,
        projection: Linear::load(&embedder, "embedding_projection", shape.hidden, text)?,
        head_dim: shape.head_dim,
        theta: rope.float_or("rope_theta", 100.0)?,
        device: weights.device().clone(),
    };
    let fields = sources.processor;
    fields.expect("patch_size", &json!(patch))?;
    fields.expect("pooling_kernel_size", &json!(pool))?;
    let tokens = fields.count_or("max_soft_tokens", 280)?;
    let image_token = sources.token_of(&["image_token_id"], "<|image|>")?;
    let processor = Patches {
        scaling: Scaling::read(fields, Filter::Bicubic, ([0.0; 3], [1.0; 3]))?,
        patch,
        pool,
        tokens,
        longest: positions,
        image_token,
        begin: sources.token_of(&["boi_token_id"], "<|image>")?,
        end: sources.token_of(&["eoi_token_id"], "<image|>")?,
    };
    Ok(Parts {
        processor: Box::new(processor),
        tower: Box::new(tower),
        placeholder: image_token,
        image_token,
        hidden: text,
        idle: &["inv_freq"],
    })
}

#[derive(Debug, Clone, Copy)]
struct Shape {
    hidden: usize,
    inner: usize,
    heads: usize,
    head_dim: usize,
    eps: f64,
    act: Activation,
    is_clipped: bool,
}

impl Shape {
    fn read(vision: Fields<'_>) -> std::result::Result<Self, VisionError> {
        let heads = vision.count_or("num_attention_heads", 12)?;
        vision.expect("num_key_value_heads", &json!(heads))?;
        Ok(Self {
            hidden: vision.count_or("hidden_size", 768)?,
            inner: vision.count_or("intermediate_size", 3072)?,
            heads,
            head_dim: vision.count_or("head_dim", 64)?,
            eps: vision.float_or("rms_norm_eps", 1e-6)?,
            act: Activation::read(vision, "hidden_activation", "gelu_pytorch_tanh")?,
            is_clipped: vision.flag_or("use_clipped_linears", false)?,
        })
    }
}

/// A map whose input and output are kept within bounds.
#[derive(Debug)]
struct Clipped {
    map: Linear,
    bounds: Option<[f32; 4]>,
}

impl Clipped {
    fn load(
        weights: &Weights<'_>,
        inputs: usize,
        outputs: usize,
        is_clipped: bool,
    ) -> std::result::Result<Self, VisionError> {
        let bound = |name: &str| {
            Ok::<_, VisionError>(weights.stored(name)?.flatten_all()?.get(0)?.to_scalar()?)
        };
        let bounds = match is_clipped {
            true => Some([
                bound("input_min")?,
                bound("input_max")?,
                bound("output_min")?,
                bound("output_max")?,
            ]),
            false => None,
        };
        Ok(Self { map: Linear::load(weights, "linear", inputs, outputs)?, bounds })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let Some([low, high, least, most]) = self.bounds else { return self.map.forward(x) };
        self.map.forward(&x.clamp(low, high)?)?.clamp(least, most)
    }
}

#[derive(Debug)]
struct Layer {
    /// Before and behind attention, before and behind the feed-forward layer.
    norms: [Norm; 4],
    /// Queries, keys, values, output.
    maps: [Clipped; 4],
    /// Of queries, keys and values of a head.
    head_norms: [Norm; 3],
    gate: Clipped,
    up: Clipped,
    down: Clipped,
    shape: Shape,
}

impl Layer {
    fn load(weights: &Weights<'_>, shape: &Shape) -> std::result::Result<Self, VisionError> {
        let &Shape { hidden, inner, heads, head_dim, eps, is_clipped, .. } = shape;
        let width = heads * head_dim;
        let norm = |name: &str| Norm::load(weights, name, hidden, NormKind::Rms, eps);
        let head = |name: &str| Norm::load(weights, name, head_dim, NormKind::Rms, eps);
        let map = |name: &str, inputs, outputs| {
            Clipped::load(&weights.at(name), inputs, outputs, is_clipped)
        };
        Ok(Self {
            norms: [
                norm("input_layernorm")?,
                norm("post_attention_layernorm")?,
                norm("pre_feedforward_layernorm")?,
                norm("post_feedforward_layernorm")?,
            ],
            maps: [
                map("self_attn.q_proj", hidden, width)?,
                map("self_attn.k_proj", hidden, width)?,
                map("self_attn.v_proj", hidden, width)?,
                map("self_attn.o_proj", width, hidden)?,
            ],
            head_norms: [
                head("self_attn.q_norm")?,
                head("self_attn.k_norm")?,
                Norm::plain(head_dim, eps, weights.device())?,
            ],
            gate: map("mlp.gate_proj", hidden, inner)?,
            up: map("mlp.up_proj", hidden, inner)?,
            down: map("mlp.down_proj", inner, hidden)?,
            shape: *shape,
        })
    }

    fn attention(&self, x: &Tensor, ropes: &[Rope; 2]) -> Result<Tensor> {
        let Shape { heads, head_dim, .. } = self.shape;
        let rows = x.dim(0)?;
        let part = |i: usize| {
            let part = self.maps[i].forward(x)?.reshape((rows, heads, head_dim))?;
            let part = self.head_norms[i].forward(&part)?.transpose(0, 1)?.contiguous()?;
            if i == 2 {
                return Ok(part);
            }
            // Each half of a head turns by one axis.
            let half = |j: usize| {
                let half = part.narrow(2, j * head_dim / 2, head_dim / 2)?.contiguous()?;
                ropes[j].forward(&half)
            };
            Tensor::cat(&[half(0)?, half(1)?], D::Minus1)
        };
        let y = attend(&part(0)?, &part(1)?, &part(2)?, &[rows])?;
        let y = y.transpose(0, 1)?.contiguous()?.reshape((rows, heads * head_dim))?;
        self.maps[3].forward(&y)
    }

    fn forward(&self, x: &Tensor, ropes: &[Rope; 2]) -> Result<Tensor> {
        let [before, behind, before_mlp, behind_mlp] = &self.norms;
        let x = (x + behind.forward(&self.attention(&before.forward(x)?, ropes)?)?)?;
        let y = before_mlp.forward(&x)?;
        let y = (self.shape.act.forward(&self.gate.forward(&y)?)? * self.up.forward(&y)?)?;
        &x + behind_mlp.forward(&self.down.forward(&y)?)?
    }
}

/// An image's shape is `[patches, elements of a patch, height, width]`, sizes in patches.
#[derive(Debug)]
struct Gemma4 {
    patch: Linear,
    /// `[2, positions, hidden]`: columns, then rows.
    positions: Tensor,
    layers: Vec<Layer>,
    pool: usize,
    standard: Option<[Tensor; 2]>,
    norm: Norm,
    projection: Linear,
    head_dim: usize,
    theta: f64,
    device: Device,
}

impl Tower for Gemma4 {
    fn forward(&self, image: &PreparedImage) -> Result<Rows> {
        let &[patches, elements, height, width] = image.shape.as_slice() else {
            candle_core::bail!("the image has no sizes");
        };
        let pixels = Tensor::from_slice(&image.pixels, (patches, elements), &self.device)?;
        let positions = Grid { height, width, merge: 1 }.positions();
        let axis = |i: usize| positions.iter().map(|p| p[i]).collect::<Vec<_>>();
        let learned = |table: usize, at: Vec<u32>| {
            let at = Tensor::from_vec(at, patches, &self.device)?;
            self.positions.get(table)?.index_select(&at, 0)
        };
        let mut x = self.patch.forward(&((pixels - 0.5)? * 2.0)?)?;
        x = ((x + learned(0, axis(1))?)? + learned(1, axis(0))?)?;
        let rope = |i: usize| Rope::line(&axis(i), self.head_dim / 2, self.theta, &self.device);
        let ropes = [rope(1)?, rope(0)?];
        for layer in &self.layers {
            x = layer.forward(&x, &ropes)?;
        }
        let hidden = x.dim(1)?;
        let together = squares(&x.reshape((1, height, width, hidden))?, self.pool)?;
        let mean = together.reshape(((), self.pool * self.pool, hidden))?.mean(1)?;
        let mut x = (mean * (hidden as f64).sqrt())?;
        if let Some([bias, scale]) = &self.standard {
            x = x.broadcast_sub(bias)?.broadcast_mul(scale)?;
        }
        Ok(self.projection.forward(&self.norm.forward(&x)?)?.into())
    }
}

/// `Gemma4ImageProcessor` of transformers.
#[derive(Debug)]
struct Patches {
    scaling: Scaling,
    patch: usize,
    pool: usize,
    /// The most of an image.
    tokens: usize,
    /// The most patches along a side: the tower has no more positions.
    longest: usize,
    image_token: TokenId,
    begin: TokenId,
    end: TokenId,
}

impl Patches {
    /// Width and height, as large as the number of tokens allows.
    fn size(&self, image: &RgbImage) -> std::result::Result<(u32, u32), ImageError> {
        let (w, h) = (f64::from(image.width), f64::from(image.height));
        let pixels = (self.tokens * self.pool.pow(2) * self.patch.pow(2)) as f64;
        let factor = (pixels / (h * w)).sqrt();
        let side = (self.pool * self.patch) as f64;
        let multiple = |x: f64| (factor * x / side).floor() * side;
        let longest = self.tokens as f64 * side;
        let (mut new_w, mut new_h) = (multiple(w), multiple(h));
        if new_h == 0.0 {
            (new_w, new_h) = (((w / h).floor() * side).min(longest), side);
        } else if new_w == 0.0 {
            (new_w, new_h) = (side, ((h / w).floor() * side).min(longest));
        }
        let most = (self.longest * self.patch) as f64;
        if new_w * new_h > pixels || new_w * new_h == 0.0 || new_w.max(new_h) > most {
            return Err(ImageError::Refused(format!("{w} x {h} pixels are too thin")));
        }
        Ok((new_w as u32, new_h as u32))
    }
}

impl Processor for Patches {
    fn prepare(&self, image: &RgbImage) -> std::result::Result<Prepared, ImageError> {
        let (width, height) = self.size(image)?;
        let image = resize(image, width, height, self.scaling.filter);
        let (height, width) = (height as usize / self.patch, width as usize / self.patch);
        let images = vec![self.image_token; height * width / self.pool.pow(2)];
        Ok(Prepared {
            expansion: [&[self.begin], &images[..], &[self.end]].concat(),
            grid: None,
            pixels: self.scaling.patches(&image, self.patch),
            shape: vec![height * width, 3 * self.patch * self.patch, height, width],
        })
    }
}
