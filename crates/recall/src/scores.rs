//! How much some queries may look at each page.

use crate::KeyBoxes;
use multiversion::multiversion;
use taper_base::exp;
use taper_tensor::pool;

/// What a layer adds to the scores of a sequence's pages.
#[derive(Debug)]
pub struct LayerQueries<'a> {
    /// Queries, each `[heads, head_dim]`, with attention's scale in them.
    pub queries: Vec<&'a [f32]>,
    /// Query heads.
    pub heads: usize,
    /// Boxes of the sequence's pages, in order; of every layer as many.
    pub pages: Vec<&'a KeyBoxes>,
}

/// Scores of the pages: the maximum over layers, query heads and queries of a page's bound, less the logarithm
/// of the sum of `exp(bound)` over all pages.
#[must_use]
pub fn scores(layers: &[LayerQueries<'_>]) -> Vec<f32> {
    let pages = layers.first().map_or(0, |layer| layer.pages.len());
    let kv_heads = |layer: &LayerQueries<'_>| layer.pages.first().map_or(0, |p| p.kv_heads());
    let tasks: Vec<_> = layers
        .iter()
        .flat_map(|layer| (0..kv_heads(layer)).map(move |head| (layer, head)))
        .collect();
    let parts = pool::map(tasks.len(), |task| head_scores(tasks[task].0, tasks[task].1));
    let mut scores = vec![f32::NEG_INFINITY; pages];
    for part in parts {
        scores.iter_mut().zip(part).for_each(|(score, part)| *score = score.max(part));
    }
    scores
}

/// Scores of the pages by the query heads of a KV head.
fn head_scores(layer: &LayerQueries<'_>, kv_head: usize) -> Vec<f32> {
    let LayerQueries { queries, heads, pages } = layer;
    let (d, group) = (pages[0].head_dim(), heads / pages[0].kv_heads());
    let first = kv_head * group;
    let own = queries.iter().flat_map(|q| q[first * d..(first + group) * d].chunks_exact(d));
    let signed = |q: &[f32]| {
        let positive = q.iter().map(|x| x.max(0.0));
        positive.chain(q.iter().map(|x| x.min(0.0))).collect::<Vec<_>>()
    };
    let rows: Vec<f32> = own.flat_map(signed).collect();
    let boxes: Vec<_> = pages.iter().map(|page| page.head(kv_head)).collect();
    let mut scores = vec![f32::NEG_INFINITY; pages.len()];
    bound_pages(&boxes, &rows, d, &mut scores);
    scores
}

/// Sums along rows are added up in so many parts.
const PARTS: usize = 32;

/// `scores[j] = max over rows r of (bound(r, j) - log sum over pages of exp(bound(r, .)))`.
///
/// # Shapes
/// `rows [n, 2 d]`: the positive parts of a query, then its negative ones.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2+fma"))]
fn bound_pages(boxes: &[(&[i8], [f32; 2])], rows: &[f32], d: usize, scores: &mut [f32]) {
    let (n, pages) = (rows.len() / (2 * d).max(1), boxes.len());
    let mut bounds = vec![0.0f32; n * pages];
    let mut wide = vec![0.0f32; 2 * d];
    for (page, (codes, [above, below])) in boxes.iter().enumerate() {
        wide.iter_mut().zip(*codes).for_each(|(wide, &code)| *wide = f32::from(code));
        let (largest, least) = wide.split_at(d);
        for (row, q) in rows.chunks_exact(2 * d).enumerate() {
            let (positive, negative) = q.split_at(d);
            bounds[row * pages + page] =
                dot(positive, largest) * above + dot(negative, least) * below;
        }
    }
    for bounds in bounds.chunks_exact(pages.max(1)) {
        let all = log_sum_exp(bounds);
        scores.iter_mut().zip(bounds).for_each(|(score, bound)| *score = score.max(bound - all));
    }
}

#[inline(always)]
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0f32; PARTS];
    let (a, a_rest) = a.as_chunks::<PARTS>();
    let (b, b_rest) = b.as_chunks::<PARTS>();
    for (a, b) in a.iter().zip(b) {
        for i in 0..PARTS {
            sums[i] += a[i] * b[i];
        }
    }
    let mut width = PARTS / 2;
    while width > 0 {
        for i in 0..width {
            sums[i] += sums[i + width];
        }
        width /= 2;
    }
    a_rest.iter().zip(b_rest).fold(sums[0], |sum, (a, b)| sum + a * b)
}

/// Its terms are added up in so many parts.
const TERMS: usize = 16;

#[inline(always)]
fn log_sum_exp(x: &[f32]) -> f32 {
    let most = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sums = [0.0f32; TERMS];
    let (whole, rest) = x.as_chunks::<TERMS>();
    for x in whole {
        for i in 0..TERMS {
            sums[i] += exp(x[i] - most);
        }
    }
    for (sum, x) in sums.iter_mut().zip(rest) {
        *sum += exp(x - most);
    }
    most + sums.iter().sum::<f32>().ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(n: usize, seed: u64) -> Vec<f32> {
        let mut state = seed;
        let mut next = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        };
        (0..n).map(|_| next()).collect()
    }

    #[test]
    fn scores_are_what_the_definition_says() {
        // Rows that end within a part, two KV heads of two query heads each, two layers.
        let (d, kv_heads, heads, pages) = (40, 2, 4, 7);
        let layer = |seed: u64| {
            let page = |page: u64| numbers(6 * kv_heads * d, seed + page);
            let boxes = (0..pages).map(|p| KeyBoxes::of(&page(p), kv_heads, d)).collect::<Vec<_>>();
            (boxes, [numbers(heads * d, seed + 50), numbers(heads * d, seed + 60)])
        };
        let layers = [layer(100), layer(200)];
        let of = |(boxes, queries): &(Vec<KeyBoxes>, [Vec<f32>; 2])| {
            let mut all = vec![f64::NEG_INFINITY; pages as usize];
            for query in queries {
                for head in 0..heads {
                    let q = &query[head * d..(head + 1) * d];
                    let bounds: Vec<f64> = boxes
                        .iter()
                        .map(|page| {
                            let (codes, scales) = page.head(head / (heads / kv_heads));
                            let side = |i: usize, side: usize| {
                                f64::from(codes[side * d + i]) * f64::from(scales[side])
                            };
                            let most = |i: usize| {
                                let q = f64::from(q[i]);
                                (q * side(i, 0)).max(q * side(i, 1))
                            };
                            (0..d).map(most).sum()
                        })
                        .collect();
                    let c = bounds.iter().map(|b| b.exp()).sum::<f64>().ln();
                    all.iter_mut().zip(bounds).for_each(|(all, b)| *all = all.max(b - c));
                }
            }
            all
        };
        let want = layers
            .iter()
            .map(of)
            .reduce(|a, b| a.iter().zip(b).map(|(a, b)| a.max(b)).collect::<Vec<_>>());
        let layers: Vec<_> = layers
            .iter()
            .map(|(boxes, queries)| LayerQueries {
                queries: queries.iter().map(Vec::as_slice).collect(),
                heads,
                pages: boxes.iter().collect(),
            })
            .collect();
        for (got, want) in scores(&layers).into_iter().zip(want.unwrap_or_default()) {
            assert!((f64::from(got) - want).abs() < 1e-4, "{got}, not {want}");
        }
        assert!(scores(&[]).is_empty());
    }
}
