//! Llama 4: tiles of a canvas and the whole image, positions of two axes, squares of patches as one row.

use super::{
    Parts, Sources,
    pixtral::theta,
    vit::{VitSizes, block_shape},
};
use crate::{
    VisionError,
    encoder::{Prepared, Processor, Rows, Tower},
    layers::{
        Activation, Block, BlockNames, BlockShape, Grid, Linear, Norm, PatchEmbedding, Rope, cut,
        frequencies, squares,
    },
    resize::{Filter, resize},
    settings::{HALVES, Scaling, crop, pad},
};
use candle_core::{Device, Result, Tensor};
use serde_json::json;
use taper_base::{ImageError, PreparedImage, RgbImage, TokenId};

const NAMES: BlockNames = BlockNames {
    norms: ["input_layernorm", "post_attention_layernorm"],
    qkv: &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    out: "self_attn.o_proj",
    mlp: &["mlp.fc1", "mlp.fc2"],
    qk_norms: None,
    scales: None,
};

pub(super) fn build(sources: &Sources<'_>) -> std::result::Result<Parts, VisionError> {
    let (config, vision) = (sources.config, sources.vision);
    let weights =
        sources.below(&["vision_model", "model.vision_model"], "patch_embedding.linear")?;
    let projector =
        sources.below(&["multi_modal_projector", "model.multi_modal_projector"], "linear_1")?;
    let sizes = VitSizes::read(vision, 448, 14)?;
    let side = (1.0 / vision.float_or("pixel_shuffle_ratio", 0.5)?) as usize;
    let merged = vision.count_or("intermediate_size", 5632)?;
    let width = block_shape(vision, "gelu", 1e-5)?;
    // The field of this name is the adapter's; a layer's is as wide.
    let shape = BlockShape { inner: merged, eps: vision.float_or("norm_eps", 1e-5)?, ..width };
    let (inner, output) = (
        vision.count_or("projector_input_dim", 4096)?,
        vision.count_or("projector_output_dim", 4096)?,
    );
    let hidden = config.section("text_config").count("hidden_size")?;
    let norm = |name: &str| Norm::load(&weights, name, shape.hidden, shape.norm, shape.eps);
    let rows = sizes.side().pow(2) + 1;
    let adapter = weights.at("vision_adapter.mlp");
    let tower = Llama4 {
        patch: PatchEmbedding::load(
            &weights,
            "patch_embedding.linear",
            shape.hidden,
            &[3, sizes.patch, sizes.patch],
        )?,
        class: weights.tensor("class_embedding", &[shape.hidden])?,
        positions: weights.tensor("positional_embedding_vlm", &[rows, shape.hidden])?,
        norms: [norm("layernorm_pre")?, norm("layernorm_post")?],
        blocks: Block::load_all(
            &weights.at("model.layers"),
            vision.count_or("num_hidden_layers", 34)?,
            &NAMES,
            &shape,
        )?,
        maps: [
            Linear::load(&adapter, "fc1", shape.hidden * side * side, inner)?,
            Linear::load(&adapter, "fc2", inner, output)?,
        ],
        projection: Linear::load(&projector, "linear_1", output, hidden)?,
        frequencies: frequencies(shape.head_dim / 2, theta(sources)?),
        sizes,
        side,
        device: weights.device().clone(),
    };
    let fields = sources.processor;
    fields.section("size").expect("height", &json!(sizes.image))?;
    let image_token = sources.token_of(&["image_token_index", "image_token_id"], "<|patch|>")?;
    let placeholder = sources.token("<|image|>")?;
    let canvas = Canvas {
        scaling: Scaling::read(fields, Filter::Bilinear, HALVES)?.in_bf16(),
        side: sizes.image as u32,
        most: fields.count_or("max_patches", 16)? as u32,
        largest: fields.flag_or("resize_to_max_canvas", false)?,
        rows: (sizes.side() / side.max(1)).pow(2),
        image_token,
        placeholder,
        begin: sources.token("<|image_start|>")?,
        end: sources.token("<|image_end|>")?,
        column: sources.token("<|tile_x_separator|>")?,
        row: sources.token("<|tile_y_separator|>")?,
    };
    Ok(Parts {
        processor: Box::new(canvas),
        tower: Box::new(tower),
        placeholder,
        image_token,
        hidden,
        idle: &["rotary_embedding"],
    })
}

#[derive(Debug)]
struct Llama4 {
    patch: PatchEmbedding,
    /// The last row of an image.
    class: Tensor,
    positions: Tensor,
    norms: [Norm; 2],
    blocks: Vec<Block>,
    maps: [Linear; 2],
    projection: Linear,
    frequencies: Vec<f32>,
    sizes: VitSizes,
    side: usize,
    device: Device,
}

impl Llama4 {
    /// Half of the pairs of a head turn by the column, counted from 1, the others by the row; the class stays.
    fn rope(&self, images: usize) -> Result<Rope> {
        let side = self.sizes.side();
        let of = |at: u32| self.frequencies.iter().map(move |f| (at + 1) as f32 * f);
        let mut angles = Vec::new();
        for [y, x] in (Grid { height: side, width: side, merge: 1 }).positions() {
            angles.extend(of(x).chain(of(y)));
        }
        angles.extend(vec![0.0; 2 * self.frequencies.len()]);
        Ok(Rope::new(angles.repeat(images), images * (side * side + 1), &self.device)?
            .of_neighbours())
    }
}

