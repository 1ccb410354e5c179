//! Which part of the roots a prompt is about.
//!
//! Paths in a prompt choose among what the roots allow, and never add to it.

use crate::{Library, Project};
use regex::Regex;
use std::{
    collections::{BTreeSet, HashMap},
    path::{Component, Path, PathBuf, Prefix},
    sync::{Arc, Mutex, OnceLock, PoisonError},
};
use xxhash_rust::xxh3::xxh3_64;

/// Files that mark the directory of a project.
const SENTINELS: [&str; 10] = [
    ".git",
    "pyproject.toml",
    "package.json",
    "pnpm-workspace.yaml",
    "Cargo.toml",
    "go.mod",
    "WORKSPACE",
    "BUILD.bazel",
    "pom.xml",
    "Gemfile",
];

/// Directories of a repository whose children are projects of their own.
const GROUPS: [&str; 6] = ["apps", "packages", "services", "libs", "crates", "modules"];

/// Files of a directory without a sentinel that make it a scope: at once, and over several turns.
const MANY_FILES: usize = 5;
const SOME_FILES: usize = 3;

/// Paths of a prompt that are looked at, and characters of its end.
const MOST_PATHS: usize = 64;
const MOST_TEXT: usize = 1 << 20;

/// Files and scopes that a session remembers, the last ones.
const MOST_FILES: usize = 256;
const MOST_SCOPES: usize = 64;

/// Sessions that are remembered.
const MOST_SESSIONS: usize = 10_000;

/// A directory to search in.
#[derive(Debug, Clone)]
pub(crate) struct Scope {
    pub(crate) project: Arc<Project>,
    /// Canonical, in the root of the project.
    pub(crate) path: PathBuf,
    pub(crate) sentinel: String,
}

impl Scope {
    /// What paths of its files begin with.
    pub(crate) fn prefix(&self) -> String {
        match self.path.strip_prefix(self.project.root()) {
            Ok(below) if !below.as_os_str().is_empty() => {
                format!("{}/", crate::project::slashed(below))
            }
            _ => String::new(),
        }
    }

    pub(crate) fn hash(&self) -> String {
        format!("{:016x}", xxh3_64(self.path.to_string_lossy().as_bytes()))
    }
}

#[derive(Debug, Default)]
struct Session {
    turns: u32,
    /// Files without a sentinel that were named.
    files: Vec<PathBuf>,
    scopes: Vec<Scope>,
    used: u64,
}

/// Scopes of all sessions.
#[derive(Debug, Default)]
pub(crate) struct Scopes {
    sessions: Mutex<(HashMap<String, Session>, u64)>,
}

impl Scopes {
    /// The scope of a prompt: that of the last path in it, or the session's last one.
    pub(crate) fn of(
        &self,
        library: &Library,
        text: &str,
        relative_to: Option<&Path>,
        session: Option<&str>,
    ) -> Option<Scope> {
        let named = paths(text, relative_to);
        let found: Vec<(PathBuf, Option<Scope>)> = named
            .into_iter()
            .filter_map(|path| {
                let project = project_of(library, &path)?;
                let scope = sentinel(project, &path);
                Some((path, scope))
            })
            .collect();
        // The first scope of a prompt is that of its workspace.
        let direct = found.iter().find_map(|(_, scope)| scope.clone());
        let Some(id) = session else { return direct };
        let loose = found.into_iter().filter(|(path, scope)| scope.is_none() && path.is_file());
        let loose: Vec<PathBuf> = loose.map(|(path, _)| path).collect();
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        let (by_id, uses) = &mut *sessions;
        *uses += 1;
        let own = by_id.entry(id.to_owned()).or_default();
        own.used = *uses;
        if loose.iter().any(|path| !own.files.contains(path)) {
            own.turns += 1;
        }
        own.files.retain(|file| !loose.contains(file));
        own.files.extend(loose);
        own.files.drain(..own.files.len().saturating_sub(MOST_FILES));
        let scope = direct.or_else(|| cluster(library, own));
        if let Some(scope) = scope {
            own.scopes.retain(|other| other.path != scope.path);
            own.scopes.push(scope);
            own.scopes.drain(..own.scopes.len().saturating_sub(MOST_SCOPES));
        }
        let last = own.scopes.last().cloned();
        make_room(by_id);
        last
    }

    /// All scopes that a session has had.
    pub(crate) fn all(&self, session: Option<&str>) -> Vec<Scope> {
        let sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        session.and_then(|id| sessions.0.get(id)).map(|s| s.scopes.clone()).unwrap_or_default()
    }

