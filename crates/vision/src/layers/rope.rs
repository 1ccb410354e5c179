//! Rotary positions.

use candle_core::{Device, Result, Tensor};

/// Cosines and sines for each row.
#[derive(Debug)]
pub(crate) struct Rope {
    /// `[rows, head_dim / 2]` each.
    cos: Tensor,
    sin: Tensor,
    /// Elements 2 i and 2 i + 1 go together.
    neighbours: bool,
}

impl Rope {
    /// Cosines and sines of the angles `[rows, head_dim / 2]`.
    pub(crate) fn new(angles: Vec<f32>, rows: usize, device: &Device) -> Result<Self> {
        let angles = Tensor::from_vec(angles, (rows, ()), device)?;
        Ok(Self { cos: angles.cos()?, sin: angles.sin()?, neighbours: false })
    }

    /// Turns elements 2 i and 2 i + 1 of a head together.
    pub(crate) fn of_neighbours(self) -> Self {
        Self { neighbours: true, ..self }
    }

    /// The first half of a head's frequencies turn by the row in the image, the others by the column.
    pub(crate) fn axial(
        positions: &[[u32; 2]],
        head_dim: usize,
        theta: f64,
        device: &Device,
    ) -> Result<Self> {
        let frequencies = frequencies(head_dim / 2, theta);
        let angle = |&[y, x]: &[u32; 2]| {
            let of = |at: u32| frequencies.iter().map(move |f| at as f32 * f);
            of(y).chain(of(x)).collect::<Vec<_>>()
        };
        Self::new(positions.iter().flat_map(angle).collect(), positions.len(), device)
    }

    /// All frequencies turn by one position a row.
    pub(crate) fn line(positions: &[u32], dim: usize, theta: f64, device: &Device) -> Result<Self> {
        let frequencies = frequencies(dim, theta);
        let angles =
            positions.iter().flat_map(|&at| frequencies.iter().map(move |f| at as f32 * f));
        Self::new(angles.collect(), positions.len(), device)
    }

    /// Turns `[heads, rows, head_dim]`; element i goes with element i + head_dim / 2.
    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = x.unsqueeze(0)?;
        let turned = match self.neighbours {
            true => candle_nn::rotary_emb::rope_i(&x, &self.cos, &self.sin)?,
            false => candle_nn::rotary_emb::rope(&x, &self.cos, &self.sin)?,
        };
        turned.squeeze(0)
    }
}

/// `theta^(-i / dim)` for even `i < dim`.
pub(crate) fn frequencies(dim: usize, theta: f64) -> Vec<f32> {
    let frequency = |i: usize| 1.0 / (theta as f32).powf(i as f32 / dim as f32);
    (0..dim).step_by(2).map(frequency).collect()
}
