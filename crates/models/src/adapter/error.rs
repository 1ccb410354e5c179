//! Why an adapter cannot be used.

use std::path::PathBuf;
use taper_tensor::TensorError;
use taper_weights::WeightsError;

/// Every way in which an adapter can be wrong, or wrong for a model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdapterError {
    /// A directory that holds no adapter.
    #[error(
        "{} holds no adapter: it has neither adapter_model.safetensors (PEFT) nor adapters.safetensors (mlx-lm) beside adapter_config.json",
        dir.display()
    )]
    NoAdapter {
        /// The directory.
        dir: PathBuf,
    },
    /// adapter_config.json lacks a field, or it is of another type.
    #[error("{}: {field}: {reason}", path.display())]
    Config {
        /// adapter_config.json
        path: PathBuf,
        /// The field.
        field: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// adapter_config.json asks for something else than LoRA as it is known here.
    #[error("{}: {field} = {value} is not supported; plain LoRA is", path.display())]
    Unsupported {
        /// adapter_config.json
        path: PathBuf,
        /// The field.
        field: String,
        /// Its value.
        value: String,
    },
    /// A tensor that is none of LoRA's pairs of matrices.
    #[error("the adapter's tensor {name:?} is not one of LoRA's pairs of matrices")]
    UnknownTensor {
        /// The tensor.
        name: String,
    },
    /// One matrix of a pair.
    #[error("the adapter has no tensor {name:?}, the other one of its pair")]
    HalfAPair {
        /// The missing tensor.
        name: String,
    },
    /// adapter_config.json does not name a module that the file has.
    #[error("the adapter has tensors of {module:?}, which its adapter_config.json does not target")]
    NotTargeted {
        /// The module.
        module: String,
    },
    /// A module that the model lacks, or that adapters cannot change.
    #[error(
        "the adapter{} changes {module:?}, which this model lacks or adapters cannot change here; it can change: {known}",
        made_for(base.as_deref())
    )]
    UnknownModule {
        /// The module.
        module: String,
        /// The model that the adapter says it was made for.
        base: Option<String>,
        /// Last parts of the names of those that can be changed.
        known: String,
    },
    /// A matrix of another shape than the model's.
    #[error(
        "the adapter{}: {tensor} of {module:?} has shape {got:?}, and this model needs {expected:?}",
        made_for(base.as_deref())
    )]
    Shape {
        /// The module.
        module: String,
        /// Which matrix of the pair.
        tensor: &'static str,
        /// The shape needed.
        expected: [usize; 2],
        /// The shape found.
        got: [usize; 2],
        /// The model that the adapter says it was made for.
        base: Option<String>,
    },
    /// A pair of another rank than adapter_config.json says.
    #[error(
        "the adapter's pair of {module:?} has rank {got}, and adapter_config.json says {expected}"
    )]
    Rank {
        /// The module.
        module: String,
        /// As adapter_config.json says.
        expected: usize,
        /// As the tensors are.
        got: usize,
    },
    /// A rank above what is allowed.
    #[error("the adapter has rank {rank}, and at most {max} is allowed")]
    RankTooLarge {
        /// The adapter's.
        rank: usize,
        /// The limit.
        max: usize,
    },
    /// No tensor at all.
    #[error("{} has no tensors", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// A model that takes no adapters.
    #[error("{family} models take no adapters")]
    NoTargets {
        /// The family.
        family: &'static str,
    },
    /// The files.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// A tensor operation, or a GPU without room.
    #[error(transparent)]
    Tensor(#[from] TensorError),
}

fn made_for(base: Option<&str>) -> String {
    base.map_or_else(String::new, |base| format!(" (made for {base:?})"))
}
