//! `cargo xtask ci`: everything that must hold before a change goes in, as named steps.

mod command;
mod fresh_start;
pub(crate) mod served;

use anyhow::{Result, bail, ensure};
use clap::Args;
use command::{Counts, Runner};
use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// Choices of `cargo xtask ci`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// List the steps and run none.
    #[arg(long)]
    list: bool,
    /// Run these steps only; several may be given.
    #[arg(long, value_name = "STEP")]
    only: Vec<String>,
    /// Leave these steps out; several may be given.
    #[arg(long, value_name = "STEP")]
    skip: Vec<String>,
    /// A Python that has the packages of tests/fixtures/requirements.txt and tests/sdk/requirements.txt.
    #[arg(long, default_value = "python3", value_name = "PROGRAM")]
    python: PathBuf,
    /// End at the first step that fails.
    #[arg(long)]
    fail_fast: bool,
}

/// What a step does.
#[derive(Debug, Clone, Copy)]
enum Action {
    /// Runs a command; `{python}`, `{xtask}` and `{debug}` stand for the Python asked for, this
    /// program and the directory of debug builds.
    Run(&'static [&'static str]),
    /// Runs a command in a directory, against a release server with the demo model; `{url}` and
    /// `{key}` stand for the API's address and key.
    Served(&'static str, &'static [&'static str]),
    /// As [`Self::Served`], of another model than the demo model: its directory comes first.
    ServedModel(&'static str, &'static str, &'static [&'static str]),
    /// Starts the release server as a newcomer would.
    FreshStart,
}

#[derive(Debug, Clone, Copy)]
struct Step {
    name: &'static str,
    what: &'static str,
    action: Action,
}

const fn step(name: &'static str, what: &'static str, action: Action) -> Step {
    Step { name, what, action }
}

use Action::{FreshStart, Run, Served, ServedModel};

/// A tiny model that sees, with a tokenizer and a chat template.
const SEES: &str = "tests/fixtures/vision/qwen3_vl-chat";

