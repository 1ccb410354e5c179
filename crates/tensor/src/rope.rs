//! Rotary position embedding (Su et al. 2021), the half-split form that Hugging Face checkpoints use.

use crate::{
    Linear, Result, RmsNorm, Tensor, TensorError,
    cpu::HeadRows,
    gpu::{self, Resident},
    host, pool,
};
use std::sync::Arc;

/// Frequencies of a rotary embedding.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeTable {
    inv_freq: Arc<[f32]>,
    scale: f32,
    /// The axis that each pair turns with, where positions have three.
    axes: Option<Arc<[u8]>>,
}

impl RopeTable {
    /// `inv_freq[i]` is the angle a position of pair `i` in radians; `scale` multiplies sine and
    /// cosine (yarn's and longrope's attention factor). With fewer than `head_dim / 2` pairs the
    /// rest of the head is not rotated.
    #[must_use]
    pub fn new(inv_freq: Vec<f32>, scale: f32) -> Self {
        Self { inv_freq: inv_freq.into(), scale, axes: None }
    }

    /// Turns each pair with one of three axes of a position (M-RoPE, Wang et al. 2024): 0, 1 or 2 of each; pairs that
    /// none is given for turn with the first.
    #[must_use]
    pub fn with_axes(self, axes: Vec<u8>) -> Self {
        Self { axes: Some(axes.into()), ..self }
    }

    /// Rotates the other way round.
    #[must_use]
    pub fn reversed(mut self) -> Self {
        self.inv_freq = self.inv_freq.iter().map(|f| -f).collect();
        self
    }

    /// What sine and cosine are multiplied by.
    #[must_use]
    pub fn scale(&self) -> f32 {
        self.scale
    }

    /// Radians a position of each pair.
    #[must_use]
    pub fn frequencies(&self) -> &[f32] {
        &self.inv_freq
    }

    /// Pairs of a head that turn.
    #[must_use]
    pub fn pairs(&self) -> usize {
        self.inv_freq.len()
    }

    /// Sines and cosines of `positions`, to be used by every layer of a step.
    #[must_use]
    pub fn angles(&self, positions: &[u32]) -> RopeAngles {
        self.angles_by(positions, |&position, _| position)
    }

    /// [`Self::angles`] of positions of three axes, each pair by its own.
    #[must_use]
    pub fn angles_of_axes(&self, positions: &[[u32; 3]]) -> RopeAngles {
        let axes = self.axes.as_deref().unwrap_or_default();
        let axis = |pair: usize| axes.get(pair).map_or(0, |&axis: &u8| usize::from(axis.min(2)));
        self.angles_by(positions, |position, pair| position[axis(pair)])
    }

    fn angles_by<P: Sync>(
        &self,
        positions: &[P],
        of_pair: impl Fn(&P, usize) -> u32 + Sync,
    ) -> RopeAngles {
        let (pairs, of_pair) = (self.inv_freq.len(), &of_pair);
        let rows = pool::map(positions.len().div_ceil(ROWS), |i| {
            let part = &positions[i * ROWS..positions.len().min((i + 1) * ROWS)];
            // f32 as the reference implementation multiplies, so that far positions agree.
            let (mut sin, mut cos) = (Vec::new(), Vec::new());
            for position in part {
                for (pair, f) in self.inv_freq.iter().enumerate() {
                    let (s, c) = (of_pair(position, pair) as f32 * f).sin_cos();
                    sin.push(s * self.scale);
                    cos.push(c * self.scale);
                }
            }
            (sin, cos)
        });
        let (mut sin, mut cos) = (Vec::new(), Vec::new());
        for (s, c) in rows {
            sin.extend(s);
            cos.extend(c);
        }
        let (sin, cos) = (Resident::new(sin), Resident::new(cos));
        RopeAngles { positions: positions.len(), pairs, sin, cos, table: self.clone() }
    }
}

/// Positions a task.
const ROWS: usize = 64;

/// Sines and cosines of the positions of one step.
#[derive(Debug, Clone)]
pub struct RopeAngles {
    positions: usize,
    pub(crate) pairs: usize,
    pub(crate) sin: Resident,
    pub(crate) cos: Resident,
    table: RopeTable,
}

