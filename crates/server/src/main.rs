//! `taper`: serves language models over the OpenAI API, from one binary.

mod access;
mod chat;
mod cli;
mod conversation;
mod convert;
mod doctor;
mod download;
mod generation_config;
mod identity;
mod inspect;
mod interrupt;
mod kv_report;
mod kv_scheme;
mod memory;
mod model;
mod run;
mod serve;

use clap::Parser;
use cli::{Cli, Command};
use std::{io::IsTerminal, process::ExitCode};
use tracing_subscriber::EnvFilter;

/// Steps take and give back buffers of megabytes; the system's allocator maps and clears them anew
/// each time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let cli = Cli::parse();
    start_logging(match &cli.command {
        None => &cli.serve.log_level,
        Some(Command::Serve(args)) => &args.log_level,
        Some(_) => "warn",
    });
    let done = match cli.command {
        None => serve::serve(&cli.serve),
        Some(Command::Serve(args)) => serve::serve(&args),
        Some(Command::Run(args)) => run::run(&args),
        Some(Command::Chat(args)) => chat::chat(&args),
        Some(Command::Inspect(args)) => inspect::inspect(&args),
        Some(Command::KvReport(args)) => kv_report::run(&args),
        Some(Command::Download(args)) => download::run(&args),
        Some(Command::List) => download::list(),
        Some(Command::Doctor(args)) => doctor::run(&args),
        Some(Command::Convert(args)) => convert::run(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", explain(&error));
            ExitCode::FAILURE
        }
    }
}

/// The error and its causes in one line. Most messages quote their cause; it is not said again.
fn explain(error: &anyhow::Error) -> String {
    error.chain().map(ToString::to_string).fold(String::new(), |mut text, cause| {
        if !text.contains(&cause) {
            text.push_str(if text.is_empty() { "" } else { ": " });
            text.push_str(&cause);
        }
        text
    })
}

/// Logs go to standard error, as `RUST_LOG` says. Without it our own crates log at `level`, and
/// others log warnings.
fn start_logging(level: &str) {
    let others = if level == "error" { "error" } else { "warn" };
    let filter = EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| EnvFilter::new(format!("{others},taper={level}")));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
}
