//! Rows of heads, multiplied with a matrix a head.

use crate::{
    Linear, Phase, Place, Result, Tensor, TensorError, gpu::StackedHeads, host, join_heads, pool,
    split_heads_at,
};

/// A linear map for each head: what takes queries to the latents of multi-head latent attention, and its
/// results back (DeepSeek-AI, arXiv 2405.04434, 2.1).
#[derive(Debug, Clone)]
pub struct HeadMaps {
    heads: usize,
    inputs: usize,
    outputs: usize,
    maps: Maps,
}

/// The maps where they are computed.
#[derive(Debug, Clone)]
enum Maps {
    Host(Vec<Linear>),
    Gpu(StackedHeads),
}

impl HeadMaps {
    /// One map a head.
    ///
    /// # Errors
    /// There is none, or their shapes differ.
    pub fn new(maps: Vec<Linear>) -> Result<Self> {
        let shape = |map: &Linear| [map.out_features(), map.in_features()];
        let Some([outputs, inputs]) = maps.first().map(shape).filter(|s| !s.contains(&0)) else {
            return Err(TensorError::shape("head maps", "a map a head", &[0]));
        };
        match maps.iter().map(shape).find(|&shape| shape != [outputs, inputs]) {
            Some(other) => {
                let expected = format!("{:?}", [outputs, inputs]);
                Err(TensorError::shape("head maps", expected, &other))
            }
            None => Ok(Self { heads: maps.len(), inputs, outputs, maps: Maps::Host(maps) }),
        }
    }

    /// The maps where and as they will be computed.
    ///
    /// # Errors
    /// As [`Linear::place`]; or a GPU is to have maps of several formats, or with biases.
    pub fn place(self, place: Place<'_>) -> Result<Self> {
        let maps = match (self.maps, place.gpu) {
            (Maps::Host(maps), Some(gpu)) => {
                Maps::Gpu(StackedHeads::new(gpu, &maps, place.is_exact())?)
            }
            (Maps::Host(maps), None) => {
                Maps::Host(maps.into_iter().map(|map| map.place(place)).collect::<Result<_>>()?)
            }
            (there, _) => there,
        };
        Ok(Self { maps, ..self })
    }

    /// Number of weights of all heads.
    #[must_use]
    pub fn elements(&self) -> u64 {
        (self.heads * self.inputs * self.outputs) as u64
    }

    /// Bytes of the weights of all heads.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        match &self.maps {
            Maps::Host(maps) => maps.iter().map(Linear::bytes).sum(),
            Maps::Gpu(maps) => maps.bytes(),
        }
    }

    /// Applies each head's map to the first elements of its part of every row. What else a part has comes
    /// before that.
    ///
    /// # Shapes
    /// `x [t, heads * (in + rest)]` -> `[t, heads * (rest + out)]`.
    ///
    /// # Errors
    /// Another shape or type, or a tensor elsewhere than the maps.
    pub fn forward(&self, x: &Tensor, phase: Phase) -> Result<Tensor> {
        let &Self { heads, inputs, .. } = self;
        let part = x.dims().get(1).filter(|width| width.is_multiple_of(heads)).map(|w| w / heads);
        let Some(part) = part.filter(|&part| part >= inputs && x.dims().len() == 2) else {
            let expected = format!("[t, {heads} times {inputs} or more]");
            return Err(TensorError::shape("head maps", expected, x.dims()));
        };
        match (&self.maps, x.on_gpu()) {
            (Maps::Gpu(maps), Some(x)) if x.gpu().is(maps.gpu()) => Ok(maps.forward(x)?.into()),
            (Maps::Host(maps), None) if part == inputs => self.on_host(maps, x, phase),
            (Maps::Host(maps), None) => {
                let [own, rest] = split_heads_at(x, part, inputs)?;
                join_heads(&rest, &self.on_host(maps, &own, phase)?, heads)
            }
            (_, x) => {
                let device = x.map_or_else(|| "cpu".into(), |x| x.gpu().name());
                Err(TensorError::Device { op: "head maps", device })
            }
        }
    }

    fn on_host(&self, maps: &[Linear], x: &Tensor, phase: Phase) -> Result<Tensor> {
        let (t, _) = host::dims2("head maps", x)?;
        let &Self { heads, inputs, outputs, .. } = self;
        // Heads side by side: what a map starts within a task runs there.
        let head = |x: &[f32], head: usize| {
            let own = x.chunks_exact(inputs).skip(head).step_by(heads);
            let own = Tensor::from_vec(own.flatten().copied().collect(), &[t, inputs])?;
            maps[head].forward(&own, phase)?.to_vec()
        };
        let parts = host::read(x, |x| pool::map(heads, |i| head(x, i)))?;
        let mut out = vec![0.0; t * heads * outputs];
        for (head, part) in parts.into_iter().enumerate() {
            let (part, rows) = (part?, out.chunks_exact_mut(outputs));
            let rows = rows.skip(head).step_by(heads);
            rows.zip(part.chunks_exact(outputs)).for_each(|(o, y)| o.copy_from_slice(y));
        }
        Tensor::from_vec(out, &[t, heads * outputs])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Bytes, DType, DenseWeight, Weight};

    fn tensor(x: &[f32], dims: &[usize]) -> Tensor {
        Tensor::from_vec(x.to_vec(), dims).unwrap()
    }

    fn linear(rows: usize, x: &[f32]) -> Linear {
        let bytes = Bytes::from_vec(x.iter().flat_map(|x| x.to_le_bytes()).collect());
        let weight = DenseWeight::new((rows, x.len() / rows), DType::F32, bytes).unwrap();
        Linear::new(Weight::Dense(weight))
    }

    #[test]
    fn each_head_has_its_map() {
        let maps = vec![linear(1, &[1.0, 2.0]), linear(1, &[10.0, 0.0])];
        let maps = HeadMaps::new(maps).unwrap();
        let x = tensor(&[1.0, 1.0, 2.0, 5.0, 0.0, 3.0, -1.0, 0.0], &[2, 4]);
        let y = maps.forward(&x, Phase::Decode).unwrap();
        assert_eq!((y.dims(), y.to_vec().unwrap()), (&[2, 2][..], vec![3.0, 20.0, 6.0, -10.0]));
        let beside = tensor(&[1.0, 1.0, 9.0, 0.0, 3.0, 7.0], &[1, 6]);
        let y = maps.forward(&beside, Phase::Decode).unwrap();
        assert_eq!((y.dims(), y.to_vec().unwrap()), (&[1, 4][..], vec![9.0, 3.0, 7.0, 0.0]));
        assert!(maps.forward(&tensor(&[0.0; 3], &[1, 3]), Phase::Decode).is_err());
        assert!(maps.forward(&tensor(&[0.0; 2], &[1, 2]), Phase::Decode).is_err());
        assert!(HeadMaps::new(vec![]).is_err());
        assert!(HeadMaps::new(vec![linear(1, &[1.0]), linear(1, &[1.0, 2.0])]).is_err());
    }
}
