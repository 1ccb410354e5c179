//! The gated short convolution of LFM2 (Liquid AI 2025): a convolution over few tokens between two gates.

use super::{
    CausalConv, Columns, ConvShape, RecurrentSegment, RunSegments, check_segments, rows_of,
    rows_there,
};
use crate::{Result, Tensor, TensorError, host};

/// `c * conv(b * x)`, element by element but for the convolution.
#[derive(Debug, Clone)]
pub struct ShortConv {
    conv: CausalConv,
}

const OP: &str = "short convolution";

impl ShortConv {
    /// A layer's convolution, with weights `[channels, kernel]`.
    ///
    /// # Errors
    /// As [`CausalConv::new`].
    pub fn new(shape: ConvShape, weights: &[f32], bias: Option<Vec<f32>>) -> Result<Self> {
        Ok(Self { conv: CausalConv::new(shape, weights, bias, false)? })
    }

    /// The layer's output before its last projection. `over` calls what it is given with the step's
    /// segments: each token once, those of one sequence in their order.
    ///
    /// # Shapes
    /// `b`, `c` and `x` side by side, `[t, 3 * channels]` -> `[t, channels]`.
    ///
    /// # Errors
    /// Shapes that do not fit, or an error of `over`.
    pub fn forward<E: From<TensorError>>(
        &self,
        bcx: &Tensor,
        over: impl FnOnce(&mut RunSegments<'_>) -> std::result::Result<(), E>,
    ) -> std::result::Result<Tensor, E> {
        let shape = self.conv.shape();
        let n = shape.channels;
        let (t, _) = host::dims2(OP, bcx)?;
        if bcx.gpu().is_some() {
            let bcx = rows_there(OP, bcx, t, 3 * n)?;
            return self.conv.forward_there(bcx, (2 * n, Some([0, n])), over);
        }
        let bcx = rows_of(OP, bcx, t, 3 * n)?;
        let product = |row: &[f32]| (0..n).map(|i| row[i] * row[2 * n + i]).collect::<Vec<_>>();
        let gated: Vec<f32> = bcx.chunks_exact(3 * n).flat_map(product).collect();
        let mut out = Columns { data: &bcx, width: 3 * n, range: n..2 * n }.to_vec();
        let input = Columns::all(&gated, n);
        over(&mut |segments| {
            let segments = segments.on_host(OP)?;
            check_segments(OP, segments, t, shape.state_len())?;
            for RecurrentSegment { rows, state } in segments {
                let mixed = self.conv.run(&input, rows, state, |_| ());
                let own = &mut out[rows.start * n..rows.end * n];
                own.iter_mut().zip(mixed).for_each(|(c, y)| *c *= y);
            }
            Ok(())
        })?;
        Ok(Tensor::from_vec(out, &[t, n])?)
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{Segments, noise},
        *,
    };

    const SHAPE: ConvShape = ConvShape { channels: 4, kernel: 3 };

    fn layer() -> ShortConv {
        ShortConv::new(SHAPE, &noise::noise(12, 1), None).unwrap()
    }

    #[test]
    fn every_cut_gives_identical_bits() {
        noise::check_cuts(SHAPE.state_len(), |t, over| {
            let x = Tensor::from_vec(noise::noise(t * 12, 3), &[t, 12])?;
            layer().forward(&x, over)?.to_vec()
        });
    }

    #[test]
    fn gates_are_before_and_after() {
        let shape = ConvShape { channels: 1, kernel: 2 };
        let layer = ShortConv::new(shape, &[2.0, 3.0], Some(vec![1.0])).unwrap();
        let bcx = Tensor::from_vec(vec![2.0, 5.0, 7.0, 3.0, -1.0, 4.0], &[2, 3]).unwrap();
        let mut state = vec![10.0];
        let out: Result<Tensor> = layer.forward(&bcx, |run| {
            run(Segments::Host(&mut [RecurrentSegment { rows: 0..2, state: &mut state }]))
        });
        let want = [5.0 * (20.0 + 3.0 * 14.0 + 1.0), -(28.0 + 36.0 + 1.0)];
        assert_eq!(out.unwrap().to_vec().unwrap(), want);
        assert_eq!(state, [12.0]);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let x = Tensor::from_vec(vec![0.0; 8], &[2, 4]).unwrap();
        let out = layer().forward(&x, |_| Ok::<_, TensorError>(()));
        assert!(matches!(out, Err(TensorError::Shape { op: OP, .. })));
    }
}