impl RopeAngles {
    /// The frequencies that these are angles of.
    #[must_use]
    pub fn table(&self) -> &RopeTable {
        &self.table
    }
}

/// Queries, keys and values of a step as the projections give them, and what is to be done to them.
///
/// # Shapes
/// `q [t, heads * head_dim]`, `k`, `v` `[t, kv_heads * head_dim]`, f32.
#[derive(Debug, Clone, Copy)]
pub struct Projected<'a> {
    /// Queries, before norm and RoPE.
    pub q: &'a Tensor,
    /// Keys, before norm and RoPE.
    pub k: &'a Tensor,
    /// Values.
    pub v: &'a Tensor,
    /// Elements of a head.
    pub head_dim: usize,
    /// QK-norm: norms of each head of queries and of keys.
    pub norms: Option<(&'a RmsNorm, &'a RmsNorm)>,
    /// Angles by which queries and keys are rotated.
    pub rope: Option<&'a RopeAngles>,
    /// What is next multiplied with attention's result, if nothing else reads that: it may come as this
    /// product alone takes it.
    pub next: Option<&'a Linear>,
}

impl Projected<'_> {
    /// Checks that norms and angles fit queries and keys.
    pub(crate) fn check(&self) -> Result<()> {
        let (q_norm, k_norm) = self.norms.unzip();
        check(self.q, self.head_dim, q_norm, self.rope)?;
        check(self.k, self.head_dim, k_norm, self.rope)
    }

    /// Queries and keys normed and rotated, and values, each `[t, its heads, head_dim]`.
    ///
    /// # Errors
    /// As [`norm_rope`].
    pub fn turned(&self) -> Result<[Tensor; 3]> {
        let (q_norm, k_norm) = self.norms.unzip();
        let [q, k] = norm_rope([(self.q, q_norm), (self.k, k_norm)], self.head_dim, self.rope)?;
        let v = self.v.reshape(k.dims())?;
        Ok([q, k, v])
    }

    /// Calls `f` with queries, keys and values in the host's memory, not yet normed or rotated.
    ///
    /// # Errors
    /// Another shape or type.
    pub fn with_host<R>(&self, f: impl FnOnce([HeadRows<'_>; 3]) -> R) -> Result<R> {
        self.check()?;
        check(self.v, self.head_dim, None, None)?;
        let (q_norm, k_norm) = self.norms.unzip();
        let (op, d, rope) = ("attention", self.head_dim, self.rope);
        let width = |x| host::dims2(op, x).map(|(_, width)| width);
        let widths = (width(self.q)?, width(self.k)?, width(self.v)?);
        host::read(self.q, |q| {
            let q = heads((q, widths.0), d, q_norm, rope);
            host::read(self.k, |k| {
                let k = heads((k, widths.1), d, k_norm, rope);
                host::read(self.v, |v| f([q, k, heads((v, widths.2), d, None, None)]))
            })
        })??
    }
}

/// Norms each head of each token, and rotates it: of queries and keys at once.
///
/// # Shapes
/// Each `x [t, heads * head_dim]` -> `[t, heads, head_dim]`; its norm's gains are one head's, and `t`
/// positions were given to [`RopeTable::angles`].
///
/// # Errors
/// Another shape or type.
pub fn norm_rope(
    pair: [(&Tensor, Option<&RmsNorm>); 2],
    head_dim: usize,
    rope: Option<&RopeAngles>,
) -> Result<[Tensor; 2]> {
    for (x, norm) in pair {
        check(x, head_dim, norm, rope)?;
    }
    let [(x, x_norm), (y, y_norm)] = pair;
    if let (Some(x), Some(y)) = (x.on_gpu(), y.on_gpu())
        && x.dims[0] == y.dims[0]
    {
        let angles = rope.map(|r| (&r.cos, &r.sin, r.pairs));
        return Ok(gpu::norm_rope([(x, x_norm), (y, y_norm)], head_dim, angles)?.map(Into::into));
    }
    let one = |x: &Tensor, norm: Option<&RmsNorm>| {
        let (t, token) = host::dims2("rope", x)?;
        let out = host::read(x, |x| heads((x, token), head_dim, norm, rope).turned())?;
        Tensor::from_vec(out, &[t, token / head_dim, head_dim])
    };
    Ok([one(x, x_norm)?, one(y, y_norm)?])
}

fn heads<'a>(
    (x, token): (&'a [f32], usize),
    head: usize,
    norm: Option<&'a RmsNorm>,
    rope: Option<&'a RopeAngles>,
) -> HeadRows<'a> {
    let norm = norm.map(|n| (n.gains(), n.eps()));
    let angles = rope.map(|r| (r.cos.host(), r.sin.host(), r.pairs));
    HeadRows::new((x, token), head, norm, angles)
}

