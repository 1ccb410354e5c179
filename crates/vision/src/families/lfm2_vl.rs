//! LFM2-VL: SigLIP 2 over patches of any size (NaFlex), tiles and a thumbnail of large images.

use super::{
    Parts, Sources,
    internvl::closest_grid,
    projector::Projector,
    vit::{BLOCK, block_shape},
};
use crate::{
    VisionError,
    encoder::{Prepared, Processor, Rows, Tower},
    layers::{
        Activation, Block, Grid, Norm, NormKind, PatchEmbedding, Sampling, resampled, squares,
    },
    resize::{Filter, resize},
    settings::{HALVES, Scaling, crop, round, within},
};
use candle_core::{Device, Result, Tensor};
use serde_json::json;
use taper_base::{ImageError, PreparedImage, RgbImage, TokenId};

pub(super) fn build(sources: &Sources<'_>) -> std::result::Result<Parts, VisionError> {
    let (config, vision) = (sources.config, sources.vision);
    let weights = sources.below(
        &[
            "model.vision_tower.vision_model",
            "vision_tower.vision_model",
            "model.vision_tower",
            "vision_tower",
        ],
        "embeddings.patch_embedding",
    )?;
    let shape = block_shape(vision, "gelu_pytorch_tanh", 1e-6)?;
    let patch = vision.side_or("patch_size", 16)?;
    let positions = vision.count_or("num_patches", 256)?;
    let factor = config.count_or("downsample_factor", 2)?;
    let text = config.section("text_config").count_or("hidden_size", 2560)?;
    let inner = config.count_or("projector_hidden_size", 2560)?;
    let projector =
        sources.below(&["model.multi_modal_projector", "multi_modal_projector"], "linear_1")?;
    let act = Activation::read(config, "projector_hidden_act", "gelu")?;
    let inputs = shape.hidden * factor * factor;
    let normed = config.flag_or("projector_use_layernorm", true)?;
    let tower = Flexible {
        patch: PatchEmbedding::load(
            &weights,
            "embeddings.patch_embedding",
            shape.hidden,
            &[patch, patch, 3],
        )?,
        positions: weights.matrix("embeddings.position_embedding", positions, shape.hidden)?,
        side: positions.isqrt(),
        blocks: Block::load_all(
            &weights.at("encoder.layers"),
            vision.count_or("num_hidden_layers", 12)?,
            &BLOCK,
            &shape,
        )?,
        norm: Norm::load(&weights, "post_layernorm", shape.hidden, NormKind::Layer, shape.eps)?,
        factor,
        projector: Projector::load(&projector, [inputs, inner, text], act, normed)?,
        device: weights.device().clone(),
    };
    let image_token = sources.token_of(&["image_token_id", "image_token_index"], "<image>")?;
    Ok(Parts {
        processor: Box::new(Tiles::read(sources, [patch, factor], image_token)?),
        tower: Box::new(tower),
        placeholder: image_token,
        image_token,
        hidden: text,
        idle: &["position_ids", ".head."],
    })
}

/// An image's shape is `[patches, elements of a patch]`, then height and width in patches of each tile.
#[derive(Debug)]
struct Flexible {
    patch: PatchEmbedding,
    positions: Tensor,
    side: usize,
    blocks: Vec<Block>,
    norm: Norm,
    factor: usize,
    projector: Projector,
    device: Device,
}

impl Tower for Flexible {
    fn forward(&self, image: &PreparedImage) -> Result<Rows> {
        let [patches, elements, ref sizes @ ..] = image.shape[..] else {
            candle_core::bail!("the image has no sizes");
        };
        let pixels = Tensor::from_slice(&image.pixels, (patches, elements), &self.device)?;
        let (mut positions, mut segments) = (Vec::new(), Vec::new());
        for size in sizes.chunks_exact(2) {
            let grid = Grid { height: size[0], width: size[1], merge: 1 };
            positions.push(resampled(&self.positions, self.side, grid, Sampling::Antialias)?);
            segments.push(segments.last().unwrap_or(&0) + size[0] * size[1]);
        }
        let mut x = (self.patch.forward(&pixels)? + Tensor::cat(&positions, 0)?)?;
        for block in &self.blocks {
            x = block.forward(&x, None, &segments)?;
        }
        x = self.norm.forward(&x)?;
        let (mut first, mut tiles) = (0, Vec::new());
        for size in sizes.chunks_exact(2) {
            let rows = size[0] * size[1];
            let tile = x.narrow(0, first, rows)?.reshape((1, size[0], size[1], ()))?;
            tiles.push(squares(&tile, self.factor)?);
            first += rows;
        }
        Ok(self.projector.forward(&Tensor::cat(&tiles, 0)?)?.into())
    }
}

