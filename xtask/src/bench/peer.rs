//! Engines as the comparison sees them.

use super::{
    cell::{Cell, Work},
    child,
    files::Files,
};
use anyhow::Result;
use clap::ValueEnum;
use serde::Serialize;
use std::{
    path::{Path, PathBuf},
    process::Command,
};

/// Whom to compare with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Peer {
    #[value(name = "llama.cpp")]
    LlamaCpp,
    MlxLm,
    Transformers,
}

/// What every engine is told alike.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Settings {
    pub(crate) threads: usize,
    /// Measurements in each process.
    pub(crate) samples: usize,
    /// Tokens to decode in each measurement.
    pub(crate) decode: usize,
}

/// What one process of an engine measured.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Reading {
    /// Tokens a second, or seconds to the first token.
    pub(crate) values: Vec<f64>,
    pub(crate) peak_mib: Option<f64>,
}

/// An engine that can be measured, each time in a process of its own.
pub(crate) trait Engine {
    fn name(&self) -> &'static str;

    /// Version, and commit where there is one.
    fn version(&self) -> &str;

    /// What it is run with, beside the settings of all.
    fn options(&self) -> &str;

    /// Makes the model of a cell, and says where it is.
    fn prepare(&self, cell: &Cell, files: &Files) -> Result<PathBuf>;

    fn measure(&self, work: Work, model: &Path, settings: Settings) -> Result<Reading>;
}

/// What comes before the first token in [`Work::FirstToken`].
pub(crate) const PROMPT: &str = "The first token of an answer to these few words";

/// Seconds that a program lives which ends after the first token. It runs once before, so that its
/// files are in the page cache.
pub(crate) fn first_token(command: &mut Command, samples: usize) -> Result<Reading> {
    let mut reading = Reading { values: Vec::new(), peak_mib: child::run(command)?.peak_mib };
    for _ in 0..samples {
        reading.values.push(child::run(command)?.seconds);
    }
    Ok(reading)
}
