//! Images in a step: rows in place of tokens' embeddings, and rows added behind layers.

use crate::ModelError;
use taper_base::EncodedImage;
use taper_kv_codecs::MutualSpan;
use taper_tensor::{Tensor, ops};

/// How a model counts the positions of an image's tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImagePositions {
    /// One after the other, as those of text.
    Text,
    /// By time, height and width (M-RoPE, Wang et al. 2024): text behind an image goes on after the largest of them.
    Axes,
}

/// Which tokens of prompts see tokens after them, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ahead {
    /// Tokens of an image see each other, also beyond windows (Gemma 3).
    Images,
    /// Tokens of an image see each other in layers with a window, as far back as it goes (Gemma 4).
    ImagesInWindows,
    /// All tokens of a prompt see each other (PaliGemma, arXiv 2407.07726).
    Prompts,
}

/// What images bring to a step; nothing in a step of text.
#[derive(Debug, Clone, Copy, Default)]
pub struct StepImages<'a> {
    /// Rotary positions of each token by time, height and width, `[t]`; empty where all three are the token's position.
    pub axes: &'a [[u32; 3]],
    /// Tokens that stand for rows of images, ascending.
    pub rows: &'a [ImageRow<'a>],
    /// Tokens that see each other, ascending and apart, of models with an [`Ahead`]. A span ends in the step in which
    /// it is computed; what of it was in the cache is [`MutualSpan::before`].
    pub mutual: &'a [MutualSpan],
}

/// A token that stands for a row of an image.
#[derive(Debug, Clone, Copy)]
pub struct ImageRow<'a> {
    /// Index of the token in the batch.
    pub token: u32,
    /// The image.
    pub image: &'a EncodedImage,
    /// Which of its rows.
    pub row: usize,
}

impl ImageRow<'_> {
    fn of<'a>(&self, rows: &'a [f32], hidden: usize) -> Option<&'a [f32]> {
        rows.get(self.row.checked_mul(hidden)?..)?.get(..hidden)
    }
}

impl StepImages<'_> {
    /// Checks what there is against a step of so many tokens.
    ///
    /// # Errors
    /// Tokens that are not the step's, rows that an image does not have, or positions of some tokens only.
    pub(crate) fn check(&self, tokens: usize, hidden: usize) -> Result<(), ModelError> {
        let bad = |what, expected, got| Err(ModelError::Batch { what, expected, got });
        if !self.axes.is_empty() && self.axes.len() != tokens {
            return bad("positions of three axes", tokens, self.axes.len());
        }
        let ascending = self.rows.windows(2).all(|pair| pair[0].token < pair[1].token);
        match self.rows.last() {
            Some(last) if !ascending || last.token as usize >= tokens => {
                return bad("tokens of images, ascending, below", tokens, last.token as usize);
            }
            _ => {}
        }
        let mut behind = 0;
        for span in self.mutual {
            if span.start < behind || span.end <= span.start || span.end as usize > tokens {
                let got = span.end as usize;
                return bad("tokens that see each other, ascending, below", tokens, got);
            }
            behind = span.end;
        }
        for own in self.rows {
            let all = std::iter::once(&own.image.rows).chain(&own.image.deep);
            if all.into_iter().any(|rows| own.of(rows, hidden).is_none()) {
                return bad("rows of an image, below", own.image.rows.len() / hidden, own.row);
            }
        }
        Ok(())
    }

    /// Layers behind which rows are added: the first so many.
    pub(crate) fn depth(&self) -> usize {
        self.rows.iter().map(|own| own.image.deep.len()).max().unwrap_or(0)
    }

    /// The embeddings of a step with those of images in their places.
    pub(crate) fn put(&self, x: Tensor) -> Result<Tensor, ModelError> {
        let hidden = x.dims()[1];
        let rows = self.rows.iter().filter_map(|own| own.of(&own.image.rows, hidden));
        let rows: Vec<f32> = rows.flatten().copied().collect();
        let ids: Vec<u32> = self.rows.iter().map(|own| own.token).collect();
        put(x, &ids, rows, |_, rows| Ok(rows))
    }

    /// Adds what images have for it to what a layer gives, of the step's tokens at `kept`, or all.
    pub(crate) fn add_behind(
        &self,
        layer: usize,
        x: Tensor,
        kept: Option<&[u32]>,
    ) -> Result<Tensor, ModelError> {
        let hidden = x.dims()[1];
        let place = |token: u32| match kept {
            Some(kept) => kept.binary_search(&token).ok().map(|at| at as u32),
            None => Some(token),
        };
        let (mut ids, mut rows) = (Vec::new(), Vec::new());
        for own in self.rows {
            let deep = own.image.deep.get(layer).and_then(|deep| own.of(deep, hidden));
            if let (Some(deep), Some(at)) = (deep, place(own.token)) {
                ids.push(at);
                rows.extend_from_slice(deep);
            }
        }
        put(x, &ids, rows, |x, rows| Ok(ops::add(&ops::take_rows(x, &ids)?, &rows)?))
    }
}

