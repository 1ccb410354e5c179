//! Ctrl-C and SIGTERM.
//!
//! A thread of its own listens, so that they are heard while everything else is busy. While nothing
//! is busy that could be stopped in an orderly way, a signal ends the process. Otherwise the first
//! one asks that work to stop, and a second one does not wait for it.

use anyhow::{Context, Result};
use std::{process::ExitCode, sync::Arc, thread};
use tokio::{runtime, sync::watch};

/// A signal that asks a process to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Signal {
    /// Ctrl-C.
    Interrupt,
    Terminate,
}

impl Signal {
    /// What a shell reports of a process that this signal has ended.
    fn exit_status(self) -> u8 {
        match self {
            Self::Interrupt => 130,
            Self::Terminate => 143,
        }
    }
}

/// A command that a signal has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("interrupted")]
pub(crate) struct Interrupted(pub(crate) Signal);

impl Interrupted {
    pub(crate) fn exit_code(self) -> ExitCode {
        self.0.exit_status().into()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nothing would notice a request to stop.
    Idle,
    Busy,
    Stopping(Signal),
}

/// What signals do to this process.
#[derive(Debug, Clone)]
pub(crate) struct Interrupts(Arc<watch::Sender<State>>);

impl Interrupts {
    /// Takes over Ctrl-C and SIGTERM for the rest of the process.
    pub(crate) fn listen() -> Result<Self> {
        let state = Arc::new(watch::Sender::new(State::Idle));
        let shared = Arc::clone(&state);
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        // The handlers are there when this returns, so that no signal is lost.
        let mut signals = runtime.block_on(async { Signals::new() }).context("signal handlers")?;
        thread::Builder::new().name("taper-signals".into()).spawn(move || {
            runtime.block_on(async {
                while let Some(signal) = signals.next().await {
                    receive(&shared, signal);
                }
            });
        })?;
        Ok(Self(state))
    }

    /// Work begins that stops in an orderly way when asked to.
    pub(crate) fn busy(&self) -> Busy {
        self.0.send_replace(State::Busy);
        Busy(Arc::clone(&self.0))
    }
}

#[cfg(test)]
impl Interrupts {
    /// Signals of a test, which come from [`Self::send`] only.
    pub(crate) fn quiet() -> Self {
        Self(Arc::new(watch::Sender::new(State::Idle)))
    }

    pub(crate) fn send(&self, signal: Signal) {
        receive(&self.0, signal);
    }
}

/// A signal has come.
fn receive(state: &watch::Sender<State>, signal: Signal) {
    let was = state.send_replace(State::Stopping(signal));
    if was != State::Busy {
        end(signal);
    }
}

/// Nobody is there to stop in an orderly way, or the user does not want to wait for it.
#[expect(clippy::disallowed_methods, reason = "main may be busy for long, and nothing is to save")]
fn end(signal: Signal) {
    std::process::exit(signal.exit_status().into());
}

/// Work that asks from time to time whether it should stop.
#[derive(Debug)]
pub(crate) struct Busy(Arc<watch::Sender<State>>);

impl Busy {
    /// # Errors
    /// A signal has come.
    pub(crate) fn check(&self) -> Result<(), Interrupted> {
        match *self.0.borrow() {
            State::Stopping(signal) => Err(Interrupted(signal)),
            State::Idle | State::Busy => Ok(()),
        }
    }

    /// Resolves at the first signal.
    pub(crate) async fn stopped(&self) -> Interrupted {
        let mut changes = self.0.subscribe();
        loop {
            if let Err(stop) = self.check() {
                return stop;
            }
            // The sender lives as long as `self`.
            if changes.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.send_replace(State::Idle);
    }
}

#[cfg(unix)]
struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Signals {
    fn new() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        let interrupt = signal(SignalKind::interrupt())?;
        Ok(Self { interrupt, terminate: signal(SignalKind::terminate())? })
    }

    async fn next(&mut self) -> Option<Signal> {
        tokio::select! {
            some = self.interrupt.recv() => some.map(|()| Signal::Interrupt),
            some = self.terminate.recv() => some.map(|()| Signal::Terminate),
        }
    }
}

#[cfg(not(unix))]
struct Signals;

#[cfg(not(unix))]
impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self)
    }

    async fn next(&mut self) -> Option<Signal> {
        tokio::signal::ctrl_c().await.ok().map(|()| Signal::Interrupt)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_asks_busy_work_to_stop_and_is_forgotten_with_it() {
        let interrupts = Interrupts::quiet();
        let busy = interrupts.busy();
        assert_eq!(busy.check(), Ok(()));
        interrupts.send(Signal::Terminate);
        assert_eq!(busy.check(), Err(Interrupted(Signal::Terminate)));
        drop(busy);
        assert_eq!(interrupts.busy().check(), Ok(()), "the next answer is another one");
    }

    #[tokio::test]
    async fn who_waits_hears_of_signals_before_and_after() {
        let interrupts = Interrupts::quiet();
        let busy = interrupts.busy();
        let late = async {
            tokio::task::yield_now().await;
            interrupts.send(Signal::Interrupt);
        };
        let (heard, ()) = tokio::join!(busy.stopped(), late);
        assert_eq!(heard, Interrupted(Signal::Interrupt));
        assert_eq!(busy.stopped().await, heard);
    }
}
