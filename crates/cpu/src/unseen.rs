//! Values that are not finite and that some row may not see.
//!
//! Attention gives such a row a weight of zero, and zero times infinity is no number. So these values are
//! left out of the product, and added on their own to the rows that do see them.

use super::Floats;

/// Tokens whose values are left out.
#[derive(Debug)]
pub(super) struct Unseen {
    tokens: Vec<usize>,
}

impl Unseen {
    /// Looks for them among values `v [n, d]`; `None` if there are none, as is usual. `hidden(token)` says
    /// whether some row does not see a token.
    pub(super) fn find(v: Floats<'_>, d: usize, hidden: impl Fn(usize) -> bool) -> Option<Self> {
        if v.all_finite() {
            return None;
        }
        let bad = |&token: &usize| !v.slice(token * d..(token + 1) * d).all_finite();
        let tokens: Vec<_> = (0..v.len() / d).filter(|&t| hidden(t)).filter(bad).collect();
        if tokens.is_empty() { None } else { Some(Self { tokens }) }
    }

    /// The tokens.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn tokens(&self) -> &[usize] {
        &self.tokens
    }

    /// The values with zeros instead of them.
    pub(super) fn cleared(&self, v: Floats<'_>, d: usize) -> Vec<f32> {
        let mut out = vec![0.0; v.len()];
        v.widen(&mut out);
        self.tokens.iter().for_each(|t| out[t * d..(t + 1) * d].fill(0.0));
        out
    }

    /// Adds them to the rows `acc [rows, d]` that see them, by their weights.
    pub(super) fn add(
        &self,
        v: Floats<'_>,
        d: usize,
        weight: impl Fn(usize, usize) -> Option<f32>,
        acc: &mut [f32],
    ) {
        let mut value = vec![0.0; d];
        for &token in &self.tokens {
            v.slice(token * d..(token + 1) * d).widen(&mut value);
            for (row, acc) in acc.chunks_exact_mut(d).enumerate() {
                let Some(weight) = weight(row, token) else { continue };
                acc.iter_mut().zip(&value).for_each(|(a, x)| *a += weight * x);
            }
        }
    }
}
