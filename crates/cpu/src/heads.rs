//! Rows of attention heads.

use super::{
    Level,
    elementwise::{CHUNK, fill, norm_row},
    kernels,
};

/// The heads of some tokens as a projection gives them, and what is to be done to each.
#[derive(Debug, Clone, Copy)]
pub struct HeadRows<'a> {
    /// `[tokens, heads, head]`.
    x: &'a [f32],
    /// Elements of a token.
    token: usize,
    /// Elements of a head.
    head: usize,
    /// Gains and epsilon of the norm of each head.
    norm: Option<(&'a [f32], f32)>,
    /// Cosines and sines, `[tokens, pairs]`, and pairs a token.
    angles: Option<(&'a [f32], &'a [f32], usize)>,
}

impl<'a> HeadRows<'a> {
    /// `x [tokens, heads, head]`, to be left as it is.
    ///
    /// # Panics
    /// When `x` is not whole tokens.
    #[must_use]
    pub fn plain(x: &'a [f32], heads: usize, head: usize) -> Self {
        // A product that is too large holds no whole number of tokens either, unless `x` is empty.
        Self::new((x, heads.saturating_mul(head)), head, None, None)
    }

    /// Tokens of so many elements, in heads of so many, each to be normed (gains and epsilon) and rotated (cosines and
    /// sines, `[tokens, pairs]`, and pairs a token).
    ///
    /// # Panics
    /// When tokens are not whole heads, `x` not whole tokens, or gains or angles have other lengths.
    #[must_use]
    pub fn new(
        (x, token): (&'a [f32], usize),
        head: usize,
        norm: Option<(&'a [f32], f32)>,
        angles: Option<(&'a [f32], &'a [f32], usize)>,
    ) -> Self {
        let whole = |n: usize, of: usize| if of == 0 { n == 0 } else { n.is_multiple_of(of) };
        assert!(whole(token, head) && whole(x.len(), token), "whole heads and tokens");
        assert!(norm.is_none_or(|(gains, _)| gains.len() == head), "gains are [head]");
        let turned = |(cos, sin, pairs): (&[f32], &[f32], usize)| {
            let all = x.len().checked_div(token).unwrap_or(0).saturating_mul(pairs);
            pairs.saturating_mul(2) <= head && [cos.len(), sin.len()] == [all; 2]
        };
        assert!(angles.is_none_or(turned), "angles are [tokens, pairs]");
        Self { x, token, head, norm, angles }
    }

    /// Tokens, heads and elements of a head.
    #[must_use]
    pub fn dims(&self) -> [usize; 3] {
        [self.x.len() / self.token.max(1), self.token / self.head.max(1), self.head]
    }

    /// Writes a head of a token, normed, rotated, and then multiplied with `scale`.
    ///
    /// # Panics
    /// When there is no such head, or `out` is not as long.
    pub fn turn(&self, token: usize, head: usize, scale: f32, out: &mut [f32]) {
        assert!(head * self.head < self.token && out.len() == self.head, "a head of a token");
        // SAFETY: `out` has room for a head.
        unsafe { self.turn_to(token * self.token + head * self.head, scale, out.as_mut_ptr()) };
    }

    /// Like [`Self::turn`], for the head that begins at element `at`.
    ///
    /// # Safety
    /// `out` has room for a head.
    unsafe fn turn_to(&self, at: usize, scale: f32, out: *mut f32) {
        let (level, n) = (Level::detect(), self.head);
        let from = self.x[at..][..n].as_ptr();
        // SAFETY: a whole head of each; the angles are those of the head's token.
        unsafe {
            match self.norm {
                Some((gains, eps)) => norm_row(level, from, gains, eps, out),
                None => out.copy_from_nonoverlapping(from, n),
            }
            if let Some((cos, sin, pairs)) = self.angles {
                let first = at / self.token * pairs;
                let [cos, sin] = [cos, sin].map(|x| x[first..][..pairs].as_ptr());
                kernels::rotate(level, out, pairs, cos, sin);
            }
            if scale != 1.0 {
                kernels::scale(level, out, n, scale);
            }
        }
    }

    /// All heads of all tokens, normed and rotated.
    #[must_use]
    pub fn turned(&self) -> Vec<f32> {
        let least = (CHUNK / self.token.max(1)).max(1) * self.token;
        fill(self.x.len(), least, |out, range| {
            for at in range.step_by(self.head.max(1)) {
                // SAFETY: the range is this task's, and whole heads.
                unsafe { self.turn_to(at, 1.0, out.at(at)) };
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "whole heads and tokens")]
    fn heads_of_nothing_hold_nothing() {
        let _ = HeadRows::plain(&[1.0; 10], 1, 0);
    }

    #[test]
    #[should_panic(expected = "whole heads and tokens")]
    fn tokens_without_heads_hold_nothing() {
        let _ = HeadRows::plain(&[1.0; 10], 0, 64);
    }

    #[test]
    fn what_is_plain_stays_as_it_is() {
        let x = [1.0, 2.0, 3.0, 4.0];
        assert_eq!(HeadRows::plain(&x, 1, 2).turned(), x);
        assert!(HeadRows::plain(&[], 2, 2).turned().is_empty());
    }
}
