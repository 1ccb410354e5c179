//! Flags of `taper convert`.

use crate::sizes;
use clap::{Args, builder::NonEmptyStringValueParser};
use std::path::PathBuf;

#[derive(Debug, Args)]
pub(crate) struct ConvertArgs {
    /// Model directory or downloaded Hugging Face id, in any format that Taper loads, or a GGUF file.
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub(crate) model: String,
    /// Directory to write, or a file with --to gguf.
    #[arg(required_unless_present = "pack_experts")]
    pub(crate) out: Option<PathBuf>,
    /// Write the experts of a mixture into this directory instead, in the order in which the CPU reads
    /// them, for --stream-experts. Goes on where it was interrupted.
    #[arg(
        long,
        conflicts_with_all = ["out", "to", "bits", "group", "high_bits", "mode", "method", "target_bits", "dtype"],
        value_name = "DIR"
    )]
    pub(crate) pack_experts: Option<PathBuf>,
    /// Format to write: a directory that mlx-lm loads, or a GGUF file that llama.cpp loads.
    #[arg(long, value_parser = ["mlx", "gguf"], default_value = "mlx", value_name = "FORMAT")]
    pub(crate) to: String,
    /// Type of the matrices of a GGUF file; rows that 256 does not divide are Q8_0 in place of Q4_K.
    #[arg(
        long = "type",
        value_parser = ["f16", "q4_0", "q4_k", "q8_0"],
        conflicts_with_all = ["bits", "group", "high_bits", "method", "mode", "dtype"],
        value_name = "TYPE"
    )]
    pub(crate) kind: Option<String>,
    /// Bits per weight: 2, 3, 4, 5, 6 or 8 [default: 4; a GGUF file's own].
    #[arg(long)]
    pub(crate) bits: Option<u8>,
    /// Weights that share a scale: 32, 64 or 128 [default: 64; a GGUF file's own].
    #[arg(long)]
    pub(crate) group: Option<usize>,
    /// Bits for the most sensitive layers, chosen as in mlx-lm's mixed recipes.
    #[arg(long, value_name = "BITS")]
    pub(crate) high_bits: Option<u8>,
    /// MLX's mode of quantized weights: affine, or mxfp4, which has 4 bits and a power of two for 32 weights.
    #[arg(
        long,
        value_parser = ["affine", "mxfp4"],
        default_value = "affine",
        conflicts_with_all = ["dtype"],
        value_name = "MODE"
    )]
    pub(crate) mode: String,
    /// How weights are quantized: rtn takes the range of a group, as mlx-lm does; mse searches for the scale of least
    /// squared error; gptq runs the model over a text, and lets weights make up for what rounding others does
    /// to outputs [default: rtn].
    #[arg(long, value_parser = ["rtn", "mse", "gptq"], value_name = "METHOD")]
    pub(crate) method: Option<String>,
    /// Bits a weight of the whole model: each layer gets bits by what quantizing it does to the logits.
    #[arg(
        long,
        conflicts_with_all = ["bits", "high_bits", "dtype", "kind"],
        value_name = "BITS"
    )]
    pub(crate) target_bits: Option<f64>,
    /// Text that --method gptq and --target-bits run the model over [default: a built-in one].
    #[arg(long, value_name = "FILE")]
    pub(crate) calibration: Option<PathBuf>,
    /// Tokens of the text that are used at most.
    #[arg(long, value_name = "TOKENS", default_value = "16k", value_parser = sizes::some_tokens::<u32>)]
    pub(crate) calibration_tokens: u32,
    /// Print what was done, and what was measured of every layer, as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Write floats of this type instead of quantized weights.
    #[arg(
        long,
        value_parser = ["float16", "bfloat16", "float32"],
        conflicts_with_all = ["bits", "group", "high_bits", "method"],
        value_name = "TYPE"
    )]
    pub(crate) dtype: Option<String>,
}
