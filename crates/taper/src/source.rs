//! Where a model is: by its name to its files.

use crate::{Error, Result, builder::ChatTemplateFrom, generation_config::GenerationConfig};
use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};
use taper_chat::{ChatError, ChatTemplate, Tokenizer};
use taper_hub::HubConfig;
use taper_weights::{Checkpoint, Gguf, WeightsError};

/// The files of a model that is compiled into a program.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct StaticModel {
    /// Its name in the API.
    pub name: &'static str,
    /// What it is called in messages.
    pub title: &'static str,
    /// config.json
    pub config: &'static [u8],
    /// model.safetensors
    pub weights: &'static [u8],
    /// tokenizer.json
    pub tokenizer: &'static [u8],
    /// tokenizer_config.json, with a chat template if the model can chat.
    pub tokenizer_config: &'static [u8],
    /// generation_config.json
    pub generation_config: &'static [u8],
}

impl StaticModel {
    /// A model with nothing but what each has: its title is its name, and its other files are empty.
    #[must_use]
    pub const fn new(
        name: &'static str,
        config: &'static [u8],
        weights: &'static [u8],
        tokenizer: &'static [u8],
    ) -> Self {
        let (tokenizer_config, generation_config) = (b"{}", b"{}");
        Self { name, title: name, config, weights, tokenizer, tokenizer_config, generation_config }
    }

    /// What it is called in messages.
    #[must_use]
    pub const fn title(self, title: &'static str) -> Self {
        Self { title, ..self }
    }

    /// tokenizer_config.json, with a chat template if the model can chat.
    #[must_use]
    pub const fn tokenizer_config(self, json: &'static [u8]) -> Self {
        Self { tokenizer_config: json, ..self }
    }

    /// generation_config.json
    #[must_use]
    pub const fn generation_config(self, json: &'static [u8]) -> Self {
        Self { generation_config: json, ..self }
    }
}

/// Where a model is.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum ModelSource {
    /// In the program itself.
    Static(StaticModel),
    /// A directory in Hugging Face or MLX layout.
    Dir(PathBuf),
    /// A file of llama.cpp's format, or the first of several.
    Gguf {
        /// The file.
        path: PathBuf,
        /// What it holds.
        file: Arc<Gguf>,
    },
    /// Downloaded from a hub.
    Hub {
        /// `org/name`
        id: String,
        /// Where it lies.
        dir: PathBuf,
    },
}

impl ModelSource {
    /// Finds a model: a directory, a GGUF file, a directory with one, or the name of a model in the
    /// cache of downloads. Nothing is downloaded.
    ///
    /// # Errors
    /// There is no such model, or the file is no GGUF file.
    pub fn find(name: &str) -> Result<Self> {
        if let Some(path) = gguf_file(Path::new(name)) {
            let open = Gguf::open(&path);
            let file = open.map_err(|source| Error::Weights { model: name.to_owned(), source })?;
            return Ok(Self::Gguf { path, file: Arc::new(file) });
        }
        let found = taper_hub::resolve(name, &HubConfig::from_env()?.cache)?;
        Ok(match found.id {
            Some(id) => Self::Hub { id: id.name().to_owned(), dir: found.dir },
            None => Self::Dir(found.dir),
        })
    }

    /// Its directory, if it has one.
    #[must_use]
    pub fn dir(&self) -> Option<&Path> {
        match self {
            Self::Static(_) | Self::Gguf { .. } => None,
            Self::Dir(dir) | Self::Hub { dir, .. } => Some(dir),
        }
    }

