//! `taper rm`: deletes downloaded models.

use crate::{
    client::{Client, ClientError, ServerArgs},
    hints,
    library::scan::{self, Found},
    output::{Out, note},
    sizes::human,
};
use anyhow::{Context, Result, bail};
use clap::Args;
use std::{
    io::{self, IsTerminal},
    path::{Path, PathBuf},
};
use taper_hub::{CacheDir, HubConfig, HubError, ModelId, catalogue};

#[derive(Debug, Args)]
pub(crate) struct RmArgs {
    /// Models, as `taper list` names them; in --models-dir as a server of it names them.
    #[arg(required = true, value_name = "MODEL")]
    models: Vec<String>,
    /// Delete from this directory instead of the Hugging Face cache.
    #[arg(long, value_name = "DIR")]
    models_dir: Option<PathBuf>,
    /// Ask nothing.
    #[arg(long, short)]
    yes: bool,
    #[command(flatten)]
    server: ServerArgs,
}

/// Why nothing is deleted.
#[derive(Debug, thiserror::Error)]
enum RemoveError {
    #[error("there is no model {name} in {}; {}{near}", root.display(), next(*in_cache))]
    Missing { name: String, root: PathBuf, in_cache: bool, near: String },
    #[error("the server at {url} has {name} loaded; {}", release(*can_go, name))]
    Loaded { name: String, url: String, can_go: bool },
    #[error("nothing is deleted: there is no terminal to ask on; pass --yes")]
    NobodyToAsk,
    #[error("nothing is deleted")]
    Declined,
}

fn next(in_cache: bool) -> &'static str {
    if in_cache { "`taper list` shows those that are there" } else { "check --models-dir" }
}

fn release(can_go: bool, name: &str) -> String {
    match can_go {
        true => format!("run `taper stop {name}` first"),
        false => "end that server first".to_owned(),
    }
}

/// A model's files.
enum Target {
    Download(ModelId),
    Files(Found),
}

/// Where models are, and which one is to go.
struct Store {
    cache: CacheDir,
    /// Whether other layouts than that of the cache are looked for.
    is_models_dir: bool,
}

pub(crate) fn run(args: &RmArgs) -> Result<()> {
    let (cache, is_models_dir) = match &args.models_dir {
        Some(dir) => (CacheDir::new(dir), true),
        None => (HubConfig::from_env()?.cache, false),
    };
    let store = Store { cache, is_models_dir };
    let mut targets = Vec::new();
    for name in &args.models {
        targets.push((name, store.find(name)?));
    }
    refuse_loaded(args)?;
    if !args.yes {
        for (name, (_, bytes)) in &targets {
            note!("{name}, {}", human(*bytes));
        }
        confirm()?;
    }
    for (name, (target, bytes)) in targets {
        store.delete(&target).with_context(|| format!("deleting {name}"))?;
        writeln!(Out, "{name} is deleted; {} are free again", human(bytes))?;
    }
    Ok(())
}

impl Store {
    /// A model, and its bytes on the disk.
    fn find(&self, name: &str) -> Result<(Target, u64)> {
        let mut found = match self.is_models_dir {
            true => scan::scan(self.cache.path())?,
            false => Default::default(),
        };
        let in_files = found.remove(name).filter(|model| model.id.is_none());
        if let Some(model) = in_files {
            let bytes = model.bytes;
            return Ok((Target::Files(model), bytes));
        }
        if !self.is_models_dir && Path::new(name).exists() {
            bail!(
                "{name} is a file or directory of yours: delete it as any other; `taper rm` deletes downloads"
            );
        }
        let stored = name.parse::<ModelId>().and_then(|id| {
            let bytes = taper_hub::stored_bytes(&id, &self.cache)?;
            Ok((Target::Download(id), bytes))
        });
        match stored {
            Err(HubError::NotCached { .. } | HubError::BadName { .. }) => {
                let downloads = catalogue(&self.cache).unwrap_or_default();
                let all = found.into_keys().chain(downloads.into_iter().map(|model| model.name));
                let near = hints::question(&hints::nearest(name, all.map(|n| (n.clone(), n))));
                let (name, root) = (name.to_owned(), self.cache.path().to_owned());
                bail!(RemoveError::Missing { name, root, in_cache: !self.is_models_dir, near })
            }
            other => Ok(other?),
        }
    }

    fn delete(&self, target: &Target) -> Result<()> {
        match target {
            Target::Download(id) => taper_hub::remove(id, &self.cache)?,
            Target::Files(found) => scan::delete(found)?,
        }
        Ok(())
    }
}

/// Asks a server of this machine, if one runs, whether it has a model in memory.
fn refuse_loaded(args: &RmArgs) -> Result<()> {
    let served = match Client::of(&args.server)?.models() {
        Ok(served) => served,
        Err(error) => {
            if !matches!(error.downcast_ref(), Some(ClientError::Silent { .. })) {
                note!("it is not known whether a server has it loaded: {error}");
            }
            return Ok(());
        }
    };
    for name in &args.models {
        if let Some(model) = served.iter().find(|model| model.is(name) && model.is_loaded()) {
            let (name, url) = (name.clone(), args.server.url.clone());
            bail!(RemoveError::Loaded { name, url, can_go: model.can_go() });
        }
    }
    Ok(())
}

fn confirm() -> Result<()> {
    if !io::stdin().is_terminal() {
        bail!(RemoveError::NobodyToAsk);
    }
    note!("delete? [y/N]");
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).context("reading the answer")?;
    match answer.trim().to_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => bail!(RemoveError::Declined),
    }
}
