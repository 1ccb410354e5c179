//! `cargo xtask kv`: what each codec of the cache costs and keeps, as `docs/kv-codecs.md` with the
//! figures as CSV and a plot.

mod model;
mod report;
mod rows;
mod speed;

use anyhow::{Context, Result};
use std::{
    fs,
    path::{Path, PathBuf},
};
use taper_kv_codecs::{KvGeometry, parse};

/// Choices of `cargo xtask kv`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// A model's directory; the built-in demo model by default.
    model: Option<PathBuf>,
    /// Tokens of held-out text to compare.
    #[arg(long, default_value_t = 4096, value_name = "TOKENS")]
    tokens: usize,
    /// Depths at which attention is timed.
    #[arg(long, value_delimiter = ',', default_value = "4096,16384,65536", value_name = "TOKENS")]
    depths: Vec<usize>,
    /// Only print the table of speeds.
    #[arg(long)]
    speed: bool,
    /// Where the report goes; `docs` by default.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// The codecs of the report.
const CODECS: [&str; 18] = [
    "f16",
    "bf16",
    "affine8",
    "affine4",
    "turbo8v4",
    "turbo5",
    "turbo4",
    "turbo4v2",
    "turbo3",
    "turbo2",
    "turbo4-qjl",
    "turbo3-qjl",
    "taper4",
    "taper4v3",
    "taper3",
    "taper3-l9",
    "taper3v2",
    "taper2",
];

/// One head of 128 in blocks of 64.
const HEAD: KvGeometry = KvGeometry { kv_heads: 1, head_dim: 128, block_tokens: 64 };

/// Mean bytes of a row of 128 elements of K or V, in blocks of 64.
fn row_bytes(name: &str) -> Result<f64> {
    let bytes = parse(name)?.block_bytes(HEAD);
    Ok((bytes.k + bytes.v) as f64 / 128.0)
}

pub(crate) fn run(root: &Path, options: &Options) -> Result<()> {
    if options.speed {
        println!("{}", speed::table(&options.depths)?.markdown());
        return Ok(());
    }
    let out = options.out.clone().unwrap_or_else(|| root.join("docs"));
    let model = options.model.clone().unwrap_or_else(|| root.join("crates/server/models/demo"));
    let (text, plot) = model::held_out(root, &model, options.tokens)?;
    let tables = [
        rows::distortion()?,
        text,
        rows::biased()?,
        model::planted()?,
        speed::table(&options.depths)?,
    ];
    let claims = report::claims(&tables[0], &tables[1]);
    fs::create_dir_all(&out)?;
    let write = |name: &str, text: String| {
        fs::write(out.join(name), text).with_context(|| format!("writing {name}"))
    };
    write("kv-codecs.md", report::markdown(&tables, &claims))?;
    write("kv-codecs.csv", report::csv(&tables))?;
    write("kv-codecs.svg", report::svg(&plot))?;
    for table in &tables {
        println!("{}", table.markdown());
    }
    println!("{}", claims.join("\n"));
    Ok(())
}

/// Kullback-Leibler divergence of two softmaxes in nats.
pub(crate) fn divergence(p: &[f64], q: &[f64]) -> f64 {
    let normal = |logits: &[f64]| {
        let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        max + logits.iter().map(|l| (l - max).exp()).sum::<f64>().ln()
    };
    let (np, nq) = (normal(p), normal(q));
    p.iter().zip(q).map(|(p, q)| (p - np).exp() * ((p - np) - (q - nq))).sum()
}

/// Independent `N(0, 1)`.
pub(crate) fn gaussian(n: usize, seed: u64) -> Vec<f32> {
    let mut s = (seed ^ 0x5851_f42d_4c95_7f2d).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut uniform = || {
        s ^= s << 13;
        s ^= s >> 7;
        s ^= s << 17;
        ((s >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    };
    let mut normal = || {
        let (a, b) = (uniform(), uniform());
        ((-2.0 * a.ln()).sqrt() * (2.0 * std::f64::consts::PI * b).cos()) as f32
    };
    (0..8).for_each(|_| {
        normal();
    });
    (0..n).map(|_| normal()).collect()
}

/// Four significant digits.
fn digits(x: f64) -> String {
    match x.abs() {
        0.0 => "0".to_owned(),
        small if small < 1e-4 => format!("{x:.2e}"),
        small if small < 1.0 => format!("{x:.5}"),
        small if small < 100.0 => format!("{x:.3}"),
        _ => format!("{x:.0}"),
    }
}
