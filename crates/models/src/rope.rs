//! Rotary frequencies and their extensions to longer contexts.

use crate::ModelError;
use serde::Deserialize;
use taper_tensor::RopeTable;

/// `rope_parameters` (or the older `rope_scaling`) of config.json.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct RopeConfig {
    rope_type: Option<String>,
    /// The older name; some published files have both.
    r#type: Option<String>,
    pub(crate) rope_theta: Option<f64>,
    pub(crate) partial_rotary_factor: Option<f64>,
    factor: Option<f64>,
    pub(crate) original_max_position_embeddings: Option<f64>,
    attention_factor: Option<f64>,
    // llama3
    low_freq_factor: Option<f64>,
    high_freq_factor: Option<f64>,
    // yarn
    beta_fast: Option<f64>,
    beta_slow: Option<f64>,
    mscale: Option<f64>,
    mscale_all_dim: Option<f64>,
    truncate: Option<bool>,
    // longrope
    short_factor: Option<Vec<f64>>,
    long_factor: Option<Vec<f64>>,
    /// What rotated elements are multiplied with, of either factors (Phi 3.5 with experts).
    short_mscale: Option<f64>,
    long_mscale: Option<f64>,
    /// Pairs that turn with each axis of a position (M-RoPE).
    mrope_section: Option<Vec<usize>>,
}

/// What the frequencies depend on beside the section.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RopeContext {
    pub(crate) family: &'static str,
    pub(crate) head_dim: usize,
    /// `max_position_embeddings`.
    pub(crate) max_positions: usize,
    /// Longest sequence that will be run.
    pub(crate) run_positions: usize,
}

impl RopeConfig {
    pub(crate) fn with_theta(theta: f64) -> Self {
        Self { rope_theta: Some(theta), ..Self::default() }
    }

    /// These settings with another angle base.
    pub(crate) fn at(self, theta: f64) -> Self {
        Self { rope_theta: Some(theta), ..self }
    }

    /// The axis of each pair, of tables of models whose positions have three. Sections are `blocks`, one after the other
    /// (Qwen2-VL), or pairs of the second and the third axis stand among those of the first (Qwen3-VL).
    pub(crate) fn axes(
        &self,
        family: &'static str,
        pairs: usize,
        default: [usize; 3],
        blocks: bool,
    ) -> Result<Vec<u8>, ModelError> {
        let section = self.mrope_section.as_deref().unwrap_or(&default);
        let &[first, height, width] = section else {
            return Err(mrope(family, section, "it must have three numbers"));
        };
        if blocks {
            let all = section.iter().try_fold(0usize, |sum, &n| sum.checked_add(n));
            if all != Some(pairs) {
                return Err(mrope(family, section, &format!("its sum must be {pairs}")));
            }
            let of = |axis, n| std::iter::repeat_n(axis, n);
            return Ok(of(0, first).chain(of(1, height)).chain(of(2, width)).collect());
        }
        Ok((0..pairs)
            .map(|pair| match pair % 3 {
                1 if pair / 3 < height => 1,
                2 if pair / 3 < width => 2,
                _ => 0,
            })
            .collect())
    }

