//! How the next token is chosen from the logits.

use crate::TokenId;

/// Parameters of one request's sampler. Names and meanings follow vLLM and the OpenAI API.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// Sampling temperature; 0 means greedy.
    pub temperature: f32,
    /// Keep the `top_k` likeliest tokens; 0 keeps all.
    pub top_k: u32,
    /// Nucleus: keep the smallest set whose probability reaches `top_p`, in (0, 1].
    pub top_p: f32,
    /// Keep tokens at least `min_p` times as likely as the likeliest, in [0, 1].
    pub min_p: f32,
    /// Locally typical sampling (Meister et al. 2023), in (0, 1]; 1 is off.
    pub typical_p: f32,
    /// Divides positive and multiplies negative logits of tokens seen in prompt or output
    /// (Keskar et al. 2019); 1 is off.
    pub repetition_penalty: f32,
    /// Subtracted once from the logits of tokens seen in the output, in [-2, 2].
    pub presence_penalty: f32,
    /// Subtracted once per occurrence in the output, in [-2, 2].
    pub frequency_penalty: f32,
    /// Added to the logits of these tokens, each in [-100, 100].
    pub logit_bias: Vec<(TokenId, f32)>,
    /// Seed of this request's own generator. Equal seeds give equal tokens in every run and in
    /// every batch.
    pub seed: u64,
    /// Report the chosen token's log probability and this many of the likeliest ones.
    pub logprobs: Option<u8>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            typical_p: 1.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: 0,
            logprobs: None,
        }
    }
}

/// A parameter outside its range; the message is fit for the caller of the API.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{name} must be {expected}, got {got}")]
pub struct InvalidParam {
    /// The parameter, as the API names it.
    pub name: &'static str,
    /// Allowed range, in words.
    pub expected: &'static str,
    /// Value that the request had.
    pub got: f64,
}

impl SamplingParams {
    /// Most log probabilities that can be asked for beside the chosen token's.
    pub const MAX_LOGPROBS: u8 = 20;

    /// Greedy: the likeliest token, always.
    #[must_use]
    pub fn greedy() -> Self {
        Self { temperature: 0.0, ..Self::default() }
    }

    /// Checks every range.
    ///
    /// # Errors
    /// The first parameter that is out of range or not a number.
    pub fn validate(&self) -> Result<(), InvalidParam> {
        let check = |name, expected, got: f32, ok: bool| {
            if ok && got.is_finite() {
                Ok(())
            } else {
                Err(InvalidParam { name, expected, got: f64::from(got) })
            }
        };
        let in_range = |x: f32, lo: f32, hi: f32| (lo..=hi).contains(&x);
        let (t, p, m, y) = (self.temperature, self.top_p, self.min_p, self.typical_p);
        check("temperature", "between 0 and 2", t, in_range(t, 0.0, 2.0))?;
        check("top_p", "above 0 and at most 1", p, p > 0.0 && p <= 1.0)?;
        check("min_p", "between 0 and 1", m, in_range(m, 0.0, 1.0))?;
        check("typical_p", "above 0 and at most 1", y, y > 0.0 && y <= 1.0)?;
        let r = self.repetition_penalty;
        check("repetition_penalty", "above 0 and at most 10", r, r > 0.0 && r <= 10.0)?;
        let (pp, fp) = (self.presence_penalty, self.frequency_penalty);
        check("presence_penalty", "between -2 and 2", pp, in_range(pp, -2.0, 2.0))?;
        check("frequency_penalty", "between -2 and 2", fp, in_range(fp, -2.0, 2.0))?;
        for &(_, bias) in &self.logit_bias {
            check("logit_bias", "between -100 and 100", bias, in_range(bias, -100.0, 100.0))?;
        }
        let n = self.logprobs.unwrap_or(0);
        check("top_logprobs", "between 0 and 20", f32::from(n), n <= Self::MAX_LOGPROBS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_valid_and_nan_is_not() {
        assert_eq!(SamplingParams::default().validate(), Ok(()));
        assert_eq!(SamplingParams::greedy().validate(), Ok(()));
        let bad = |f: fn(&mut SamplingParams)| {
            let mut p = SamplingParams::default();
            f(&mut p);
            p.validate().expect_err("must be refused").name
        };
        assert_eq!(bad(|p| p.temperature = f32::NAN), "temperature");
        assert_eq!(bad(|p| p.temperature = -0.1), "temperature");
        assert_eq!(bad(|p| p.top_p = 0.0), "top_p");
        assert_eq!(bad(|p| p.min_p = 1.5), "min_p");
        assert_eq!(bad(|p| p.typical_p = 0.0), "typical_p");
        assert_eq!(bad(|p| p.repetition_penalty = 0.0), "repetition_penalty");
        assert_eq!(bad(|p| p.presence_penalty = 2.1), "presence_penalty");
        assert_eq!(bad(|p| p.frequency_penalty = -2.1), "frequency_penalty");
        assert_eq!(bad(|p| p.logit_bias = vec![(0, 101.0)]), "logit_bias");
        assert_eq!(bad(|p| p.logprobs = Some(21)), "top_logprobs");
    }
}
