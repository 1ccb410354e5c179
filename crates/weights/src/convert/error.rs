//! Why a checkpoint cannot be converted. Apart from [`WeightsError`], since no server meets these.

use crate::WeightsError;
use std::{io, path::PathBuf};
use taper_tensor::{AffineFormat, DType};

/// Every way in which a conversion can fail. Nothing is left at the destination.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConvertError {
    /// The source cannot be read.
    #[error(transparent)]
    Source(Box<WeightsError>),
    /// What quantizes matrices by a calibration text has failed.
    #[error("calibration failed: {source}")]
    Calibration {
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A quantized matrix is of no tensor that is to be quantized, or of another shape.
    #[error("what was quantized is not the matrix {name:?} that was read")]
    OtherMatrix {
        /// The tensor.
        name: String,
    },
    /// No such width or group size.
    #[error(
        "there are no {}-bit weights in groups of {}; choose 2, 3, 4, 5, 6 or 8 bits and groups of 32, 64 or 128",
        format.bits, format.group
    )]
    UnknownFormat {
        /// What was asked for.
        format: AffineFormat,
    },
    /// A pattern that changes nothing is a typo.
    #[error(
        "no layer matches {pattern:?}; write segments of its name, such as \"v_proj\", \"layers.0\" or \"layers.*.mlp.down_proj\""
    )]
    UnmatchedOverride {
        /// The pattern.
        pattern: String,
    },
    /// A layer was asked to have groups that its rows cannot be cut into.
    #[error(
        "layer {layer:?} has rows of {cols}, which groups of {group} do not divide; choose smaller groups for it, or keep it dense"
    )]
    OverrideGroup {
        /// The layer.
        layer: String,
        /// Weights a scale.
        group: usize,
        /// Weights a row.
        cols: usize,
    },
    /// Every matrix would stay as it is.
    #[error("no matrix has rows that groups of {group} divide; choose smaller groups")]
    NothingToQuantize {
        /// Weights a scale.
        group: usize,
    },
    /// Layers have formats of their own, and the model is not quantized.
    #[error(
        "single layers can have other bits only where the model is quantized; choose its bits too"
    )]
    OverrideAlone,
    /// Blocks are to be kept, and a directory of safetensors has none.
    #[error("{} holds no blocks of ggml to keep; choose bits, or a type of floats", path.display())]
    NoBlocks {
        /// The source.
        path: PathBuf,
    },
    /// A value beyond the largest of the type asked for.
    #[error("tensor {name:?} holds values that {dtype} does not; choose another type of floats")]
    Overflow {
        /// The tensor.
        name: String,
        /// The type.
        dtype: DType,
    },
    /// MLX has another layout for these weights than the source.
    #[error("{what} cannot be converted yet; use a checkpoint that mlx-lm converted")]
    Layout {
        /// The weights.
        what: &'static str,
    },
    /// A matrix that holds no plain floats.
    #[error(
        "tensor {name:?} has element type {got}; convert a checkpoint in f32, f16 or bf16 instead"
    )]
    DType {
        /// The tensor.
        name: String,
        /// The type found.
        got: String,
    },
    /// Two tensors of the source would have one name.
    #[error("two tensors would be named {name:?}; use the checkpoint as its authors published it")]
    NameTwice {
        /// The name.
        name: String,
    },
    /// Infinite or NaN weights.
    #[error("tensor {name:?} holds NaN or infinities: the file is damaged; download it again")]
    NotFinite {
        /// The tensor.
        name: String,
    },
    /// The destination is taken.
    #[error(
        "{} exists and is not an empty directory; choose another destination, or remove it first",
        path.display()
    )]
    DestinationExists {
        /// The destination.
        path: PathBuf,
    },
    /// The destination is `/`, `..` or the like.
    #[error("{} does not name a directory to create; give the new model's own path", path.display())]
    DestinationName {
        /// The destination.
        path: PathBuf,
    },
    /// Another conversion writes the same destination.
    #[error("another conversion is writing {}; wait for it, or choose another destination", path.display())]
    Busy {
        /// The destination.
        path: PathBuf,
    },
    /// A file cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        #[source]
        source: io::Error,
    },
}

impl From<WeightsError> for ConvertError {
    fn from(error: WeightsError) -> Self {
        Self::Source(Box::new(error))
    }
}
