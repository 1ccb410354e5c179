//! Idefics 3 and SmolVLM: tiles and the whole image, SigLIP, squares of patches as one row.

use super::{
    Parts, Sources,
    vit::{SIGLIP, Vit, VitNames, VitSizes, block_shape},
};
use crate::{
    Fields, VisionError,
    encoder::{Prepared, Processor, Rows, Tower},
    layers::{Linear, squares},
    resize::{Filter, resize},
    settings::{HALVES, Scaling, crop},
};
use candle_core::{Device, Result, Tensor};
use taper_base::{ImageError, PreparedImage, RgbImage, TokenId};

/// An image is never larger than this, whatever the processor's file says.
const MOST: f64 = 4096.0;

pub(super) fn build(sources: &Sources<'_>) -> std::result::Result<Parts, VisionError> {
    let vision = sources.vision;
    let weights = sources.below(
        &["model.vision_model", "vision_model", "model.vision_tower", "vision_tower"],
        "embeddings.patch_embedding",
    )?;
    let sizes = VitSizes::read(vision, 224, 32)?;
    let shape = block_shape(vision, "gelu_pytorch_tanh", 1e-6)?;
    let depth = vision.count_or("num_hidden_layers", 12)?;
    let names = VitNames { ..SIGLIP };
    let mut vit = Vit::load(&weights, &names, &shape, sizes, depth)?;
    vit.pick_positions(&buckets(sizes.side()))?;
    let scale = sources.config.count_or("scale_factor", 2)?;
    let hidden = sources.config.section("text_config").count("hidden_size")?;
    let connector = sources.below(&["model.connector", "connector"], "modality_projection.proj")?;
    let inputs = shape.hidden * scale * scale;
    let tower = Idefics {
        vit,
        depth,
        scale,
        projection: Linear::load(&connector, "modality_projection.proj", inputs, hidden)?,
        device: weights.device().clone(),
    };
    let image_token = sources.token_of(&["image_token_id", "image_token_index"], "<image>")?;
    let rows = (sizes.side() / scale).pow(2);
    Ok(Parts {
        processor: Box::new(Tiles::read(sources, sizes.image, rows, image_token)?),
        tower: Box::new(tower),
        placeholder: image_token,
        image_token,
        hidden,
        idle: &["position_ids"],
    })
}

/// transformers finds a patch's position by comparing rounded fractions, of which a few fall below their boundary.
fn buckets(side: usize) -> Vec<u32> {
    let step = 1.0 / side as f64;
    let boundaries: Vec<_> = (0..side).map(|i| (step + i as f64 * step) as f32).collect();
    let fraction = |i: usize| (i as f32 * (1.0 / side as f32)).min(1.0 - 1e-6);
    let bucket = |i: usize| boundaries.iter().filter(|b| **b <= fraction(i)).count().min(side - 1);
    let axis: Vec<_> = (0..side).map(bucket).collect();
    axis.iter().flat_map(|y| axis.iter().map(move |x| (y * side + x) as u32)).collect()
}

#[derive(Debug)]
struct Idefics {
    vit: Vit,
    depth: usize,
    scale: usize,
    projection: Linear,
    device: Device,
}

impl Tower for Idefics {
    fn forward(&self, image: &PreparedImage) -> Result<Rows> {
        let pixels = Tensor::from_slice(&image.pixels, image.shape.as_slice(), &self.device)?;
        let x = self.vit.forward(&pixels, &[self.depth], false)?;
        let (n, side, hidden) = (x.dim(0)?, self.vit.sizes.side(), self.vit.hidden);
        let x = squares(&x.reshape((n, side, side, hidden))?, self.scale)?;
        Ok(self.projection.forward(&x)?.into())
    }
}

/// `Idefics3ImageProcessor` of transformers, and the text that its processor writes for an image.
#[derive(Debug)]
struct Tiles {
    scaling: Scaling,
    split: bool,
    /// Length of an image's longer side before it is cut.
    longest: f64,
    /// Of a tile, in pixels.
    side: u32,
    /// Rows of the tower's output a tile.
    rows: usize,
    image_token: TokenId,
    fake: TokenId,
    global: TokenId,
    newline: TokenId,
    blank_line: Vec<TokenId>,
    /// Tokens of places, `most * most`.
    places: Vec<TokenId>,
    most: usize,
}

