//! transformers and mlx-lm, measured by a small script of theirs.

use super::{
    cell::{Cell, Work},
    child,
    files::Files,
    peer::{Engine, Peer, Reading, Settings, first_token},
};
use anyhow::{Context, Result, ensure};
use std::{
    path::{Path, PathBuf},
    process::Command,
};

/// The script; Python is given its text.
const SCRIPT: &str = include_str!("peer.py");

#[derive(Debug)]
pub(crate) struct PythonPeer {
    peer: Peer,
    name: &'static str,
    python: PathBuf,
    version: String,
    options: &'static str,
}

impl PythonPeer {
    pub(crate) fn new(peer: Peer, python: &Path) -> Result<Self> {
        let (name, options) = match peer {
            Peer::MlxLm => ("mlx-lm", "its CPU device, steps of 512 tokens"),
            _ => ("transformers", "bf16 weights and KV, sdpa, steps of 512 tokens"),
        };
        let out = Command::new(python)
            .args(["-c", SCRIPT, name, "version"])
            .output()
            .with_context(|| format!("cannot run {}; name another --python", python.display()))?;
        ensure!(
            out.status.success(),
            "{} cannot import {name}; install it or name another --python:\n{}",
            python.display(),
            String::from_utf8_lossy(&out.stderr).trim()
        );
        let version = String::from_utf8_lossy(&out.stdout).trim().to_owned();
        Ok(Self { peer, name, python: python.to_owned(), version, options })
    }
}

impl Engine for PythonPeer {
    fn name(&self) -> &'static str {
        self.name
    }

    fn version(&self) -> &str {
        &self.version
    }

    fn options(&self) -> &str {
        self.options
    }

    fn prepare(&self, cell: &Cell, files: &Files) -> Result<PathBuf> {
        // transformers has no kernels for such weights on a CPU: bf16 is its fastest.
        let format = match self.peer {
            Peer::MlxLm => cell.format,
            _ => super::cell::Format::Bf16,
        };
        files.checkpoint(&cell.shape, format)
    }

    fn measure(&self, work: Work, model: &Path, settings: Settings) -> Result<Reading> {
        let (prompt, decode, batch) = match work {
            Work::Prefill(tokens) => (tokens, 0, 1),
            Work::Decode { depth, batch } => (depth, settings.decode, batch),
            Work::FirstToken => (8, 1, 1),
        };
        let threads = settings.threads.to_string();
        let mut command = Command::new(&self.python);
        command.args(["-c", SCRIPT, self.name]).arg(model);
        let numbers = [settings.threads, prompt, decode, batch, settings.samples];
        command.args(numbers.map(|n| n.to_string()));
        command.env("OMP_NUM_THREADS", threads).env("HF_HUB_OFFLINE", "1");
        if work == Work::FirstToken {
            return first_token(&mut command, settings.samples);
        }
        let done = child::run(&mut command)?;
        let last = done.stdout.lines().last().context("the script printed nothing")?;
        let values = serde_json::from_str(last).context("reading the script's figures")?;
        Ok(Reading { values, peak_mib: done.peak_mib })
    }
}