    /// The table of frequencies.
    pub(crate) fn table(&self, c: RopeContext) -> Result<RopeTable, ModelError> {
        self.check(c)?;
        let dim = (c.head_dim as f64 * self.partial_rotary_factor.unwrap_or(1.0)) as usize / 2 * 2;
        // As in transformers: the newer name counts.
        let kind = self.rope_type.as_deref().or(self.r#type.as_deref());
        match kind.unwrap_or("default") {
            "default" => Ok(table(self.base(dim), 1.0)),
            "proportional" => {
                // Pairs are of the whole head, and those behind the turned ones have no angle.
                let (pairs, turned) = (c.head_dim / 2, dim / 2);
                let factor = self.factor.unwrap_or(1.0);
                let turned = self.base(c.head_dim).take(turned).map(move |f| f / factor);
                Ok(table(turned.chain(std::iter::repeat(0.0)).take(pairs), 1.0))
            }
            "linear" => {
                let factor = self.need(c, "factor", self.factor)?;
                Ok(table(self.base(dim).map(|f| f / factor), 1.0))
            }
            // Up to the configured context it changes nothing; beyond, angles would depend on a sequence's length.
            "dynamic" if c.run_positions <= c.max_positions => Ok(table(self.base(dim), 1.0)),
            "llama3" => self.llama3(c, dim),
            "yarn" => self.yarn(c, dim),
            "longrope" | "su" => self.longrope(c, dim),
            other => Err(unsupported(c, "rope_type", other)),
        }
    }

    /// What DeepSeek multiplies scores with: the square of YaRN's factor, by `mscale_all_dim`.
    pub(crate) fn score_scale(&self) -> f32 {
        let kind = self.rope_type.as_deref().or(self.r#type.as_deref());
        let all = self.mscale_all_dim.filter(|_| kind.is_some_and(|kind| kind != "default"));
        let mscale = match (all, self.factor) {
            (Some(all), Some(factor)) if factor > 1.0 => 0.1 * all * factor.ln() + 1.0,
            _ => 1.0,
        };
        (mscale * mscale) as f32
    }

    /// Refuses numbers that make no angles, before anything is computed from them.
    fn check(&self, c: RopeContext) -> Result<(), ModelError> {
        for (field, value, (low, high)) in [
            ("rope_theta", self.rope_theta, (1.0, 1e15)),
            ("partial_rotary_factor", self.partial_rotary_factor, (0.0, 1.0)),
            ("factor", self.factor, (1e-6, 1e6)),
            (
                "original_max_position_embeddings",
                self.original_max_position_embeddings,
                (1.0, 1e10),
            ),
            ("attention_factor", self.attention_factor, (0.0, 1e6)),
            ("low_freq_factor", self.low_freq_factor, (1e-6, 1e6)),
            ("high_freq_factor", self.high_freq_factor, (1e-6, 1e6)),
            ("beta_fast", self.beta_fast, (0.0, 1e6)),
            ("beta_slow", self.beta_slow, (0.0, 1e6)),
            ("mscale", self.mscale, (0.0, 1e6)),
            ("mscale_all_dim", self.mscale_all_dim, (0.0, 1e6)),
            ("short_mscale", self.short_mscale, (0.0, 1e6)),
            ("long_mscale", self.long_mscale, (0.0, 1e6)),
        ] {
            if let Some(value) = value.filter(|v| !(low..=high).contains(v)) {
                let range = format!("it must be from {low} to {high}");
                let (family, value) = (c.family, value.to_string());
                return Err(ModelError::OutOfRange { family, field, value, range });
            }
        }
        let lists = [("short_factor", &self.short_factor), ("long_factor", &self.long_factor)];
        for (field, list) in lists {
            let bad = |v: &&f64| !(1e-6..=1e6).contains(*v);
            if let Some(value) = list.iter().flatten().find(bad) {
                let range = "each must be from 1e-6 to 1e6".to_owned();
                let (family, value) = (c.family, value.to_string());
                return Err(ModelError::OutOfRange { family, field, value, range });
            }
        }
        Ok(())
    }

    fn theta(&self) -> f64 {
        self.rope_theta.unwrap_or(10_000.0)
    }

    /// `theta^(-2i/dim)`.
    fn base(&self, dim: usize) -> impl Iterator<Item = f64> {
        let theta = self.theta();
        (0..dim / 2).map(move |i| theta.powf(-(2.0 * i as f64) / dim as f64))
    }

    fn need(&self, c: RopeContext, field: &'static str, x: Option<f64>) -> Result<f64, ModelError> {
        match x {
            Some(x) if x > 0.0 => Ok(x),
            Some(x) => Err(unsupported(c, field, &x.to_string())),
            None => Err(unsupported(c, field, "nothing")),
        }
    }

    /// Llama 3.1: low frequencies are divided by `factor`, high ones kept, the middle blended.
    fn llama3(&self, c: RopeContext, dim: usize) -> Result<RopeTable, ModelError> {
        let factor = self.need(c, "factor", self.factor)?;
        let low = self.need(c, "low_freq_factor", self.low_freq_factor)?;
        let high = self.need(c, "high_freq_factor", self.high_freq_factor)?;
        let field = "original_max_position_embeddings";
        let original = self.need(c, field, self.original_max_position_embeddings)?;
        let scaled = self.base(dim).map(|f| {
            let wavelength = std::f64::consts::TAU / f;
            if wavelength > original / low {
                f / factor
            } else if wavelength < original / high {
                f
            } else {
                let smooth = (original / wavelength - low) / (high - low);
                (1.0 - smooth) * f / factor + smooth * f
            }
        });
        Ok(table(scaled, 1.0))
    }

    /// YaRN (Peng et al. 2023).
    fn yarn(&self, c: RopeContext, dim: usize) -> Result<RopeTable, ModelError> {
        let max = c.max_positions as f64;
        let original = self.original_max_position_embeddings.unwrap_or(max);
        let factor = self.need(c, "factor", self.factor.or(Some(max / original)))?;
        let mscale = |m: f64| if factor <= 1.0 { 1.0 } else { 0.1 * m * factor.ln() + 1.0 };
        let set = |m: Option<f64>| m.filter(|&m| m != 0.0);
        let attention = self.attention_factor.unwrap_or_else(|| {
            match (set(self.mscale), set(self.mscale_all_dim)) {
                (Some(m), Some(all)) => mscale(m) / mscale(all),
                _ => mscale(1.0),
            }
        });
        // The pair that rotates `rotations` times over the original context.
        let correction = |rotations: f64| {
            dim as f64 * (original / (rotations * std::f64::consts::TAU)).ln()
                / (2.0 * self.theta().ln())
        };
        let mut low = correction(set(self.beta_fast).unwrap_or(32.0));
        let mut high = correction(set(self.beta_slow).unwrap_or(1.0));
        if self.truncate.unwrap_or(true) {
            (low, high) = (low.floor(), high.ceil());
        }
        (low, high) = (low.max(0.0), high.min(dim as f64 - 1.0));
        if low == high {
            high += 0.001;
        }
        let scaled = self.base(dim).enumerate().map(|(i, f)| {
            let interpolated = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
            f / factor * interpolated + f * (1.0 - interpolated)
        });
        Ok(table(scaled, attention))
    }

    /// LongRoPE (Ding et al. 2024), as Phi-3 uses it. The long factors apply when sequences longer
    /// than the original context may be run, so that every request is rotated alike.
    fn longrope(&self, c: RopeContext, dim: usize) -> Result<RopeTable, ModelError> {
        let max = c.max_positions as f64;
        let original = self.original_max_position_embeddings.unwrap_or(max);
        let factor = self.need(c, "factor", self.factor.or(Some(max / original)))?;
        let attention = self.attention_factor.unwrap_or_else(|| {
            if factor <= 1.0 { 1.0 } else { (1.0 + factor.ln() / original.ln()).sqrt() }
        });
        let long = c.run_positions as f64 > original;
        let (field, factors, own) = if long {
            ("long_factor", &self.long_factor, self.long_mscale)
        } else {
            ("short_factor", &self.short_factor, self.short_mscale)
        };
        let attention = own.unwrap_or(attention);
        let factors = factors.as_ref().ok_or_else(|| unsupported(c, field, "nothing"))?;
        if factors.len() != dim / 2 {
            let got = format!("a list of {}, with {} pairs a head", factors.len(), dim / 2);
            return Err(unsupported(c, field, &got));
        }
        Ok(table(self.base(dim).zip(factors).map(|(f, ext)| f / ext), attention))
    }
}

fn table(inv_freq: impl Iterator<Item = f64>, scale: f64) -> RopeTable {
    RopeTable::new(inv_freq.map(|f| f as f32).collect(), scale as f32)
}

fn mrope(family: &'static str, section: &[usize], range: &str) -> ModelError {
    let (value, range) = (format!("{section:?}"), range.to_owned());
    ModelError::OutOfRange { family, field: "mrope_section", value, range }
}

fn unsupported(c: RopeContext, field: &'static str, value: &str) -> ModelError {
    ModelError::Unsupported { family: c.family, field, value: value.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axes(section: &[usize], pairs: usize, blocks: bool) -> Result<Vec<u8>, ModelError> {
        let rope = RopeConfig { mrope_section: Some(section.to_vec()), ..RopeConfig::default() };
        rope.axes("test", pairs, [0; 3], blocks)
    }

    #[test]
    fn pairs_turn_with_the_axes_of_their_sections() {
        assert_eq!(axes(&[1, 2, 3], 6, true).unwrap(), [0, 1, 1, 2, 2, 2]);
        assert_eq!(axes(&[4, 2, 2], 8, false).unwrap(), [0, 1, 2, 0, 1, 2, 0, 0]);
        assert_eq!(axes(&[3, 3, 2], 8, false).unwrap(), [0, 1, 2, 0, 1, 2, 0, 1]);
        let none = RopeConfig::default().axes("test", 3, [1, 1, 1], true);
        assert_eq!(none.unwrap(), [0, 1, 2]);
    }

    #[test]
    fn sections_that_are_not_of_the_pairs_are_refused() {
        for (section, pairs, blocks) in
            [(&[1, 2][..], 3, false), (&[1, 1, 2], 3, true), (&[usize::MAX, 1, 1], 1, true)]
        {
            let error = axes(section, pairs, blocks).unwrap_err().to_string();
            assert!(error.contains("mrope_section"), "{error}");
        }
    }
}
