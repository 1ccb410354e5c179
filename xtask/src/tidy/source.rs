//! Rules for one file's text.

use super::{Finding, comments::comments};

/// Lines from which a file should be split, and from which it must be.
const LONG: usize = 500;
const TOO_LONG: usize = 1000;

/// Crates whose work cannot be done without `unsafe`: vector loads, file maps, direct reads.
const UNSAFE: [&str; 4] =
    ["crates/cpu/", "crates/tensor/", "crates/weights/", "crates/moe-streaming/"];

/// The Hugging Face variables that users have set already, and the place of the file of flags.
const READS_ENVIRONMENT: [&str; 2] =
    ["crates/hub/src/config.rs", "crates/server/src/config_file.rs"];

/// Text by other people, whose examples name such paths.
const QUOTED: [&str; 3] =
    ["tests/fixtures/haystack.txt", "tests/fixtures/heldout.txt", "tests/fixtures/niah.json"];

/// Places of one machine. Cut in two, or this file would break its own rule.
const MACHINE_PATHS: [&str; 5] = [
    concat!("/ro", "ot/"),
    concat!("/wo", "rk/"),
    concat!("/ho", "me/"),
    concat!("/tm", "p/"),
    concat!("/Use", "rs/"),
];

/// Reads and writes alike: `var`, `var_os`, `vars`, `set_var`, `remove_var`.
const ENVIRONMENT: [&str; 3] =
    [concat!("env::", "var"), concat!("env::", "set_var"), concat!("env::", "remove_var")];

/// Endings of the web app's sources.
const APP: [&str; 3] = [".ts", ".tsx", ".css"];

/// Checks a file; `path` is from the workspace's root with `/`.
pub(super) fn check(path: &str, text: &str) -> Vec<Finding> {
    let mut findings = machine_paths(path, text);
    if path.ends_with(".rs") {
        findings.extend(first_line(path, text));
        findings.extend(length(path, text));
        findings.extend(lines(path, text));
    } else if APP.iter().any(|ending| path.ends_with(ending)) {
        findings.extend(length(path, text));
    }
    findings
}

fn first_line(path: &str, text: &str) -> Option<Finding> {
    let says = text.lines().next().and_then(|line| line.strip_prefix("//! "));
    let missing = says.is_none_or(|words| words.trim().is_empty());
    missing
        .then(|| Finding::error(path, 1, "the first line is no `//!` that says what this is for"))
}

/// In two parts, so that this file does not break its own rule.
const UNSAFE_LINT: &str = concat!("unsafe", "_code");

fn length(path: &str, text: &str) -> Option<Finding> {
    let stem = path.rsplit('/').next().unwrap_or(path).trim_end_matches(".rs");
    let is_test = path.starts_with("tests/") || path.contains("/tests/") || stem == "tests";
    if is_test || stem.ends_with("table") || stem.ends_with("tables") {
        return None;
    }
    let lines = text.lines().count();
    let message = format!("{lines} lines; split it before {TOO_LONG}");
    let finding = Finding { warning: lines <= TOO_LONG, ..Finding::error(path, LONG + 1, message) };
    (lines > LONG).then_some(finding)
}

fn lines(path: &str, text: &str) -> Vec<Finding> {
    let may_be_unsafe = UNSAFE.iter().any(|c| path.starts_with(c));
    // A build script is told everything through the environment.
    let may_read = READS_ENVIRONMENT.contains(&path) || path.ends_with("/build.rs");
    let mut findings = Vec::new();
    for (i, (line, comment)) in text.lines().zip(comments(text)).enumerate() {
        let code = &line[..line.len() - comment.map_or(0, |words| words.len() + 2)];
        let lint =
            code.contains(UNSAFE_LINT) && (code.contains("allow") || code.contains("expect"));
        if lint && !may_be_unsafe {
            findings.push(Finding::error(path, i + 1, "this crate has no business with `unsafe`"));
        }
        if line.split_once("// SAFETY:").is_some_and(|(_, why)| says_nothing(why)) {
            findings.push(Finding::error(path, i + 1, "a SAFETY comment that names no condition"));
        }
        if !may_read && ENVIRONMENT.iter().any(|e| code.contains(e)) {
            findings.push(Finding::error(
                path,
                i + 1,
                "behaviour by environment variable: use a flag",
            ));
        }
    }
    findings
}

/// What refers to a condition without naming it.
const EMPTY_WORDS: [&str; 5] =
    ["as above", "forwarded", "the caller's promise", "the caller's shapes", "see above"];

