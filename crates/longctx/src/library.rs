//! All roots, and what can be asked of them.

use crate::{
    answer::{
        FoundChunk, MAX_RESULTS, MAX_TOKENS, MAX_WAIT_MS, ProjectSummary, ProjectsAnswer,
        ReadAnswer, ReadRequest, RelatedRequest, SearchAnswer, SearchRequest, StatusAnswer,
    },
    chunk,
    error::Error,
    fence::suspicious_phrases,
    index::{Hit, Question},
    project::{Project, Settings},
    read::{self, Source},
};
use std::{
    collections::{BTreeSet, HashMap, HashSet},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

/// Hits that are looked at for each result that is wanted.
const DEPTH: usize = 8;

/// Below this a result has too little of the query to be called one.
const RELEVANT: f32 = 0.25;

/// Bytes of a token, roughly.
const TOKEN: usize = 4;

/// Longer queries are texts to find the likes of, and their beginning says enough.
const MOST_QUERY: usize = 16 << 10;

/// Some roots, each with its index.
#[derive(Debug)]
pub struct Library {
    projects: Vec<Arc<Project>>,
}

impl Library {
    /// Opens every root.
    ///
    /// # Errors
    /// [`Error::NoRoots`], and those of [`Project::open`].
    pub fn open<P: AsRef<Path>>(roots: &[P], settings: &Settings) -> Result<Self, Error> {
        if roots.is_empty() {
            return Err(Error::NoRoots);
        }
        let mut projects: Vec<Arc<Project>> = Vec::new();
        for root in roots {
            let project = Project::open(root.as_ref(), settings)?;
            if projects.iter().all(|own| own.root() != project.root()) {
                projects.push(project);
            }
        }
        Ok(Self { projects })
    }

    /// The projects, in the order of their roots. Of two with one name, the first is found by it.
    #[must_use]
    pub fn projects(&self) -> &[Arc<Project>] {
        &self.projects
    }

    fn chosen(&self, name: Option<&str>) -> Result<Vec<&Arc<Project>>, Error> {
        let Some(name) = name else { return Ok(self.projects.iter().collect()) };
        let found = self.projects.iter().find(|p| p.name() == name || p.root() == Path::new(name));
        let known = || self.projects.iter().map(|p| p.name()).collect::<Vec<_>>().join(", ");
        let unknown = || Error::UnknownProject { name: name.to_owned(), known: known() };
        Ok(vec![found.ok_or_else(unknown)?])
    }

    /// Finds chunks.
    ///
    /// # Errors
    /// [`Error::UnknownProject`] and [`Error::Invalid`].
    pub fn search(&self, request: &SearchRequest) -> Result<SearchAnswer, Error> {
        let SearchRequest { max_results, max_tokens, max_per_file, wait_ms, .. } = *request;
        range("max_results", max_results, 1, MAX_RESULTS)?;
        range("max_tokens", max_tokens, 1, MAX_TOKENS)?;
        range("max_per_file", max_per_file, 1, MAX_RESULTS)?;
        range("wait_ms", wait_ms, 0, MAX_WAIT_MS)?;
        let text = &request.query[..request.query.floor_char_boundary(MOST_QUERY)];
        let question = Question::new(text);
        if question.is_empty() {
            let why = "it has no word to search for".to_owned();
            return Err(Error::Invalid { field: "query", why });
        }
        let projects = self.chosen(request.project.as_deref())?;
        let prefix = request.path_prefix.as_deref().unwrap_or("");
        let wait = Duration::from_millis(wait_ms.into());
        Ok(answer(
            &projects,
            &question,
            &Limits { max_results, max_per_file, max_tokens, wait, prefix, not: None },
        ))
    }

    /// Reads lines of an indexed file.
    ///
    /// # Errors
    /// [`Error::UnknownFile`] for whatever is not indexed, and [`Error::File`].
    pub fn read(&self, request: &ReadRequest) -> Result<ReadAnswer, Error> {
        range("start_line", request.start_line, 1, u32::MAX)?;
        range("max_tokens", request.max_tokens, 1, MAX_TOKENS)?;
        range("end_line", request.end_line.unwrap_or(u32::MAX), request.start_line, u32::MAX)?;
        let (project, source) = self.source(request.project.as_deref(), &request.file_path)?;
        let lines: Vec<&str> = source.text.lines().collect();
        let total_lines = u32::try_from(lines.len()).unwrap_or(u32::MAX);
        let last = request.end_line.unwrap_or(total_lines).min(total_lines);
        let most = request.max_tokens as usize * TOKEN;
        let (mut text, mut end_line) = (String::new(), request.start_line - 1);
        for line in chunk::line_range(&lines, request.start_line, last) {
            if text.len() + line.len() >= most {
                let room = line.floor_char_boundary(most.saturating_sub(text.len()));
                if text.is_empty() {
                    text.push_str(&line[..room]);
                    end_line += 1;
                }
                break;
            }
            text.push_str(line);
            text.push('\n');
            end_line += 1;
        }
        Ok(ReadAnswer {
            project: project.name().to_owned(),
            file_path: request.file_path.clone(),
            start_line: request.start_line,
            end_line,
            total_lines,
            truncated: end_line < last,
            text,
        })
    }

    /// Finds chunks with the words of another.
    ///
    /// # Errors
    /// [`Error::UnknownFile`], [`Error::File`] and [`Error::Invalid`].
    pub fn related(&self, request: &RelatedRequest) -> Result<SearchAnswer, Error> {
        range("max_results", request.max_results, 1, MAX_RESULTS)?;
        let path = &request.file_path;
        let (project, source) = self.source(request.project.as_deref(), path)?;
        let lines: Vec<&str> = source.text.lines().collect();
        let place = request.line.and_then(|line| {
            let index = project.index();
            let docs = index.file(path)?.docs.clone();
            let own = docs.map(|id| index.doc(id)).find(|d| d.start <= line && line <= d.end)?;
            Some((own.start, own.end))
        });
        let (start, end) = place.unwrap_or((1, u32::MAX));
        let text = chunk::line_range(&lines, start, end).join("\n");
        let question = project.index().telling(&Question::new(&text));
        let limits = Limits {
            max_results: request.max_results,
            max_per_file: request.max_results,
            max_tokens: MAX_TOKENS,
            wait: Duration::ZERO,
            prefix: "",
            not: Some((project.root(), path, start, end)),
        };
        if question.is_empty() {
            return Ok(SearchAnswer { no_relevant_results: true, ..SearchAnswer::default() });
        }
        let projects: Vec<_> = self.projects.iter().collect();
        Ok(answer(&projects, &question, &limits))
    }

    /// All projects in short.
    #[must_use]
    pub fn summaries(&self) -> ProjectsAnswer {
        let of = |project: &Arc<Project>| ProjectSummary {
            name: project.name().to_owned(),
            root: project.root().to_string_lossy().into_owned(),
            files: project.index().live_files(),
            chunks: project.index().live_docs(),
        };
        ProjectsAnswer { projects: self.projects.iter().map(of).collect() }
    }

    /// The condition of everything.
    #[must_use]
    pub fn status(&self) -> StatusAnswer {
        StatusAnswer {
            version: env!("CARGO_PKG_VERSION"),
            mode: "local-only",
            projects: self.projects.iter().map(|p| p.status()).collect(),
        }
    }

    /// An indexed file as it is now. What is not in an index is not looked at.
    fn source(&self, project: Option<&str>, path: &str) -> Result<(&Arc<Project>, Source), Error> {
        let unknown = || Error::UnknownFile { path: path.to_owned() };
        let projects = self.chosen(project)?;
        let find = || projects.iter().find(|p| p.index().file(path).is_some());
        let mut found = find();
        if found.is_none() {
            // It may be new.
            for project in &projects {
                project.settle(Duration::from_millis(MAX_WAIT_MS.into()));
            }
            found = find();
        }
        let project = found.ok_or_else(unknown)?;
        let source = read::read(project.root(), Path::new(path));
        let source =
            source.map_err(|skip| Error::File { path: path.to_owned(), why: skip.to_string() })?;
        Ok((project, source))
    }
}

fn range(field: &'static str, value: u32, min: u32, max: u32) -> Result<(), Error> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    let why = if max == u32::MAX {
        format!("must be at least {min}")
    } else {
        format!("must be from {min} to {max}")
    };
    Err(Error::Invalid { field, why })
}

