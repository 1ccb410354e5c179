//! Codecs on Gaussian rows: distortion against theory, and attention.

use super::{CODECS, HEAD, digits, divergence, gaussian, report::Table, row_bytes};
use anyhow::Result;
use taper_kv_codecs::{Codebook, Foreign, LayerPages, Rotation, parse};
use taper_tensor::{Tensor, ops};

const TOKENS: usize = 4096;
const D: usize = 128;
/// Queries of a mean.
const QUERIES: usize = 32;
/// Standard deviation of the logits.
const DEVIATION: f64 = 2.0;

/// Keys and values after a codec, `[tokens, D]`.
fn through(name: &str, k: &[f32], v: &[f32]) -> Result<(Vec<f32>, Vec<f32>)> {
    let codec = parse(name)?;
    let tokens = k.len() / D;
    let slots: Vec<_> = (0..tokens).collect();
    let mut pages = LayerPages::zeroed(codec.block_bytes(HEAD), tokens.div_ceil(HEAD.block_tokens));
    let tensor = |x: &[f32]| Tensor::from_vec(x.to_vec(), &[tokens, 1, D]);
    codec.encode(HEAD, &tensor(k)?, &tensor(v)?, &slots, &mut pages)?;
    let (k, v) = codec.decode(HEAD, &slots, &pages)?;
    let host = |x| ops::with_host_f32(x, <[f32]>::to_vec);
    Ok((host(&k)?, host(&v)?))
}

/// Layouts of other programs, of keys and values.
const FOREIGN: [(&str, Foreign, Foreign); 8] = [
    ("llama.cpp-turboquant turbo4", Foreign::Fork4, Foreign::Fork4),
    ("the same, until June 2026", Foreign::Fork4Early, Foreign::Fork4Early),
    ("llama.cpp-turboquant turbo3", Foreign::Fork3, Foreign::Fork3),
    ("llama.cpp-turboquant turbo2", Foreign::Fork2, Foreign::Fork2),
    ("SwiftLM", Foreign::SwiftLmKey, Foreign::SwiftLmValue),
    ("mlx-swift-lm turbo4", Foreign::Mlx { bits: 4 }, Foreign::Mlx { bits: 4 }),
    ("mlx-swift-lm turbo3", Foreign::Mlx { bits: 3 }, Foreign::Mlx { bits: 3 }),
    ("mlx-swift-lm turbo2", Foreign::Mlx { bits: 2 }, Foreign::Mlx { bits: 2 }),
];

/// Rows after another program's codec.
fn through_foreign(format: Foreign, x: &[f32]) -> Result<Vec<f32>> {
    let codec = format.codec(Rotation::new(D, 42)?, Rotation::new(D, 1042)?);
    let mut out = Vec::with_capacity(x.len());
    for row in x.chunks_exact(D) {
        out.extend(codec.read(&codec.write(row)?)?);
    }
    Ok(out)
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

fn error(x: &[f32], y: &[f32]) -> f64 {
    x.iter().zip(y).map(|(x, y)| f64::from(x - y).powi(2)).sum()
}

/// Mean divergence of attention over `coded` from attention over `keys`.
fn attention(keys: &[f32], coded: &[f32], seed: u64) -> f64 {
    let scale = DEVIATION / (D as f64).sqrt();
    let logits = |q: &[f32], keys: &[f32]| -> Vec<f64> {
        keys.chunks_exact(D).map(|k| scale * dot(q, k)).collect()
    };
    let queries = gaussian(QUERIES * D, seed);
    let one = |q| divergence(&logits(q, keys), &logits(q, coded));
    queries.chunks_exact(D).map(one).sum::<f64>() / QUERIES as f64
}

/// Error of the code book behind a name, where there is one.
fn theory(name: &str) -> String {
    let rest = name.strip_prefix("turbo").unwrap_or_default();
    match rest.parse() {
        Ok(bits @ 1..=5) => {
            // The unbiased scale turns an error of 1 - cos^2 into 1 / cos^2 - 1.
            let d = Codebook::sphere(D, bits).distortion;
            digits(d / (1.0 - d))
        }
        _ => "-".to_owned(),
    }
}

pub(super) fn distortion() -> Result<Table> {
    let (k, v) = (gaussian(TOKENS * D, 1), gaussian(TOKENS * D, 2));
    let energy = |x: &[f32]| dot(x, x);
    let queries = gaussian(TOKENS * D, 3);
    let figures = |name: &str, bytes: f64, ck: &[f32], cv: &[f32]| {
        let products: f64 = queries
            .chunks_exact(D)
            .zip(k.chunks_exact(D).zip(ck.chunks_exact(D)))
            .map(|(q, (k, c))| {
                let off = dot(q, k) - dot(q, c);
                off * off / (dot(q, q) * dot(k, k)) * D as f64
            })
            .sum();
        vec![
            name.to_owned(),
            format!("{bytes:.2}"),
            format!("{:.2}", 256.0 / bytes),
            digits(error(&k, ck) / energy(&k)),
            digits(error(&v, cv) / energy(&v)),
            theory(name),
            digits(products / TOKENS as f64),
            digits(attention(&k, ck, 4)),
        ]
    };
    let mut rows = Vec::new();
    for name in CODECS {
        let (ck, cv) = through(name, &k, &v)?;
        rows.push(figures(name, row_bytes(name)?, &ck, &cv));
    }
    for (name, of_k, of_v) in FOREIGN {
        let bytes = (of_k.row_bytes() + of_v.row_bytes()) as f64 / 2.0;
        rows.push(figures(name, bytes, &through_foreign(of_k, &k)?, &through_foreign(of_v, &v)?));
    }
    let header = [
        "codec",
        "bytes a row",
        "times smaller than f16",
        "error of K",
        "error of V",
        "in theory",
        "d E[inner product error^2]",
        "attention KL",
    ];
    Ok(Table {
        title: "Gaussian rows",
        note: format!(
            "{TOKENS} rows of {D}, blocks of {}. Errors are relative to the rows' energy; theory is \
             the code book's with the unbiased scale. Attention: one head, logits with a deviation \
             of {DEVIATION}. Below our own: the layouts of other programs, as those read them.",
            HEAD.block_tokens
        ),
        header: header.map(str::to_owned).to_vec(),
        rows,
    })
}

/// Keys with a constant added, as Qwen2's projections do.
pub(super) fn biased() -> Result<Table> {
    let varying = gaussian(TOKENS * D, 11);
    let mut direction = gaussian(D, 12);
    let length = (dot(&direction, &direction) / D as f64).sqrt() as f32;
    direction.iter_mut().for_each(|x| *x /= length);
    let ratios = [0.0f32, 3.0, 10.0, 30.0];
    let mut rows = Vec::new();
    for name in CODECS {
        let mut cells = vec![name.to_owned()];
        for ratio in ratios {
            let k: Vec<_> =
                varying.iter().enumerate().map(|(i, g)| g + ratio * direction[i % D]).collect();
            let (coded, _) = through(name, &k, &varying)?;
            cells.push(digits(error(&k, &coded) / dot(&varying, &varying)));
            cells.push(digits(attention(&k, &coded, 13)));
        }
        rows.push(cells);
    }
    let columns = ratios.iter().flat_map(|r| [format!("error, bias {r}"), format!("KL, bias {r}")]);
    Ok(Table {
        title: "Keys with a bias",
        note:
            "A constant of so many times the length of what varies is added to every key. Errors \
               are relative to what varies; a constant changes no softmax."
                .to_owned(),
        header: std::iter::once("codec".to_owned()).chain(columns).collect(),
        rows,
    })
}
