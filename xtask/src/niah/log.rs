//! Answers kept as JSON lines, so that a run that was cut off goes on where it stopped.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::{
    fs::{self, File},
    io::{ErrorKind, Write},
    path::Path,
};

/// One answer.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Line {
    /// Model, arithmetic, device and KV cache.
    pub(super) settings: String,
    pub(super) ctx: usize,
    pub(super) depth_permille: usize,
    /// Hash of the user's message.
    pub(super) message_sha256: String,
    pub(super) right: bool,
    pub(super) answer: String,
    /// Since the run's start.
    pub(super) seconds: f64,
}

/// The file, if there is one, and what it held at the start.
#[derive(Debug, Default)]
pub(super) struct Log {
    file: Option<File>,
    lines: Vec<Line>,
}

impl Log {
    /// Reads a file and goes on at its end. A last line that was cut off is dropped.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error).with_context(|| format!("reading {}", path.display())),
        };
        let whole = &text[..text.rfind('\n').map_or(0, |at| at + 1)];
        let line = |(i, line): (usize, &str)| {
            serde_json::from_str(line).with_context(|| format!("{}:{}", path.display(), i + 1))
        };
        let lines = whole.lines().enumerate().map(line).collect::<Result<_>>()?;
        let file = File::options().create(true).append(true).open(path);
        let file = file.with_context(|| format!("writing {}", path.display()))?;
        file.set_len(whole.len() as u64)?;
        Ok(Self { file: Some(file), lines })
    }

    /// The answer of an earlier run with these settings.
    pub(super) fn find(&self, settings: &str, ctx: usize, message_sha256: &str) -> Option<&str> {
        let same = |l: &&Line| {
            (l.settings.as_str(), l.ctx, l.message_sha256.as_str())
                == (settings, ctx, message_sha256)
        };
        self.lines.iter().find(same).map(|line| line.answer.as_str())
    }

    pub(super) fn add(&mut self, line: &Line) -> Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        // One write, so that a line is whole or cut off, never mixed with another run's.
        file.write_all(format!("{}\n", serde_json::to_string(line)?).as_bytes())?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_goes_on_after_the_last_whole_line() {
        let path = std::env::temp_dir().join(format!("taper-niah-{}.jsonl", std::process::id()));
        let line = |message: &str| Line {
            settings: "s".into(),
            ctx: 8192,
            depth_permille: 1,
            message_sha256: message.into(),
            right: true,
            answer: format!("answer of {message}"),
            seconds: 1.5,
        };
        let mut log = Log::open(&path).unwrap();
        log.add(&line("a")).unwrap();
        log.add(&line("b")).unwrap();
        drop(log);
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, &text[..text.len() - 5]).unwrap();
        let mut log = Log::open(&path).unwrap();
        assert_eq!(log.find("s", 8192, "a"), Some("answer of a"));
        assert_eq!(log.find("s", 8192, "b"), None, "cut off");
        assert_eq!(log.find("other", 8192, "a"), None);
        assert_eq!(log.find("s", 4096, "a"), None);
        log.add(&line("b")).unwrap();
        assert_eq!(Log::open(&path).unwrap().lines.len(), 2);
        fs::write(&path, "{}\n").unwrap();
        assert!(Log::open(&path).is_err(), "another file");
        fs::remove_file(&path).unwrap();
    }
}