/// What an answer may have.
struct Limits<'a> {
    max_results: u32,
    max_per_file: u32,
    max_tokens: u32,
    wait: Duration,
    prefix: &'a str,
    /// Lines of a file that are not wanted: root, path, first and last line.
    not: Option<(&'a Path, &'a str, u32, u32)>,
}

/// A hit with what is needed to read it.
struct Found {
    project: Arc<Project>,
    chunk: FoundChunk,
    score: f32,
    file_hash: u128,
    text_hash: u64,
}

fn answer(projects: &[&Arc<Project>], question: &Question, limits: &Limits<'_>) -> SearchAnswer {
    // Who does not wait is not told that all is there.
    let mut fresh = !limits.wait.is_zero();
    for project in projects.iter().filter(|_| !limits.wait.is_zero()) {
        fresh &= project.settle(limits.wait);
    }
    let mut answer = gather(projects, question, limits);
    if !answer.stale_files.is_empty() {
        // A file changed after its news were heard of. Once more; then it is said.
        for project in projects {
            let changed: BTreeSet<PathBuf> =
                answer.stale_files.iter().map(|path| project.root().join(path)).collect();
            project.refresh(&changed);
        }
        answer = gather(projects, question, limits);
    }
    answer.is_fully_fresh = fresh && answer.stale_files.is_empty();
    answer
}