/// `x` with what `make` makes of it and of `rows` in the places of its rows `ids`.
fn put(
    x: Tensor,
    ids: &[u32],
    rows: Vec<f32>,
    make: impl FnOnce(&Tensor, Tensor) -> Result<Tensor, ModelError>,
) -> Result<Tensor, ModelError> {
    if ids.is_empty() {
        return Ok(x);
    }
    let rows = Tensor::from_vec(rows, &[ids.len(), x.dims()[1]])?;
    let rows = match x.gpu() {
        Some(gpu) => rows.to_gpu(gpu)?,
        None => rows,
    };
    let rows = make(&x, rows)?;
    Ok(ops::put_rows(x, ids, &rows)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(rows: usize, deep: usize) -> EncodedImage {
        let values = |from: f32| (0..2 * rows).map(|i| from + i as f32).collect();
        EncodedImage {
            rows: values(10.0),
            deep: (0..deep).map(|i| values(100.0 * (i + 1) as f32)).collect(),
        }
    }

    #[test]
    fn rows_are_put_and_added_where_tokens_stand_for_them() {
        let image = image(2, 1);
        let row = |token, row| ImageRow { token, image: &image, row };
        let rows = [row(1, 0), row(3, 1)];
        let images = StepImages { rows: &rows, ..StepImages::default() };
        images.check(4, 2).unwrap();
        assert_eq!(images.depth(), 1);
        let x = || Tensor::from_vec(vec![-0.0; 8], &[4, 2]).unwrap();
        let put = images.put(x()).unwrap().to_vec2().unwrap();
        assert_eq!(put, [[0.0, 0.0], [10.0, 11.0], [0.0, 0.0], [12.0, 13.0]]);
        assert!(put[0][0].is_sign_negative(), "others keep their bits");
        let added = images.add_behind(0, x(), None).unwrap().to_vec2().unwrap();
        assert_eq!(added[1..], [vec![100.0, 101.0], vec![0.0, 0.0], vec![102.0, 103.0]]);
        let two = Tensor::from_vec(vec![1.0; 4], &[2, 2]).unwrap();
        let added = images.add_behind(0, two, Some(&[2, 3])).unwrap().to_vec2().unwrap();
        assert_eq!(added, [[1.0, 1.0], [103.0, 104.0]]);
        assert_eq!(images.add_behind(1, x(), None).unwrap().to_vec().unwrap(), [0.0; 8]);
    }

    #[test]
    fn what_does_not_fit_the_step_is_refused() {
        let image = image(2, 1);
        let row = |token, row| ImageRow { token, image: &image, row };
        let refused = |axes: &[[u32; 3]], rows: &[ImageRow<'_>]| {
            let images = StepImages { axes, rows, mutual: &[] };
            matches!(images.check(3, 2), Err(ModelError::Batch { .. }))
        };
        let span = |start, end| MutualSpan { start, end, before: 0 };
        let spans = |mutual: &[MutualSpan]| {
            let images = StepImages { mutual, ..StepImages::default() };
            matches!(images.check(3, 2), Err(ModelError::Batch { .. }))
        };
        assert!(!spans(&[span(0, 1), span(1, 3)]));
        assert!(spans(&[span(0, 2), span(1, 3)]) && spans(&[span(2, 4)]) && spans(&[span(1, 1)]));
        assert!(!refused(&[[0; 3]; 3], &[row(0, 0), row(2, 1)]));
        assert!(refused(&[[0; 3]; 2], &[]));
        assert!(refused(&[], &[row(3, 0)]));
        assert!(refused(&[], &[row(1, 0), row(1, 1)]));
        assert!(refused(&[], &[row(1, 2)]));
        assert!(refused(&[], &[row(1, usize::MAX)]));
    }
}
