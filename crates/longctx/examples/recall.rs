//! Recall, speed and memory over a directory of Python sources: what `cargo xtask bench longctx`
//! runs.
//!
//! Questions are first sentences of docstrings, and answers the functions that they document. With
//! `removed`, the docstrings of the asked functions are not in the corpus.

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};
use taper_longctx::{FoundChunk, Library, SearchRequest, Settings};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const USAGE: &str = "usage: recall DIR [--bytes N] [--questions N] [--json]
       recall --build ROOT INDEX_DIR";

/// A documented function.
#[derive(Debug, Clone)]
struct Function {
    file: PathBuf,
    /// Lines from 0: the `def`, and the docstring from its first to its last.
    def: usize,
    doc: (usize, usize),
    sentence: String,
}

#[derive(Debug, Default)]
struct Recall {
    at_1: usize,
    at_8: usize,
    at_50: usize,
    asked: usize,
    times: Vec<Duration>,
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["--build", root, dir] => build(Path::new(root), Path::new(dir)),
        [dir, flags @ ..] if !dir.starts_with('-') => {
            let number = |name: &str, otherwise: u64| -> Result<u64> {
                let at = flags.iter().position(|f| *f == name);
                Ok(match at {
                    Some(at) => flags.get(at + 1).ok_or(USAGE)?.parse()?,
                    None => otherwise,
                })
            };
            let (bytes, asked) = (number("--bytes", 48_000_000)?, number("--questions", 600)?);
            bench(Path::new(dir), bytes, usize::try_from(asked)?, flags.contains(&"--json"))
        }
        _ => Err(USAGE.into()),
    }
}

/// Opens a root in a process of its own, and prints what that took.
fn build(root: &Path, dir: &Path) -> Result<()> {
    let start = Instant::now();
    let settings = Settings { index_dir: Some(dir.to_owned()), ..Settings::default() };
    let library = Library::open(&[root], &settings)?;
    let seconds = start.elapsed().as_secs_f64();
    let status = library.status();
    let project = status.projects.first().ok_or("no project")?;
    let (now, peak) = (memory("VmRSS:"), memory("VmHWM:"));
    println!("{seconds:.3} {now} {peak} {} {} {}", project.files, project.chunks, project.terms);
    Ok(())
}

/// Megabytes, where the system says them in a file.
fn memory(field: &str) -> u64 {
    let text = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(field));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024 / 1_000_000
}

fn bench(dir: &Path, bytes: u64, asked: usize, json: bool) -> Result<()> {
    let work = tempfile::tempdir()?;
    let (files, total) = corpus(dir, bytes)?;
    let mut functions = Vec::new();
    for file in &files {
        functions.extend(documented(file, &fs::read_to_string(dir.join(file)).unwrap_or_default()));
    }
    let mut seen: HashMap<&str, usize> = HashMap::new();
    functions.iter().for_each(|f| *seen.entry(&f.sentence).or_default() += 1);
    let unique: Vec<_> = functions.iter().filter(|f| seen[&*f.sentence] == 1).cloned().collect();
    let kept = sample(&functions, asked, 1);
    let removed = sample(&unique, asked, 2);

    let (root, index) = (work.path().join("kept"), work.path().join("index"));
    copy(dir, &files, &root, &[])?;
    let cold = child(&root, &index)?;
    let warm = child(&root, &index)?;
    let stored: u64 =
        fs::read_dir(&index)?.flatten().filter_map(|e| Some(e.metadata().ok()?.len())).sum();
    let settings = Settings { watch: true, ..Settings::default() };
    let library = Library::open(&[&root], &settings)?;
    let equal = |chunk: &FoundChunk, f: &Function, doc: &str| {
        is_of(chunk, f) || (!doc.is_empty() && chunk.text.contains(doc))
    };
    let kept = ask(&library, &root, &kept, equal)?;
    drop(library);

    let root = work.path().join("removed");
    copy(dir, &files, &root, &removed)?;
    let library = Library::open(&[&root], &settings)?;
    let removed = ask(&library, &root, &removed, |chunk, f, _| is_of(chunk, f))?;

    let mut times: Vec<Duration> = kept.times.iter().chain(&removed.times).copied().collect();
    times.sort();
    let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize].as_secs_f64() * 1e3;
    if json {
        println!(
            "{{\"corpus_bytes\": {total}, \"files\": {}, \"chunks\": {}, \"documented\": {}, \"kept\": {}, \"removed\": {}, \"p50_ms\": {:.2}, \"p99_ms\": {:.2}, \"build_s\": {}, \"build_peak_mb\": {}, \"reload_s\": {}, \"reload_mb\": {}, \"index_bytes\": {stored}}}",
            files.len(),
            cold[4],
            functions.len(),
            kept.json(),
            removed.json(),
            at(0.5),
            at(0.99),
            cold[0],
            cold[2],
            warm[0],
            warm[1]
        );
        return Ok(());
    }
    println!(
        "corpus: {:.1} MB in {} files, {} chunks, {} documented functions",
        total as f64 / 1e6,
        files.len(),
        cold[4],
        functions.len()
    );
    println!("docstring kept     {kept}");
    println!("docstring removed  {removed}");
    println!("query: p50 {:.2} ms, p99 {:.2} ms", at(0.5), at(0.99));
    println!(
        "build: {} s, {} MB peak, {} MB after; reload: {} s, {} MB; on disk {:.1} MB",
        cold[0],
        cold[2],
        cold[1],
        warm[0],
        warm[1],
        stored as f64 / 1e6
    );
    Ok(())
}

