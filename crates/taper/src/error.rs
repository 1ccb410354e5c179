//! Why a model cannot be used.

use crate::{StatisticsError, kv_plan::KvPlanError};
use std::{io, path::PathBuf};
use taper_audio::WhisperError;
use taper_base::{AdapterRefused, GenerationError, ImageError, SubmitError, TranscribeError};
use taper_chat::ChatError;
use taper_engine::{EngineError, QueryError, speculative::DraftModelError};
use taper_hub::HubError;
use taper_kv_cache::KvCacheError;
use taper_models::ModelError;
use taper_tensor::TensorError;
use taper_vision::VisionError;
use taper_weights::WeightsError;

/// Why a model cannot be loaded, or gives no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The model was not found by its name.
    #[error(transparent)]
    Hub(#[from] HubError),
    /// Its files cannot be read.
    #[error("loading {model}: {source}")]
    Weights {
        /// The model.
        model: String,
        /// Why.
        source: WeightsError,
    },
    /// Taper has no such model, or its settings are out of range.
    #[error("loading {model}: {source}")]
    Model {
        /// The model.
        model: String,
        /// Why.
        source: ModelError,
    },
    /// The draft model cannot draft for the model.
    #[error("drafting with {model}: {source}")]
    DraftModel {
        /// The draft model.
        model: String,
        /// Why.
        source: DraftModelError,
    },
    /// The draft model writes other tokens by the same ids.
    #[error("{model} cannot draft: token {token} of its vocabulary is another one")]
    DraftTokens {
        /// The draft model.
        model: String,
        /// The first token that differs.
        token: u32,
    },
    /// The model's own head is to draft, and there is none.
    #[error("{model} has no head that drafts: its checkpoint has no MTP layer that is known here")]
    NoDraftHead {
        /// The model.
        model: String,
    },
    /// Its images cannot be prepared as was asked.
    #[error("images of the model: {0}")]
    Vision(Box<VisionError>),
    /// A draft model, and a GPU.
    #[error("a draft model runs on the CPU only, and so must the model that it drafts for")]
    DraftOnGpu,
    /// Its tokenizer or chat template cannot be used.
    #[error(transparent)]
    Chat(#[from] ChatError),
    /// Its tokenizer cannot be read.
    #[error("loading {model}: {source}")]
    Tokenizer {
        /// The model.
        model: String,
        /// Why.
        source: ChatError,
    },
    /// The model comes without a chat template.
    #[error("{} has no chat template", path.display())]
    ModelHasNoTemplate {
        /// The model's file or directory.
        path: PathBuf,
    },
    /// A conversation with a model that has no chat template.
    #[error("there is no chat template, so text can only be continued as it is")]
    NoTemplate,
    /// A model of speech that cannot be used.
    #[error("loading {model}: {source}")]
    Speech {
        /// The model.
        model: String,
        /// Why.
        source: Box<WhisperError>,
    },
    /// A model that came as one file.
    #[error("{model} is no directory of a model for speech")]
    NoSpeech {
        /// The model.
        model: String,
    },
    /// There is no transcript of a file.
    #[error(transparent)]
    Transcribe(#[from] TranscribeError),
    /// An image, and a model that takes none or was built without [`Builder::images`](crate::Builder::images).
    #[error("this model does not take images")]
    NoImages,
    /// An image that cannot be used.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// A chat template that does not write as many placeholders as there are images.
    #[error("the chat template of this model does not show the images of this conversation")]
    ImagesNotShown,
    /// The stop tokens are no tokens.
    #[error("eos_token_id in config.json: {0}")]
    Eos(serde_json::Error),
    /// The codecs of the KV cache.
    #[error(transparent)]
    KvPlan(#[from] KvPlanError),
    /// The KV cache.
    #[error(transparent)]
    KvCache(#[from] KvCacheError),
    /// The engine cannot start.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The GPU, or the threads that compute.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// An unknown arithmetic.
    #[error("there is no dtype {name:?}; choose from {}", taper_models::Precision::DTYPES.join(", "))]
    Dtype {
        /// What was asked for.
        name: String,
    },
    /// A share of the memory that is none.
    #[error("the share of the free memory must be above 0 and at most 1, not {share}")]
    MemoryShare {
        /// What was asked for.
        share: f64,
    },
    /// The weights alone take more than is allowed.
    #[error(
        "the weights take {} and may take {} ({share} of the free memory)",
        human(*weights),
        human(*allowed)
    )]
    NoMemory {
        /// Bytes of the weights.
        weights: u64,
        /// Bytes that may be used.
        allowed: u64,
        /// Share of the free memory.
        share: f64,
    },
    /// Prefixes on disk where they cannot be kept.
    #[error("prefixes are kept on disk on the CPU only, and only with prefix caching")]
    NoDisk,
    /// The operating system does not say how much memory there is.
    #[error("cannot tell the free memory")]
    UnknownMemory,
    /// Statistics of a model's queries cannot be made.
    #[error(transparent)]
    Queries(#[from] QueryError),
    /// A file of statistics of a model's queries cannot be used.
    #[error("{}: {source}", path.display())]
    Statistics {
        /// The file.
        path: PathBuf,
        /// Why.
        source: StatisticsError,
    },
    /// A file cannot be written.
    #[error("writing {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file cannot be read.
    #[error("reading {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// How texts become vectors is not said, or is not what Taper does.
    #[error("{} asks for what is not supported: {what}", path.display())]
    Embedding {
        /// The file.
        path: PathBuf,
        /// What it asks for.
        what: String,
    },
    /// A text of no tokens, or of too many.
    #[error("text {text} has {got} tokens; from 1 to {most} are possible")]
    TextLength {
        /// Which of the texts, from 0.
        text: usize,
        /// Its tokens.
        got: usize,
        /// The most that the model reads.
        most: usize,
    },
    /// An adapter cannot be loaded, or there is none of a name.
    #[error(transparent)]
    Adapter(#[from] AdapterRefused),
    /// More elements of a vector are to be kept than there are.
    #[error("vectors have {most} elements, and {asked} cannot be kept of them")]
    Dimensions {
        /// Elements to keep.
        asked: usize,
        /// Elements of a vector.
        most: usize,
    },
    /// A reranker that answers in words lacks one.
    #[error("the tokenizer has no single token for {word:?}: this is no Qwen 3 reranker")]
    NoAnswerToken {
        /// The word.
        word: &'static str,
    },
    /// A task for a reranker that is told none.
    #[error("{model} is told no task: it reads a query and a text")]
    NoTask {
        /// Name of the model.
        model: String,
    },
    /// A function that a reranker's scores should go through.
    #[error("config.json: scores through {name:?} are not supported; Sigmoid and Identity are")]
    Activation {
        /// The function.
        name: String,
    },
    /// A file of an embedding model.
    #[error(transparent)]
    ModuleWeights(#[from] WeightsError),
    /// The engine refuses a request.
    #[error(transparent)]
    Submit(#[from] SubmitError),
    /// A generation failed.
    #[error(transparent)]
    Generation(#[from] GenerationError),
    /// The engine has stopped.
    #[error("the engine has stopped")]
    Stopped,
}

/// 1536 -> "1.50 KiB".
fn human(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let power = (bytes.max(1).ilog2() / 10).min(4);
    match power {
        0 => format!("{bytes} B"),
        p => format!("{:.2} {}", bytes as f64 / (1u64 << (10 * p)) as f64, units[p as usize]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        let all = [0, 1023, 1536, 3 << 20, 5 << 40, u64::MAX].map(human);
        let want = ["0 B", "1023 B", "1.50 KiB", "3.00 MiB", "5.00 TiB", "16777216.00 TiB"];
        assert_eq!(all, want);
    }
}
