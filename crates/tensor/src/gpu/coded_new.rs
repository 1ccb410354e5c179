//! Attention of one token a sequence over a compressed cache, from the output of the projections.

use super::{
    Buffer, Gpu, Launch, Operand,
    attention::{Scoring, on_gpu},
    coded::{CodedCache, CodedPages, CodedPlan},
    coded_plan::Writes,
    count, params,
};
use crate::{Projected, Result, RmsNorm, Tensor, TensorError, tensor::GpuTensor};

params!(
    /// Parameters of `new_rows`.
    NewRowsParams {
        rows: u32,
        q_heads: u32,
        kv_heads: u32,
        head_dim: u32,
        order: u32,
        k_rounds: u32,
        v_rounds: u32,
        pairs: u32,
        q_eps: f32,
        k_eps: f32,
    }
);

/// Where the new tokens of a step go; made once a step and used by every layer.
#[derive(Debug)]
pub struct NewTokens {
    /// Among the codes.
    pub writes: Writes,
    /// Among the exact pages, of each token.
    slots: Buffer,
    tokens: usize,
}

impl NewTokens {
    /// `slots[i]` and `exact[i]` are `block * 32 + offset` of token `i`.
    ///
    /// # Errors
    /// There is no memory, or a slot is beyond what kernels count.
    pub fn new(gpu: &Gpu, slots: &[usize], exact: &[usize]) -> Result<Self> {
        let there: Result<Vec<_>> = exact.iter().map(|&slot| count("kv write", slot)).collect();
        let writes = Writes::new(gpu, slots)?;
        Ok(Self { writes, slots: gpu.upload(&there?)?, tokens: exact.len() })
    }
}

impl CodedCache {
    /// Whether [`Self::attend_new`] has kernels.
    #[must_use]
    pub fn attends_new(&self) -> bool {
        !self.is_sketched()
    }

    /// Writes the tokens' keys and values into codes and exact pages, and attends to all up to there. Each
    /// token sees its own block exactly, so that codes are written beside what follows. `rows` hold keys and
    /// values until then: a layer's own, of the size that [`Self::new_row_bytes`] says.
    ///
    /// # Shapes
    /// As [`Projected`]'s -> `[t, heads, head_dim]`; the slots of `to` are inside the pages, and there are as
    /// many as tokens.
    ///
    /// # Errors
    /// The rows have other shapes than the plan's and the cache's, or are not on one GPU.
    pub fn attend_new(
        &self,
        projected: &Projected<'_>,
        to: &NewTokens,
        rows: (&Buffer, &Buffer),
        pages: (CodedPages<'_>, &CodedPlan),
        scoring: &Scoring<'_>,
    ) -> Result<Tensor> {
        let (pages, plan) = pages;
        let heads = plan.group * self.kv_heads;
        let (Some(exact), Some(few)) = (pages.exact, &plan.few) else {
            return Err(TensorError::Device { op: "attention", device: self.gpu.name() });
        };
        let q = self.new_rows(projected, to, rows, (exact, heads))?;
        let out = self.attend_few(&q, pages, (few, heads), scoring, true)?;
        let aside = |gpu: &Gpu, launch: &Launch<'_>| {
            gpu.launch_aside(launch, &[rows.0, rows.1, pages.coded.0, pages.coded.1])
        };
        let own = (Operand::In(rows.0, 0), Operand::In(rows.1, 0));
        self.encode_rows(own, &to.writes, pages.coded, aside)?;
        Ok(out.into())
    }

    /// Bytes of keys, or of values, of so many new tokens.
    #[must_use]
    pub fn new_row_bytes(&self, tokens: usize) -> usize {
        4 * tokens * self.kv_heads * self.head_dim
    }

    fn new_rows(
        &self,
        projected: &Projected<'_>,
        to: &NewTokens,
        rows: (&Buffer, &Buffer),
        (exact, heads): ((&Buffer, &Buffer), usize),
    ) -> Result<GpuTensor> {
        projected.check()?;
        let [q, k, v] = [on_gpu(projected.q)?, on_gpu(projected.k)?, on_gpu(projected.v)?];
        let width = self.kv_heads * self.head_dim;
        let expected = [(q, heads * self.head_dim), (k, width), (v, width)];
        if let Some((x, width)) = expected.into_iter().find(|(x, w)| x.dims != [to.tokens, *w]) {
            return Err(TensorError::shape(
                "attention",
                format!("[{}, {width}]", to.tokens),
                &x.dims,
            ));
        }
        let gpu = &self.gpu;
        let norms = [projected.norms.map(|(q, _)| q), projected.norms.map(|(_, k)| k)];
        let [q_gains, k_gains] =
            norms.map(|norm| norm.map(|norm| norm.resident().on(gpu)).transpose());
        let (q_gains, k_gains) = (q_gains?, k_gains?);
        let angles = projected.rope.map(|rope| Ok((rope.cos.on(gpu)?, rope.sin.on(gpu)?)));
        let angles = angles.transpose()?;
        let [q_eps, k_eps] = norms.map(|norm| norm.map_or(-1.0, RmsNorm::eps));
        let n = to.tokens * (heads + 2 * self.kv_heads);
        let params = NewRowsParams {
            rows: count("attention", n)?,
            q_heads: heads as u32,
            kv_heads: self.kv_heads as u32,
            head_dim: self.head_dim as u32,
            order: self.order,
            k_rounds: self.rounds_of(&self.k),
            v_rounds: self.rounds_of(&self.v),
            pairs: projected.rope.map_or(0, |rope| rope.pairs as u32),
            q_eps,
            k_eps,
        };
        let out = GpuTensor::new(gpu, &[to.tokens, heads, self.head_dim])?;
        // What is not there is never read.
        let q_in = q.input();
        gpu.launch(&Launch {
            family: "encode",
            kernel: "new_rows",
            grid: [params.rows.div_ceil(4), 1, 1],
            threads: 128,
            operands: &[
                q.input(),
                k.input(),
                v.input(),
                q_gains.as_deref().map_or(q_in, |b| Operand::In(b, 0)),
                k_gains.as_deref().map_or(q_in, |b| Operand::In(b, 0)),
                angles.as_ref().map_or(q_in, |(cos, _)| Operand::In(cos, 0)),
                angles.as_ref().map_or(q_in, |(_, sin)| Operand::In(sin, 0)),
                Operand::In(&to.slots, 0),
                Operand::In(&self.constants, 0),
                out.output(),
                Operand::Out(rows.0, 0),
                Operand::Out(rows.1, 0),
                Operand::Out(exact.0, 0),
                Operand::Out(exact.1, 0),
            ],
            params: bytemuck::bytes_of(&params),
        })?;
        Ok(out)
    }
}
