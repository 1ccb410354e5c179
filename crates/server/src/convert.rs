//! `taper convert`: checkpoints and GGUF files to checkpoints that mlx-lm loads too.

mod packing;

use crate::{
    convert_args::ConvertArgs,
    interrupt::{Busy, Interrupted, Interrupts},
    model,
    output::{Out, note},
    sizes::{count, human},
};
use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use std::{
    fs,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    path::Path,
};
use taper::ModelSource;
use taper_base::TokenId;
use taper_models::{GptqReport, Sensitivity, choose_bits, gptq};
use taper_tensor::{AffineFormat, DType, ScaleMethod};
use taper_weights::{
    Checkpoint, ConvertOptions, ConvertReport, GgufType, Matrices, Override, TargetFormat,
    convert_with, survey,
};

/// The calibration text, where no other is given: plain prose, instructions, code and other languages.
pub(crate) const CALIBRATION: &str = include_str!("convert/calibration.txt");
/// Tokens of a sequence of it.
const SEQUENCE: usize = 512;

pub(crate) fn run(args: &ConvertArgs) -> Result<()> {
    if args.kind.is_some() && args.to != "gguf" {
        bail!("--type is of GGUF files; add --to gguf");
    }
    let source = model::find(Some(&args.model))?;
    if let Some(dir) = &args.pack_experts {
        return packing::run(&source, dir, args.json);
    }
    let out = args.out.as_deref().context("name a directory to write")?;
    let (src, is_gguf) = match &source {
        ModelSource::Gguf { path, .. } => (path.as_path(), true),
        _ => (source.dir().context("name a model directory or a GGUF file")?, false),
    };
    let target = target(args, is_gguf);
    if let (TargetFormat::Affine(format), false, None) = (target, is_gguf, args.target_bits) {
        check_finer(src, format)?;
    }
    let mut options = ConvertOptions::with_target(target);
    options.high_bits = args.high_bits;
    let compensates = args.method.as_deref() == Some("gptq");
    if compensates || args.method.as_deref() == Some("mse") {
        options.method = ScaleMethod::LeastSquares;
    }
    let reads = compensates || args.target_bits.is_some();
    let text = reads.then(|| calibration(args, &source)).transpose()?.unwrap_or_default();
    let bar = ProgressBar::new(0);
    let interrupts = Interrupts::listen()?;
    let (mut calibrated, mut layers) = (GptqReport::default(), Vec::new());
    let converted = until_stopped(&interrupts.busy(), |check| {
        let step = |done, total| {
            check();
            bar.set_length(total);
            bar.set_position(done);
        };
        if let Some(bits) = args.target_bits {
            style(&bar, "measuring {wide_bar} {pos}/{len} layers, {eta} left");
            survey(src, &options, &mut |weights, matrices| {
                layers =
                    choose_bits(weights, probes(&text), matrices, bits, &mut |d, t| step(d, t))?;
                Ok(())
            })?;
            mix(&mut options, &layers);
        }
        let mut first = |weights: &Checkpoint, matrices: &mut Matrices<'_>| {
            if compensates {
                style(&bar, "calibrating {wide_bar} {percent} %, {eta} left");
                calibrated = gptq(weights, &text, matrices, &mut |d, t| step(d, t))?;
            }
            style(
                &bar,
                "converting {wide_bar} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec}, {eta} left",
            );
            Ok(())
        };
        convert_with(src, out, &options, &mut first, &mut |d, t| step(d, t))
    });
    bar.finish_and_clear();
    let report = converted??;
    let tokens = if compensates { text.iter().map(Vec::len).sum() } else { 0 };
    match args.json {
        true => print_json(args, &report, &layers, (calibrated, tokens)),
        false => print(args, target, &report, &layers, (calibrated, tokens)),
    }
}

/// Refuses MLX's codes for codes of as many bits or more: a second rounding would only lose accuracy.
fn check_finer(src: &Path, format: AffineFormat) -> Result<()> {
    let own = Checkpoint::open(src)?.quantization().format("");
    if let Some(AffineFormat { bits, .. }) = own.filter(|own| own.bits <= format.bits) {
        let src = src.display();
        bail!(
            "{src} is quantized to {bits} bits already; ask for fewer with --bits, or convert the original checkpoint"
        );
    }
    Ok(())
}

