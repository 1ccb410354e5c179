//! This engine among the compared: a process of this program for each cell.

use super::{
    cell::{Cell, Work},
    child,
    files::Files,
    own::OwnArgs,
    peer::{Engine, PROMPT, Reading, Settings, first_token},
};
use anyhow::{Context, Result, ensure};
use std::{
    env::{self, consts::EXE_SUFFIX},
    path::{Path, PathBuf},
    process::Command,
};
use taper_tensor::cpu;

/// Name of the hidden command that measures one cell.
pub(crate) const CELL_COMMAND: &str = "cpu-cell";

/// The version, and the commit if Git knows it.
fn version(root: &Path) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let describe = ["describe", "--always", "--dirty", "--exclude", "*"];
    let out = Command::new("git").current_dir(root).args(describe).output();
    match out {
        Ok(out) if out.status.success() => {
            format!("{version} ({})", String::from_utf8_lossy(&out.stdout).trim())
        }
        _ => version.to_owned(),
    }
}

/// The instructions that this engine uses here.
pub(crate) fn instructions() -> String {
    let (float, int8) = (cpu::dense::DenseLevel::detect(), cpu::int8::Int8Level::detect());
    format!("floats {float:?}, integers {int8:?}")
}

#[derive(Debug)]
pub(crate) struct Taper {
    xtask: PathBuf,
    version: String,
    options: String,
    kv: String,
    dtype: String,
    fill: bool,
}

impl Taper {
    /// `root` is the workspace's; `own` says how keys and values are stored.
    pub(crate) fn new(root: &Path, own: &OwnArgs) -> Result<Self> {
        let (kv, fill) = (own.kv_cache_dtype.clone(), own.fill);
        let filled = if fill { ", caches filled with random rows" } else { "" };
        let build = if cfg!(debug_assertions) { ", DEBUG BUILD" } else { "" };
        Ok(Self {
            xtask: env::current_exe().context("where this program is")?,
            version: version(root),
            options: format!(
                "KV {kv}{filled}, dtype {}, steps of 512 tokens, {}{build}",
                own.dtype,
                instructions()
            ),
            kv,
            dtype: own.dtype.clone(),
            fill,
        })
    }

    /// The server's executable, which lies beside this one.
    fn taper(&self) -> Result<PathBuf> {
        let path = self.xtask.with_file_name(format!("taper{EXE_SUFFIX}"));
        let build = "cargo build --release -p server";
        ensure!(path.is_file(), "there is no {}; build it first: {build}", path.display());
        Ok(path)
    }
}

impl Engine for Taper {
    fn name(&self) -> &'static str {
        "taper"
    }

    fn version(&self) -> &str {
        &self.version
    }

    fn options(&self) -> &str {
        &self.options
    }

    fn prepare(&self, cell: &Cell, files: &Files) -> Result<PathBuf> {
        if cell.work == Work::FirstToken {
            self.taper()?;
        }
        files.checkpoint(&cell.shape, cell.format)
    }

    fn measure(&self, work: Work, model: &Path, settings: Settings) -> Result<Reading> {
        if work == Work::FirstToken {
            let mut command = Command::new(self.taper()?);
            command.args(["run", PROMPT, "--raw", "--temperature", "0", "--max-tokens", "1"]);
            command.arg("--model").arg(model);
            command.args(["--threads", &settings.threads.to_string(), "--dtype", &self.dtype]);
            return first_token(&mut command, settings.samples);
        }
        let mut command = Command::new(&self.xtask);
        command.args(["bench", CELL_COMMAND]).arg(model).arg(work.to_string());
        let numbers = [
            ("--threads", settings.threads),
            ("--samples", settings.samples),
            ("--decode", settings.decode),
        ];
        for (flag, number) in numbers {
            command.args([flag, &number.to_string()]);
        }
        command.args(["--kv-cache-dtype", &self.kv, "--dtype", &self.dtype]);
        command.args(self.fill.then_some("--fill"));
        let done = child::run(&mut command)?;
        let values =
            serde_json::from_str(&done.stdout).context("reading this program's figures")?;
        Ok(Reading { values, peak_mib: done.peak_mib })
    }
}
