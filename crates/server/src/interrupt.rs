//! Ctrl-C and SIGTERM.

use anyhow::Result;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};
use tokio::runtime;

/// Resolves at the first Ctrl-C or SIGTERM.
pub(crate) async fn signalled() {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        if let Ok(mut terminate) = signal(SignalKind::terminate()) {
            tokio::select! {
                _ = tokio::signal::ctrl_c() => {}
                _ = terminate.recv() => {}
            }
            return;
        }
    }
    // Without a handler Ctrl-C ends the process at once, which is all that can be done.
    let _ = tokio::signal::ctrl_c().await;
}

/// A flag that Ctrl-C raises; who acts on it lowers it again.
#[derive(Debug, Clone)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Takes over Ctrl-C for the rest of the process.
    pub(crate) fn listen() -> Result<Self> {
        let flag = Arc::new(AtomicBool::new(false));
        let raised = Arc::clone(&flag);
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        thread::Builder::new().name("taper-signals".into()).spawn(move || {
            runtime.block_on(async {
                while tokio::signal::ctrl_c().await.is_ok() {
                    raised.store(true, Ordering::Relaxed);
                }
            });
        })?;
        Ok(Self(flag))
    }

    /// Whether Ctrl-C came since the last call.
    pub(crate) fn take(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }
}