impl Recall {
    fn json(&self) -> String {
        let Self { at_1, at_8, at_50, asked, .. } = self;
        format!("{{\"n\": {asked}, \"at_1\": {at_1}, \"at_8\": {at_8}, \"at_50\": {at_50}}}")
    }
}

impl std::fmt::Display for Recall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let part = |n: usize| n as f64 / self.asked.max(1) as f64;
        let (one, eight, fifty) = (part(self.at_1), part(self.at_8), part(self.at_50));
        write!(f, "n {}: r@1 {one:.3}, r@8 {eight:.3}, r@50 {fifty:.3}", self.asked)
    }
}

/// Python files below a directory, whole packages in a fixed random order up to some bytes.
fn corpus(dir: &Path, bytes: u64) -> Result<(Vec<PathBuf>, u64)> {
    let mut packages: BTreeMap<(u64, PathBuf), Vec<(PathBuf, u64)>> = BTreeMap::new();
    let mut below = vec![dir.to_path_buf()];
    while let Some(next) = below.pop() {
        for entry in fs::read_dir(&next)?.flatten() {
            let (path, kind) = (entry.path(), entry.file_type()?);
            if kind.is_dir() {
                below.push(path);
            } else if kind.is_file() && path.extension().is_some_and(|e| e == "py") {
                let relative = path.strip_prefix(dir)?.to_path_buf();
                let package =
                    PathBuf::from(relative.components().next().ok_or("a path")?.as_os_str());
                let size = entry.metadata()?.len();
                if size <= taper_longctx::MAX_FILE_BYTES && !taper_longctx::is_denied(&relative) {
                    packages.entry((hash(&package), package)).or_default().push((relative, size));
                }
            }
        }
    }
    let (mut files, mut total) = (Vec::new(), 0);
    'all: for mut package in packages.into_values() {
        package.sort();
        for (file, size) in package {
            if total + size > bytes {
                break 'all;
            }
            total += size;
            files.push(file);
        }
    }
    Ok((files, total))
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// Functions with a docstring whose first sentence has four words.
fn documented(file: &Path, text: &str) -> Vec<Function> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (def, line) in lines.iter().enumerate() {
        let start = line.trim_start();
        if !start.starts_with("def ") && !start.starts_with("async def ") {
            continue;
        }
        let Some(end) =
            (def..lines.len().min(def + 30)).find(|at| lines[*at].trim_end().ends_with(':'))
        else {
            continue;
        };
        let Some(first) = lines.get(end + 1) else { continue };
        let open = first.trim_start().trim_start_matches(['r', 'R']);
        let Some(rest) = open.strip_prefix("\"\"\"") else { continue };
        let last = match rest.contains("\"\"\"") {
            true => end + 1,
            false => match (end + 2..lines.len()).find(|at| lines[*at].contains("\"\"\"")) {
                Some(last) => last,
                None => continue,
            },
        };
        let body = lines[end + 1..=last].join(" ").replace("\"\"\"", " ");
        let words: Vec<&str> = body.split_whitespace().collect();
        let until = words.iter().position(|w| w.ends_with('.')).map_or(words.len(), |at| at + 1);
        let sentence = words[..until.min(40)].join(" ");
        let said = sentence.split(' ').filter(|w| w.chars().any(char::is_alphabetic)).count();
        // The function must still have a body without it.
        let has_body = lines.get(last + 1).is_some_and(|l| !l.trim().is_empty());
        if said >= 4 && has_body {
            found.push(Function { file: file.to_owned(), def, doc: (end + 1, last), sentence });
        }
    }
    found
}

