//! Flags of `taper longctx`.

use clap::{Args, Subcommand, builder::NonEmptyStringValueParser};
use std::path::PathBuf;
use taper_longctx::{MAX_RESULTS, MAX_TOKENS};

/// Search source trees, and serve searches to models.
#[derive(Debug, Subcommand)]
pub(crate) enum LongctxCommand {
    /// Index directories, or bring their indexes up to date.
    Index(IndexArgs),
    /// Find code and prose in directories.
    ///
    /// The index is kept, so that the next search needs no build.
    Search(SearchArgs),
    /// Serve searches over HTTP: the endpoints of longctx-svc, and MCP under /mcp.
    Serve(LongctxServeArgs),
    /// Serve searches as MCP tools over standard input and output.
    Mcp(McpArgs),
}

/// Searches for the conversations of a server.
#[derive(Debug, Clone, Args)]
pub(crate) struct RescueArgs {
    /// Search --longctx-root for the last message of each chat, put what is found behind it, and
    /// serve MCP tools under /mcp.
    ///
    /// A request turns it off with "longctx": false. Only the roots are ever read; a path in a
    /// prompt adds nothing.
    #[arg(long, requires = "longctx_root")]
    pub(crate) enable_longctx: bool,
    /// Directory to search; may be repeated.
    #[arg(long, value_name = "DIR", requires = "enable_longctx")]
    pub(crate) longctx_root: Vec<PathBuf>,
    /// Directory for indexes [default: ~/.cache/taper/longctx].
    #[arg(long, value_name = "DIR", requires = "enable_longctx")]
    pub(crate) longctx_index_dir: Option<PathBuf>,
    /// Maximum number of tokens put behind a message; a quarter of the model's context at most.
    #[arg(long, default_value_t = 2048, value_name = "TOKENS", requires = "enable_longctx", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_TOKENS)))]
    pub(crate) longctx_max_tokens: u32,
    /// Results that have less of a message than this, from 0 to 1, are left out.
    #[arg(long, default_value_t = 0.4, value_name = "SCORE", requires = "enable_longctx", value_parser = part)]
    pub(crate) longctx_score_floor: f32,
}

fn part(text: &str) -> Result<f32, String> {
    let value = text.parse::<f32>().ok().filter(|n| (0.0..=1.0).contains(n));
    value.ok_or_else(|| "must be from 0 to 1".to_owned())
}

/// What to search, and where its index is.
#[derive(Debug, Clone, Args)]
pub(crate) struct Roots {
    /// Directory to search; may be repeated. Nothing outside of them is ever read.
    #[arg(long = "longctx-root", value_name = "DIR")]
    pub(crate) roots: Vec<PathBuf>,
    /// Directory for indexes [default: ~/.cache/taper/longctx].
    #[arg(long, value_name = "DIR", conflicts_with = "no_index_dir")]
    pub(crate) index_dir: Option<PathBuf>,
    /// Keep indexes in memory only.
    #[arg(long)]
    pub(crate) no_index_dir: bool,
}

#[derive(Debug, Args)]
pub(crate) struct IndexArgs {
    /// Directories to index [default: the current directory].
    pub(crate) dirs: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) roots: Roots,
    /// Print the result as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct SearchArgs {
    /// What to find: words, a sentence, or an identifier.
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub(crate) query: String,
    /// Directories to search [default: the current directory].
    pub(crate) dirs: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) roots: Roots,
    /// Maximum number of results.
    #[arg(long, short = 'n', default_value_t = 8, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_RESULTS)))]
    pub(crate) max_results: u32,
    /// Maximum number of tokens of all results together, at four bytes each.
    #[arg(long, default_value_t = 4096, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_TOKENS)))]
    pub(crate) max_tokens: u32,
    /// Print the results as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct LongctxServeArgs {
    /// Directories to serve [default: the current directory].
    pub(crate) dirs: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) roots: Roots,
    /// Address or host name to listen on.
    #[arg(long, default_value = "127.0.0.1")]
    pub(crate) host: String,
    /// Port to listen on; 0 picks a free one.
    #[arg(long, default_value_t = 8765)]
    pub(crate) port: u16,
    #[command(flatten)]
    pub(crate) callers: CallerArgs,
}

#[derive(Debug, Args)]
pub(crate) struct McpArgs {
    /// Directories to serve [default: the current directory].
    pub(crate) dirs: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) roots: Roots,
}

/// Who may call a server.
#[derive(Debug, Clone, Args)]
pub(crate) struct CallerArgs {
    /// API key that clients must send [default: none]. Separate several with commas, or repeat the
    /// flag.
    ///
    /// Other users of this machine can see the flags of a process. --api-key-file and the
    /// environment variable hide the key from them.
    #[arg(
        long,
        value_name = "KEY",
        value_delimiter = ',',
        env = "TAPER_API_KEY",
        hide_env_values = true
    )]
    pub(crate) api_key: Vec<String>,
    /// File with API keys, one per line. Empty lines and lines that begin with # are ignored. A file whose name ends
    /// in .toml has names, hashes, scopes and limits of keys instead; see docs/operations.md. It is read again when it
    /// changes, and on SIGHUP.
    #[arg(long, value_name = "FILE")]
    pub(crate) api_key_file: Option<PathBuf>,
    /// Origins of web pages that may call the API, such as https://example.com; "*" allows any
    /// [default: none]. Separate several with commas, or repeat the flag.
    #[arg(long, value_name = "ORIGIN", value_delimiter = ',')]
    pub(crate) allowed_origins: Vec<String>,
    /// Host names that requests may use, beside localhost, 127.0.0.1 and [::1]; "*" allows any.
    /// Separate several with commas, or repeat the flag.
    ///
    /// By default only those three are allowed on a loopback address without API keys, and any host
    /// otherwise.
    #[arg(long, value_name = "HOST", value_delimiter = ',')]
    pub(crate) allowed_hosts: Vec<String>,
}
