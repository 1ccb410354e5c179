//! Comments of Rust code, told from texts that hold `//`, such as addresses.

/// What follows `//` in each line of Rust, where that begins a comment.
pub(super) fn comments(text: &str) -> Vec<Option<&str>> {
    let mut within = Within::Code;
    text.lines().map(|line| comment(line, &mut within)).collect()
}

/// What a line begins in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Within {
    Code,
    Text,
    /// A raw text, which ends with a quotation mark and so many `#`.
    Raw(usize),
}

/// The comment of a line; `within` goes on to the next line.
fn comment<'a>(line: &'a str, within: &mut Within) -> Option<&'a str> {
    let mut at = 0;
    while at < line.len() {
        let rest = &line[at..];
        at += match *within {
            Within::Code if rest.starts_with("//") => return Some(&rest[2..]),
            Within::Code => code(rest, line[..at].chars().next_back(), within),
            Within::Text if rest.starts_with('\\') => 1 + width(&rest[1..]),
            Within::Text => {
                if rest.starts_with('"') {
                    *within = Within::Code;
                }
                width(rest)
            }
            Within::Raw(hashes) => {
                let closing = rest.strip_prefix('"').is_some_and(|r| marks(r) >= hashes);
                if closing {
                    *within = Within::Code;
                }
                width(rest)
            }
        };
    }
    None
}

/// Takes a piece of code, and gives its length.
fn code(rest: &str, before: Option<char>, within: &mut Within) -> usize {
    let raw = rest.strip_prefix('r').filter(|_| !before.is_some_and(in_name));
    if let Some(after) = raw {
        let hashes = marks(after);
        if after[hashes..].starts_with('"') {
            *within = Within::Raw(hashes);
            return hashes + 2;
        }
    }
    if rest.starts_with('"') {
        *within = Within::Text;
    } else if ["'\"'", "'\\\"'"].iter().any(|quoted| rest.starts_with(quoted)) {
        return if rest.starts_with("'\\") { 4 } else { 3 };
    }
    width(rest)
}

/// Part of a name before `r`: what follows is no raw text. `br"` and `cr"` are raw texts too.
fn in_name(c: char) -> bool {
    (c.is_alphanumeric() || c == '_') && !"bc".contains(c)
}

/// How many `#` a text begins with.
fn marks(text: &str) -> usize {
    text.len() - text.trim_start_matches('#').len()
}

/// Bytes of the first character.
fn width(text: &str) -> usize {
    text.chars().next().map_or(0, char::len_utf8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_hold_no_comments() {
        for code in [
            r#"let x = "https://a";"#,
            r##"let x = r#"a " // b"#;"##,
            r#"let x = "\" // b";"#,
            "let x = \"a\n // b\n\";",
            r#"let x = br"\", y = "// b";"#,
        ] {
            assert!(comments(code).iter().all(Option::is_none), "{code}");
        }
    }

    #[test]
    fn comments_follow_texts() {
        for code in [
            r#"let x = "https://a"; // b"#,
            r##"let x = r#"a"#; // b"##,
            r#"let x = ('"', '\"'); // b"#,
            "let var = 1;\nvar \"x\"; // b",
            "let x = \"a\nb\"; // b",
            "// b",
        ] {
            assert_eq!(comments(code).pop(), Some(Some(" b")), "{code}");
        }
        assert_eq!(comments("/// a // b\n//! c"), [Some("/ a // b"), Some("! c")]);
    }
}