/// Some of them, always the same.
fn sample(all: &[Function], most: usize, seed: u64) -> Vec<Function> {
    let mut order: Vec<_> = all.iter().map(|f| (hash(&(seed, &f.file, f.def)), f)).collect();
    order.sort_by_key(|(hash, _)| *hash);
    order.into_iter().take(most).map(|(_, f)| f.clone()).collect()
}

/// Copies the corpus without the docstrings of some functions.
fn copy(from: &Path, files: &[PathBuf], to: &Path, without: &[Function]) -> Result<()> {
    for file in files {
        let path = to.join(file);
        fs::create_dir_all(path.parent().ok_or("a directory")?)?;
        let bytes = fs::read(from.join(file))?;
        let docs: Vec<_> = without.iter().filter(|f| f.file == *file).map(|f| f.doc).collect();
        if docs.is_empty() {
            fs::write(path, bytes)?;
            continue;
        }
        // Lines stay where they are.
        let text = String::from_utf8_lossy(&bytes);
        let is_doc = |at: usize| docs.iter().any(|(first, last)| (*first..=*last).contains(&at));
        let kept = text.lines().enumerate().map(|(at, line)| if is_doc(at) { "" } else { line });
        fs::write(path, kept.collect::<Vec<_>>().join("\n"))?;
    }
    Ok(())
}

fn child(root: &Path, index: &Path) -> Result<Vec<String>> {
    let own = std::env::current_exe()?;
    let out = Command::new(own).arg("--build").arg(root).arg(index).output()?;
    if !out.status.success() {
        return Err(String::from_utf8_lossy(&out.stderr).into_owned().into());
    }
    Ok(String::from_utf8(out.stdout)?.split_whitespace().map(str::to_owned).collect())
}

fn is_of(chunk: &FoundChunk, f: &Function) -> bool {
    let line = f.def as u32 + 1;
    Path::new(&chunk.file_path) == f.file && (chunk.start_line..=chunk.end_line).contains(&line)
}

fn ask(
    library: &Library,
    root: &Path,
    functions: &[Function],
    is_answer: impl Fn(&FoundChunk, &Function, &str) -> bool,
) -> Result<Recall> {
    let mut recall = Recall::default();
    for function in functions {
        let text = fs::read_to_string(root.join(&function.file)).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        let doc = lines[function.doc.0..=function.doc.1].join("\n");
        let request = SearchRequest::new(function.sentence.as_str());
        let start = Instant::now();
        library.search(&request)?;
        recall.times.push(start.elapsed());
        let more =
            SearchRequest { max_results: 50, max_per_file: 64, max_tokens: 1_000_000, ..request };
        let answer = library.search(&more)?;
        let place = answer.chunks.iter().position(|c| is_answer(c, function, &doc));
        recall.asked += 1;
        recall.at_1 += usize::from(place.is_some_and(|p| p < 1));
        recall.at_8 += usize::from(place.is_some_and(|p| p < 8));
        recall.at_50 += usize::from(place.is_some_and(|p| p < 50));
    }
    Ok(recall)
}
