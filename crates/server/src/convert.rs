//! `taper convert`: dense checkpoints and GGUF files to checkpoints that mlx-lm loads too.

use crate::{
    cli::ConvertArgs,
    interrupt::{Busy, Interrupted, Interrupts},
    model,
    output::Out,
    sizes::{count, human},
};
use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use taper::ModelSource;
use taper_tensor::{AffineFormat, DType, ScaleMethod};
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
    if args.method.as_deref() == Some("mse") {
        options.method = ScaleMethod::LeastSquares;
    }
    let bar = ProgressBar::new(0);
    if let Ok(style) = ProgressStyle::with_template(
        "converting {wide_bar} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec}, {eta} left",
    ) {
        bar.set_style(style);
    }
    let interrupts = Interrupts::listen()?;
    let converted = until_stopped(&interrupts.busy(), |check| {
        convert(src, &args.out, &options, &mut |done, total| {
            check();
            bar.set_length(total);
            bar.set_position(done);
        })
    });
    bar.finish_and_clear();
    let report = converted??;
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

/// Works until a signal comes, as far as `work` calls what it is given. A conversion has no other way to
/// stop before its end, and removes its unfinished files when it is unwound.
fn until_stopped<T>(busy: &Busy, work: impl FnOnce(&dyn Fn()) -> T) -> Result<T, Interrupted> {
    let check = || {
        if let Err(stop) = busy.check() {
            // Without the message of a panic.
            resume_unwind(Box::new(stop));
        }
    };
    let done = catch_unwind(AssertUnwindSafe(|| work(&check)));
    done.map_err(|unwound| match unwound.downcast::<Interrupted>() {
        Ok(stop) => *stop,
        Err(panic) => resume_unwind(panic),
    })
}

/// Blocks of a GGUF file are kept unless a flag asks for something else.
fn target(args: &ConvertArgs, is_gguf: bool) -> TargetFormat {
    match args.dtype.as_deref() {
        Some("float32") => return TargetFormat::Dense(DType::F32),
        Some("bfloat16") => return TargetFormat::Dense(DType::BF16),
        Some(_) => return TargetFormat::Dense(DType::F16),
        None => {}
    }
    let asked = args.bits.is_some() || args.group.is_some() || args.high_bits.is_some();
    if is_gguf && !asked && args.method.is_none() {
        return TargetFormat::Stored;
    }
    TargetFormat::Affine(AffineFormat {
        bits: args.bits.unwrap_or(4),
        group: args.group.unwrap_or(64),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interrupt::Signal;
    use std::{fs, path::Path};

    #[test]
    fn a_signal_leaves_nothing_behind() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let src = root.join("../../tests/fixtures/parity/qwen3-bf16");
        let dir = tempfile::tempdir().unwrap();
        let options = ConvertOptions::with_target(TargetFormat::Dense(DType::F16));
        let interrupts = Interrupts::quiet();
        let busy = interrupts.busy();
        let mut steps = 0;
        let stopped = until_stopped(&busy, |check| {
            convert(&src, &dir.path().join("out"), &options, &mut |_, _| {
                steps += 1;
                if steps == 3 {
                    assert!(fs::read_dir(dir.path()).unwrap().next().is_some(), "it has begun");
                    interrupts.send(Signal::Interrupt);
                }
                check();
            })
        });
        assert_eq!(stopped.unwrap_err(), Interrupted(Signal::Interrupt));
        assert_eq!((steps, fs::read_dir(dir.path()).unwrap().count()), (3, 0));
    }
}
