//! Maps as bytes that somebody else keeps: the matrix as kernels read it, and its bias.

use super::{Linear, Matrix};
use crate::{
    Bytes, DType, Precision, Result, TensorError,
    cpu::maps::{self, IMAGE_ALIGN, MatrixLayout},
    gpu::Resident,
};
use std::{fmt, str::FromStr};

/// What the bytes of a map are. Its text, as `affine 768 2048 64 4 bf16 biased`, is what files say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LinearLayout {
    /// The matrix.
    pub matrix: MatrixLayout,
    /// Whether a bias follows it, f32.
    pub bias: bool,
}

impl LinearLayout {
    /// Bytes of an image.
    ///
    /// # Errors
    /// No matrix has such numbers.
    pub fn bytes(&self) -> Result<usize> {
        let matrix = self.matrix.bytes()?;
        Ok(match self.bias {
            true => matrix.next_multiple_of(IMAGE_ALIGN) + self.bias_bytes(),
            false => matrix,
        })
    }

    fn bias_bytes(&self) -> usize {
        self.matrix.shape().0 * size_of::<f32>()
    }
}

impl fmt::Display for LinearLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.matrix, if self.bias { BIASED } else { "" })
    }
}

const BIASED: &str = " biased";

/// Reads what `Display` writes.
impl FromStr for LinearLayout {
    type Err = TensorError;

    fn from_str(text: &str) -> Result<Self> {
        let (matrix, bias) = match text.strip_suffix(BIASED) {
            Some(matrix) => (matrix, true),
            None => (text, false),
        };
        Ok(Self { matrix: matrix.parse()?, bias })
    }
}

impl Linear {
    /// The map as [`Self::pack`] would have it, but that it has an image wherever its format has one.
    #[must_use]
    pub fn for_image(self, precision: Precision) -> Self {
        let matrix = match self.matrix {
            Matrix::Host(w) => Matrix::Host(w.for_image(precision)),
            there @ Matrix::Gpu(_) => there,
        };
        Self { matrix, ..self }
    }

    /// What [`Self::write_image`] writes; `None` of maps that are not repacked for the CPU.
    #[must_use]
    pub fn layout(&self) -> Option<LinearLayout> {
        let Matrix::Host(matrix) = &self.matrix else { return None };
        Some(LinearLayout { matrix: matrix.layout()?, bias: self.bias.is_some() })
    }

    /// Writes the map for [`Self::from_image`].
    ///
    /// # Errors
    /// It has no image, or `out` has another length than one.
    pub fn write_image(&self, out: &mut [u8]) -> Result<()> {
        let (Some(layout), Matrix::Host(matrix)) = (self.layout(), &self.matrix) else {
            return Err(TensorError::Device { op: "image", device: "a stored weight".into() });
        };
        let (expected, got) = (layout.bytes()?, out.len());
        if expected != got {
            return Err(TensorError::Bytes { what: "image", expected, got });
        }
        let (main, side) = out.split_at_mut(layout.matrix.bytes()?);
        matrix.write_image(main)?;
        let bias = self.bias().unwrap_or_default();
        let padding = side.len() - size_of_val(bias);
        let (padding, side) = side.split_at_mut(padding);
        padding.fill(0);
        for (to, x) in side.as_chunks_mut().0.iter_mut().zip(bias) {
            *to = x.to_le_bytes();
        }
        Ok(())
    }

    /// The map of an image, over its memory, which begins at a multiple of [`IMAGE_ALIGN`].
    ///
    /// # Errors
    /// As [`maps::Matrix::from_image`].
    pub fn from_image(layout: LinearLayout, precision: Precision, image: &Bytes) -> Result<Self> {
        let (expected, got) = (layout.bytes()?, image.len());
        let wrong = || TensorError::Bytes { what: "image", expected, got };
        if expected != got {
            return Err(wrong());
        }
        let main = image.slice(0..layout.matrix.bytes()?).ok_or_else(wrong)?;
        let matrix = maps::Matrix::from_image(layout.matrix, precision, &main)?;
        let map = Self::over(Matrix::Host(matrix));
        if !layout.bias {
            return Ok(map);
        }
        let bias = image.slice(expected - layout.bias_bytes()..expected).ok_or_else(wrong)?;
        let bias = crate::cpu::read_floats("bias", DType::F32, bias, map.out_features())?;
        Ok(Self { bias: Some(Resident::new(bias)), ..map })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AlignedBytes, DenseWeight, Phase, Tensor, Weight};

    #[test]
    fn maps_of_images_have_their_bias() {
        let floats = |n: usize| (0..n).flat_map(|i| (i as f32 * 0.7).sin().to_le_bytes()).collect();
        let weight = DenseWeight::new((5, 8), DType::F32, Bytes::from_vec(floats(40))).unwrap();
        let stored = Linear::new(Weight::Dense(weight));
        let biased = stored.clone().with_bias(DType::F32, Bytes::from_vec(floats(5))).unwrap();
        assert!(stored.layout().is_none() && stored.write_image(&mut []).is_err());
        for map in [stored, biased] {
            let packed = map.clone().for_image(Precision::Int8);
            let layout = packed.layout().unwrap();
            assert_eq!(layout.to_string().parse::<LinearLayout>().unwrap(), layout);
            let mut image = AlignedBytes::zeroed(layout.bytes().unwrap());
            packed.write_image(image.as_mut_slice()).unwrap();
            assert!(packed.write_image(&mut image.as_mut_slice()[1..]).is_err());
            let image = Bytes::from(image);
            let read = Linear::from_image(layout, Precision::Int8, &image).unwrap();
            let x = Tensor::from_vec((0..16).map(|i| i as f32).collect(), &[2, 8]).unwrap();
            let of = |map: &Linear| map.forward(&x, Phase::Decode).unwrap().to_vec2().unwrap();
            assert_eq!(of(&map.pack(Precision::Int8)), of(&read), "{layout}");
            let short = image.slice(0..image.len() - 4).unwrap();
            assert!(Linear::from_image(layout, Precision::Int8, &short).is_err());
        }
        assert!("dense 5 8 f32 bias".parse::<LinearLayout>().is_err());
    }
}
