//! Rules for English: doc comments that can be read alone, and words that every reader knows.

use super::Finding;

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
        let prose = if rust { comment(line) } else { Some(line) };
        for (phrase, plain) in prose.into_iter().flat_map(private) {
            let message = format!("{phrase:?} is no usual English; say: {plain}");
            findings.push(Finding::error(path, i + 1, message));
        }
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

/// What follows `//` in a line.
fn comment(line: &str) -> Option<&str> {
    line.split_once("//").map(|(_, words)| words)
}

/// The private phrases in some words.
fn private(words: &str) -> Vec<(&'static str, &'static str)> {
    let words = words.to_lowercase();
    PRIVATE.into_iter().filter(|(phrase, _)| contains(&words, phrase)).collect()
}

/// Whether a phrase stands in a text as whole words; its last word may have another ending.
fn contains(words: &str, phrase: &str) -> bool {
    let begins = |at: usize| !words[..at].ends_with(char::is_alphanumeric);
    words.match_indices(phrase).any(|(at, _)| begins(at))
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
