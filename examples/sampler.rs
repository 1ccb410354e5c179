//! taper-sampler: filters, penalties and seeds over one row of logits.

use anyhow::Result;
use taper_base::SamplingParams;
use taper_sampler::Sampler;

const WORDS: [&str; 6] = ["the", "a", "candle", "taper", "flame", "wick"];

fn main() -> Result<()> {
    let base = SamplingParams { seed: 7, ..SamplingParams::default() };
    let settings = [
        ("greedy", SamplingParams::greedy()),
        ("temperature 1", base.clone()),
        ("the same seed again", base.clone()),
        ("another seed", SamplingParams { seed: 8, ..base.clone() }),
        ("top_k 2", SamplingParams { top_k: 2, ..base.clone() }),
        ("min_p 0.3", SamplingParams { min_p: 0.3, ..base.clone() }),
        ("presence_penalty 2", SamplingParams { presence_penalty: 2.0, ..base.clone() }),
        ("logit_bias: no wick", SamplingParams { logit_bias: vec![(5, -100.0)], ..base }),
    ];
    for (name, params) in settings {
        params.validate()?;
        let mut sampler = Sampler::new(&params, &[], WORDS.len() as u32);
        let mut words = Vec::new();
        for _ in 0..8 {
            // A model would give another row each time.
            let mut logits = [1.0, 0.5, 1.5, 2.0, 0.0, 1.2];
            let choice = sampler.sample(&mut logits, &[])?;
            sampler.accept(choice.token);
            words.push(WORDS[choice.token as usize]);
        }
        println!("{name:<20} {}", words.join(" "));
    }

    let params = SamplingParams { logprobs: Some(2), ..SamplingParams::greedy() };
    let sampler = Sampler::new(&params, &[], WORDS.len() as u32);
    let choice = sampler.sample(&mut [1.0, 0.5, 1.5, 2.0, 0.0, 1.2], &[])?;
    for entry in choice.logprobs.iter().flat_map(|l| &l.top) {
        println!("p({}) = {:.3}", WORDS[entry.id as usize], entry.logprob.exp());
    }
    Ok(())
}

#[test]
fn runs() -> Result<()> {
    main()
}
