//! Where the models of a server of several come from.

use crate::model::Model;
use std::{fmt, path::PathBuf, time::SystemTime};

/// Models that can be loaded by name. Every method may take long, and is called on threads for that.
pub trait Library: fmt::Debug + Send + Sync {
    /// The models that there are, by their names. Names are unique.
    ///
    /// # Errors
    /// The directory cannot be read.
    fn list(&self) -> Result<Vec<Listed>, LibraryError>;

    /// Bytes of weights and KV cache that a model will take, without loading it; `most` are allowed.
    ///
    /// # Errors
    /// Its files cannot be read, or it does not fit.
    fn needs(&self, name: &str, most: u64) -> Result<u64, LibraryError>;

    /// Loads a model into no more than `bytes`. `progress(done, total)` counts bytes of weights.
    ///
    /// # Errors
    /// It cannot be loaded.
    fn load(
        &self,
        name: &str,
        bytes: u64,
        progress: Box<dyn Fn(u64, u64) + Send + Sync>,
    ) -> Result<Model, LibraryError>;

    /// What the files say of a model.
    ///
    /// # Errors
    /// They cannot be read.
    fn describe(&self, name: &str) -> Result<Description, LibraryError>;

    /// Deletes a model's files.
    ///
    /// # Errors
    /// They cannot be deleted, or are not this library's.
    fn delete(&self, name: &str) -> Result<(), LibraryError>;

    /// Downloads a model by its name on the hub, and says by which name it is listed. What has arrived of
    /// it before is kept. It ends soon after `watch` has said that nobody waits any more.
    ///
    /// # Errors
    /// It cannot be downloaded.
    fn pull(&self, name: &str, watch: &mut dyn Watch) -> Result<String, LibraryError>;
}

/// Who waits for a download.
pub trait Watch: Send {
    /// How far it is.
    fn at(&mut self, step: PullStep);
    /// Nobody waits any more.
    fn is_gone(&self) -> bool;
}

/// How far a download is.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum PullStep {
    /// So many files of so many bytes in all are wanted.
    Planned {
        /// Files.
        files: usize,
        /// Their bytes.
        bytes: u64,
    },
    /// Of a file, so many bytes are here.
    File {
        /// Its name.
        name: String,
        /// Bytes of it.
        total: u64,
        /// Bytes that are here.
        completed: u64,
    },
}

/// A model that can be loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// The name that requests use.
    pub name: String,
    /// Further names.
    pub aliases: Vec<String>,
    /// Its directory or file.
    pub path: PathBuf,
    /// Bytes of its files.
    pub file_bytes: u64,
    /// When they were last changed.
    pub modified: SystemTime,
    /// Its architecture, as `qwen3`; empty where only its weights say it.
    pub architecture: String,
    /// Whether it is a GGUF file.
    pub gguf: bool,
    /// It is loaded at the start, and neither evicted nor unloaded when nobody uses it.
    pub pinned: bool,
}

impl Listed {
    /// Whether this is its name, or one of them.
    pub(crate) fn is(&self, name: &str) -> bool {
        self.name == name || self.aliases.iter().any(|alias| alias == name)
    }
}

/// What the files of a model say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Description {
    /// Its architecture, as `qwen3`.
    pub architecture: String,
    /// Its parameters; 0 where nobody says it.
    pub parameters: u64,
    /// Bytes of its weights.
    pub weight_bytes: u64,
    /// Longest sequence in tokens.
    pub context_length: u32,
    /// Its chat template; empty where it has none.
    pub template: String,
    /// It generates text.
    pub generates: bool,
    /// It calls tools.
    pub calls: bool,
    /// It reasons before it answers.
    pub thinks: bool,
    /// It takes images.
    pub sees: bool,
    /// Elements of its vectors; 0 where it makes none.
    pub dimensions: usize,
}

impl Description {
    /// What it can do, in Ollama's words.
    #[must_use]
    pub fn capabilities(&self) -> Vec<&'static str> {
        let all = [
            ("completion", self.generates),
            ("tools", self.calls),
            ("thinking", self.thinks),
            ("vision", self.sees),
            ("embedding", self.dimensions > 0),
        ];
        all.into_iter().filter(|(_, has)| *has).map(|(name, _)| name).collect()
    }
}

/// Why something cannot be done with a model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LibraryError {
    /// It needs more memory than models may take.
    #[error("it needs {needed} bytes of memory, and models may take {limit}")]
    TooLarge {
        /// Bytes of weights and the smallest KV cache.
        needed: u64,
        /// Bytes that are allowed.
        limit: u64,
    },
    /// Other models are in use.
    #[error("other models are in use, and there is no room beside them")]
    NoRoom,
    /// Its files are gone, damaged, or of a kind that is not supported.
    #[error("{reason}")]
    Unusable {
        /// Why.
        reason: String,
    },
    /// The files are not this library's to delete.
    #[error("it does not lie in the directory of models")]
    NotOwned,
    /// The hub has no such model, or does not give it.
    #[error("{reason}")]
    Refused {
        /// Why.
        reason: String,
    },
    /// The hub cannot be reached, or sends something else than it says.
    #[error("{reason}")]
    Hub {
        /// Why.
        reason: String,
    },
    /// Nobody waited for it any more.
    #[error("cancelled")]
    Cancelled,
    /// A bug of this server.
    #[error("internal error")]
    Internal,
}