/// `Lfm2VlImageProcessor` of transformers, and the text that its processor writes for an image.
#[derive(Debug)]
struct Tiles {
    scaling: Scaling,
    patch: usize,
    factor: usize,
    /// The least and the most tokens of an image that is not cut.
    tokens: [usize; 2],
    /// The least and the most.
    tiles: [usize; 2],
    tile: u32,
    tolerance: f64,
    thumbnail: bool,
    image_token: TokenId,
    begin: TokenId,
    end: TokenId,
    small: TokenId,
    /// Tokens of places, `most * most`; those of grids that have too many tiles may be absent.
    places: Vec<Option<TokenId>>,
}

impl Tiles {
    fn read(
        sources: &Sources<'_>,
        [patch, factor]: [usize; 2],
        image_token: TokenId,
    ) -> std::result::Result<Self, VisionError> {
        let fields = sources.processor;
        fields.expect("encoder_patch_size", &json!(patch))?;
        fields.expect("downsample_factor", &json!(factor))?;
        let split = fields.flag_or("do_image_splitting", true)?;
        let tiles = match split {
            true => [fields.count_or("min_tiles", 2)?, fields.count_or("max_tiles", 10)?],
            false => [1, 1],
        };
        let most = tiles[1];
        let place = |i: usize| format!("<|img_row_{}_col_{}|>", i / most + 1, i % most + 1);
        Ok(Self {
            scaling: Scaling::read(fields, Filter::Bilinear, HALVES)?,
            patch,
            factor,
            tokens: [
                fields.count_or("min_image_tokens", 64)?,
                fields.count_or("max_image_tokens", 256)?,
            ],
            tiles,
            tile: fields.count_or("tile_size", 512)? as u32,
            tolerance: fields.float_or("max_pixels_tolerance", 2.0)?,
            thumbnail: fields.flag_or("use_thumbnail", true)?,
            image_token,
            begin: sources.token("<|image_start|>")?,
            end: sources.token("<|image_end|>")?,
            small: sources.token("<|img_thumbnail|>")?,
            places: (0..most * most).map(|i| (sources.token)(&place(i))).collect(),
        })
    }

    /// Width and height of an image that is not cut, and whether it has to be.
    fn size(&self, image: &RgbImage) -> std::result::Result<(u32, u32, bool), ImageError> {
        let factor = (self.patch * self.factor) as f64;
        let (w, h) = (f64::from(image.width), f64::from(image.height));
        let [least, most] = self.tokens.map(|tokens| tokens as f64 * factor * factor);
        let near = |x: f64| f64::from(round(x / factor)) * factor;
        let patch = self.patch as f64;
        let is_large = near(h).max(patch) * near(w).max(patch) > most * self.tolerance;
        let multiples = (near(w).max(factor), near(h).max(factor));
        let (new_w, new_h) = within((w, h), multiples, factor, [least, most])?;
        Ok((new_w, new_h, is_large && self.tiles != [1, 1]))
    }

    fn token_count(&self, width: u32, height: u32) -> usize {
        let count = |side: u32| (side as usize / self.patch).div_ceil(self.factor);
        count(width) * count(height)
    }
}

impl Processor for Tiles {
    fn prepare(&self, image: &RgbImage) -> std::result::Result<Prepared, ImageError> {
        let (filter, tile) = (self.scaling.filter, self.tile);
        let (width, height, is_cut) = self.size(image)?;
        let (mut parts, mut expansion) = (Vec::new(), vec![self.begin]);
        let images = |n: usize| std::iter::repeat_n(self.image_token, n);
        if is_cut {
            let (cols, rows) = closest_grid(image, tile, self.tiles);
            let whole = resize(image, cols * tile, rows * tile, filter);
            for (row, col) in (0..rows).flat_map(|row| (0..cols).map(move |col| (row, col))) {
                if cols * rows > 1 {
                    let place = self.places[row as usize * self.tiles[1] + col as usize];
                    let missing =
                        || ImageError::Refused(format!("the vocabulary has no tile {row}, {col}"));
                    expansion.push(place.ok_or_else(missing)?);
                    expansion.extend(images(self.token_count(tile, tile)));
                }
                parts.push(crop(&whole, col * tile, row * tile, tile, tile));
            }
            if self.thumbnail && cols * rows != 1 {
                expansion.push(self.small);
            }
        }
        if !is_cut || (self.thumbnail && parts.len() > 1) {
            expansion.extend(images(self.token_count(width, height)));
            parts.push(resize(image, width, height, filter));
        } else if parts.len() == 1 {
            expansion.extend(images(self.token_count(tile, tile)));
        }
        expansion.push(self.end);
        let mut pixels = Vec::new();
        let mut shape = vec![0, 3 * self.patch * self.patch];
        for part in &parts {
            pixels.extend(self.scaling.patches(part, self.patch));
            shape.extend([part.height, part.width].map(|side| side as usize / self.patch));
        }
        shape[0] = pixels.len() / shape[1];
        Ok(Prepared { expansion, grid: None, pixels, shape })
    }
}
