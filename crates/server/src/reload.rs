//! Keys and certificates that change while the server runs.

use crate::{
    access::{self, keys_of},
    longctx_args::CallerArgs,
};
use std::{
    fs,
    path::PathBuf,
    time::{Duration, SystemTime},
};
use taper_openai_server::{ApiKeys, Tls};
use tokio::time::interval;

/// How often files are looked at.
const EVERY: Duration = Duration::from_secs(2);

/// What is read again when its files change, or on SIGHUP. What cannot be read leaves everything as it is.
#[derive(Debug)]
pub(crate) struct Reload {
    args: CallerArgs,
    keys: ApiKeys,
    tls: Option<Tls>,
    files: Vec<PathBuf>,
}

impl Reload {
    pub(crate) fn new(args: &CallerArgs, keys: ApiKeys, tls: Option<Tls>) -> Self {
        let mut files = access::files(args);
        files.extend(tls.iter().flat_map(Tls::files).map(ToOwned::to_owned));
        Self { args: args.clone(), keys, tls, files }
    }

    /// Watches the files for as long as it is polled.
    pub(crate) async fn run(self) {
        if self.files.is_empty() {
            return;
        }
        let mut signals = Hangups::new();
        let (mut looks, mut seen) = (interval(EVERY), self.stamps());
        loop {
            let asked = tokio::select! {
                _ = looks.tick() => false,
                () = signals.next() => true,
            };
            let now = self.stamps();
            if asked || now != seen {
                self.read();
            }
            seen = now;
        }
    }

    /// When each file was changed, and its length.
    fn stamps(&self) -> Vec<Option<(SystemTime, u64)>> {
        let stamp = |file: &PathBuf| {
            let data = fs::metadata(file).ok()?;
            Some((data.modified().ok()?, data.len()))
        };
        self.files.iter().map(stamp).collect()
    }

    fn read(&self) {
        match keys_of(&self.args) {
            Ok(keys) => {
                self.keys.replace(keys);
                tracing::info!("{:?} are in use", self.keys);
            }
            Err(error) => tracing::error!("the keys stay as they were: {error:#}"),
        }
        match self.tls.as_ref().map(Tls::reload) {
            Some(Err(error)) => tracing::error!("the certificate stays as it was: {error}"),
            Some(Ok(())) => tracing::info!("the certificate was read again"),
            None => {}
        }
    }
}

/// SIGHUP, where there is such a thing.
struct Hangups {
    #[cfg(unix)]
    signal: Option<tokio::signal::unix::Signal>,
}

impl Hangups {
    fn new() -> Self {
        Self {
            #[cfg(unix)]
            signal: {
                let signal = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::hangup());
                signal.inspect_err(|error| tracing::warn!(%error, "SIGHUP is not heard")).ok()
            },
        }
    }

    async fn next(&mut self) {
        #[cfg(unix)]
        if let Some(signal) = &mut self.signal
            && signal.recv().await.is_some()
        {
            return;
        }
        std::future::pending::<()>().await;
    }
}
