//! Quantizes a checkpoint: `convert SRC DST --bits 6 --group 64 [--layer PATTERN=BITS|dense]...`

use std::{error::Error, path::Path};
use taper_tensor::AffineFormat;
use taper_weights::{ConvertOptions, Override, TargetFormat, convert};

const USAGE: &str = "usage: convert SRC DST [--bits 4] [--group 64] [--high-bits 6] [--mode affine|mxfp4] \
                     [--shard-bytes N] [--layer PATTERN=BITS|dense]...";

fn main() -> Result<(), Box<dyn Error>> {
    let (mut paths, mut layers) = (Vec::new(), Vec::new());
    let mut format = AffineFormat { bits: 4, group: 64 };
    let mut options = ConvertOptions::new(format);
    let mut mode = "affine".to_owned();
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        if !arg.starts_with("--") {
            paths.push(arg);
            continue;
        }
        let value = args.next().ok_or(USAGE)?;
        match arg.as_str() {
            "--bits" => format.bits = value.parse()?,
            "--group" => format.group = value.parse()?,
            "--high-bits" => options.high_bits = Some(value.parse()?),
            "--shard-bytes" => options.max_shard_bytes = value.parse()?,
            "--layer" => layers.push(value),
            "--mode" => mode = value,
            _ => return Err(USAGE.into()),
        }
    }
    options.target = match mode.as_str() {
        "affine" => TargetFormat::Affine(format),
        "mxfp4" => TargetFormat::Mxfp4,
        _ => return Err(USAGE.into()),
    };
    for layer in layers {
        let (pattern, bits) = layer.split_once('=').ok_or(USAGE)?;
        let format = match bits {
            "dense" => None,
            bits => Some(AffineFormat { bits: bits.parse()?, ..format }),
        };
        options.overrides.push(Override { pattern: pattern.to_owned(), format });
    }
    let [src, dst] = paths.as_slice() else { return Err(USAGE.into()) };
    let report = convert(Path::new(src), Path::new(dst), &options, &mut |done, total| {
        eprint!("\r{} %", done * 100 / total.max(1));
    })?;
    eprintln!(
        "\r{} tensors quantized, {} kept, {} bytes in {} files, {:.2} bits a weight",
        report.quantized,
        report.copied,
        report.bytes,
        report.shards,
        report.bits_per_weight()
    );
    for layer in report.left_dense {
        eprintln!("{layer} is kept: its rows are not divisible into groups");
    }
    Ok(())
}
