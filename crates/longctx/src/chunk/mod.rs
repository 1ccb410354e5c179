//! Files in pieces: definitions of code, sections of prose, windows of everything else.

#[cfg(feature = "tree-sitter")]
mod code;
#[cfg(feature = "tree-sitter")]
mod languages;
mod prose;
mod window;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Lines of a window, where nothing else cuts.
pub(crate) const WINDOW: u32 = 40;

/// What a chunk is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ChunkKind {
    /// A function or method.
    Function,
    /// The head of a class, trait, module or other container of definitions.
    Class,
    /// A section of prose under a heading.
    Section,
    /// Lines between these, or of a file whose language is not known.
    Text,
}

/// Consecutive lines of a file, with what is known of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Chunk {
    /// The first line, from 1.
    pub(crate) start: u32,
    /// The last line, which belongs to the chunk.
    pub(crate) end: u32,
    pub(crate) kind: ChunkKind,
    /// Name of the definition, or the heading; may be empty.
    pub(crate) name: String,
    /// Names of what is around it, outermost first, or the headings above.
    pub(crate) parent: String,
    /// A definition without its body.
    pub(crate) signature: String,
    /// Comments and documentation of the definition.
    pub(crate) doc: String,
}

impl Chunk {
    pub(crate) fn text(start: u32, end: u32, parent: &str) -> Self {
        Self {
            start,
            end,
            kind: ChunkKind::Text,
            name: String::new(),
            parent: parent.to_owned(),
            signature: String::new(),
            doc: String::new(),
        }
    }
}

/// Cuts a file into chunks, which do not overlap and leave out only lines without a letter.
pub(crate) fn chunks(path: &Path, text: &str) -> Vec<Chunk> {
    let lines: Vec<&str> = text.lines().collect();
    let suffix = path.extension().map(|s| s.to_string_lossy().to_ascii_lowercase());
    let suffix = suffix.as_deref().unwrap_or("");
    if matches!(suffix, "md" | "markdown" | "mdx" | "rst" | "adoc") {
        return prose::chunks(&lines);
    }
    #[cfg(feature = "tree-sitter")]
    if let Some(language) = languages::of(suffix, lines.first().copied().unwrap_or(""))
        && let Some(chunks) = code::chunks(language, text, &lines)
    {
        return chunks;
    }
    let mut chunks = Vec::new();
    window::windows(&lines, 1, count(&lines), &Chunk::text(0, 0, ""), &mut chunks);
    chunks
}

/// Whether definitions of a file with this suffix are found.
#[must_use]
pub fn is_known_language(suffix: &str) -> bool {
    #[cfg(feature = "tree-sitter")]
    return languages::of(suffix, "").is_some();
    #[cfg(not(feature = "tree-sitter"))]
    {
        let _ = suffix;
        false
    }
}

/// Names of the languages whose definitions are found, for the version of stored indexes.
pub(crate) fn languages() -> Vec<&'static str> {
    #[cfg(feature = "tree-sitter")]
    return languages::names();
    #[cfg(not(feature = "tree-sitter"))]
    Vec::new()
}

fn count(lines: &[&str]) -> u32 {
    u32::try_from(lines.len()).unwrap_or(u32::MAX)
}

/// Lines `start..=end`, from 1.
pub(crate) fn line_range<'a, 'b>(lines: &'a [&'b str], start: u32, end: u32) -> &'a [&'b str] {
    let end = (end as usize).min(lines.len());
    let start = (start.max(1) as usize - 1).min(end);
    &lines[start..end]
}

#[cfg(test)]
mod tests;
