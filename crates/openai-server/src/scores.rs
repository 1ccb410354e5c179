//! How well texts go with each other: by a reranker, or by the vectors of an embedding model.

use crate::{errors::ApiError, state::AppState};
use std::sync::{Mutex, PoisonError};
use taper_base::{TextPair, TextScores, TextVectors, TokenId, VectorsError};

/// Texts of a request, and tokens of all of them: OpenAI's limits for embeddings.
pub(crate) const MOST_TEXTS: usize = 2048;
pub(crate) const MOST_TOKENS: usize = 300_000;

/// Scores of pairs, and the tokens that were computed for them.
#[derive(Debug)]
pub(crate) struct Scored {
    pub(crate) scores: Vec<f32>,
    pub(crate) tokens: usize,
}

/// Names of the two fields that hold the texts.
pub(crate) type Fields = [&'static str; 2];

/// Computations share all threads: one after the other they are done soonest.
pub(crate) fn in_turn<T>(
    work: impl FnOnce() -> Result<T, VectorsError>,
) -> Result<T, VectorsError> {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    work().inspect_err(|error| {
        if let VectorsError::Failed(source) = error {
            tracing::error!(error = %source, "a model for texts failed");
        }
    })
}

/// The score of the first text, or of each, with the second at its place. There are as many of the
/// second, or more where there is one of the first.
pub(crate) fn scores(
    state: &AppState,
    firsts: &[String],
    seconds: &[&str],
    fields: Fields,
) -> Result<Scored, ApiError> {
    for (texts, field) in [(firsts.len(), fields[0]), (seconds.len(), fields[1])] {
        if texts == 0 || texts > MOST_TEXTS {
            let detail = format!("must have from 1 to {MOST_TEXTS} texts");
            return Err(ApiError::value(field, detail));
        }
    }
    for text in firsts {
        state.0.check_text(text, fields[0])?;
    }
    for text in seconds {
        state.0.check_text(text, fields[1])?;
    }
    let scored = match (&state.0.scores, &state.0.vectors) {
        (Some(model), _) => by_reranker(&**model, firsts, seconds, fields),
        (None, Some(model)) => by_vectors(&**model, firsts, seconds, fields),
        (None, None) => Err(ApiError::NoScores),
    }?;
    // No model of sound weights gives one, and JSON has no word for it.
    match scored.scores.iter().all(|score| score.is_finite()) {
        true => Ok(scored),
        false => Err(ApiError::NonFiniteScore),
    }
}

fn by_reranker(
    model: &dyn TextScores,
    firsts: &[String],
    seconds: &[&str],
    fields: Fields,
) -> Result<Scored, ApiError> {
    let failed = |source| ApiError::Vectors { source, param: fields[1] };
    let (mut pairs, mut tokens): (Vec<TextPair>, _) = (Vec::with_capacity(seconds.len()), 0);
    for (first, second) in firsts.iter().cycle().zip(seconds) {
        let pair = model.tokenize(first, second).map_err(failed)?;
        add(&mut tokens, pair.tokens.len(), fields)?;
        pairs.push(pair);
    }
    let scores = in_turn(|| model.scores(&pairs)).map_err(failed)?;
    Ok(Scored { scores, tokens })
}

/// The cosine of the angle between two texts' vectors.
fn by_vectors(
    model: &dyn TextVectors,
    firsts: &[String],
    seconds: &[&str],
    fields: Fields,
) -> Result<Scored, ApiError> {
    let mut tokens = 0;
    let mut vectors = |texts: &mut dyn Iterator<Item = &str>, param| {
        let failed = |source| ApiError::Vectors { source, param };
        let mut all: Vec<Vec<TokenId>> = Vec::new();
        for text in texts {
            let text = model.tokenize(text).map_err(failed)?;
            add(&mut tokens, text.len(), fields)?;
            all.push(text);
        }
        in_turn(|| model.vectors(&all, None)).map_err(failed)
    };
    let first = vectors(&mut firsts.iter().map(String::as_str), fields[0])?;
    let second = vectors(&mut seconds.iter().copied(), fields[1])?;
    let scores = first.iter().cycle().zip(&second).map(|(a, b)| cosine(a, b)).collect();
    Ok(Scored { scores, tokens })
}

fn add(sum: &mut usize, tokens: usize, fields: Fields) -> Result<(), ApiError> {
    *sum += tokens;
    if *sum > MOST_TOKENS {
        let detail = format!("must have at most {MOST_TOKENS} tokens in all");
        return Err(ApiError::value(fields[1], detail));
    }
    Ok(())
}

fn cosine(a: &[f32], b: &[f32]) -> f32 {
    let product =
        |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum();
    let lengths: f64 = f64::sqrt(product(a, a)) * f64::sqrt(product(b, b));
    let along: f64 = product(a, b);
    // A vector of zeros is near nothing.
    if lengths == 0.0 { 0.0 } else { (along / lengths) as f32 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cosines() {
        for (a, b, expected) in [
            ([3.0, 4.0], [6.0, 8.0], 1.0),
            ([1.0, 0.0], [0.0, 5.0], 0.0),
            ([1.0, 1.0], [-2.0, -2.0], -1.0),
            ([0.0, 0.0], [1.0, 2.0], 0.0),
        ] {
            assert!((cosine(&a, &b) - expected).abs() < 1e-6);
        }
    }
}
