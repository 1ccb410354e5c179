//! Token embeddings.

use crate::{
    Linear, Place, Precision, Result, Tensor, TensorError, Weight, gpu::Gpu, linear::Matrix, pool,
};

/// A table of token vectors in any weight format.
#[derive(Debug, Clone)]
pub struct Embedding(Matrix);

impl Embedding {
    /// # Shapes
    /// `weight [vocab, hidden]`.
    #[must_use]
    pub fn new(weight: Weight) -> Self {
        Self(weight.into())
    }

    /// As [`Linear::pack`]; [`Self::as_linear`] then shares the repacked table.
    #[must_use]
    pub fn pack(self, precision: Precision) -> Self {
        Self(self.0.pack(precision))
    }

    /// The table where and as it will be used.
    ///
    /// # Errors
    /// As [`Self::on`].
    pub fn place(self, place: Place<'_>) -> Result<Self> {
        Ok(Self(self.0.place(place)?))
    }

    /// The table on a GPU: tensors that it gives are there, and so is all that is computed from them.
    /// `exact` as in [`Linear::on`].
    ///
    /// # Errors
    /// There is no room, or no kernel for its format.
    pub fn on(self, gpu: &Gpu, exact: bool) -> Result<Self> {
        Ok(Self(self.0.on(gpu, exact)?))
    }

    /// Looks tokens up.
    ///
    /// # Shapes
    /// `t` tokens -> `[t, hidden]` f32.
    ///
    /// # Errors
    /// A token is not below the vocabulary size.
    pub fn forward(&self, tokens: &[u32]) -> Result<Tensor> {
        let (limit, hidden) = (self.0.rows(), self.0.cols());
        if let Some(&token) = tokens.iter().find(|&&t| t as usize >= limit) {
            return Err(TensorError::Index { op: "embedding", index: token as usize, limit });
        }
        let table = match &self.0 {
            Matrix::Gpu(table) => return Ok(table.rows_of(tokens)?.into()),
            Matrix::Host(table) => table,
        };
        let mut out = vec![0.0; tokens.len() * hidden];
        let mut rows: Vec<_> = out.chunks_exact_mut(hidden).zip(tokens).collect();
        pool::for_each(&mut rows, |_, (row, token)| table.read_row(**token as usize, row));
        Tensor::from_vec(out, &[tokens.len(), hidden])
    }

    /// The output projection that shares this table ("tied" embeddings).
    #[must_use]
    pub fn as_linear(&self) -> Linear {
        Linear::over(self.0.clone())
    }

    /// Shape of the table, `(vocab, hidden)`.
    #[must_use]
    pub fn shape(&self) -> (usize, usize) {
        (self.0.rows(), self.0.cols())
    }

    /// Bytes in memory or mapped.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.0.bytes()
    }
}