fn check(
    x: &Tensor,
    head_dim: usize,
    norm: Option<&RmsNorm>,
    rope: Option<&RopeAngles>,
) -> Result<()> {
    let (t, token) = host::dims2("rope", x)?;
    let wrong = |expected: String| Err(TensorError::shape("rope", expected, x.dims()));
    if head_dim == 0 || !token.is_multiple_of(head_dim) {
        return wrong(format!("[t, heads * {head_dim}]"));
    }
    if let Some(norm) = norm
        && norm.gains().len() != head_dim
    {
        return wrong(format!("[t, heads * {}]", norm.gains().len()));
    }
    if let Some(rope) = rope
        && (rope.positions != t || 2 * rope.pairs > head_dim)
    {
        let RopeAngles { positions, pairs, .. } = rope;
        return wrong(format!("[{positions}, heads * (at least {})]", 2 * pairs));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_turn_by_their_angle_and_the_rest_stays() {
        let table = RopeTable::new(vec![1.0, 0.25], 1.0);
        let x: Vec<f32> = (0..12).map(|v| v as f32).collect();
        let x = Tensor::from_vec(x, &[2, 6]).unwrap();
        let angles = table.angles(&[0, 3]);
        let [y, same] = norm_rope([(&x, None); 2], 6, Some(&angles)).unwrap();
        let y = y.to_vec().unwrap();
        assert_eq!(same.to_vec().unwrap(), y);
        assert_eq!(y[..6], [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
        let (a, b) = (6.0f32, 8.0f32);
        let want = a * 3f32.cos() - b * 3f32.sin();
        assert!((y[6] - want).abs() < 1e-6);
        let want = 9.0 * 0.75f32.cos() + 7.0 * 0.75f32.sin();
        assert!((y[9] - want).abs() < 1e-6);
        assert_eq!(y[10..], [10.0, 11.0]);
    }

    #[test]
    fn pairs_turn_with_their_axes_and_alike_axes_as_one_position() {
        let table = RopeTable::new(vec![1.0, 0.25, 0.5], 1.0).with_axes(vec![0, 2, 1]);
        let bits = |angles: &RopeAngles| angles.sin.host().to_vec();
        let three = table.angles_of_axes(&[[1, 2, 3], [4, 4, 4]]);
        let alone = |position, pair: usize| bits(&table.angles(&[position]))[pair];
        assert_eq!(bits(&three)[..3], [alone(1, 0), alone(3, 1), alone(2, 2)]);
        assert_eq!(bits(&three)[3..], bits(&table.angles(&[4])));
    }

    #[test]
    fn another_number_of_positions_is_refused() {
        let x = Tensor::from_vec(vec![0.0; 8], &[2, 4]).unwrap();
        let angles = RopeTable::new(vec![1.0], 1.0).angles(&[0]);
        let rotated = norm_rope([(&x, None); 2], 4, Some(&angles));
        assert!(matches!(rotated, Err(TensorError::Shape { op: "rope", .. })));
        assert!(norm_rope([(&x, None); 2], 3, None).is_err());
        let short = RmsNorm::new(vec![1.0; 2], 0.0);
        assert!(norm_rope([(&x, None), (&x, Some(&short))], 4, None).is_err());
    }
}