/// Whether the reason why something is safe is one of these words alone. A reason that goes on in the next
/// line has no full stop.
fn says_nothing(why: &str) -> bool {
    why.trim().strip_suffix('.').is_some_and(|why| EMPTY_WORDS.contains(&why))
}

fn machine_paths(path: &str, text: &str) -> Vec<Finding> {
    if QUOTED.contains(&path) {
        return Vec::new();
    }
    let numbered = text.lines().enumerate();
    let found =
        numbered.filter_map(|(i, line)| Some((i, MACHINE_PATHS.iter().find(|p| names(line, p))?)));
    found
        .map(|(i, p)| Finding::error(path, i + 1, format!("{p} is a place of one machine")))
        .collect()
}

/// Whether a path begins with `prefix` somewhere in a line; a URL or a longer path does not.
fn names(line: &str, prefix: &str) -> bool {
    line.match_indices(prefix).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || "._-~/}>*$".contains(c))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "//! What it is.\n";

    fn found(path: &str, body: &str) -> Vec<(usize, bool)> {
        let found = check(path, &format!("{HEAD}{body}"));
        found.iter().map(|f| (f.line, f.warning)).collect()
    }

    #[test]
    fn files_say_what_they_are_for() {
        for bad in ["", "//!\n", "use x;\n", "// x\n", "\n//! x\n", "#![allow(x)]\n//! x\n"] {
            assert_eq!(check("a.rs", bad).len(), 1, "{bad:?}");
        }
        assert_eq!(check("a.rs", HEAD), []);
        assert_eq!(check("a.toml", ""), []);
    }

    #[test]
    fn long_files_warn_and_then_fail() {
        let of = |path, lines| found(path, &"\n".repeat(lines - 1));
        assert_eq!(of("crates/x/src/a.rs", LONG), []);
        assert_eq!(of("crates/x/src/a.rs", LONG + 1), [(LONG + 1, true)]);
        assert_eq!(of("crates/x/src/a.rs", TOO_LONG), [(LONG + 1, true)]);
        assert_eq!(of("crates/x/src/a.rs", TOO_LONG + 1), [(LONG + 1, false)]);
        let apart = [
            "crates/x/tests/a.rs",
            "tests/a.rs",
            "crates/x/src/a/tests.rs",
            "crates/x/src/tables.rs",
        ];
        assert!(apart.iter().all(|path| of(path, 2000).is_empty()));
    }

    #[test]
    fn unsafe_only_where_it_must_be() {
        let line = format!("#![allow({UNSAFE_LINT}, reason = \"speed\")]\n");
        assert_eq!(found("crates/models/src/a.rs", &line), [(2, false)]);
        assert_eq!(found("crates/tensor/src/a.rs", &line), []);
        let comment = format!("// about allow({UNSAFE_LINT})\n");
        assert_eq!(found("crates/models/src/a.rs", &comment), []);
    }

    #[test]
    fn safety_comments_name_a_condition() {
        for words in EMPTY_WORDS {
            assert_eq!(
                found("crates/tensor/src/a.rs", &format!("  // SAFETY: {words}.\n")),
                [(2, false)]
            );
        }
        let good =
            "// SAFETY: as above, and `x` has a row.\n// SAFETY: the caller's promise that `x`\n";
        assert_eq!(found("crates/tensor/src/a.rs", good), []);
    }

    #[test]
    fn the_environment_is_read_in_one_place() {
        for read in ENVIRONMENT {
            assert_eq!(
                found("crates/x/src/a.rs", &format!("\n std::{read}(\"A\")\n")),
                [(3, false)]
            );
            assert_eq!(found("crates/hub/src/config.rs", &format!("std::{read}_os(\"A\")")), []);
        }
        assert_eq!(found("crates/x/src/a.rs", "env!(\"CARGO_MANIFEST_DIR\"); env::args()"), []);
        assert_eq!(found("crates/x/build.rs", &format!("std::{}", ENVIRONMENT[0])), []);
    }

    #[test]
    fn machine_paths_are_found_in_every_file() {
        for prefix in MACHINE_PATHS {
            for text in [format!("{prefix}x"), format!("cd {prefix}x"), format!("(\"{prefix}\")")] {
                assert_eq!(check("docs/a.md", &text).len(), 1, "{text}");
            }
            assert_eq!(check("tests/fixtures/haystack.txt", prefix), []);
            assert_eq!(check("a.md", &format!("https://example.org{prefix}x")), []);
            assert_eq!(check("a.md", &format!("~/a{prefix}x ${{target}}{prefix}x")), []);
        }
    }
}