/// Every layer gets the bits that were chosen, and the model those that most weights have.
fn mix(options: &mut ConvertOptions, layers: &[Sensitivity]) {
    let TargetFormat::Affine(format) = options.target else { return };
    let weights =
        |bits: u8| -> u64 { layers.iter().filter(|l| l.bits == bits).map(|l| l.weights).sum() };
    let bits = AffineFormat::BITS.into_iter().max_by_key(|&bits| weights(bits));
    let format = AffineFormat { bits: bits.unwrap_or(format.bits), ..format };
    options.target = TargetFormat::Affine(format);
    let others = layers.iter().filter(|l| l.bits != format.bits);
    options.overrides = others
        .map(|l| Override {
            pattern: l.layer.clone(),
            format: Some(AffineFormat { bits: l.bits, ..format }),
        })
        .collect();
}

/// The sequences that sensitivities are measured with.
fn probes(text: &[Vec<TokenId>]) -> &[Vec<TokenId>] {
    &text[..text.len().min(1)]
}

/// Reports a conversion for people.
fn print(
    args: &ConvertArgs,
    target: TargetFormat,
    report: &ConvertReport,
    layers: &[Sensitivity],
    (calibrated, tokens): (GptqReport, usize),
) -> Result<()> {
    for l in layers {
        writeln!(Out, "{} bits, KL {:.2e} with {}: {}", l.bits, l.kl, l.probed, l.layer)?;
    }
    writeln!(
        Out,
        "{}: {}, {:.2} bits a weight; {} quantized, {} copied",
        args.out.as_deref().unwrap_or(Path::new("")).display(),
        human(report.bytes),
        report.bits_per_weight(),
        count(report.quantized, "tensor"),
        report.copied,
    )?;
    if tokens > 0 {
        let GptqReport { compensated, too_few_rows, .. } = calibrated;
        writeln!(
            Out,
            "GPTQ over {}: {compensated} matrices; {too_few_rows} had too few rows and were quantized by mse",
            count(tokens, "token"),
        )?;
    }
    let group = match target {
        TargetFormat::Affine(format) => Some(format.group),
        TargetFormat::Mxfp4 => Some(32),
        _ => None,
    };
    if let Some(group) = group {
        for name in &report.left_dense {
            writeln!(Out, "left dense, since groups of {group} do not divide its rows: {name}")?;
        }
    }
    Ok(())
}

/// Reports a conversion for programs.
fn print_json(
    args: &ConvertArgs,
    report: &ConvertReport,
    layers: &[Sensitivity],
    (calibrated, tokens): (GptqReport, usize),
) -> Result<()> {
    let layers: Vec<_> = layers
        .iter()
        .map(|l| {
            json!({"layer": l.layer, "weights": l.weights, "bits": l.bits, "probed_bits": l.probed, "kl": l.kl})
        })
        .collect();
    let all = json!({
        "out": args.out,
        "bytes": report.bytes,
        "bits_per_weight": report.bits_per_weight(),
        "quantized": report.quantized,
        "copied": report.copied,
        "left_dense": report.left_dense,
        "gptq": {
            "matrices": calibrated.compensated,
            "too_few_rows": calibrated.too_few_rows,
            "tokens": tokens,
        },
        "layers": layers,
    });
    writeln!(Out, "{all:#}")?;
    Ok(())
}

fn style(bar: &ProgressBar, template: &str) {
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
        bar.reset();
    }
}

/// Sequences of the calibration text, each of which begins as a text does.
fn calibration(args: &ConvertArgs, source: &ModelSource) -> Result<Vec<Vec<TokenId>>> {
    let text = match &args.calibration {
        Some(path) => {
            fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?
        }
        None => CALIBRATION.to_owned(),
    };
    let tokenizer = source.tokenizer()?;
    let (start, all) = (tokenizer.encode("", true)?, tokenizer.encode(&text, false)?);
    let most = args.calibration_tokens as usize;
    if args.calibration.is_some() && all.len() > most {
        note!("the first {most} of {} tokens are used; see --calibration-tokens", all.len());
    }
    let own = SEQUENCE.saturating_sub(start.len()).max(1);
    let used = &all[..all.len().min(most)];
    Ok(used.chunks(own).map(|part| [&start[..], part].concat()).collect())
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
    if args.to == "gguf" {
        return TargetFormat::Gguf(match args.kind.as_deref() {
            Some("f16") => GgufType::F16,
            Some("q4_0") => GgufType::Q4_0,
            Some("q4_k") => GgufType::Q4_K,
            _ => GgufType::Q8_0,
        });
    }
    if args.mode == "mxfp4" {
        return TargetFormat::Mxfp4;
    }
    let bits = args.bits.is_some() || args.high_bits.is_some() || args.target_bits.is_some();
    let asked = bits || args.group.is_some();
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
    use std::fs;

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
            taper_weights::convert(&src, &dir.path().join("out"), &options, &mut |_, _| {
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
