//! Prose by its headings.

use super::{Chunk, ChunkKind, count, window::windows};

/// Sections of a text, each with the headings above it as its parent.
pub(super) fn chunks(lines: &[&str]) -> Vec<Chunk> {
    let mut chunks = Vec::new();
    // Levels and texts of the headings that the current line is under.
    let mut above: Vec<(usize, String)> = Vec::new();
    let (mut start, mut fenced) = (1, false);
    let mut section = Chunk { kind: ChunkKind::Section, ..Chunk::text(0, 0, "") };
    for (line, text) in (1..).zip(lines) {
        let trimmed = text.trim_start();
        if trimmed.starts_with("```") || trimmed.starts_with("~~~") {
            fenced = !fenced;
        }
        let Some((level, heading)) = (!fenced).then(|| heading(text)).flatten() else { continue };
        windows(lines, start, line - 1, &section, &mut chunks);
        above.retain(|(of, _)| *of < level);
        let parents: Vec<&str> = above.iter().map(|(_, text)| text.as_str()).collect();
        section.parent = parents.join(" > ");
        heading.clone_into(&mut section.name);
        above.push((level, heading.to_owned()));
        start = line;
    }
    windows(lines, start, count(lines), &section, &mut chunks);
    chunks
}

/// The level and the text of a heading: `## Text` or `== Text`.
fn heading(line: &str) -> Option<(usize, &str)> {
    let sign = line.chars().next().filter(|c| matches!(c, '#' | '='))?;
    let rest = line.trim_start_matches(sign);
    let level = line.len() - rest.len();
    let text = rest.strip_prefix(' ')?.trim().trim_end_matches(sign).trim();
    (level <= 6 && !text.is_empty()).then_some((level, text))
}
