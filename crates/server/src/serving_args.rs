//! Flags of how connections and requests are handled.

use clap::Args;
use std::{path::PathBuf, time::Duration};

#[derive(Debug, Clone, Args)]
pub(crate) struct ServingArgs {
    /// Certificate in PEM, with those that vouch for it behind it: connections are encrypted.
    #[arg(long, value_name = "FILE", requires = "ssl_keyfile")]
    pub(crate) ssl_certfile: Option<PathBuf>,
    /// Private key of the certificate, in PEM. Both files are read again when they change, and on SIGHUP.
    #[arg(long, value_name = "FILE", requires = "ssl_certfile")]
    pub(crate) ssl_keyfile: Option<PathBuf>,
    /// Seconds that a generation may take, from when it is queued; 0 sets no limit.
    #[arg(long, default_value_t = 0, value_name = "SECONDS")]
    pub(crate) request_timeout: u64,
    /// Seconds after which a model step is taken for hung: /health, /livez and /readyz say so; 0 trusts every step.
    #[arg(long, default_value_t = 600, value_name = "SECONDS")]
    pub(crate) step_timeout: u64,
    /// Seconds that running requests get to finish after Ctrl-C or SIGTERM.
    #[arg(long, visible_alias = "shutdown-timeout", default_value_t = 30, value_name = "SECONDS")]
    pub(crate) drain_timeout: u64,
}

/// A limit of so many seconds; 0 is none.
pub(crate) fn limit(seconds: u64) -> Option<Duration> {
    (seconds > 0).then(|| Duration::from_secs(seconds))
}