/// In the order they run. `test` is what the README tells people to run.
const STEPS: &[Step] = &[
    step(
        "test",
        "unit, property, HTTP and doc tests, and every example",
        Run(&["cargo", "test", "--workspace"]),
    ),
    step("aarch64", "tests of the kernels for aarch64 under qemu", Run(&["bash", ".ci/aarch64"])),
    step(
        "levels",
        "tests of the kernels on lesser x86-64 processors under qemu",
        Run(&["bash", ".ci/levels"]),
    ),
    step(
        "kernels",
        "the GPU kernels on the host runner, planted bugs, and the committed PTX",
        Run(&["bash", ".ci/kernels", "{xtask}"]),
    ),
    step("metal", "the Metal backend checked for Apple silicon", Run(&["bash", ".ci/metal"])),
    step(
        "planted",
        "faults planted in the backend for shared memory",
        Run(&["bash", ".ci/planted"]),
    ),
    step(
        "unified",
        "launches, copies and memory of a model on a fake of an Apple GPU",
        Run(&["{xtask}", "unified"]),
    ),
    step("fmt", "formatting", Run(&["cargo", "fmt", "--all", "--check"])),
    // With the CUDA backend, which replaces nothing: one build of the lints is enough.
    step(
        "clippy",
        "lints of every target",
        Run(&[
            "cargo",
            "clippy",
            "--workspace",
            "--all-targets",
            "--features",
            "xtask/cuda",
            "--",
            "--deny",
            "warnings",
        ]),
    ),
    step("tidy", "crate directions, file lengths and other rules", Run(&["{xtask}", "tidy"])),
    step(
        "package",
        "every library as it would be published, and programs that use them so",
        Run(&["{xtask}", "package"]),
    ),
    step("parity", "logits and greedy tokens against transformers", Run(&["{xtask}", "parity"])),
    step("ppl", "perplexity of held-out text against transformers", Run(&["{xtask}", "ppl"])),
    step("ppl-answers", "the same of text as an answer", Run(&["{xtask}", "ppl", "--answers"])),
    step(
        "niah",
        "needles in haystacks of 2k and 8k tokens against transformers",
        Run(&["{xtask}", "niah", "--ctx", "2k,8k", "--samples", "10"]),
    ),
    step(
        "convert",
        "conversions against mlx-lm, bit for bit",
        Run(&["{python}", "tests/fixtures/check_convert.py", "all", "{debug}/examples/convert"]),
    ),
    step(
        "templates",
        "chat templates of public packages against transformers",
        Run(&["{python}", "tests/templates/sweep.py", "{debug}/examples/render"]),
    ),
    step(
        "gguf",
        "GGUF files of the fixtures against their safetensors",
        Run(&["{python}", "tests/gguf/check_fixtures.py", "{debug}/taper"]),
    ),
    step(
        "gguf-answer",
        "a question to SmolLM2 from a GGUF file of PyPI",
        Run(&["{python}", "tests/gguf/check_answer.py", "{debug}/taper"]),
    ),
    step(
        "structured",
        "objects of a schema and forced calls by SmolLM2, in streams too",
        Run(&["{python}", "tests/gguf/check_structured.py", "{debug}/taper", "--prompts", "8"]),
    ),
    step("release", "the release build", Run(&["cargo", "build", "--release", "-p", "server"])),
    step(
        "dist",
        "archives of the release build, and an answer from each",
        Run(&["bash", ".ci/dist", "{xtask}"]),
    ),
    step("fresh-start", "the release server starts bare, answers and ends", FreshStart),
    step(
        "web",
        "the web app is built anew, as it is committed",
        Run(&["bash", ".ci/web", "build"]),
    ),
    step(
        "web-app",
        "the web app in Chromium against the release server",
        Served("", &["bash", ".ci/web", "check", "{url}", "{key}"]),
    ),
    step(
        "web-several",
        "the web app's page of models against a server of several",
        Run(&[
            "{python}",
            "tests/several.py",
            "{debug}/taper",
            "bash",
            ".ci/web",
            "check",
            "{url}",
            "{key}",
            "--several",
        ]),
    ),
    step(
        "sdk-python",
        "OpenAI's Python SDK against the release server",
        Served(
            "tests/sdk",
            &["{python}", "sdk_python.py", "--base-url", "{url}", "--api-key", "{key}"],
        ),
    ),
    step(
        "sdk-embeddings",
        "OpenAI's Python SDK against a release server of an embedding model",
        ServedModel(
            "tests/fixtures/embedders/qwen3",
            "tests/sdk",
            &[
                "{python}",
                "sdk_python.py",
                "--embeddings",
                "--base-url",
                "{url}",
                "--api-key",
                "{key}",
            ],
        ),
    ),
    step(
        "sdk-images",
        "images by OpenAI's and Anthropic's Python SDKs against a release server of a model that sees",
        ServedModel(
            SEES,
            "tests/sdk",
            &["{python}", "images_python.py", "--base-url", "{url}", "--api-key", "{key}"],
        ),
    ),
    step(
        "sdk-images-clients",
        "images by LangChain against that model",
        ServedModel(
            SEES,
            "tests/sdk",
            &["{python}-clients", "images_clients.py", "--base-url", "{url}", "--api-key", "{key}"],
        ),
    ),
    step(
        "sdk-images-node",
        "images by OpenAI's Node SDK and Vercel's AI SDK against that model",
        ServedModel(
            SEES,
            "tests/sdk",
            &["node", "images_node.mjs", "--base-url", "{url}", "--api-key", "{key}"],
        ),
    ),
    step(
        "sdk-speech",
        "OpenAI's Python SDK against a release server of a model for speech",
        ServedModel(
            "tests/fixtures/audio/whisper-speech",
            "tests/sdk",
            &["{python}", "sdk_python.py", "--speech", "--base-url", "{url}", "--api-key", "{key}"],
        ),
    ),
    step(
        "sdk-structured",
        "instructor and pydantic-ai against the release server",
        Served(
            "tests/sdk",
            &[
                "{python}-clients",
                "structured_python.py",
                "--base-url",
                "{url}",
                "--api-key",
                "{key}",
            ],
        ),
    ),
    step(
        "sdk-clients",
        "LangChain, LiteLLM with its proxy, and llm against the release server",
        Served(
            "tests/sdk",
            &["{python}-clients", "clients_python.py", "--base-url", "{url}", "--api-key", "{key}"],
        ),
    ),
    step(
        "sdk-agents",
        "openai-agents, pydantic-ai and smolagents against the release server",
        Served(
            "tests/sdk",
            &["{python}-clients", "agents_python.py", "--base-url", "{url}", "--api-key", "{key}"],
        ),
    ),
    step(
        "sdk-llamaindex",
        "LlamaIndex against the release server",
        Served(
            "tests/sdk",
            &[
                "{python}-llamaindex",
                "llamaindex_python.py",
                "--base-url",
                "{url}",
                "--api-key",
                "{key}",
            ],
        ),
    ),
    step(
        "openapi",
        "random requests against the release server's description of its API",
        Served(
            "tests/openapi",
            &["{python}", "check.py", "--base-url", "{url}", "--api-key", "{key}"],
        ),
    ),
    step(
        "sdk-anthropic",
        "Anthropic's Python SDK against the release server",
        Served(
            "tests/sdk",
            &["{python}", "anthropic_python.py", "--base-url", "{url}", "--api-key", "{key}"],
        ),
    ),
    step(
        "sdk-responses",
        "the Responses API of OpenAI's Python SDK against the release server",
        Served(
            "tests/sdk",
            &["{python}", "responses_python.py", "--base-url", "{url}", "--api-key", "{key}"],
        ),
    ),
    step(
        "sdk-ollama",
        "Ollama's Python client against the release server",
        Served(
            "tests/sdk",
            &["{python}", "ollama_python.py", "--base-url", "{url}", "--api-key", "{key}"],
        ),
    ),
    step(
        "sdk-node",
        "OpenAI's Node SDK against the release server",
        Served("tests/sdk", &["node", "sdk_node.mjs", "--base-url", "{url}", "--api-key", "{key}"]),
    ),
    step(
        "sdk-ollama-js",
        "Ollama's JavaScript client against the release server",
        Served(
            "tests/sdk",
            &["node", "ollama_node.mjs", "--base-url", "{url}", "--api-key", "{key}"],
        ),
    ),
    step(
        "sdk-several",
        "Ollama's Python client against a server of several models",
        Run(&[
            "{python}",
            "tests/several.py",
            "{debug}/taper",
            "{python}",
            "tests/sdk/several_python.py",
            "--base-url",
            "{url}",
            "--api-key",
            "{key}",
        ]),
    ),
    step(
        "sdk-several-js",
        "Ollama's JavaScript client against a server of several models",
        Run(&[
            "{python}",
            "tests/several.py",
            "{debug}/taper",
            "node",
            "tests/sdk/several_node.mjs",
            "--base-url",
            "{url}",
            "--api-key",
            "{key}",
        ]),
    ),
    step(
        "sdk-vercel",
        "Vercel's AI SDK against the release server",
        Served(
            "tests/sdk",
            &["node", "vercel_node.mjs", "--base-url", "{url}", "--api-key", "{key}"],
        ),
    ),
    step(
        "sdk-coding",
        "Codex edits a file, with the release server as its model",
        Served(
            "tests/sdk",
            &["{python}", "coding_agents.py", "--base-url", "{url}", "--api-key", "{key}"],
        ),
    ),
    step(
        "sdk-rust",
        "async-openai against the release server",
        Served(
            "tests/sdk/async-openai",
            &["cargo", "run", "--quiet", "--", "--base-url", "{url}", "--api-key", "{key}"],
        ),
    ),
];

