//! Errors of loading and running models.

use taper_kv_cache::KvCacheError;
use taper_moe_streaming::ExpertError;
use taper_tensor::TensorError;
use taper_weights::WeightsError;

/// Why a model cannot be loaded or run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// config.json has no `model_type`.
    #[error("config.json has no \"model_type\"; is it a language model's?")]
    NoModelType,
    /// A family that is not here yet.
    #[error("model_type {model_type:?} is not supported; there are: {}", crate::model_types().collect::<Vec<_>>().join(", "))]
    UnknownFamily {
        /// As config.json says.
        model_type: String,
    },
    /// An encoder that is not here yet.
    #[error("model_type {model_type:?} is no encoder that is supported; there are: {}", crate::ENCODERS.join(", "))]
    UnknownEncoder {
        /// As config.json says.
        model_type: String,
    },
    /// config.json lacks a field or has one of another type.
    #[error("config.json does not describe a {family} model: {field}: {source}")]
    Config {
        /// The family.
        family: &'static str,
        /// Path of the field; `.` for the whole.
        field: String,
        /// Which field, and why.
        #[source]
        source: serde_json::Error,
    },
    /// config.json asks for something that the family does not do.
    #[error("config.json: {field} = {value} is not supported for {family}")]
    Unsupported {
        /// The family.
        family: &'static str,
        /// The field.
        field: &'static str,
        /// Value of the field.
        value: String,
    },
    /// A number of config.json that no model has, or that contradicts another.
    #[error("config.json: {field} = {value} is out of range for {family}: {range}")]
    OutOfRange {
        /// The family.
        family: &'static str,
        /// The field.
        field: &'static str,
        /// Value of the field.
        value: String,
        /// What it must be.
        range: String,
    },
    /// Two names of one setting with two values.
    #[error(
        "config.json: {first} and {second} are two names of one setting, and differ; remove one of them"
    )]
    Contradiction {
        /// One name.
        first: &'static str,
        /// The other name.
        second: &'static str,
    },
    /// A family that no GPU runs.
    #[error("{family} models run on the CPU only so far")]
    CpuOnly {
        /// The family.
        family: &'static str,
    },
    /// Experts that are to be streamed, of a model that has none.
    #[error("this model has no experts, so that none can be streamed")]
    NoExperts,
    /// Experts that are to be streamed to a GPU.
    #[error("experts are streamed on the CPU only so far")]
    StreamedOnGpu,
    /// Experts that are to be streamed and multiplied exactly, for which weights are not repacked.
    #[error(
        "streamed experts are repacked weights, and exact products read those of the checkpoint"
    )]
    StreamedExactly,
    /// Experts of a layer that are stored in different formats, or in one that cannot be repacked.
    #[error(
        "experts cannot be streamed: those of a layer differ in their format, or it has no packed form"
    )]
    NoImage,
    /// More experts a token than the model was trained with, or none.
    #[error("{asked} experts a token: this model has {most}")]
    TopK {
        /// What was asked for.
        asked: usize,
        /// The most that a layer has.
        most: usize,
    },
    /// An expert cannot be read, or a pack not be used.
    #[error(transparent)]
    Experts(#[from] ExpertError),
    /// Images in a prompt.
    #[error("{family} models take no images here")]
    NoImages {
        /// The family.
        family: &'static str,
    },
    /// Hidden states of a model that has no head to read them.
    #[error("{family} gives no hidden states: no head that drafts was loaded")]
    NoHidden {
        /// The family.
        family: &'static str,
    },
    /// A batch that does not hold together.
    #[error("batch: {what}: expected {expected}, got {got}")]
    Batch {
        /// What is wrong.
        what: &'static str,
        /// The number wanted.
        expected: usize,
        /// The number found.
        got: usize,
    },
    /// The weights.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// The cache.
    #[error(transparent)]
    Cache(#[from] KvCacheError),
    /// A tensor operation.
    #[error(transparent)]
    Tensor(#[from] TensorError),
}
