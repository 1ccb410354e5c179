//! llama.cpp: found or built, and run at its best settings.

use super::{
    cell::{Cell, Work},
    child,
    files::Files,
    peer::{Engine, PROMPT, Reading, Settings, first_token},
};
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::{
    env::consts::EXE_SUFFIX,
    fs,
    num::NonZero,
    path::{Path, PathBuf},
    process::Command,
    thread::available_parallelism,
};

/// The Python package whose sources hold llama.cpp's.
const PACKAGE: &str = "llama-cpp-python";
const PACKAGE_VERSION: &str = "0.3.36";

const BENCH: &str = "llama-bench";
const BATCHED: &str = "llama-batched-bench";
const QUANTIZE: &str = "llama-quantize";
const COMPLETION: &str = "llama-completion";
const TOOLS: [&str; 4] = [BENCH, BATCHED, QUANTIZE, COMPLETION];

/// Flash attention, and its own sizes of batches.
const OPTIONS: &str = "flash attention on, batch 2048, ubatch 512, mmap";

const FLAGS: [&str; 11] = [
    "-GNinja",
    "-DCMAKE_BUILD_TYPE=Release",
    "-DGGML_NATIVE=ON",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_SERVER=OFF",
    "-DLLAMA_BUILD_APP=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
];

/// Beside these, for NVIDIA GPUs.
const CUDA_FLAGS: [&str; 2] = ["-DGGML_CUDA=ON", "-DCMAKE_CUDA_ARCHITECTURES=native"];

/// GCC 12 believes that `ldtilecfg` reads eight bytes of its 64 and drops the stores to the others:
/// the program would die at its first AMX tile. This line makes it keep them.
const TILE_LOAD: &str = "    _tile_loadconfig(&tc);";
const TILE_FIX: &str = "    __asm__ volatile(\"\" : \"+m\"(tc));";
const TILE_FILE: &str = "ggml/src/ggml-cpu/amx/mmq.cpp";

#[derive(Debug)]
pub(crate) struct LlamaCpp {
    dir: PathBuf,
    version: String,
    options: String,
    pure: bool,
    kv: String,
}

impl LlamaCpp {
    /// Takes the programs in `dir`; without one, those built earlier, or builds them.
    pub(crate) fn find(
        dir: Option<&Path>,
        files: &Files,
        python: &Path,
        pure: bool,
        kv: &str,
    ) -> Result<Self> {
        let dir = match dir {
            Some(dir) => dir.to_owned(),
            None => {
                let dir = files.dir().join(PACKAGE);
                build(&dir, || download(&dir, python), &[], &TOOLS)?
            }
        };
        for tool in TOOLS {
            let path = dir.join(format!("{tool}{EXE_SUFFIX}"));
            ensure!(
                path.is_file(),
                "there is no {}; leave --llama-cpp out to build it",
                path.display()
            );
        }
        let pure_text = if pure { ", --pure weights" } else { "" };
        let options = format!("{OPTIONS}, KV {kv}{pure_text}");
        let mut found = Self { dir, version: String::new(), options, pure, kv: kv.to_owned() };
        found.version = found.ask_version()?;
        Ok(found)
    }

    fn tool(&self, name: &str) -> Command {
        Command::new(self.dir.join(format!("{name}{EXE_SUFFIX}")))
    }

    fn ask_version(&self) -> Result<String> {
        let out = self.tool(COMPLETION).arg("--version").output()?;
        let text = [out.stdout, out.stderr].concat();
        let text = String::from_utf8_lossy(&text).into_owned();
        let line = text.lines().find_map(|line| line.strip_prefix("version: "));
        Ok(line.context("llama.cpp does not say its version")?.to_owned())
    }
}