    /// The name that requests use.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::Static(model) => model.name.to_owned(),
            Self::Hub { id, .. } => id.clone(),
            Self::Gguf { path, .. } => {
                path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
            }
            Self::Dir(dir) => {
                // A link has the name that it was given; only `.` and `..` must be looked up.
                let full = match dir.file_name() {
                    Some(_) => dir.clone(),
                    None => dir.canonicalize().unwrap_or_else(|_| dir.clone()),
                };
                full.file_name().unwrap_or(full.as_os_str()).to_string_lossy().into_owned()
            }
        }
    }

    /// Opens its weights.
    ///
    /// # Errors
    /// They cannot be read, or are of a format that Taper does not have.
    pub fn checkpoint(&self) -> Result<Checkpoint> {
        let open = match self {
            Self::Static(model) => Checkpoint::from_static(model.config, model.weights),
            Self::Dir(dir) | Self::Hub { dir, .. } => Checkpoint::open(dir),
            Self::Gguf { file, .. } => file.checkpoint(),
        };
        open.map_err(|source| self.weights_error(source))
    }

    pub(crate) fn weights_error(&self, source: WeightsError) -> Error {
        Error::Weights { model: self.to_string(), source }
    }

    /// Reads its tokenizer.
    ///
    /// # Errors
    /// It cannot be read, or is of a kind that Taper does not have.
    pub fn tokenizer(&self) -> Result<Tokenizer> {
        let read = match self {
            Self::Static(model) => {
                Tokenizer::from_bytes(model.tokenizer, Some(model.tokenizer_config))
            }
            Self::Dir(dir) | Self::Hub { dir, .. } => Tokenizer::load(dir),
            Self::Gguf { file, .. } => {
                let files = file.tokenizer_files();
                let (tokenizer, config) = files.map_err(|source| self.weights_error(source))?;
                Tokenizer::from_bytes(&tokenizer, Some(&config))
            }
        };
        read.map_err(|source| Error::Tokenizer { model: self.to_string(), source })
    }

    /// Its generation_config.json. It only recommends: what cannot be read is left out, with a warning.
    pub(crate) fn generation_config(&self) -> GenerationConfig {
        let dir = match self {
            Self::Static(model) => return GenerationConfig::parse(model.generation_config),
            Self::Gguf { .. } => return GenerationConfig::default(),
            Self::Dir(dir) | Self::Hub { dir, .. } => dir,
        };
        let path = dir.join("generation_config.json");
        match fs::read(&path) {
            Ok(json) => GenerationConfig::parse(&json),
            Err(error) => {
                if error.kind() != io::ErrorKind::NotFound {
                    tracing::warn!("{} is left out: {error}", path.display());
                }
                GenerationConfig::default()
            }
        }
    }

    pub(crate) fn template(
        &self,
        from: &ChatTemplateFrom,
        tokenizer: &Tokenizer,
    ) -> Result<Option<ChatTemplate>> {
        match from {
            ChatTemplateFrom::Nowhere => Ok(None),
            ChatTemplateFrom::File(file) => self.template_of_file(file, tokenizer).map(Some),
            ChatTemplateFrom::Model => self.own_template(tokenizer).map(Some),
        }
    }

    fn template_of_file(&self, file: &Path, tokenizer: &Tokenizer) -> Result<ChatTemplate> {
        if let Some(dir) = self.dir() {
            return Ok(ChatTemplate::load_file(file, dir)?);
        }
        let source = fs::read_to_string(file)
            .map_err(|source| Error::Read { path: file.to_owned(), source })?;
        let template = parse(&source, tokenizer);
        template.map_err(|source| Error::Tokenizer { model: file.display().to_string(), source })
    }

    fn own_template(&self, tokenizer: &Tokenizer) -> Result<ChatTemplate> {
        let broken = |source| Error::Tokenizer { model: self.to_string(), source };
        let missing = |path: &Path| Error::ModelHasNoTemplate { path: path.to_owned() };
        match self {
            Self::Static(model) => {
                let config: serde_json::Value =
                    serde_json::from_slice(model.tokenizer_config).unwrap_or_default();
                let source = config.get("chat_template").and_then(|t| t.as_str());
                let source = source.ok_or_else(|| missing(Path::new(model.name)))?;
                parse(source, tokenizer).map_err(broken)
            }
            Self::Gguf { path, file } => {
                let source = file.chat_template().ok_or_else(|| missing(path))?;
                parse(source, tokenizer).map_err(broken)
            }
            Self::Dir(dir) | Self::Hub { dir, .. } => match ChatTemplate::load(dir) {
                Err(ChatError::NoTemplate { .. }) => Err(missing(dir)),
                loaded => Ok(loaded?),
            },
        }
    }
}

fn parse(source: &str, tokenizer: &Tokenizer) -> std::result::Result<ChatTemplate, ChatError> {
    ChatTemplate::from_source(source, tokenizer.bos_token(), tokenizer.eos_token())
}

/// What it is called in messages: its path, or a title.
impl fmt::Display for ModelSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Static(model) => f.write_str(model.title),
            Self::Dir(path) | Self::Hub { dir: path, .. } | Self::Gguf { path, .. } => {
                path.display().fmt(f)
            }
        }
    }
}

/// The GGUF file that a path means: itself, or the one in a directory of nothing else.
fn gguf_file(path: &Path) -> Option<PathBuf> {
    let is_gguf = |path: &Path| {
        path.extension().is_some_and(|e| e.eq_ignore_ascii_case("gguf")) && path.is_file()
    };
    if is_gguf(path) {
        return Some(path.to_owned());
    }
    if path.join("config.json").exists() {
        return None;
    }
    let inside = fs::read_dir(path).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    let mut files: Vec<PathBuf> = inside.filter(|path| is_gguf(path)).collect();
    files.sort();
    // Parts of one file follow each other.
    let name = files.first()?.file_name()?.to_string_lossy().into_owned();
    (files.len() == 1 || name.contains("-00001-of-")).then(|| files.swap_remove(0))
}