fn gather(projects: &[&Arc<Project>], question: &Question, limits: &Limits<'_>) -> SearchAnswer {
    let mut found: Vec<Found> = projects.iter().flat_map(|p| find(p, question, limits)).collect();
    if projects.len() > 1 {
        // The sort is stable.
        found.sort_by(|a, b| b.score.total_cmp(&a.score));
    }
    let mut answer = SearchAnswer::default();
    let most_of_file = limits.max_per_file as usize;
    let (mut bytes, mut seen) = (0, HashSet::new());
    let mut of_file: HashMap<(String, String), usize> = HashMap::new();
    let mut sources: HashMap<(String, String), Option<Source>> = HashMap::new();
    for Found { project, mut chunk, file_hash, text_hash, .. } in found {
        if answer.chunks.len() >= limits.max_results as usize {
            break;
        }
        let file = (project.root().to_string_lossy().into_owned(), chunk.file_path.clone());
        if of_file.get(&file).is_some_and(|n| *n >= most_of_file) || seen.contains(&text_hash) {
            continue;
        }
        let read = || read::read(project.root(), Path::new(&chunk.file_path)).ok();
        let source = sources.entry(file.clone()).or_insert_with(read);
        let Some(source) = source.as_ref().filter(|s| s.hash == file_hash) else {
            if !answer.stale_files.contains(&chunk.file_path) {
                answer.stale_files.push(chunk.file_path);
            }
            continue;
        };
        let lines: Vec<&str> = source.text.lines().collect();
        chunk.text = chunk::line_range(&lines, chunk.start_line, chunk.end_line).join("\n");
        let most = limits.max_tokens as usize * TOKEN;
        if !answer.chunks.is_empty() && bytes + chunk.text.len() > most {
            continue;
        }
        chunk.suspicious_phrases = suspicious_phrases(&chunk.text);
        bytes += chunk.text.len();
        seen.insert(text_hash);
        *of_file.entry(file).or_default() += 1;
        answer.chunks.push(chunk);
    }
    let best = answer.chunks.iter().map(|c| c.relevance_score).fold(0.0, f32::max);
    answer.no_relevant_results = best < RELEVANT;
    answer
}

/// The best chunks of one project, without their texts.
fn find(project: &Arc<Project>, question: &Question, limits: &Limits<'_>) -> Vec<Found> {
    let index = project.index();
    let is_wanted = |hit: &Hit| {
        let doc = index.doc(hit.doc);
        let path = &*index.file_of(doc).path;
        let is_itself = limits.not.is_some_and(|(root, own, start, end)| {
            root == project.root() && own == path && doc.start >= start && doc.end <= end
        });
        path.starts_with(limits.prefix) && !is_itself
    };
    // What a prefix leaves out may be most of what is found.
    let most = match limits.prefix.is_empty() {
        true => limits.max_results as usize * DEPTH,
        false => usize::MAX,
    };
    let hits = index.search(question, most).into_iter().filter(is_wanted);
    hits.take(limits.max_results as usize * DEPTH)
        .map(|hit| {
            let doc = index.doc(hit.doc);
            let file = index.file_of(doc);
            let chunk = FoundChunk {
                project: project.name().to_owned(),
                file_path: file.path.to_string(),
                start_line: doc.start,
                end_line: doc.end,
                kind: doc.kind,
                symbol: doc.name.to_string(),
                parent: doc.parent.to_string(),
                text: String::new(),
                relevance_score: hit.relevance,
                suspicious_phrases: 0,
            };
            Found {
                project: Arc::clone(project),
                chunk,
                score: hit.score,
                file_hash: file.hash,
                text_hash: doc.hash,
            }
        })
        .collect()
}
