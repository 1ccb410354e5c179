//! `taper longctx`: searches over source trees.

use crate::{
    access::Access,
    interrupt::Interrupts,
    listen::listen,
    longctx_args::{IndexArgs, LongctxCommand, LongctxServeArgs, McpArgs, Roots, SearchArgs},
    output::{Out, note},
    sizes::human,
};
use anyhow::{Context, Result, anyhow, ensure};
use axum::Router;
use indicatif::{ProgressBar, ProgressStyle};
use std::{io::IsTerminal, path::PathBuf, sync::Arc};
use taper_longctx::{Library, ProjectStatus, SearchRequest, Settings, http, mcp};
use taper_openai_server::{Guard, protect};

pub(crate) fn run(command: &LongctxCommand) -> Result<()> {
    match command {
        LongctxCommand::Index(args) => index(args),
        LongctxCommand::Search(args) => search(args),
        LongctxCommand::Serve(args) => serve(args),
        LongctxCommand::Mcp(args) => stdio(args),
    }
}

/// Opens the directories that arguments and flags name, with a bar if somebody watches.
pub(crate) fn open(dirs: &[PathBuf], roots: &Roots, watch: bool) -> Result<Library> {
    let mut all: Vec<PathBuf> = dirs.iter().chain(&roots.roots).cloned().collect();
    if all.is_empty() {
        all.push(PathBuf::from("."));
    }
    let bar = Arc::new(bar());
    let shown = Arc::clone(&bar);
    let settings = Settings {
        index_dir: index_dir(roots)?,
        watch,
        progress: Some(Arc::new(move |progress: taper_longctx::Progress| {
            shown.set_length(progress.total as u64);
            shown.set_position(progress.done as u64);
        })),
    };
    let library = Library::open(&all, &settings);
    bar.finish_and_clear();
    library.map_err(|error| {
        anyhow!("{error}; name a directory of sources, such as `taper longctx index ./src`")
    })
}

fn bar() -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("indexing {pos}/{len} files {wide_bar} {eta}");
    ProgressBar::new(0).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// Where indexes are kept.
fn index_dir(roots: &Roots) -> Result<Option<PathBuf>> {
    if roots.no_index_dir {
        return Ok(None);
    }
    if let Some(dir) = &roots.index_dir {
        return Ok(Some(dir.clone()));
    }
    let home = std::env::home_dir();
    let home = home.context("there is no home directory; name a place with --index-dir")?;
    Ok(Some(home.join(".cache/taper/longctx")))
}

fn index(args: &IndexArgs) -> Result<()> {
    let library = open(&args.dirs, &args.roots, false)?;
    let status = library.status();
    if args.json {
        writeln!(Out, "{}", serde_json::to_string_pretty(&status)?)?;
    } else {
        for project in &status.projects {
            writeln!(Out, "{}", told(project))?;
        }
    }
    let failed = status.projects.iter().find_map(|p| p.error.as_deref().filter(|_| !p.saved));
    let error = failed.filter(|_| !args.roots.no_index_dir);
    ensure!(error.is_none(), "{}", error.unwrap_or_default());
    Ok(())
}

/// A project in some lines.
fn told(project: &ProjectStatus) -> String {
    let ProjectStatus { root, files, chunks, bytes, skipped, redacted, .. } = project;
    let mut text = format!("{root}: {files} files ({}), {chunks} chunks", human(*bytes));
    if skipped.total() > 0 {
        let reasons = [
            (skipped.denied, "may hold secrets"),
            (skipped.too_large, "larger than 1 MiB"),
            (skipped.binary, "no text"),
            (skipped.generated, "generated"),
            (skipped.special, "links or devices"),
            (skipped.unreadable, "unreadable"),
        ];
        let some = reasons.iter().filter(|(n, _)| *n > 0).map(|(n, why)| format!("{n} {why}"));
        text += &format!("\n  left out: {}", some.collect::<Vec<_>>().join(", "));
    }
    if *redacted > 0 {
        text += &format!("\n  {redacted} keys and passwords redacted");
    }
    text
}

fn search(args: &SearchArgs) -> Result<()> {
    let library = open(&args.dirs, &args.roots, false)?;
    let answer = library.search(&SearchRequest {
        max_results: args.max_results,
        max_tokens: args.max_tokens,
        ..SearchRequest::new(args.query.as_str())
    })?;
    if args.json {
        writeln!(Out, "{}", serde_json::to_string_pretty(&answer)?)?;
        return Ok(());
    }
    if answer.chunks.is_empty() {
        note!("nothing found for {:?}", args.query);
        return Ok(());
    }
    if answer.no_relevant_results {
        note!("nothing fits well; the nearest:");
    }
    let several = library.projects().len() > 1;
    for chunk in &answer.chunks {
        let project = if several { format!("{}/", chunk.project) } else { String::new() };
        let (path, symbol) = (&chunk.file_path, chunk.symbol.as_str());
        let symbol = if symbol.is_empty() { String::new() } else { format!("  {symbol}") };
        writeln!(
            Out,
            "{project}{path}:{}-{}{symbol}  ({:.2})\n{}\n",
            chunk.start_line,
            chunk.end_line,
            chunk.relevance_score,
            printable(&chunk.text)
        )?;
    }
    Ok(())
}

/// A file's text without what a terminal would obey.
fn printable(text: &str) -> String {
    let obeyed = |c: char| c.is_control() && !matches!(c, '\n' | '\t' | '\r');
    text.replace(obeyed, "\u{fffd}")
}

fn serve(args: &LongctxServeArgs) -> Result<()> {
    let interrupts = Interrupts::listen()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let served = runtime.block_on(async {
        // A taken port should be known before a long build.
        let listeners = listen(&args.host, args.port).await?;
        let local = listeners.iter().all(|l| l.local_addr().is_ok_and(|a| a.ip().is_loopback()));
        let access = Access::of(&args.callers, local)?;
        let busy = interrupts.busy();
        let (dirs, roots) = (args.dirs.clone(), args.roots.clone());
        let opening = tokio::task::spawn_blocking(move || open(&dirs, &roots, true));
        let library = tokio::select! {
            library = opening => Arc::new(library??),
            stop = busy.stopped() => return Err(stop.into()),
        };
        let dir = index_dir(&args.roots)?;
        let service = http::Service::new(Arc::clone(&library), dir);
        let tools = mcp::Tools::new(Arc::clone(&library));
        let inner = http::router(service).nest_service("/mcp", mcp::service::<()>(&tools));
        let guard = Guard::new(access.keys, access.origins, access.hosts);
        let router = protect(inner, http::health(), guard);
        let at = listeners.first().context("no address to listen on")?.local_addr()?;
        for project in &library.status().projects {
            writeln!(Out, "{}", told(project))?;
        }
        writeln!(Out, "serving on http://{at}, MCP under http://{at}/mcp\n\nCtrl-C stops.")?;
        let servers = listeners.into_iter().map(|listener| {
            tokio::spawn(axum::serve(listener, Router::clone(&router)).into_future())
        });
        let servers: Vec<_> = servers.collect();
        busy.stopped().await;
        servers.iter().for_each(tokio::task::JoinHandle::abort);
        library.projects().iter().for_each(|project| project.save());
        Ok(())
    });
    runtime.shutdown_background();
    served
}

fn stdio(args: &McpArgs) -> Result<()> {
    let library = Arc::new(open(&args.dirs, &args.roots, true)?);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let tools = mcp::Tools::new(Arc::clone(&library));
    let served = runtime.block_on(mcp::serve_stdio(tools));
    runtime.shutdown_background();
    library.projects().iter().for_each(|project| project.save());
    Ok(served?)
}