impl Engine for LlamaCpp {
    fn name(&self) -> &'static str {
        "llama.cpp"
    }

    fn version(&self) -> &str {
        &self.version
    }

    fn options(&self) -> &str {
        &self.options
    }

    fn prepare(&self, cell: &Cell, files: &Files) -> Result<PathBuf> {
        let quantize = self.dir.join(format!("{QUANTIZE}{EXE_SUFFIX}"));
        files.gguf(&cell.shape, cell.format, &quantize, self.pure)
    }

    fn measure(&self, work: Work, model: &Path, settings: Settings) -> Result<Reading> {
        let Settings { threads, samples, decode } = settings;
        let words = match work {
            Work::Prefill(tokens) => format!("-p {tokens} -n 0 -r {samples} -fa 1 -o json"),
            Work::Decode { depth: 0, batch: 1 } => {
                format!("-p 0 -n {decode} -r {samples} -fa 1 -o json")
            }
            Work::Decode { depth, batch } => {
                let context = (depth + decode) * batch;
                // Filling a cache is not timed, and takes minutes: all processors do it. Several sequences
                // are a batch when they decode, too, so these have no more threads than we do.
                let fill = match batch {
                    1 => available_parallelism().map_or(threads, NonZero::get),
                    _ => threads,
                };
                format!(
                    "-npp {depth} -ntg {decode} -npl {batch} -c {context} -tb {fill} -fa on \
                     --output-format jsonl"
                )
            }
            Work::FirstToken => "-n 1 -c 512 -fa on --temp 0 -no-cnv --no-warmup".to_owned(),
        };
        let tool = match work {
            Work::Prefill(_) | Work::Decode { depth: 0, batch: 1 } => BENCH,
            Work::Decode { .. } => BATCHED,
            Work::FirstToken => COMPLETION,
        };
        let mut command = self.tool(tool);
        command.arg("-m").arg(model).args(["-t", &threads.to_string()]);
        command.args(words.split_whitespace()).args(["-ctk", &self.kv, "-ctv", &self.kv]);
        match tool {
            COMPLETION => first_token(command.args(["-p", PROMPT]), samples),
            BATCHED => {
                let mut reading = Reading { values: Vec::new(), peak_mib: None };
                for _ in 0..samples {
                    let done = child::run(&mut command)?;
                    reading.values.push(batched_speed(&done.stdout)?);
                    reading.peak_mib = done.peak_mib;
                }
                Ok(reading)
            }
            _ => {
                let done = child::run(&mut command)?;
                Ok(Reading { values: speeds(&done.stdout)?, peak_mib: done.peak_mib })
            }
        }
    }
}

/// Tokens a second that llama-bench printed, of each repetition.
fn speeds(text: &str) -> Result<Vec<f64>> {
    let tests: Value = serde_json::from_str(text).context("reading llama-bench's figures")?;
    let values = tests[0]["samples_ts"].as_array().context("llama-bench printed no samples_ts")?;
    Ok(values.iter().filter_map(Value::as_f64).collect())
}

/// Tokens a second of all sequences that llama-batched-bench printed.
fn batched_speed(text: &str) -> Result<f64> {
    let line = text.lines().find(|line| line.starts_with('{'));
    let line = line.context("llama-batched-bench printed no figures")?;
    let figures: Value = serde_json::from_str(line).context("reading its figures")?;
    figures["speed_tg"].as_f64().context("llama-batched-bench printed no speed_tg")
}

/// What builds from sources, and where they are.
struct Sources {
    tree: PathBuf,
    commit: String,
    cmake: PathBuf,
    ninja: PathBuf,
}

/// Builds the programs, and says where they are; at once, where they are there.
fn build(
    dir: &Path,
    sources: impl FnOnce() -> Result<Sources>,
    flags: &[&str],
    tools: &[&str],
) -> Result<PathBuf> {
    let bin = dir.join("build/bin");
    if tools.iter().all(|tool| bin.join(format!("{tool}{EXE_SUFFIX}")).is_file()) {
        return Ok(bin);
    }
    fs::create_dir_all(dir)?;
    println!("building llama.cpp in {}: this takes a while, once", dir.display());
    let Sources { tree, commit, cmake, ninja } = sources()?;
    let configure = |command: &mut Command| {
        command.arg("-S").arg(&tree).arg("-B").arg(dir.join("build")).args(FLAGS).args(flags);
        command.arg(format!("-DCMAKE_MAKE_PROGRAM={}", ninja.display()));
        // Git would name the commit of whatever repository is around.
        command.args([format!("-DLLAMA_BUILD_COMMIT={commit}"), "-DLLAMA_BUILD_NUMBER=0".into()]);
        child::show(command)
    };
    configure(&mut Command::new(&cmake))?;
    child::show(
        Command::new(&cmake).arg("--build").arg(dir.join("build")).arg("--target").args(tools),
    )?;
    Ok(bin)
}

