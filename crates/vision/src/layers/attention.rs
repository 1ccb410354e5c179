//! Attention of every patch to every other, within segments.

use super::{Linear, Norm, Rope, inplace};
use candle_core::{D, Result, Tensor};

/// Scores that are held at once, in elements: heads are taken in groups, and queries in runs, so that there are not more.
const SCORES: usize = 1 << 20;

/// Rows that see each other: ends of runs, the last of which is the number of rows.
pub(crate) type Segments<'a> = &'a [usize];

/// Queries, keys and values of one row, and what is made of the heads' results.
#[derive(Debug)]
pub(crate) struct Attention {
    /// All three side by side.
    pub(crate) qkv: Linear,
    pub(crate) out: Linear,
    pub(crate) heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) scale: f64,
    /// Over all heads' queries and keys together, before they are turned.
    pub(crate) norms: Option<[Norm; 2]>,
}

impl Attention {
    /// `[rows, hidden]`.
    pub(crate) fn forward(
        &self,
        x: &Tensor,
        rope: Option<&Rope>,
        segments: Segments<'_>,
    ) -> Result<Tensor> {
        let qkv = self.qkv.forward(x)?;
        let (rows, width) = (x.dim(0)?, self.heads * self.head_dim);
        let part = |i: usize| {
            let part = qkv.narrow(1, i * width, width)?;
            let part = match (&self.norms, i) {
                (Some(norms), 0 | 1) => norms[i].forward(&part)?,
                _ => part,
            };
            let heads = part.reshape((rows, self.heads, self.head_dim))?;
            heads.transpose(0, 1)?.contiguous()
        };
        let turned = |x: Tensor| rope.map_or_else(|| Ok(x.clone()), |rope| rope.forward(&x));
        let (q, k, v) = (turned((part(0)? * self.scale)?)?, turned(part(1)?)?, part(2)?);
        let y = attend(&q, &k, &v, segments)?;
        self.out.forward(&y.transpose(0, 1)?.contiguous()?.reshape((rows, width))?)
    }
}

/// Scaled `[heads, rows, head_dim]` to the heads' results of the shape.
pub(crate) fn attend(q: &Tensor, k: &Tensor, v: &Tensor, segments: Segments<'_>) -> Result<Tensor> {
    let mut results = Vec::with_capacity(segments.len());
    let mut first = 0;
    for &end in segments {
        let part = |x: &Tensor| x.narrow(1, first, end - first);
        results.push(segment(&part(q)?, &part(k)?, &part(v)?)?);
        first = end;
    }
    if results.len() == 1 { Ok(results.remove(0)) } else { Tensor::cat(&results, 1) }
}

fn segment(q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
    let (heads, rows, _) = q.dims3()?;
    let group = (SCORES / (rows * rows)).clamp(1, heads);
    let run = (SCORES / rows).clamp(1, rows);
    let mut groups = Vec::new();
    for head in (0..heads).step_by(group) {
        let part = |x: &Tensor| x.narrow(0, head, group.min(heads - head));
        let (q, k, v) = (part(q)?, part(k)?.t()?, part(v)?);
        let mut runs = Vec::new();
        for row in (0..rows).step_by(run) {
            let q = q.narrow(1, row, run.min(rows - row))?;
            let scores = q.matmul(&k)?;
            let shares = match scores.device().is_cpu() {
                true => {
                    inplace::softmax(&scores)?;
                    scores
                }
                false => candle_nn::ops::softmax_last_dim(&scores)?,
            };
            runs.push(shares.matmul(&v)?);
        }
        groups.push(if runs.len() == 1 { runs.remove(0) } else { Tensor::cat(&runs, D::Minus2)? });
    }
    if groups.len() == 1 { Ok(groups.remove(0)) } else { Tensor::cat(&groups, 0) }
}
