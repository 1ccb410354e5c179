//! A measurement in a process of its own: what it printed, how long it lived, how large it grew.

use anyhow::{Context, Result, bail};
use std::{
    fs,
    io::Read,
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

/// Time between two looks at the size. The kernel keeps the peak, so only what a process grows by
/// in its last moments is missed.
const LOOK_EVERY: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) stdout: String,
    pub(crate) seconds: f64,
    /// Peak resident memory; `None` where the system does not tell (it does on Linux).
    pub(crate) peak_mib: Option<f64>,
}

/// Runs a command to its end; one that fails is an error with the last lines that it wrote.
pub(crate) fn run(command: &mut Command) -> Result<Finished> {
    let program = command.get_program().display().to_string();
    let start = Instant::now();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {program}"))?;
    let (pid, ended) = (child.id(), AtomicBool::new(false));
    let (mut stdout, mut stderr) = (child.stdout.take(), child.stderr.take());
    let (status, seconds, stdout, stderr, peak_mib) = thread::scope(|scope| {
        let out = scope.spawn(|| text(stdout.as_mut()));
        let err = scope.spawn(|| text(stderr.as_mut()));
        let peak = scope.spawn(|| {
            let mut peak = None;
            while !ended.load(Ordering::Relaxed) {
                peak = peak_mib(pid).or(peak);
                thread::sleep(LOOK_EVERY);
            }
            peak
        });
        let status = child.wait();
        let seconds = start.elapsed().as_secs_f64();
        ended.store(true, Ordering::Relaxed);
        let peak = peak.join().unwrap_or_default();
        (status, seconds, out.join().unwrap_or_default(), err.join().unwrap_or_default(), peak)
    });
    let status = status?;
    if !status.success() {
        let lines: Vec<_> = stderr.lines().collect();
        let last = lines[lines.len().saturating_sub(12)..].join("\n");
        bail!("{program} ended with {status}:\n{last}");
    }
    Ok(Finished { stdout, seconds, peak_mib })
}

/// Runs a command that prepares something; what it prints is shown.
pub(crate) fn show(command: &mut Command) -> Result<()> {
    let words: Vec<_> = command.get_args().map(|a| a.to_string_lossy()).collect();
    let program = command.get_program().display().to_string();
    println!("$ {program} {}", words.join(" "));
    let status = command.status().with_context(|| format!("cannot run {program}"))?;
    if !status.success() {
        bail!("{program} ended with {status}");
    }
    Ok(())
}

fn text(pipe: Option<&mut impl Read>) -> String {
    let mut bytes = Vec::new();
    // What came before a broken pipe is all there is.
    let _ = pipe.map(|p| p.read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The kernel's high-water mark of a process.
fn peak_mib(pid: u32) -> Option<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let kib = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(kib.trim().trim_end_matches(" kB").parse::<f64>().ok()? / 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_timed_and_its_failure_is_told() {
        let done = run(Command::new("sh").args(["-c", "sleep 0.1; echo yes"])).unwrap();
        assert_eq!(done.stdout, "yes\n");
        assert!(done.seconds >= 0.1);
        assert_eq!(done.peak_mib.is_some(), cfg!(target_os = "linux"));
        let error = run(Command::new("sh").args(["-c", "echo no >&2; exit 3"])).unwrap_err();
        assert!(error.to_string().contains("no"), "{error}");
        assert!(run(&mut Command::new("no-such-program")).is_err());
    }
}
