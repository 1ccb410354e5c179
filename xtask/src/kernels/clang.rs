//! clang: kernels for the host and as PTX.

use super::{Change, rewrite};
use anyhow::{Context, Result, bail, ensure};
use rayon::prelude::*;
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};
use taper_tensor::gpu::{FAMILIES, Family};

/// What a kernel is compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Target {
    Host,
    Ptx,
}

/// As C++ for OpenCL, without OpenCL's own headers: `kernels/include` stands in for Apple's.
const LANGUAGE: [&str; 8] = [
    "-x",
    "clcpp",
    "-cl-std=clc++2021",
    "-cl-no-stdinc",
    "-Xclang",
    "-fnative-half-type",
    "-Xclang",
    "-fnative-half-arguments-and-returns",
];
/// Products and sums become one operation wherever the source allows it, as Apple's compiler would have it.
const HOST: [&str; 7] = [
    "--target=x86_64-linux-gnu",
    "-march=x86-64-v3",
    "-O1",
    "-g1",
    "-fPIC",
    "-fsanitize=address",
    "-ffp-contract=fast-honor-pragmas",
];
/// sm_80: the oldest GPU with bf16 and asynchronous copies; newer ones run it too.
const PTX: [&str; 8] = [
    "--target=nvptx64-nvidia-cuda",
    "-march=sm_80",
    "-O3",
    "-Xclang",
    "-target-feature",
    "-Xclang",
    "+ptx70",
    "-Xclang",
];
const PTX_EXTENSIONS: &str = "-cl-ext=+cl_khr_fp16,+cl_khr_fp64,+__opencl_c_generic_address_space,+__opencl_c_program_scope_global_variables";

/// A compiler and where its results go.
#[derive(Debug)]
pub(super) struct Clang {
    program: PathBuf,
    kernels: PathBuf,
    work: PathBuf,
    version: String,
}

impl Clang {
    pub(super) fn new(root: &Path, program: &Path) -> Result<Self> {
        let target = std::env::current_exe().context("where this program is")?;
        let work = target.parent().context("a directory")?.join("kernels");
        fs::create_dir_all(&work).with_context(|| format!("creating {}", work.display()))?;
        let output = Command::new(program).arg("--version").output();
        let output = output.with_context(|| {
            format!("{} (apt install clang-19 libclang-rt-19-dev)", program.display())
        })?;
        let text = String::from_utf8_lossy(&output.stdout);
        let version = text.split_whitespace().skip_while(|w| *w != "version").nth(1);
        let version = version.context("clang tells its version")?.to_owned();
        Ok(Self { program: program.to_owned(), kernels: root.join("kernels"), work, version })
    }

