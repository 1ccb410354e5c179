//! Errors of the tensor layer.

use crate::DType;

/// Result of a tensor operation.
pub type Result<T> = std::result::Result<T, TensorError>;

/// What can go wrong with tensors.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TensorError {
    /// Operands do not fit together.
    #[error("{op}: expected {expected}, got shape {got:?}")]
    Shape {
        /// The operation.
        op: &'static str,
        /// The shape in words.
        expected: String,
        /// The shape that came.
        got: Vec<usize>,
    },
    /// An element type the operation does not take.
    #[error("{op}: element type {got} is not supported")]
    DType {
        /// The operation.
        op: &'static str,
        /// The type that came.
        got: DType,
    },
    /// A byte buffer of the wrong length.
    #[error("{what}: expected {expected} bytes, got {got}")]
    Bytes {
        /// What the bytes are.
        what: &'static str,
        /// The length the shape asks for.
        expected: usize,
        /// The length that came.
        got: usize,
    },
    /// A text that says what no matrix is.
    #[error("{text:?} is no layout of a matrix")]
    Layout {
        /// The text.
        text: String,
    },
    /// A shape with more elements than memory can have bytes.
    #[error("{what}: shape {shape:?} is larger than the address space")]
    TooLarge {
        /// What has the shape.
        what: &'static str,
        /// The sizes whose product overflows.
        shape: Vec<usize>,
    },
    /// A set of vector instructions that this processor lacks, or nobody knows.
    #[error("this processor has no level {name:?}; it has {available}")]
    Level {
        /// The level asked for.
        name: String,
        /// Levels that the processor has, best first.
        available: String,
    },
    /// An index past the end.
    #[error("{op}: index {index} is not below {limit}")]
    Index {
        /// The operation.
        op: &'static str,
        /// The offender.
        index: usize,
        /// Bound that the index must be below.
        limit: usize,
    },
    /// A quantization that no kernel handles.
    #[error(
        "affine quantization with {bits} bits and groups of {group} over rows of {row} is not supported"
    )]
    UnsupportedAffine {
        /// Bits a weight.
        bits: u8,
        /// Weights a scale.
        group: usize,
        /// Weights a row.
        row: usize,
    },
    /// Table codes that no kernel handles.
    #[error(
        "table codes of {bits} bits with groups of {group} over rows of {row} are not supported"
    )]
    UnsupportedTable {
        /// Bits a weight.
        bits: u8,
        /// Weights a scale.
        group: usize,
        /// Weights a row.
        row: usize,
    },
    /// The tensor is not where the operation runs.
    #[error("{op}: no kernel for device {device}")]
    Device {
        /// The operation.
        op: &'static str,
        /// Where the tensor is.
        device: String,
    },
    /// A GPU or its driver refused.
    #[error("gpu: cannot {what}: {message}")]
    Gpu {
        /// What was asked for.
        what: &'static str,
        /// What it said.
        message: String,
    },
    /// A number of threads that cannot be had.
    #[error("cannot use {asked} threads{}", running.map_or(String::from(": at least one is needed"),
        |n| format!(": {n} are running already")))]
    Threads {
        /// Threads asked for.
        asked: usize,
        /// Threads there are, once kernels have run.
        running: Option<usize>,
    },
}

impl TensorError {
    /// [`Self::Shape`].
    #[must_use]
    pub fn shape(op: &'static str, expected: impl Into<String>, got: &[usize]) -> Self {
        Self::Shape { op, expected: expected.into(), got: got.to_vec() }
    }
}
