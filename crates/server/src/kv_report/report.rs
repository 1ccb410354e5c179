//! The table, and what follows from it.

use super::{
    KvReportArgs,
    measure::{Loss, Prefill, Truth},
};
use crate::output::Out;
use anyhow::Result;
use serde_json::{Value, json};
use taper_kv_cache::{KvScheme, Prices};
use taper_kv_codecs::Exact;

/// One codec.
pub(super) struct Row {
    pub(super) name: String,
    pub(super) bytes: f64,
    pub(super) loss: Loss,
}

/// Codecs by layer.
pub(super) struct Layers {
    pub(super) scheme: String,
    pub(super) bits: f64,
    pub(super) prices: Prices,
}

/// All that was measured.
pub(super) struct Report {
    model: String,
    tokens: usize,
    places: usize,
    exact: Option<Exact>,
    /// Bytes a token of f16.
    f16: f64,
    pub(super) rows: Vec<Row>,
    pub(super) layers: Option<Layers>,
}

impl Report {
    pub(super) fn new(
        model: String,
        args: &KvReportArgs,
        prefill: &Prefill<'_>,
        truth: &Truth,
    ) -> Self {
        let f16 = prefill.bytes_a_token(&KvScheme::default());
        let rows = Vec::with_capacity(args.codecs.len());
        let (tokens, places) = (prefill.ids.len(), truth.places.len());
        Self { model, tokens, places, exact: prefill.exact, f16, rows, layers: None }
    }

    /// The smallest cache within the limits.
    fn recommended(&self, args: &KvReportArgs) -> Option<&Row> {
        let good = |r: &&Row| r.loss.mean_kl <= args.max_kl && r.loss.same * 100.0 >= args.min_same;
        self.rows.iter().filter(good).min_by(|a, b| {
            a.bytes.total_cmp(&b.bytes).then(a.loss.mean_kl.total_cmp(&b.loss.mean_kl))
        })
    }

    /// As `--additional-config` takes it.
    fn scheme_json(layers: &Layers) -> Value {
        let round = |prices: &[f64]| prices.iter().map(|p| significant(*p)).collect::<Vec<_>>();
        let prices = json!({ "k": round(&layers.prices.k), "v": round(&layers.prices.v) });
        json!({ "kv_scheme": { "bits": layers.bits, "prices": prices } })
    }

    /// `complete`: all codecs were measured, so that one can be recommended.
    pub(super) fn print(&self, args: &KvReportArgs, complete: bool) -> Result<()> {
        let best = self.recommended(args).filter(|_| complete);
        if args.json {
            writeln!(Out, "{}", serde_json::to_string_pretty(&self.json(args, best))?)?;
            return Ok(());
        }
        writeln!(
            Out,
            "{}: {} tokens, {} of them compared with a cache of {}{}\n",
            self.model,
            self.tokens,
            self.places,
            args.reference,
            self.exact.map_or_else(String::new, |e| format!(
                "; the first {} tokens and those since the last multiple of {} are exact, as served",
                e.sink_tokens, e.recent_tokens
            )),
        )?;
        let width = self.rows.iter().map(|r| r.name.len()).max().unwrap_or(0).clamp(8, 40);
        writeln!(
            Out,
            "{:<width$} {:>13} {:>12} {:>11} {:>11} {:>19}",
            "codec",
            "bytes a token",
            "x f16's size",
            "mean KL",
            "largest KL",
            "same first choice %"
        )?;
        for Row { name, bytes, loss } in &self.rows {
            writeln!(
                Out,
                "{name:<width$} {bytes:>13.0} {:>12.3} {:>11.2e} {:>11.2e} {:>19.2}",
                bytes / self.f16,
                loss.mean_kl,
                loss.max_kl,
                loss.same * 100.0
            )?;
        }
        if complete {
            writeln!(Out, "\n{}", self.advice(args, best))?;
        }
        Ok(())
    }

    fn advice(&self, args: &KvReportArgs, best: Option<&Row>) -> String {
        let limits = format!(
            "a mean KL of at most {} and at least {} % equal first choices",
            args.max_kl, args.min_same
        );
        let Some(row) = best else {
            return format!("No codec has {limits}: stay with --kv-cache-dtype f16.");
        };
        let times = self.f16 / row.bytes;
        let flag = match &self.layers {
            Some(layers) if layers.scheme == row.name => {
                format!("--additional-config '{}'", Self::scheme_json(layers))
            }
            _ => format!("--kv-cache-dtype {}", row.name),
        };
        format!("The smallest with {limits}, {times:.1} times smaller than f16:\n\n  {flag}")
    }

    fn json(&self, args: &KvReportArgs, best: Option<&Row>) -> Value {
        let row = |r: &Row| {
            json!({
                "codec": r.name,
                "bytes_per_token": r.bytes,
                "ratio_to_f16": r.bytes / self.f16,
                "mean_kl": r.loss.mean_kl,
                "max_kl": r.loss.max_kl,
                "same_first_choice": r.loss.same,
            })
        };
        json!({
            "model": self.model,
            "tokens": self.tokens,
            "compared": self.places,
            "reference": args.reference,
            "sink_tokens": self.exact.map_or(0, |e| e.sink_tokens),
            "recent_tokens": self.exact.map_or(0, |e| e.recent_tokens),
            "limits": { "max_kl": args.max_kl, "min_same_first_choice": args.min_same / 100.0 },
            "codecs": self.rows.iter().map(row).collect::<Vec<_>>(),
            "recommended": best.map(|r| &r.name),
            "additional_config": self.layers.as_ref().map(Self::scheme_json),
        })
    }
}

/// Three significant digits are more than a measurement of this kind is good for.
fn significant(x: f64) -> f64 {
    format!("{x:.2e}").parse().unwrap_or(x)
}