    pub(crate) fn sessions(&self) -> usize {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner).0.len()
    }

    /// Remembers that a session exists.
    pub(crate) fn touch(&self, session: &str) {
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        let (by_id, uses) = &mut *sessions;
        *uses += 1;
        by_id.entry(session.to_owned()).or_default().used = *uses;
        make_room(by_id);
    }
}

/// Forgets the session that is longest unused, if there are too many.
fn make_room(by_id: &mut HashMap<String, Session>) {
    if by_id.len() > MOST_SESSIONS {
        let oldest = by_id.iter().min_by_key(|(_, s)| s.used).map(|(id, _)| id.clone());
        oldest.map(|id| by_id.remove(&id));
    }
}

/// A directory that is named, if a root allows it.
pub(crate) fn explicit(library: &Library, path: &str) -> Option<Scope> {
    let path = Path::new(path);
    let path = is_local(path).then(|| path.canonicalize().ok())??;
    let path = Some(path).filter(|path| path.is_dir())?;
    let project = Arc::clone(project_of(library, &path)?);
    Some(Scope { project, path, sentinel: "explicit".to_owned() })
}

fn project_of<'a>(library: &'a Library, path: &Path) -> Option<&'a Arc<Project>> {
    let inside = library.projects().iter().filter(|p| path.starts_with(p.root()));
    inside.max_by_key(|p| p.root().components().count())
}

/// Whether a path is on a disk of this machine. To ask a share of another one about a file gives it the user's name.
fn is_local(path: &Path) -> bool {
    path.components().all(|part| match part {
        Component::Prefix(prefix) => matches!(prefix.kind(), Prefix::Disk(_)),
        _ => true,
    })
}

/// Existing files and directories that a text names, canonical.
fn paths(text: &str, relative_to: Option<&Path>) -> Vec<PathBuf> {
    static PATHS: OnceLock<Option<Regex>> = OnceLock::new();
    let pattern =
        PATHS.get_or_init(|| Regex::new(r"(?:[A-Za-z]:)?[\w.@+~/\\-]*[/\\][\w.@+~/\\-]*").ok());
    let Some(pattern) = pattern else { return Vec::new() };
    let text = &text[text.ceil_char_boundary(text.len().saturating_sub(MOST_TEXT))..];
    let mut found: Vec<PathBuf> = Vec::new();
    for named in pattern.find_iter(text).take(MOST_PATHS * 16) {
        let named = Path::new(named.as_str().trim_end_matches(['.', '/', '\\']));
        let path = match relative_to {
            _ if named.is_absolute() => named.to_path_buf(),
            Some(dir) => dir.join(named),
            None => continue,
        };
        if is_local(&path)
            && let Ok(path) = path.canonicalize()
            && !found.contains(&path)
        {
            found.push(path);
        }
        if found.len() >= MOST_PATHS {
            break;
        }
    }
    found
}

/// The directory around a path that a file marks as a project, at most the root.
fn sentinel(project: &Arc<Project>, path: &Path) -> Option<Scope> {
    let start = if path.is_dir() { path } else { path.parent()? };
    for dir in start.ancestors().take_while(|dir| dir.starts_with(project.root())) {
        let Some(mark) = SENTINELS.iter().find(|name| dir.join(name).exists()) else { continue };
        let mut below = path.strip_prefix(dir).ok()?.components();
        let group = below.next().map(|c| c.as_os_str().to_string_lossy().into_owned());
        let part = below.next().map(|part| dir.join(group.as_deref().unwrap_or("")).join(part));
        let part =
            part.filter(|p| p.is_dir() && group.is_some_and(|g| GROUPS.contains(&g.as_str())));
        let path = part.unwrap_or_else(|| dir.to_path_buf());
        return Some(Scope { project: Arc::clone(project), path, sentinel: (*mark).to_owned() });
    }
    None
}

/// The directory that holds enough of the files that a session named.
fn cluster(library: &Library, session: &Session) -> Option<Scope> {
    let needed = if session.turns >= 2 { SOME_FILES } else { MANY_FILES };
    let dirs: BTreeSet<&Path> =
        session.files.iter().filter_map(|f| f.parent()).flat_map(Path::ancestors).collect();
    let holds = |dir: &&Path| session.files.iter().filter(|f| f.starts_with(dir)).count() >= needed;
    // The deepest says most.
    let allowed = dirs.into_iter().filter(|dir| project_of(library, dir).is_some());
    let path = allowed.filter(holds).max_by_key(|dir| dir.components().count())?.to_path_buf();
    let project = Arc::clone(project_of(library, &path)?);
    Some(Scope { project, path, sentinel: "cluster".to_owned() })
}
