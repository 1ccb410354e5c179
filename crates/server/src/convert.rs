//! `taper convert`: dense checkpoints to quantized ones that mlx-lm loads too.

use crate::{
    cli::ConvertArgs,
    model,
    output::Out,
    sizes::{count, human},
};
use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};
use taper_tensor::AffineFormat;
use taper_weights::{ConvertOptions, convert};

pub(crate) fn run(args: &ConvertArgs) -> Result<()> {
    let source = model::find(Some(&args.model))?;
    let src = source.dir().context("name a model directory")?;
    let format = AffineFormat { bits: args.bits, group: args.group };
    let options = ConvertOptions { high_bits: args.high_bits, ..ConvertOptions::new(format) };
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
    for name in &report.left_dense {
        writeln!(Out, "left dense, since groups of {} do not divide its rows: {name}", args.group)?;
    }
    Ok(())
}
