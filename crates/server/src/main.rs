//! `taper`: serves language models over the OpenAI API, from one binary.
// `println!` panics when its pipe is closed or its disk full: see `output`.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod access;
mod advice;
mod chat;
mod cli;
mod client;
mod config;
mod config_file;
mod conversation;
mod convert;
mod convert_args;
mod doctor;
mod download;
mod eviction_args;
mod expert_args;
mod hints;
mod image_args;
mod inspect;
mod interrupt;
mod kv_args;
mod kv_report;
mod launch;
mod library;
mod listen;
mod longctx;
mod longctx_args;
mod lora_args;
mod model;
mod models_args;
mod output;
mod parser_args;
mod prompt;
mod ps;
mod reload;
mod rescue;
mod rm;
mod run;
mod search;
mod serve;
mod serve_many;
mod serving_args;
mod shell;
mod show;
mod sizes;
mod speculation_args;
mod stop;
mod transcribe;
mod transcribe_args;

use clap::Parser;
use cli::{Cli, Command, EngineArgs};
use interrupt::Interrupted;
use output::{OutputError, note};
use std::{ffi::OsString, io::IsTerminal, path::PathBuf, process::ExitCode};
use tracing_subscriber::EnvFilter;

/// What a shell reports of a program that wrote into a closed pipe.
const CLOSED_PIPE: u8 = 141;

/// Steps take and give back buffers of megabytes; the system's allocator maps and clears them anew
/// each time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let (cli, file) = match parse(std::env::args_os().collect()) {
        Ok(parsed) => parsed,
        Err(code) => return code,
    };
    start_logging(match &cli.command {
        None => &cli.serve.log_level,
        Some(Command::Serve(args)) => &args.log_level,
        Some(_) => "warn",
    });
    if let Some(file) = file {
        tracing::info!("flags of {} are in force", file.display());
    }
    let ended = run_command(&cli);
    ended.map_or_else(|error| fail(&error, cli.engine()), |()| ExitCode::SUCCESS)
}

/// Reads the command line, and the file that gives flags too. Help, the version and mistakes are printed here.
fn parse(args: Vec<OsString>) -> Result<(Cli, Option<PathBuf>), ExitCode> {
    if let Some(unknown) = hints::unknown_command(&args) {
        return Err(print(&unknown));
    }
    let all = config_file::merged(args).map_err(|error| fail(&error.into(), None))?;
    match Cli::try_parse_from(all.arguments) {
        Ok(cli) => Ok((cli, all.from)),
        Err(answer) => {
            let code = print(&answer);
            if let Some(path) = all.from.filter(|_| answer.use_stderr()) {
                note!("flags of {} are in force too; `taper config` shows them", path.display());
            }
            Err(code)
        }
    }
}

/// Prints help, the version or a mistake, and says with which code the process ends.
fn print(answer: &clap::Error) -> ExitCode {
    match answer.print() {
        Err(error) if !answer.use_stderr() => fail(&OutputError::from(error).into(), None),
        // Clap's own codes are 0 for help, and 2.
        _ => u8::try_from(answer.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from),
    }
}

fn run_command(cli: &Cli) -> anyhow::Result<()> {
    match &cli.command {
        None => serve::serve(&cli.serve),
        Some(Command::Serve(args)) => serve::serve(args),
        Some(Command::Run(args)) => run::run(args),
        Some(Command::Chat(args)) => chat::chat(args),
        Some(Command::Transcribe(args)) => transcribe::run(args),
        Some(Command::Inspect(args)) => inspect::inspect(args),
        Some(Command::KvReport(args)) => kv_report::run(args),
        Some(Command::Calibrate(args)) => eviction_args::calibrate(args),
        Some(Command::Download(args)) => download::run(args),
        Some(Command::List) => download::list(),
        Some(Command::Search(args)) => search::run(args),
        Some(Command::Show(args)) => show::run(args),
        Some(Command::Rm(args)) => rm::run(args),
        Some(Command::Stop(args)) => stop::run(args),
        Some(Command::Ps(args)) => ps::run(args),
        Some(Command::Config(args)) => config::run(args),
        Some(Command::Doctor(args)) => doctor::run(args),
        Some(Command::Convert(args)) => convert::run(args),
        Some(Command::Longctx(command)) => longctx::run(command),
        Some(Command::Launch(args)) => launch::run(args),
        Some(Command::Completions { shell }) => shell::completions(*shell),
        Some(Command::Man { dir }) => shell::man(dir),
    }
}

/// Says what went wrong, and with which code the process ends.
fn fail(error: &anyhow::Error, engine: Option<&EngineArgs>) -> ExitCode {
    if error.downcast_ref::<OutputError>().is_some_and(OutputError::is_closed) {
        return ExitCode::from(CLOSED_PIPE);
    }
    note!("error: {}", explain(error, engine));
    let interrupted = error.downcast_ref::<Interrupted>();
    interrupted.map_or(ExitCode::FAILURE, |stop| stop.exit_code())
}

/// The error, its causes and what to do about it, in one line. Most messages quote their cause; it is
/// not said again.
fn explain(error: &anyhow::Error, engine: Option<&EngineArgs>) -> String {
    let mut text = error.chain().map(ToString::to_string).fold(String::new(), |mut text, cause| {
        if !text.contains(&cause) {
            text.push_str(if text.is_empty() { "" } else { ": " });
            text.push_str(&cause);
        }
        text
    });
    if let Some(advice) = advice::advice(error, engine) {
        text.push_str("; ");
        text.push_str(&advice);
    }
    text
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
        // These would go to standard error too, and panic if that is closed.
        .log_internal_errors(false)
        .init();
}
