//! Rules for English: doc comments that can be read alone, and words that every reader knows.

use super::{Finding, comments::comments};
use std::collections::BTreeSet;

/// What no doc comment opens with: it refers to a neighbour that documentation shows elsewhere.
const OPENERS: [&str; 6] = ["The same", "Likewise", "Those of", "Of the", "As above", "Ditto"];

/// Phrases that only this project used, in lower case, each with what others say.
const PRIVATE: [(&str, &str); 10] = [
    ("ours and theirs", "name both engines"),
    ("in one sitting", "in one session"),
    ("in turns", "alternating, or interleaved"),
    ("in company", "in a batch"),
    ("each other's company", "on its own"),
    ("thrown back into the queue", "preempted"),
    ("for want of", "because there was no"),
    ("refused at the door", "rejected at admission"),
    ("finish even alone", "never fit"),
    ("young block", "a block that is still filled"),
];

/// Checks a file; `path` is from the workspace's root with `/`.
pub(super) fn check(path: &str, text: &str) -> Vec<Finding> {
    let (rust, markdown) = (path.ends_with(".rs"), path.ends_with(".md"));
    let mut findings = Vec::new();
    if !rust && !markdown {
        return findings;
    }
    for (i, line) in text.lines().enumerate() {
        if let Some(opener) = opener(line).filter(|_| rust) {
            let message = format!("a doc comment opens with {opener:?}: name the thing");
            findings.push(Finding::error(path, i + 1, message));
        }
    }
    let prose = if rust { comments(text) } else { text.lines().map(Some).collect() };
    for (line, phrase, plain) in paragraphs(&prose).iter().flat_map(Paragraph::private) {
        let message = format!("{phrase:?} is no usual English; say: {plain}");
        findings.push(Finding::error(path, line, message));
    }
    findings
}

/// The forbidden words that a line of a doc comment opens with.
fn opener(line: &str) -> Option<&'static str> {
    let line = line.trim_start();
    let words = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"))?.trim_start();
    let opens = |opener: &&str| {
        let rest = words.strip_prefix(opener);
        rest.is_some_and(|rest| !rest.starts_with(char::is_alphanumeric))
    };
    OPENERS.into_iter().find(opens)
}

/// Lines of prose that belong together, joined by blanks, in lower case.
#[derive(Default)]
struct Paragraph {
    words: String,
    /// Where each line begins in `words`, and its number.
    lines: Vec<(usize, usize)>,
}

/// Joins lines that follow each other: a phrase may be wrapped.
fn paragraphs(prose: &[Option<&str>]) -> Vec<Paragraph> {
    let mut all = vec![Paragraph::default()];
    for (i, line) in prose.iter().enumerate() {
        // Marks of comments, quotations and lists.
        let marks = |c: char| c.is_whitespace() || "/!>*-".contains(c);
        let line = line.map(|line| line.trim_start_matches(marks).trim_end()).unwrap_or_default();
        match all.last_mut() {
            Some(last) if !line.is_empty() => {
                last.lines.push((last.words.len(), i + 1));
                last.words.push_str(&line.to_lowercase());
                last.words.push(' ');
            }
            _ => all.push(Paragraph::default()),
        }
    }
    all
}

impl Paragraph {
    /// The private phrases with the lines that they begin in, and what to say.
    fn private(&self) -> Vec<(usize, &'static str, &'static str)> {
        let line = |at| self.lines.iter().rev().find(|(start, _)| *start <= at).map(|(_, n)| *n);
        let of = |(phrase, plain)| {
            let places = places(&self.words, phrase).into_iter();
            places.filter_map(move |at| Some((line(at)?, phrase, plain)))
        };
        let found: BTreeSet<_> = PRIVATE.into_iter().flat_map(of).collect();
        found.into_iter().collect()
    }
}

/// Where a phrase stands in a text as whole words; its last word may have another ending.
fn places(words: &str, phrase: &str) -> Vec<usize> {
    let begins = |at: &usize| !words[..*at].ends_with(char::is_alphanumeric);
    words.match_indices(phrase).map(|(at, _)| at).filter(begins).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        check(path, text).iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn doc_comments_stand_alone() {
        for opener in OPENERS {
            for mark in ["///", "//!", "    ///"] {
                let text = format!("{mark} Good.\n{mark} {opener} rows.\n");
                assert_eq!(lines("crates/x/src/a.rs", &text), [2], "{text}");
            }
            assert_eq!(lines("a.rs", &format!("/// {opener}.")), [1]);
        }
    }

    #[test]
    fn other_lines_may_open_as_they_like() {
        for opener in OPENERS {
            assert!(lines("a.rs", &format!("// {opener} rows.")).is_empty());
            assert!(lines("a.rs", &format!("let x = \"{opener}\";")).is_empty());
            assert!(lines("a.md", &format!("{opener} rows.")).is_empty());
            assert!(lines("a.rs", &format!("/// Rows. {opener} rows.")).is_empty());
        }
        assert!(lines("a.rs", "/// Of these rows.").is_empty());
    }

    #[test]
    fn private_phrases_are_found_in_comments_and_markdown() {
        for (phrase, _) in PRIVATE {
            let text = format!("x\nIt says {phrase} here.");
            assert_eq!(lines("docs/a.md", &text), [2]);
            assert_eq!(lines("a.md", &text.to_uppercase()), [2]);
            assert_eq!(lines("a.rs", &format!("let x = 1; // {phrase}")), [1]);
            assert_eq!(lines("a.rs", &format!("//! {phrase}")), [1]);
            assert!(lines("a.rs", &format!("let x = \"{phrase}\";")).is_empty());
            assert!(lines("a.txt", &text).is_empty());
        }
    }

    #[test]
    fn wrapped_phrases_are_found_where_they_begin() {
        for (phrase, _) in PRIVATE {
            let (first, rest) = phrase.split_once(' ').unwrap();
            assert_eq!(lines("a.rs", &format!("x;\n/// It {first}\n    /// {rest} x")), [2]);
            assert_eq!(lines("a.md", &format!("x\n\n> It {first}\n> {rest}")), [3]);
            assert!(lines("a.md", &format!("{first}\n\n{rest}")).is_empty());
            assert!(lines("a.rs", &format!("// {first}\nlet x = 1;\n// {rest}")).is_empty());
        }
    }

    #[test]
    fn phrases_are_whole_words() {
        assert!(lines("a.md", &format!("with{}", PRIVATE[2].0)).is_empty());
    }

    #[test]
    fn messages_say_what_is_better() {
        let (phrase, plain) = PRIVATE[0];
        let found = check("a.md", phrase);
        assert!(found[0].message.contains(plain), "{found:?}");
    }
}