/// The sources on PyPI, with cmake and ninja.
fn download(dir: &Path, python: &Path) -> Result<Sources> {
    let tools = dir.join("tools");
    child::show(Command::new(python).args(["-m", "venv"]).arg(&tools))?;
    let scripts = tools.join(if cfg!(windows) { "Scripts" } else { "bin" });
    let pip = || {
        let mut command = Command::new(scripts.join(format!("python{EXE_SUFFIX}")));
        command.args(["-m", "pip", "--disable-pip-version-check"]);
        command
    };
    child::show(pip().args(["install", "--quiet", "cmake", "ninja"]))?;
    let package = format!("{PACKAGE}=={PACKAGE_VERSION}");
    let args = ["download", "--no-deps", "--no-binary", PACKAGE, &package, "--dest"];
    child::show(pip().args(args).arg(dir))?;
    let stem = format!("{}-{PACKAGE_VERSION}", PACKAGE.replace('-', "_"));
    child::show(
        Command::new("tar").arg("-xzf").arg(dir.join(format!("{stem}.tar.gz"))).arg("-C").arg(dir),
    )?;
    let package = dir.join(stem);
    let tree = package.join("vendor/llama.cpp");
    fix_tiles(&tree.join(TILE_FILE))?;
    let commit = commit(&fs::read_to_string(package.join("CHANGELOG.md"))?)?;
    let script = |name: &str| scripts.join(format!("{name}{EXE_SUFFIX}"));
    Ok(Sources { tree, commit, cmake: script("cmake"), ninja: script("ninja") })
}

/// llama-bench and llama-batched-bench for NVIDIA GPUs: those in `dir`, or built from the sources in
/// it (with the cmake and ninja of the path), or from PyPI's.
pub(crate) fn cuda_programs(dir: Option<&Path>, files: &Files, python: &Path) -> Result<PathBuf> {
    let programs = [BENCH, BATCHED];
    if let Some(dir) = dir
        && programs.iter().all(|tool| dir.join(format!("{tool}{EXE_SUFFIX}")).is_file())
    {
        return Ok(dir.to_owned());
    }
    let to = files.dir().join(format!("{PACKAGE}-cuda"));
    let sources = || match dir {
        None => download(&to, python),
        Some(tree) => {
            let list = tree.join("CMakeLists.txt");
            ensure!(list.is_file(), "neither {BENCH} nor sources are in {}", tree.display());
            let (tree, commit) = (tree.to_owned(), "unknown".to_owned());
            Ok(Sources { tree, commit, cmake: "cmake".into(), ninja: "ninja".into() })
        }
    };
    build(&to, sources, &CUDA_FLAGS, &programs)
}

/// Tokens a second with a model on the GPU.
pub(crate) fn cuda_speeds(
    dir: &Path,
    model: &Path,
    work: Work,
    (steps, samples): (usize, usize),
) -> Result<Vec<f64>> {
    let words = match work {
        Work::Prefill(tokens) => format!("-p {tokens} -n 0 -ub {tokens} -r {samples}"),
        Work::Decode { depth, batch: 1 } => format!("-p 0 -n {steps} -d {depth} -r {samples}"),
        Work::Decode { depth, batch } => {
            let context = (depth + steps) * batch;
            format!("-npp {depth} -ntg {steps} -npl {batch} -c {context} --output-format jsonl")
        }
        Work::FirstToken => bail!("the first token is not timed on a GPU"),
    };
    let (tool, more) = match work {
        Work::Decode { batch: 2.., .. } => (BATCHED, "-fa on"),
        _ => (BENCH, "-fa 1 -o json"),
    };
    let mut command = Command::new(dir.join(format!("{tool}{EXE_SUFFIX}")));
    command.arg("-m").arg(model).args(["-ngl", "99"]);
    command.args(words.split_whitespace()).args(more.split_whitespace());
    let done = child::run(&mut command)?;
    if tool == BENCH { speeds(&done.stdout) } else { Ok(vec![batched_speed(&done.stdout)?]) }
}

fn fix_tiles(path: &Path) -> Result<()> {
    let text = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    if !text.contains(TILE_FIX) {
        if !text.contains(TILE_LOAD) {
            bail!("{} does not load its tiles as it did; see TILE_FIX", path.display());
        }
        fs::write(path, text.replace(TILE_LOAD, &format!("{TILE_FIX}\n{TILE_LOAD}")))?;
    }
    Ok(())
}

/// The commit that the package's newest release holds.
fn commit(changelog: &str) -> Result<String> {
    let (_, rest) = changelog.split_once("llama.cpp@").context("the change log names no commit")?;
    Ok(rest.chars().take_while(char::is_ascii_hexdigit).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_figures_are_read() {
        assert_eq!(speeds(r#"[{"n_prompt": 512, "samples_ts": [1.5, 2]}]"#).unwrap(), [1.5, 2.0]);
        assert!(speeds("[]").is_err());
        let line = "main: x\n{\"pl\": 8, \"speed_pp\": 1.0, \"speed_tg\": 117.5}\n";
        assert_eq!(batched_speed(line).unwrap(), 117.5);
        assert_eq!(
            commit("## [1]\n- update llama.cpp to ggml-org/llama.cpp@0c1e57098\n").unwrap(),
            "0c1e57098"
        );
    }
}