    fn run(&self, args: &[&str], files: &[&Path]) -> Result<()> {
        let mut command = Command::new(&self.program);
        command.args(args).args(files).current_dir(&self.kernels);
        let output = command.output().with_context(|| self.program.display().to_string())?;
        if !output.status.success() {
            bail!("clang: {}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(())
    }

    /// A family's text as clang takes it.
    fn source(
        &self,
        family: &Family,
        target: Target,
        name: &str,
        change: &Change<'_>,
    ) -> Result<PathBuf> {
        let file = |ending: &str| self.work.join(format!("{name}.{}.{ending}", target.name()));
        let (msl, expanded, rewritten) = (file("metal"), file("i"), file("cl"));
        fs::write(&msl, change(family, family.source.metal()))?;
        let mut args = vec!["-E", "-P", "-Iinclude", "-isystem", "include"];
        args.extend(LANGUAGE);
        args.push(if target == Target::Host { HOST[0] } else { PTX[0] });
        args.extend(["-o", path_str(&expanded)?]);
        self.run(&args, &[&msl])?;
        let text = fs::read_to_string(&expanded)?;
        let text = rewrite::kernels(&text, target).with_context(|| family.source.path)?;
        fs::write(&rewritten, text)?;
        Ok(rewritten)
    }

    /// A family as PTX. The first line names the compiler.
    pub(super) fn ptx(&self, family: &Family) -> Result<String> {
        let source = self.source(family, Target::Ptx, family.source.name, &|_, text| text)?;
        let out = self.work.join(format!("{}.ptx", family.source.name));
        let mut args = LANGUAGE.to_vec();
        args.extend(PTX);
        args.extend([PTX_EXTENSIONS, "-S", "-o", path_str(&out)?]);
        self.run(&args, &[&source])?;
        let text = fs::read_to_string(&out)?;
        let kept = text.lines().map(|line| line.split("//").next().unwrap_or_default().trim_end());
        let kept: Vec<_> = kept.filter(|line| !line.is_empty()).collect();
        let (version, path) = (&self.version, family.source.path);
        let text = occupied(kept.join("\n"));
        Ok(format!("// clang {version} from kernels/{path}\n{text}\n"))
    }

    /// All kernels for the host runner.
    pub(super) fn host_library(&self) -> Result<PathBuf> {
        let runner_source = self.kernels.join("runner/runner.cpp");
        let runner = self.object("runner");
        let args = ["-O2", "-fPIC", "-fsanitize=address", "-c", "-o", path_str(&runner)?];
        self.run(&args, &[&runner_source])?;
        FAMILIES
            .par_iter()
            .try_for_each(|family| self.compile(family, family.source.name, &|_, text| text))?;
        self.link("kernels", FAMILIES.iter().map(|f| self.object(f.source.name)).collect())
    }

    /// Links the library of [`Self::host_library`] again with another text of one family; `unit` names its
    /// files.
    pub(super) fn changed_library(
        &self,
        changed: &Family,
        unit: &str,
        change: &Change<'_>,
    ) -> Result<PathBuf> {
        self.compile(changed, unit, change)?;
        let object = |f: &Family| {
            self.object(if f.source.name == changed.source.name { unit } else { f.source.name })
        };
        self.link(unit, FAMILIES.iter().map(object).collect())
    }

    fn object(&self, unit: &str) -> PathBuf {
        self.work.join(format!("{unit}.o"))
    }

    fn compile(&self, family: &Family, unit: &str, change: &Change<'_>) -> Result<()> {
        let source = self.source(family, Target::Host, unit, change)?;
        let object = self.object(unit);
        let mut args = LANGUAGE.to_vec();
        args.extend(HOST);
        args.extend(["-c", "-o", path_str(&object)?]);
        self.run(&args, &[&source]).with_context(|| family.source.path)
    }

    /// Links objects and the runner.
    fn link(&self, name: &str, mut objects: Vec<PathBuf>) -> Result<PathBuf> {
        objects.push(self.object("runner"));
        let library = self.work.join(format!("lib{name}.so"));
        let link =
            ["-shared", "-fsanitize=address", "-shared-libasan", "-o", path_str(&library)?, "-lm"];
        let objects: Vec<_> = objects.iter().map(PathBuf::as_path).collect();
        self.run(&link, &objects)?;
        Ok(library)
    }

    /// Runs the checks of a library in a process that AddressSanitizer watches, and prints what it
    /// printed.
    pub(super) fn check(
        &self,
        library: &Path,
        family: Option<&str>,
        seed: u64,
        quick: bool,
    ) -> Result<()> {
        let mut child = self.child(library, family, seed, quick)?;
        let output = child.stderr(Stdio::inherit()).output()?;
        print!("{}", String::from_utf8_lossy(&output.stdout));
        ensure!(output.status.success(), "checks failed with order {seed}: {}", output.status);
        Ok(())
    }

    /// Runs the checks on a fake of an Apple GPU.
    pub(super) fn unified(&self, library: &Path) -> Result<()> {
        let status = self.child(library, None, 0, false)?.arg("--fake").status()?;
        ensure!(status.success(), "checks on the fake of an Apple GPU failed: {status}");
        Ok(())
    }

    /// As [`Self::check`], in silence; whether it failed.
    pub(super) fn fails(&self, library: &Path, family: &str, seed: u64) -> Result<bool> {
        let output = self.child(library, Some(family), seed, true)?.arg("--first").output()?;
        Ok(!output.status.success())
    }

    /// Runs models on the host runner against transformers, on the fixtures of a name.
    pub(super) fn parity(&self, device: &str, filter: &str) -> Result<()> {
        let mut command = self.watched()?;
        let status = command.args(["parity", filter, "--device", device]).status()?;
        ensure!(status.success(), "parity on {device} failed: {status}");
        Ok(())
    }

    /// Runs sequences of a checkpoint that share a prefix in an engine on the host runner.
    pub(super) fn shared_prefix(&self, device: &str, name: &str) -> Result<()> {
        let mut command = self.watched()?;
        let status = command.args(["parity", "--shared", name, "--device", device]).status()?;
        ensure!(status.success(), "a shared prefix on {device} failed: {status}");
        Ok(())
    }

    fn child(
        &self,
        library: &Path,
        family: Option<&str>,
        seed: u64,
        quick: bool,
    ) -> Result<Command> {
        let mut command = self.watched()?;
        command.args(["kernels", "--library"]).arg(library);
        command.args(["--seed", &seed.to_string()]);
        command.args(family.iter().flat_map(|f| ["--family", f]));
        command.args(quick.then_some("--quick"));
        Ok(command)
    }

    /// This program, with AddressSanitizer's runtime.
    fn watched(&self) -> Result<Command> {
        let runtime = Command::new(&self.program)
            .arg("--print-file-name=libclang_rt.asan-x86_64.so")
            .output()?;
        let runtime = String::from_utf8(runtime.stdout)?.trim().to_owned();
        ensure!(
            Path::new(&runtime).is_file(),
            "AddressSanitizer's runtime is missing (apt install libclang-rt-19-dev)"
        );
        let mut command = Command::new(std::env::current_exe()?);
        command.env("LD_PRELOAD", runtime);
        command.env("ASAN_OPTIONS", "detect_leaks=0:detect_stack_use_after_return=0");
        Ok(command)
    }
}

/// Kernels whose registers are limited, so that one threadgroup of many threads, or several, fit a multiprocessor:
/// how their names begin, threads of one, and how many.
const OCCUPANCY: [(&str, u32, u32); 14] = [
    ("attend_prompt_d128_r128", 256, 1),
    ("attend_coded_8", 128, 4),
    ("attend_coded_16", 128, 3),
    ("attend_coded_sketched_8", 128, 3),
    ("attend_coded_sketched_16", 128, 2),
    ("attend_tile_d128_r8", 128, 3),
    ("attend_new_d128_r4_many", 128, 4),
    ("matvec_tile_", 256, 2),
    ("matmul_tile_", 128, 3),
    ("experts_tile_", 128, 3),
    ("sample(", 1024, 1),
    ("mix_heads(", 512, 1),
    ("walk_delta_4(", 512, 1),
    ("walk_plain_4(", 512, 1),
];

/// Adds these limits to PTX.
fn occupied(mut ptx: String) -> String {
    for (name, threads, groups) in OCCUPANCY {
        let mut from = 0;
        while let Some(entry) = ptx[from..].find(&format!(".entry {name}")) {
            let Some(body) = ptx[from + entry..].find("\n{") else { break };
            let limits = format!("\n.maxntid {threads}, 1, 1\n.minnctapersm {groups}");
            from += entry + body;
            ptx.insert_str(from, &limits);
        }
    }
    ptx
}

fn path_str(path: &Path) -> Result<&str> {
    path.to_str().context("a path in UTF-8")
}