struct Outcome {
    name: &'static str,
    took: Duration,
    counts: Counts,
    error: Option<anyhow::Error>,
}

pub(crate) fn run(root: &Path, options: &Options) -> Result<()> {
    for name in options.only.iter().chain(&options.skip) {
        let known = STEPS.iter().any(|s| s.name == name);
        ensure!(known, "there is no step {name:?}; --list shows them");
    }
    let wanted = |step: &&Step| {
        let named = |names: &[String]| names.iter().any(|n| n == step.name);
        (options.only.is_empty() || named(&options.only)) && !named(&options.skip)
    };
    let steps: Vec<_> = STEPS.iter().filter(wanted).collect();
    if options.list {
        for step in steps {
            println!("{:<12} {}", step.name, step.what);
        }
        return Ok(());
    }
    let runner = Runner::new(root, &options.python)?;
    let mut outcomes = Vec::new();
    for (i, step) in steps.iter().enumerate() {
        println!("\n== {}/{} {}: {}", i + 1, steps.len(), step.name, step.what);
        let outcome = perform(step, &runner);
        let failed = outcome.error.is_some();
        outcomes.push(outcome);
        if failed && options.fail_fast {
            break;
        }
    }
    report(&outcomes)
}

fn perform(step: &Step, runner: &Runner) -> Outcome {
    let start = Instant::now();
    let done = match step.action {
        Action::Run(words) => runner.run(runner.root(), words, &[]),
        Action::Served(dir, words) => served::run(runner, None, dir, words),
        Action::ServedModel(model, dir, words) => served::run(runner, Some(model), dir, words),
        Action::FreshStart => fresh_start::run(runner),
    };
    let took = start.elapsed();
    let (counts, error) = match done {
        Ok((counts, None)) => (counts.at_least_one(), None),
        // A step that failed without saying how many things failed is one failure.
        Ok((counts, error)) => (Counts { failed: counts.failed.max(1), ..counts }, error),
        Err(error) => (Counts { passed: 0, failed: 1 }, Some(error)),
    };
    if let Some(error) = &error {
        println!("FAILED: {error:#}");
    }
    Outcome { name: step.name, took, counts, error }
}

/// A line a step, and the sums.
fn report(outcomes: &[Outcome]) -> Result<()> {
    println!();
    let (mut all, mut total) = (Counts::default(), Duration::ZERO);
    for Outcome { name, took, counts, error } in outcomes {
        let verdict = if error.is_some() { "FAILED" } else { "ok" };
        println!("{name:<12} {verdict:<6} {:>7.1} s  {counts}", took.as_secs_f64());
        all.passed += counts.passed;
        all.failed += counts.failed;
        total += *took;
    }
    let minutes = total.as_secs_f64() / 60.0;
    println!("{} steps in {minutes:.1} minutes\n{all}", outcomes.len());
    let failed: Vec<_> = outcomes.iter().filter(|o| o.error.is_some()).map(|o| o.name).collect();
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(())
}
