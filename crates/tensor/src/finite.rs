//! Which rows are finite.

use crate::{
    Result, Tensor, TensorError,
    cpu::Floats,
    gpu::{self, Buffer},
    host, ops,
};

/// Which rows of two tensors have no infinity and no NaN in either.
///
/// On a GPU the rows are looked at where they are; the host waits for the result when it asks.
#[derive(Debug)]
pub struct FiniteRows(Answer);

#[derive(Debug)]
enum Answer {
    Here(Vec<bool>),
    /// For so many rows, what `argmax` chose: no element of a row that is not finite.
    There(Buffer, usize),
}

impl FiniteRows {
    /// Looks at each row of `x` and of `y`.
    ///
    /// # Shapes
    /// `x`, `y` `[rows, width]`.
    ///
    /// # Errors
    /// Another shape or type.
    pub fn new(x: &Tensor, y: &Tensor) -> Result<Self> {
        let (rows, width) = host::dims2("finite rows", x)?;
        if y.dims() != x.dims() {
            return Err(TensorError::shape("finite rows", format!("{:?}", x.dims()), y.dims()));
        }
        if x.gpu().is_some() && rows > 0 {
            // A sum is finite only if both are, and zero times what is not finite is NaN.
            let marks = ops::scale(&ops::add(x, y)?, 0.0)?;
            return Ok(Self(Answer::There(gpu::launch_argmax(&marks)?, rows)));
        }
        let finite = |all: &[f32]| -> Vec<bool> {
            let rows = all.chunks_exact(width.max(1));
            rows.map(|row| Floats::F32(row).all_finite()).collect()
        };
        let mut all = host::read(x, finite)?;
        let other = host::read(y, finite)?;
        all.iter_mut().zip(other).for_each(|(all, other)| *all &= other);
        Ok(Self(Answer::Here(all)))
    }

    /// Whether each row is finite.
    ///
    /// # Errors
    /// The GPU does not respond.
    pub fn read(self) -> Result<Vec<bool>> {
        match self.0 {
            Answer::Here(finite) => Ok(finite),
            Answer::There(tokens, rows) => {
                let tokens = tokens.read::<u32>(0, rows)?;
                Ok(tokens.into_iter().map(|token| token != gpu::NO_TOKEN).collect())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_finite_when_both_of_its_sides_are() {
        let side = |x: [f32; 6]| Tensor::from_vec(x.to_vec(), &[3, 2]).unwrap();
        let x = side([1.0, f32::MIN, 0.0, 0.0, f32::NEG_INFINITY, 0.0]);
        let y = side([0.0, 1.0, f32::NAN, 0.0, 1.0, 1.0]);
        assert_eq!(FiniteRows::new(&x, &y).unwrap().read().unwrap(), [true, false, false]);
        let other = Tensor::from_vec(vec![0.0; 2], &[1, 2]).unwrap();
        assert!(matches!(FiniteRows::new(&x, &other), Err(TensorError::Shape { .. })));
    }
}