impl Tiles {
    fn read(
        sources: &Sources<'_>,
        image: usize,
        rows: usize,
        image_token: TokenId,
    ) -> std::result::Result<Self, VisionError> {
        let fields = sources.processor;
        let split = fields.flag_or("do_image_splitting", true)?;
        let side = fields.section("max_image_size").count_or("longest_edge", 364)?;
        let longest = fields.section("size").count_or("longest_edge", 4 * 364)?;
        if side != image {
            return Err(VisionError::Field {
                field: "max_image_size".to_owned(),
                value: side.to_string(),
                expected: "the tower's image_size is needed",
            });
        }
        let rows_said = fields.count_or("image_seq_len", rows)?;
        Fields(&serde_json::json!({ "image_seq_len": rows_said }))
            .expect("image_seq_len", &serde_json::json!(rows))?;
        let most = if split { longest.min(MOST as usize).div_ceil(side) } else { 0 };
        let newline = sources.token("\n").or_else(|_| sources.token("\u{10a}"))?;
        let blank_line = ["\n\n", "\u{10a}\u{10a}"].iter().find_map(|text| (sources.token)(text));
        let place = |i: usize| format!("<row_{}_col_{}>", i / most + 1, i % most + 1);
        Ok(Self {
            scaling: Scaling::read(fields, Filter::Lanczos, HALVES)?,
            split,
            longest: longest as f64,
            side: side as u32,
            rows,
            image_token,
            fake: sources.token("<fake_token_around_image>")?,
            global: sources.token("<global-img>")?,
            newline,
            blank_line: blank_line.map_or_else(|| vec![newline; 2], |token| vec![token]),
            places: (0..most * most)
                .map(|i| sources.token(&place(i)))
                .collect::<std::result::Result<_, _>>()?,
            most,
        })
    }

    /// Width and height with the longer side as long as it may be.
    fn longest(&self, image: &RgbImage) -> (u32, u32) {
        let (w, h) = (f64::from(image.width), f64::from(image.height));
        let ratio = w / h;
        let even = |x: f64| x.floor() + x.floor() % 2.0;
        let (w, h) = match w >= h {
            true => (self.longest, even(self.longest / ratio).max(1.0)),
            false => (even(self.longest * ratio).max(1.0), self.longest),
        };
        let ratio = w / h;
        let (w, h) = match w >= h {
            true if w > MOST => (MOST, (MOST / ratio).floor().max(1.0)),
            false if h > MOST => ((MOST * ratio).floor().max(1.0), MOST),
            _ => (w, h),
        };
        (w as u32, h as u32)
    }

    /// Columns and rows of tiles.
    fn grid(&self, width: u32, height: u32) -> (u32, u32) {
        let (w, h) = (f64::from(width), f64::from(height));
        let side = f64::from(self.side);
        let up = |x: f64| (x / side).ceil() * side;
        let ratio = w / h;
        let (w, h) = match w >= h {
            true => (up(w), up((up(w) / ratio).floor())),
            false => (up((up(h) * ratio).floor()), up(h)),
        };
        (((w / side) as u32).max(1), ((h / side) as u32).max(1))
    }

    fn expansion(&self, cols: u32, rows: u32) -> Vec<TokenId> {
        let mut out = Vec::new();
        let images = |out: &mut Vec<TokenId>| {
            out.extend(std::iter::repeat_n(self.image_token, self.rows));
        };
        for row in 0..rows as usize {
            for col in 0..cols as usize {
                out.extend([self.fake, self.places[row * self.most + col]]);
                images(&mut out);
            }
            // The line behind the last row is empty, and both ends are written as one token.
            match row + 1 == rows as usize {
                true => out.extend(&self.blank_line),
                false => out.push(self.newline),
            }
        }
        out.extend([self.fake, self.global]);
        images(&mut out);
        out.push(self.fake);
        out
    }
}

impl Processor for Tiles {
    fn prepare(&self, image: &RgbImage) -> std::result::Result<Prepared, ImageError> {
        let (filter, side) = (self.scaling.filter, self.side);
        let (width, height) = self.longest(image);
        let image = resize(image, width, height, filter);
        let (mut cols, mut rows) = (0, 0);
        let mut pixels = Vec::new();
        let mut whole = image;
        if self.split {
            let (c, r) = self.grid(width, height);
            whole = resize(&whole, c * side, r * side, filter);
            if c * r > 1 {
                (cols, rows) = (c, r);
                if rows.max(cols) as usize > self.most {
                    return Err(ImageError::Refused(format!("{cols} x {rows} tiles are too many")));
                }
                for (row, col) in (0..rows).flat_map(|row| (0..cols).map(move |col| (row, col))) {
                    let tile = crop(&whole, col * side, row * side, side, side);
                    pixels.extend(self.scaling.planes(&tile));
                }
            }
        }
        pixels.extend(self.scaling.planes(&resize(&whole, side, side, filter)));
        let tiles = (cols * rows + 1) as usize;
        Ok(Prepared {
            expansion: self.expansion(cols, rows),
            grid: None,
            pixels,
            shape: vec![tiles, 3, side as usize, side as usize],
        })
    }
}
