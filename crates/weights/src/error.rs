//! Why a checkpoint cannot be used.

use std::{io, path::PathBuf};
use taper_tensor::TensorError;

/// Every way in which a checkpoint can be wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WeightsError {
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        #[source]
        source: io::Error,
    },
    /// A GGUF file is damaged, or of a kind that is not read.
    #[error("{}: {source}", path.display())]
    Gguf {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        #[source]
        source: crate::GgufError,
    },
    /// A JSON file is no JSON, or lacks what it must have.
    #[error("{}: {source}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// Where and why.
        #[source]
        source: serde_json::Error,
    },
    /// Not a model directory.
    #[error("{} holds neither model.safetensors nor model.safetensors.index.json; is it a model directory with safetensors weights?", dir.display())]
    NoWeights {
        /// The directory.
        dir: PathBuf,
    },
    /// The index names a file that is not there.
    #[error("shard {} is missing; the download may be incomplete", path.display())]
    MissingShard {
        /// The file.
        path: PathBuf,
    },
    /// The index names something else than a file beside itself.
    #[error("{} names {file:?}, which is no file beside it: this index is not to be trusted", index.display())]
    ShardOutside {
        /// The index.
        index: PathBuf,
        /// What it names.
        file: String,
    },
    /// A shard's header is broken, or the file is shorter than its header says.
    #[error("{} is damaged or truncated: {source}; download or copy it again", path.display())]
    Shard {
        /// The file.
        path: PathBuf,
        /// What the format says.
        #[source]
        source: safetensors::SafeTensorError,
    },
    /// The index promises a tensor that its shard lacks.
    #[error("the index places tensor {name:?} in {}, which does not hold it", path.display())]
    NotInShard {
        /// The tensor.
        name: String,
        /// The file.
        path: PathBuf,
    },
    /// The architecture needs a tensor that is not there.
    #[error("the checkpoint has no tensor {name:?}")]
    MissingTensor {
        /// The tensor.
        name: String,
    },
    /// A tensor of another shape than config.json asks for.
    #[error("tensor {name:?} has shape {got:?}, and config.json asks for {expected:?}")]
    Shape {
        /// The tensor.
        name: String,
        /// The shape wanted.
        expected: Vec<usize>,
        /// The shape found.
        got: Vec<usize>,
    },
    /// A tensor that must have two dimensions has others.
    #[error("tensor {name:?} has shape {got:?}, and must be a matrix")]
    NoMatrix {
        /// The tensor.
        name: String,
        /// The shape found.
        got: Vec<usize>,
    },
    /// A tensor of a type that no kernel reads.
    #[error(
        "tensor {name:?} has element type {got}, which is not supported here; expected {expected}"
    )]
    DType {
        /// The tensor.
        name: String,
        /// The types that work.
        expected: &'static str,
        /// The type found.
        got: String,
    },
    /// A quantization other than MLX affine.
    #[error(
        "quantization method {method:?} is not supported; use a dense checkpoint, or one in MLX's affine format"
    )]
    UnsupportedQuantization {
        /// As config.json names it.
        method: String,
    },
    /// config.json's quantization section is broken.
    #[error("config.json: quantization of {layer:?}: {reason}")]
    BadQuantization {
        /// The layer, or `*` for the whole model.
        layer: String,
        /// What is wrong.
        reason: &'static str,
    },
    /// A weight that the architecture never asked for: it would be ignored, and outputs be wrong.
    #[error(
        "the checkpoint holds {count} tensors that this architecture does not use, such as {example:?}: config.json does not describe these weights"
    )]
    UnusedTensors {
        /// How many.
        count: usize,
        /// One of them.
        example: String,
    },
    /// Shapes agree with the file and not with each other.
    #[error("tensor {name:?}: {source}")]
    Tensor {
        /// The tensor.
        name: String,
        /// The tensor layer's reason.
        #[source]
        source: TensorError,
    },
}
