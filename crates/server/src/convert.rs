//! `taper convert`: dense checkpoints and GGUF files to checkpoints that mlx-lm loads too.

use crate::{
    cli::ConvertArgs,
    model,
    output::Out,
    sizes::{count, human},
};
use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};
use taper::ModelSource;
use taper_tensor::{AffineFormat, DType};
use taper_weights::{ConvertOptions, TargetFormat, convert};

pub(crate) fn run(args: &ConvertArgs) -> Result<()> {
    let source = model::find(Some(&args.model))?;
    let (src, is_gguf) = match &source {
        ModelSource::Gguf { path, .. } => (path.as_path(), true),
        _ => (source.dir().context("name a model directory or a GGUF file")?, false),
    };
    let target = target(args, is_gguf);
    let mut options = ConvertOptions::with_target(target);
    options.high_bits = args.high_bits;
    let bar = ProgressBar::new(0);
    if let Ok(style) = ProgressStyle::with_template(
        "converting {wide_bar} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec}, {eta} left",
    ) {
        bar.set_style(style);
    }
    let report = convert(src, &args.out, &options, &mut |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    })?;
    bar.finish_and_clear();
    writeln!(
        Out,
        "{}: {}, {:.2} bits a weight; {} quantized, {} copied",
        args.out.display(),
        human(report.bytes),
        report.bits_per_weight(),
        count(report.quantized, "tensor"),
        report.copied,
    )?;
    if let TargetFormat::Affine(format) = target {
        let group = format.group;
        for name in &report.left_dense {
            writeln!(Out, "left dense, since groups of {group} do not divide its rows: {name}")?;
        }
    }
    Ok(())
}

/// Blocks of a GGUF file are kept unless a flag asks for something else.
fn target(args: &ConvertArgs, is_gguf: bool) -> TargetFormat {
    match args.dtype.as_deref() {
        Some("float32") => return TargetFormat::Dense(DType::F32),
        Some("bfloat16") => return TargetFormat::Dense(DType::BF16),
        Some(_) => return TargetFormat::Dense(DType::F16),
        None => {}
    }
    if is_gguf && args.bits.is_none() && args.group.is_none() && args.high_bits.is_none() {
        return TargetFormat::Stored;
    }
    TargetFormat::Affine(AffineFormat {
        bits: args.bits.unwrap_or(4),
        group: args.group.unwrap_or(64),
    })
}
