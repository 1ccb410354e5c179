//! The score as a cache computes it.

use crate::{
    HeadStatistics, Rope, TriAttentionError,
    reference::{norm_weights, synthetic_query},
};
use taper_tensor::KeyScorer;

/// What a cache needs to score the keys of a layer at the position `now` of the next token: a synthetic
/// query and weights of moduli for each query head.
///
/// # Errors
/// Statistics of other lengths than the embedding's, or of no heads.
pub fn key_scorer(
    rope: &Rope,
    heads: &[HeadStatistics],
    now: u32,
) -> Result<KeyScorer, TriAttentionError> {
    let (mut vectors, mut weights) = (Vec::new(), Vec::new());
    for head in heads {
        let query = synthetic_query(rope, head, f64::from(now))?;
        vectors.extend(query.into_iter().map(|x| x as f32));
        weights.extend(norm_weights(rope, head)?.into_iter().map(|x| x as f32));
    }
    Ok(KeyScorer::new((heads.len(), 2 * rope.bands()), vectors, weights)?)
}