impl Tower for Llama4 {
    fn forward(&self, image: &PreparedImage) -> Result<Rows> {
        let pixels = Tensor::from_slice(&image.pixels, image.shape.as_slice(), &self.device)?;
        let (n, side) = (pixels.dim(0)?, self.sizes.side());
        let x = self.patch.forward(&cut(&pixels, self.sizes.patch)?)?;
        let hidden = x.dim(1)?;
        let class = self.class.reshape((1, 1, hidden))?.expand((n, 1, hidden))?;
        let x = Tensor::cat(&[&x.reshape((n, side * side, hidden))?, &class], 1)?;
        let rows = side * side + 1;
        let x = x.broadcast_add(&self.positions)?.reshape((n * rows, hidden))?;
        let mut x = self.norms[0].forward(&x)?;
        let (rope, segments) = (self.rope(n)?, (1..=n).map(|i| i * rows).collect::<Vec<_>>());
        for block in &self.blocks {
            x = block.forward(&x, Some(&rope), &segments)?;
        }
        let x = self.norms[1].forward(&x)?.reshape((n, rows, hidden))?.narrow(1, 0, side * side)?;
        let mut x = squares(&x.contiguous()?.reshape((n, side, side, hidden))?, self.side)?;
        for map in &self.maps {
            x = map.forward_act(&x, Activation::Gelu)?;
        }
        Ok(self.projection.forward(&x)?.into())
    }
}

/// `Llama4ImageProcessor` of transformers, and the text that its processor writes for an image.
#[derive(Debug)]
struct Canvas {
    scaling: Scaling,
    /// Of a tile, in pixels.
    side: u32,
    /// The most tiles.
    most: u32,
    /// Images become as large as the canvas allows.
    largest: bool,
    /// Rows of the tower's output a tile.
    rows: usize,
    image_token: TokenId,
    placeholder: TokenId,
    begin: TokenId,
    end: TokenId,
    column: TokenId,
    row: TokenId,
}

impl Canvas {
    /// Rows and columns of every canvas, those of one ratio together.
    fn grids(&self) -> Vec<(u32, u32)> {
        let mut ratios: Vec<Vec<(u32, u32)>> = Vec::new();
        for tiles in (1..=self.most).rev() {
            for rows in (1..=tiles).filter(|rows| tiles % rows == 0) {
                let grid = (rows, tiles / rows);
                let same = |of: &&mut Vec<(u32, u32)>| of[0].0 * grid.1 == of[0].1 * grid.0;
                match ratios.iter_mut().find(same) {
                    Some(of) => of.push(grid),
                    None => ratios.push(vec![grid]),
                }
            }
        }
        ratios.concat()
    }

    /// Rows and columns of the canvas on which the image is enlarged least, or made smaller least.
    fn grid(&self, image: &RgbImage) -> (u32, u32) {
        let scale = |&(rows, cols): &(u32, u32)| {
            let h = (rows * self.side) as f32 / image.height as f32;
            let w = (cols * self.side) as f32 / image.width as f32;
            h.min(w)
        };
        let grids = self.grids();
        let scales: Vec<_> = grids.iter().map(scale).collect();
        let up = scales.iter().copied().filter(|scale| *scale >= 1.0);
        let chosen = match self.largest {
            true => up.reduce(f32::max),
            false => up.reduce(f32::min),
        };
        let chosen = chosen.or_else(|| scales.iter().copied().reduce(f32::max)).unwrap_or(1.0);
        let fitting = grids.iter().zip(scales).filter(|(_, scale)| *scale == chosen);
        fitting.map(|(grid, _)| *grid).min_by_key(|(rows, cols)| rows * cols).unwrap_or((1, 1))
    }

    /// Width and height within the canvas.
    fn size(&self, image: &RgbImage, (height, width): (u32, u32)) -> (u32, u32) {
        let (mut height, mut width) = (height, width);
        if !self.largest {
            height = height.min(image.height.max(self.side));
            width = width.min(image.width.max(self.side));
        }
        let (w, h) = (f64::from(image.width), f64::from(image.height));
        let (by_w, by_h) = (f64::from(width) / w, f64::from(height) / h);
        match by_w < by_h {
            true => (width, ((h * by_w).floor() as u32).clamp(1, height)),
            false => (((w * by_h).floor() as u32).clamp(1, width), height),
        }
    }

    fn expansion(&self, rows: u32, cols: u32) -> Vec<TokenId> {
        let images = vec![self.image_token; self.rows];
        let mut out = vec![self.begin];
        if rows * cols > 1 {
            for _ in 0..rows {
                for col in 0..cols {
                    if col > 0 {
                        out.push(self.column);
                    }
                    out.extend(&images);
                }
                out.push(self.row);
            }
        }
        out.push(self.placeholder);
        out.extend(images);
        out.push(self.end);
        out
    }
}

impl Processor for Canvas {
    fn prepare(&self, image: &RgbImage) -> std::result::Result<Prepared, ImageError> {
        let (side, filter) = (self.side, self.scaling.filter);
        let (rows, cols) = self.grid(image);
        let (width, height) = self.size(image, (rows * side, cols * side));
        let whole = pad(&resize(image, width, height, filter), cols * side, rows * side);
        let mut pixels = Vec::new();
        for (row, col) in (0..rows).flat_map(|row| (0..cols).map(move |col| (row, col))) {
            pixels.extend(self.scaling.planes(&crop(&whole, col * side, row * side, side, side)));
        }
        let mut tiles = (rows * cols) as usize;
        if tiles > 1 {
            pixels.extend(self.scaling.planes(&resize(image, side, side, filter)));
            tiles += 1;
        }
        Ok(Prepared {
            expansion: self.expansion(rows, cols),
            grid: None,
            pixels,
            shape: vec![tiles, 3, side as usize, side as usize],
        })
    }
}
