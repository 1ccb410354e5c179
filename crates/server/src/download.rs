//! `taper download` and `taper list`: models of the Hugging Face hub.

use crate::{
    output::{Out, note},
    sizes::{count, human},
};
use anyhow::{Context, Result, ensure};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use std::path::Path;
use taper_hub::{HubConfig, ModelId, Progress, catalogue, download};

#[derive(Debug, Args)]
pub(crate) struct DownloadArgs {
    /// Model id, `org/name` or `org/name@revision`.
    pub(crate) id: String,
    /// Branch, tag or commit [default: main].
    #[arg(long)]
    pub(crate) revision: Option<String>,
}

pub(crate) fn run(args: &DownloadArgs) -> Result<()> {
    let parsed: Result<ModelId, _> = args.id.parse();
    ensure!(
        parsed.is_ok() || !Path::new(&args.id).is_dir(),
        "{} is a directory of this machine, which `taper serve` takes as it is; a download needs a name such as org/name",
        args.id
    );
    let mut id = parsed?;
    if let Some(revision) = &args.revision {
        id = id.with_revision(revision)?;
    }
    let config = HubConfig::from_env()?;
    let done = download(&id, &config, &mut Bar(ProgressBar::hidden()))?;
    writeln!(Out, "{}", done.dir.display())?;
    note!("serve it with: taper serve {id}");
    Ok(())
}

pub(crate) fn list() -> Result<()> {
    let config = HubConfig::from_env()?;
    let models = catalogue(&config.cache).context("reading the cache")?;
    if models.is_empty() {
        note!("no models yet; fetch one with: taper download org/name");
    }
    for model in models {
        let state = if model.complete { "" } else { "  incomplete; download it again" };
        writeln!(Out, "{:<48} {:>12}{state}", model.name, human(model.size_bytes))?;
    }
    Ok(())
}

/// A download on the terminal.
struct Bar(ProgressBar);

impl Progress for Bar {
    fn planned(&mut self, files: usize, total_bytes: u64) {
        let style = "{msg} {wide_bar} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec}, {eta} left";
        self.0 = ProgressBar::new(total_bytes);
        if let Ok(style) = ProgressStyle::with_template(style) {
            self.0.set_style(style);
        }
        note!("{}, {}", count(files, "file"), human(total_bytes));
    }

    fn started(&mut self, file: &str, _: u64, present_bytes: u64) {
        self.0.set_message(file.to_owned());
        // What lies there already counts, but not as speed.
        self.0.inc(present_bytes);
        self.0.reset_eta();
    }

    fn advanced(&mut self, bytes: u64) {
        self.0.inc(bytes);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
