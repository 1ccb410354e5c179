//! The tensor layer of Taper: weights in every format, and the operations a transformer needs.
//!
#![doc = include_str!("../README.md")]
//!
//! # For contributors
//!
//! The only crate that knows of devices: [`Tensor`] is the currency between layers, on the host or on
//! a GPU ([`gpu`]), and every operation runs where its input is. Weights are [`Linear`]s and [`Embedding`]s over dense or
//! MLX-affine storage that stays mapped; [`ops`] holds the fused operations a transformer needs.
//!
//! On the CPU activations are `f32`, and every output row is computed in an order that does not
//! depend on the other rows of the batch. So any cut of a prompt and any mix of requests agree bit for
//! bit, which the tests of every layer above rely on. Prompts may have an arithmetic of their own
//! ([`Phase`]).

#![allow(unsafe_code, reason = "vector loads, aligned memory and disjoint parallel writes")]

#[cfg(feature = "candle")]
mod candle;
#[cfg(feature = "cuda")]
mod cuda;
mod embedding;
mod finite;
pub mod gpu;
mod heads;
mod host;
mod key_scores;
mod linear;
#[cfg(all(feature = "metal", target_os = "macos"))]
mod metal;
mod norm;
pub mod ops;
mod parts;
mod recurrent;
mod rope;
pub mod routing;
mod sinks;
mod tensor;

pub use embedding::Embedding;
pub use finite::FiniteRows;
pub use heads::HeadMaps;
pub use key_scores::KeyScorer;
pub use linear::{
    ChangedRows, Linear, LinearGroup, LinearLayout, LowRankChanges, Module, Pass, Place,
};
pub use norm::{LayerNorm, RmsNorm};
pub use parts::{join_heads, match_rows, mix_streams, sparse_gates, split_heads_at};
pub use recurrent::{
    CausalConv, ConvShape, GatedDelta, GatedDeltaInputs, GatedDeltaParams, GatedDeltaShape,
    GatedNorm, HeadGate, Mamba2, Mamba2Params, Mamba2Shape, OutputGate, RecurrentCut, RecurrentRun,
    RecurrentSegment, RgLru, RgLruParams, RgLruShape, RunSegments, Segments, SelectiveScan,
    SelectiveScanInputs, SelectiveScanParams, SelectiveScanShape, ShortConv,
};
pub use rope::{Projected, RopeAngles, RopeTable, norm_rope};
pub use sinks::Sinks;
pub use taper_cpu::{
    self as cpu, AffineFormat, AffineParts, AffineWeight, AlignedBytes, ByteOwner, Bytes,
    Compensation, DType, DenseWeight, Gram, OrderedWeight, Phase, Precision, Result, Rounding,
    ScaleMethod, TableFormat, TableScales, TableWeight, TensorError, Weight, WeightFormat, gptq,
    pool, quantize, quantize_by, quantize_row,
};
pub use tensor::Tensor;
