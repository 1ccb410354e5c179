//! What is lost where a token goes through fewer experts than a model was trained with.

use super::own::OwnArgs;
use crate::{
    kv::divergence,
    ppl::{surprise, wide},
    runner::{Piece, Runner},
};
use anyhow::Result;
use taper_base::TokenId;
use taper_models::LoadOptions;
use taper_tensor::pool;
use taper_weights::Checkpoint;

/// Perplexity of a text with each number of experts, and the mean divergence from the model's own outputs.
pub(super) fn run(
    weights: &Checkpoint,
    text: &[TokenId],
    numbers: &[usize],
    own: &OwnArgs,
) -> Result<()> {
    let load = |moe_top_k| -> Result<Runner> {
        let options = LoadOptions {
            max_model_len: Some(text.len()),
            precision: own.precision(1)?,
            moe_top_k,
            ..LoadOptions::default()
        };
        let model = taper_models::load(weights, options)?;
        Runner::over(model, &own.kv_cache_dtype, None, text.len(), None)
    };
    println!("{} tokens\n{:>8} {:>10} {:>10}", text.len(), "experts", "ppl", "KL, nats");
    for &n in numbers {
        let (mut whole, mut fewer) = (load(None)?, load(Some(n))?);
        let (mut nll, mut kl) = (0.0, 0.0);
        for (i, tokens) in text.chunks(own.chunk).enumerate() {
            let piece = [Piece::prompt(0, i * own.chunk, tokens)];
            let (truth, got) = (whole.step(&piece, false)?, fewer.step(&piece, false)?);
            let next = &text[i * own.chunk + 1..];
            let each = pool::map(got.len(), |i| {
                let nll = next.get(i).map_or(0.0, |&token| surprise(&got[i], token));
                (nll, divergence(&wide(&truth[i]), &wide(&got[i])))
            });
            nll += each.iter().map(|(nll, _)| nll).sum::<f64>();
            kl += each.iter().map(|(_, kl)| kl).sum::<f64>();
        }
        let ppl = (nll / (text.len() - 1) as f64).exp();
        println!("{n:>8} {ppl:>10.3} {:>10.4}", kl / text.len() as f64);
    }
    Ok(())
}
