//! Downloads into `--models-dir`.

use std::path::Path;
use taper_hub::{CacheDir, HubConfig, HubError, ModelId, Progress, download};
use taper_openai_server::{LibraryError, PullStep, Watch};

/// What Ollama's clients put before names of the Hugging Face hub.
const HUBS: [&str; 4] = ["https://huggingface.co/", "https://hf.co/", "huggingface.co/", "hf.co/"];

/// Downloads `org/name`, perhaps `org/name@revision`, and says its name.
pub(super) fn pull(dir: &Path, name: &str, watch: &mut dyn Watch) -> Result<String, LibraryError> {
    let name = HUBS.iter().find_map(|hub| name.strip_prefix(hub)).unwrap_or(name);
    let name = name.strip_suffix(":latest").unwrap_or(name);
    let id: ModelId = name.parse().map_err(|error: HubError| refused(&error))?;
    let mut config = HubConfig::from_env().map_err(|error| refused(&error))?;
    config.cache = CacheDir::new(dir);
    let mut progress = Told { watch, file: String::new(), total: 0, completed: 0 };
    match download(&id, &config, &mut progress) {
        Ok(_) => Ok(id.name().to_owned()),
        Err(error) => Err(of_hub(&error)),
    }
}

fn refused(error: &HubError) -> LibraryError {
    LibraryError::Refused { reason: error.to_string() }
}

/// What the caller can do something about, and what not.
fn of_hub(error: &HubError) -> LibraryError {
    match error {
        HubError::Cancelled => LibraryError::Cancelled,
        HubError::BadName { .. }
        | HubError::Offline { .. }
        | HubError::NotFound { .. }
        | HubError::NoRevision { .. }
        | HubError::Gated { .. }
        | HubError::TokenRefused { .. }
        | HubError::NoWeights { .. }
        | HubError::Busy { .. } => refused(error),
        _ => LibraryError::Hub { reason: error.to_string() },
    }
}

/// Passes on how far a download is.
struct Told<'a> {
    watch: &'a mut dyn Watch,
    file: String,
    total: u64,
    completed: u64,
}

impl Told<'_> {
    fn tell(&mut self) {
        let Self { total, completed, .. } = *self;
        self.watch.at(PullStep::File { name: self.file.clone(), total, completed });
    }
}

impl Progress for Told<'_> {
    fn planned(&mut self, files: usize, bytes: u64) {
        self.watch.at(PullStep::Planned { files, bytes });
    }

    fn started(&mut self, file: &str, total: u64, present: u64) {
        file.clone_into(&mut self.file);
        (self.total, self.completed) = (total, present);
        self.tell();
    }

    fn advanced(&mut self, bytes: u64) {
        self.completed += bytes;
        self.tell();
    }

    fn is_cancelled(&self) -> bool {
        self.watch.is_gone()
    }
}
