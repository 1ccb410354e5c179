//! Steps that talk to a release server with the demo model.

use super::command::{Done, Runner};
use anyhow::{Context, Result, ensure};
use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

const KEY: &str = "ci-key";
/// A model of several gigabytes takes a while to load.
const START: Duration = Duration::from_secs(300);

/// Runs a command against a server of a model, or of the demo model, that asks for a key.
pub(crate) fn run(runner: &Runner, model: Option<&str>, dir: &str, words: &[&str]) -> Done {
    let args: Vec<_> = model.into_iter().chain(["--api-key", KEY]).collect();
    let server = Served::start(&runner.server(), runner.root(), &args)?;
    let url = format!("http://{}/v1", server.address);
    runner.run(&runner.root().join(dir), words, &[("{url}", &url), ("{key}", KEY)])
}

/// A server on a free port; it is killed when dropped.
#[derive(Debug)]
pub(crate) struct Served {
    child: Child,
    pub(crate) address: String,
}

impl Served {
    pub(crate) fn start(program: &Path, dir: &Path, args: &[&str]) -> Result<Self> {
        let built = program.is_file();
        ensure!(built, "there is no {}; run the step \"release\" first", program.display());
        let child = Command::new(program)
            .args(["serve", "--port", "0"])
            .args(args)
            .current_dir(dir)
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot run {}", program.display()))?;
        let mut server = Self { child, address: String::new() };
        let stdout = server.child.stdout.take().context("the server has an output")?;
        let (sender, address) = mpsc::channel();
        // Reads to the end, so that the server never waits for a full pipe.
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if let Some(rest) = line.strip_prefix("serving on http://") {
                    let _ = sender.send(rest.split(',').next().unwrap_or_default().to_owned());
                }
            }
        });
        let address = address.recv_timeout(START);
        server.address = address.context("the server does not say where it serves")?;
        Ok(server)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn wait(&mut self) -> Result<ExitStatus> {
        Ok(self.child.wait()?)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // Neither can fail for a child that runs, and otherwise it is gone.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
