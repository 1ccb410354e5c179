//! Requests and answers, which are alike over every protocol.

use crate::{chunk::ChunkKind, project::ProjectStatus};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Most results of one request.
pub const MAX_RESULTS: u32 = 64;

/// Most tokens of one answer.
pub const MAX_TOKENS: u32 = 1_000_000;

/// How long a search waits for changes at most.
pub const MAX_WAIT_MS: u32 = 500;

/// A search.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SearchRequest {
    /// Words, a sentence, or an identifier.
    pub query: String,
    /// Search this project only; all by default.
    #[serde(default)]
    pub project: Option<String>,
    /// Search only files whose path from the root begins with this, such as "src/".
    #[serde(default)]
    pub path_prefix: Option<String>,
    /// Tokens that the texts may have together, at four bytes each. The first result is returned
    /// whatever its length.
    #[serde(default = "default_tokens")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub max_tokens: u32,
    /// Most results.
    #[serde(default = "default_results")]
    #[schemars(range(min = 1, max = 64))]
    pub max_results: u32,
    /// Most results of one file.
    #[serde(default = "default_per_file")]
    #[schemars(range(min = 1, max = 64))]
    pub max_per_file: u32,
    /// Milliseconds to wait for changes that are not indexed yet, 500 at most.
    #[serde(default = "default_wait")]
    #[schemars(range(max = 500))]
    pub wait_ms: u32,
}

fn default_tokens() -> u32 {
    4096
}

fn default_results() -> u32 {
    8
}

fn default_per_file() -> u32 {
    3
}

fn default_wait() -> u32 {
    MAX_WAIT_MS
}

impl SearchRequest {
    /// A search with the defaults.
    #[must_use]
    pub fn new(query: impl Into<String>) -> Self {
        Self {
            query: query.into(),
            project: None,
            path_prefix: None,
            max_tokens: default_tokens(),
            max_results: default_results(),
            max_per_file: default_per_file(),
            wait_ms: default_wait(),
        }
    }
}

/// Lines of a file that were found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FoundChunk {
    /// The project that the file is of.
    pub project: String,
    /// From the project's root, with slashes.
    pub file_path: String,
    /// The first line, from 1.
    pub start_line: u32,
    /// The last line.
    pub end_line: u32,
    /// What it is.
    pub kind: ChunkKind,
    /// The definition or the heading; empty for other lines.
    pub symbol: String,
    /// What is around the definition.
    pub parent: String,
    /// The lines, without keys and passwords.
    pub text: String,
    /// From 0 to 1: how much of the query is in it, weighed by how rare the words are.
    pub relevance_score: f32,
    /// Phrases in the text that give orders to a model.
    pub suspicious_phrases: u32,
}

/// The answer to a search.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct SearchAnswer {
    /// The best first.
    pub chunks: Vec<FoundChunk>,
    /// Every change before the search is in the answer.
    pub is_fully_fresh: bool,
    /// Files that changed while they were searched, and are left out.
    pub stale_files: Vec<String>,
    /// Nothing that was found has much of the query.
    pub no_relevant_results: bool,
}

/// Lines to read.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReadRequest {
    /// From the project's root, as search gives it.
    pub file_path: String,
    /// The project; needed only if several have such a file.
    #[serde(default)]
    pub project: Option<String>,
    /// The first line, from 1.
    #[serde(default = "first_line")]
    #[schemars(range(min = 1))]
    pub start_line: u32,
    /// The last line [default: the end].
    #[serde(default)]
    pub end_line: Option<u32>,
    /// Tokens after which the text is cut, at four bytes each.
    #[serde(default = "default_tokens")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub max_tokens: u32,
}

fn first_line() -> u32 {
    1
}

/// Lines of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReadAnswer {
    /// The project that the file is of.
    pub project: String,
    /// From the project's root.
    pub file_path: String,
    /// The first line that is returned.
    pub start_line: u32,
    /// The last line that is returned; less than the first if there are none.
    pub end_line: u32,
    /// Lines of the file.
    pub total_lines: u32,
    /// The lines, without keys and passwords.
    pub text: String,
    /// Lines that were asked for are left out.
    pub truncated: bool,
}

/// What to find the likes of.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RelatedRequest {
    /// From the project's root, as search gives it.
    pub file_path: String,
    /// The project; needed only if several have such a file.
    #[serde(default)]
    pub project: Option<String>,
    /// A line of the definition to start from [default: the whole file].
    #[serde(default)]
    pub line: Option<u32>,
    /// Most results.
    #[serde(default = "default_related")]
    #[schemars(range(min = 1, max = 64))]
    pub max_results: u32,
}

fn default_related() -> u32 {
    5
}

/// All projects.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ProjectsAnswer {
    /// In the order of the command line.
    pub projects: Vec<ProjectSummary>,
}

/// A project in short.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ProjectSummary {
    /// Its name in requests.
    pub name: String,
    /// Its directory.
    pub root: String,
    /// Files in the index.
    pub files: usize,
    /// Chunks in the index.
    pub chunks: usize,
}

/// The condition of everything.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct StatusAnswer {
    /// Of this program.
    pub version: &'static str,
    /// Always "local-only": nothing leaves the machine.
    pub mode: &'static str,
    /// Of each project.
    pub projects: Vec<ProjectStatus>,
}
