//! Keys and passwords in texts, and what stands in their place.
//!
//! Texts are redacted when they are read, before anything is indexed or returned. Lines stay lines,
//! so that positions in a redacted text are those of the file.

use regex::{Captures, Regex};
use std::{borrow::Cow, sync::OnceLock};

/// Stands for what was removed.
pub const REDACTED: &str = "[redacted]";

/// Bits a character above which a long token of mixed characters is taken for a key.
const KEY_ENTROPY: f64 = 4.2;

/// Characters from which on a token's entropy says something.
const KEY_LENGTH: usize = 32;

/// Tokens that are secrets by their shape.
const SHAPES: &str = r#"(?x)
    \b(?:AKIA|ASIA|AGPA|AIDA|AROA|ANPA|ANVA)[0-9A-Z]{16}\b
  | \bgh[pousr]_[0-9A-Za-z]{20,}
  | \bgithub_pat_[0-9A-Za-z_]{20,}
  | \bglpat-[0-9A-Za-z_-]{16,}
  | \bxox[abeoprs]-[0-9A-Za-z-]{10,}
  | \b[rsp]k_(?:live|test)_[0-9A-Za-z]{16,}
  | \bsk-[0-9A-Za-z_-]{20,}
  | \bAIza[0-9A-Za-z_-]{30,}
  | \bya29\.[0-9A-Za-z_-]{20,}
  | \bhf_[0-9A-Za-z]{20,}
  | \bnpm_[0-9A-Za-z]{30,}
  | \bpypi-[0-9A-Za-z_-]{30,}
  | \bdop_v1_[0-9a-f]{40,}
  | \bSG\.[0-9A-Za-z_-]{16,}\.[0-9A-Za-z_-]{16,}
  | \beyJ[0-9A-Za-z_-]{8,}\.eyJ[0-9A-Za-z_-]{8,}\.[0-9A-Za-z_-]*
  | \bhooks\.slack\.com/services/[0-9A-Za-z/]{20,}
"#;

/// A name that says "secret", and a value in quotes.
///
/// The value ends with the quote that it begins with; a backslash hides the one behind it.
const QUOTED: &str = r#"(?ix)
    ( (?: [a-z0-9_.-]* (?: passw(?:or)?d | passphrase | secret | token | api[_-]?key | access[_-]?key
        | private[_-]?key | auth[_-]?key | credential | client[_-]?key | encryption[_-]?key )
      [a-z0-9_.-]* | \b (?: [a-z0-9.-]+ [_.-] )? (?: pass | pwd | pw ) )
      ["'`]? \s* (?: : | = | := | => ) \s* (?:[bfru]{0,2}) )
    ( " (?: [^"\\\r\n] | \\. ){6,} " | ' (?: [^'\\\r\n] | \\. ){6,} ' | ` [^`\r\n]{6,} ` )
    ()
"#;

/// The shell's and configuration files' way: no quotes, to the end of the line.
const BARE: &str = r#"(?imx)
    ^ ( \s* (?: export \s+ | set \s+ | - \s+ )? (?: [a-z0-9_.-]* (?: passw(?:or)?d | passphrase | secret | token
        | api[_-]?key | access[_-]?key | private[_-]?key | auth[_-]?key | credential )
      [a-z0-9_.-]* | (?: [a-z0-9.-]+ [_.-] )? (?: pass | pwd | pw ) ) \s* [:=] \s* )
    ( [^\s"'`()\[\]{}<>,;]{8,} )
    ( [,;]? \s* (?: \#.* )? ) $
"#;

/// A key and its value between semicolons, as in connection strings.
const LISTED: &str = r#"(?im)((?:^|[;"'`])(?:password|pwd|accountkey|sharedaccesskey|secret|token)=)([^;"'`\s()\[\]{}]{6,})(;|["'`])"#;

/// The password of an address.
const ADDRESS: &str = r"([a-zA-Z][a-zA-Z0-9+.-]*://[^/\s:@]*:)([^/\s@]{3,})(@)";

/// A token after the name of its scheme.
const BEARER: &str = r"(?i)(\b(?:bearer|basic)\s+)([0-9A-Za-z_.~+/=-]{16,})()";

struct Patterns {
    shapes: Regex,
    assigned: [Regex; 5],
}

/// Every pattern is a constant, so a test shows that all are valid.
fn patterns() -> Option<&'static Patterns> {
    static PATTERNS: OnceLock<Option<Patterns>> = OnceLock::new();
    let make = || {
        let of = |pattern| Regex::new(pattern).ok();
        let assigned = [of(QUOTED)?, of(BARE)?, of(LISTED)?, of(ADDRESS)?, of(BEARER)?];
        Some(Patterns { shapes: of(SHAPES)?, assigned })
    };
    PATTERNS.get_or_init(make).as_ref()
}

/// The text without its secrets, and how many were removed. Borrowed if there were none.
#[must_use]
pub fn redact(text: &str) -> (Cow<'_, str>, usize) {
    let mut found = 0;
    let mut text = key_blocks(text, &mut found);
    if let Some(Patterns { shapes, assigned }) = patterns() {
        replace(&mut text, shapes, |_| {
            found += 1;
            REDACTED.to_owned()
        });
        for pattern in assigned {
            replace(&mut text, pattern, |parts| {
                let quote = parts[2].chars().next().filter(|c| "\"'`".contains(*c));
                let quote = quote.map_or(String::new(), String::from);
                let value = parts[2].trim_matches(|c| quote.contains(c));
                if !is_secret_value(value) {
                    return parts[0].to_owned();
                }
                found += 1;
                format!("{}{quote}{REDACTED}{quote}{}", &parts[1], &parts[3])
            });
        }
    }
    entropic(&mut text, &mut found);
    (text, found)
}

fn replace(text: &mut Cow<'_, str>, pattern: &Regex, by: impl FnMut(&Captures<'_>) -> String) {
    if let Cow::Owned(new) = pattern.replace_all(text, by) {
        *text = Cow::Owned(new);
    }
}

/// What stands where a secret may stand, but is none: a variable, a placeholder, a type, a sentence.
fn is_secret_value(value: &str) -> bool {
    if value.contains(REDACTED) || is_placeholder(value) {
        return false;
    }
    let digits = value.bytes().filter(u8::is_ascii_digit).count();
    let letters = value.bytes().filter(u8::is_ascii_alphabetic).count();
    let others = value.len() - digits - letters;
    // Names, paths, calls and sentences are made of letters and a few signs.
    let is_name =
        digits == 0 && value.bytes().all(|b| b.is_ascii_alphabetic() || b"_-./: ,'".contains(&b));
    !is_name && (digits > 0 || others > 0) && entropy(value.as_bytes()) >= 2.5
}

/// A secret may contain such a word, so it has to be all of the value, or to frame it.
fn is_placeholder(value: &str) -> bool {
    const WORDS: [&str; 8] =
        ["example", "changeme", "placeholder", "none", "null", "true", "false", "undefined"];
    const FRAMES: [(&str, &str); 6] =
        [("<", ">"), ("${", "}"), ("{{", "}}"), ("%(", ")s"), ("$(", ")"), ("{", "}")];
    let lower = value.to_ascii_lowercase();
    let is_framed = |(open, close): &(&str, &str)| {
        lower.strip_prefix(open).and_then(|v| v.strip_suffix(close)).is_some_and(is_one_name)
    };
    let is_variable = lower.strip_prefix('$').is_some_and(is_one_name);
    let yours = lower.strip_prefix("your-").or_else(|| lower.strip_prefix("your_"));
    WORDS.contains(&lower.as_str())
        || FRAMES.iter().any(is_framed)
        || is_variable
        || yours.is_some_and(|rest| !rest.bytes().any(|b| b.is_ascii_digit()))
        || (lower.len() > 3 && lower.bytes().all(|b| b"x*.-_".contains(&b)))
}

/// A name of a variable or of a thing, without anything that a password has.
fn is_one_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-. ".contains(&b))
}

/// The lines of private keys, one by one.
fn key_blocks<'a>(text: &'a str, found: &mut usize) -> Cow<'a, str> {
    if !text.contains("PRIVATE KEY") {
        return Cow::Borrowed(text);
    }
    let (mut out, mut inside) = (String::with_capacity(text.len()), false);
    for line in text.split_inclusive('\n') {
        let begins = line.contains("-----BEGIN") && line.contains("PRIVATE KEY");
        let ends = line.contains("-----END");
        if begins && !inside {
            *found += 1;
        }
        if !(inside || begins) {
            out.push_str(line);
            continue;
        }
        out.push_str(REDACTED);
        if line.ends_with('\n') {
            out.push('\n');
        }
        // A block without an end hides the rest.
        inside = !ends;
    }
    Cow::Owned(out)
}

/// Replaces long tokens that look random.
fn entropic(text: &mut Cow<'_, str>, found: &mut usize) {
    let bytes = text.as_bytes();
    let (mut at, mut hits) = (0, Vec::new());
    while at < bytes.len() {
        if !is_token(bytes[at]) {
            at += 1;
            continue;
        }
        let start = at;
        while at < bytes.len() && is_token(bytes[at]) {
            at += 1;
        }
        if at - start >= KEY_LENGTH && is_random(&bytes[start..at]) {
            hits.push(start..at);
        }
    }
    if hits.is_empty() {
        return;
    }
    *found += hits.len();
    let mut owned = text.to_string();
    for hit in hits.into_iter().rev() {
        owned.replace_range(hit, REDACTED);
    }
    *text = Cow::Owned(owned);
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"+/_-".contains(&byte)
}

/// Upper and lower case and digits in one token, as bytes in base 64 have. Names of things seldom
/// have a digit in every eight characters, and paths have words.
fn is_random(token: &[u8]) -> bool {
    let count = |is: fn(&u8) -> bool| token.iter().filter(|b| is(b)).count();
    let (upper, lower) = (count(u8::is_ascii_uppercase), count(u8::is_ascii_lowercase));
    let digits = count(u8::is_ascii_digit);
    let slashes = token.iter().filter(|b| **b == b'/' || **b == b'_' || **b == b'-').count();
    upper * 8 >= token.len()
        && lower * 8 >= token.len()
        && digits * 16 >= token.len()
        && slashes * 8 <= token.len()
        && entropy(token) >= KEY_ENTROPY
}

/// Shannon's entropy of the bytes' frequencies, in bits a byte.
fn entropy(bytes: &[u8]) -> f64 {
    let mut counts = [0_u32; 256];
    bytes.iter().for_each(|b| counts[usize::from(*b)] += 1);
    let all = bytes.len() as f64;
    let some = counts.iter().filter(|n| **n > 0);
    some.map(|n| f64::from(*n) / all).map(|p| -p * p.log2()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_known_shapes_go_and_lines_stay() {
        assert!(patterns().is_some());
        let pem = "a\n-----BEGIN RSA PRIVATE KEY-----\nMIIEow\nIBAAKC\n-----END RSA PRIVATE KEY-----\nb\n";
        let (text, found) = redact(pem);
        assert_eq!(text, format!("a\n{REDACTED}\n{REDACTED}\n{REDACTED}\n{REDACTED}\nb\n"));
        assert_eq!(found, 1);
        let cut = redact("-----BEGIN PRIVATE KEY-----\nMIIE\nno end").0.into_owned();
        assert!(!cut.contains("MIIE") && cut.lines().count() == 3, "{cut}");
    }

    #[test]
    fn assignments_lose_their_values_and_keep_their_names() {
        for (line, gone) in [
            ("password = \"hunter2!x\"", "hunter2!x"),
            ("DB_PASSWORD=s3cr3t-value-9", "s3cr3t-value-9"),
            ("  api_key: 'ab12cd34ef56'", "ab12cd34ef56"),
            ("url = postgres://joe:pa55w0rd@db/x", "pa55w0rd"),
            ("Authorization: Bearer abcdef0123456789abcdef", "abcdef0123456789abcdef"),
            ("\"client_secret\": \"q8-Zk.2mmP0\"", "q8-Zk.2mmP0"),
            ("password = \"aB3<kd92!fQ\"", "aB3<kd92!fQ"),
            ("token = \"Zk9true88xQ2pLm4\"", "Zk9true88xQ2pLm4"),
            ("secret: \"none-of-your-7business8\"", "none-of-your-7business8"),
            ("db_password = \"correct horse battery 9!\"", "correct horse battery 9!"),
            ("db_password = \"it's 9 o'clock!\"", "o'clock"),
            ("db_password = 'ab \\' cd 7!9'", "7!9"),
            ("db_password: pa$$w0rd99x", "pa$$w0rd99x"),
            ("api_key: abcd1234efgh5678,", "abcd1234efgh5678"),
            ("api_key: abcd1234efgh5678 # prod", "abcd1234efgh5678"),
            ("  pass: S3cretPass99", "S3cretPass99"),
            ("pwd: S3cretPass99", "S3cretPass99"),
            ("smtp_pass = 'S3cretPass99'", "S3cretPass99"),
            ("\"Server=db;User=sa;Password=Sup3rS3cret99;Encrypt=1\"", "Sup3rS3cret99"),
            ("c = \"AccountName=x;AccountKey=q8Zk2mmP0w9==\"", "q8Zk2mmP0w9=="),
        ] {
            let (text, found) = redact(line);
            assert!(!text.contains(gone) && found == 1, "{line} -> {text}");
        }
    }

    #[test]
    fn code_stays_as_it_is() {
        for line in [
            "password = getpass.getpass()",
            "token: str = \"\"",
            "let token = self.next_token();",
            "secret_name = \"my-secret-name\"",
            "def set_password(self, password): ...",
            "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
            "https://example.com/a/very/long/path/with/many/parts/Version12/index.html",
            "TestVeryLongNameOfAJavaClassThatDoesSomething2AndMore",
            "use crate::{tokens::TokenId, secret::Secret};",
            "password = \"${DB_PASSWORD_2}\"",
            "password: $DB_PASSWORD_2",
            "token = \"<your token 2>\"",
            "api_key = \"your-api-key-here\"",
            "api_key = \"{{ api_key2 }}\"",
            "password = \"xxxxxxxxxxxx\"",
            "error: \"the password is wrong, try again\"",
            "password_hint = \"The name of your first pet, in lower case\"",
            "bypass: 8 * width",
            "let compass = \"N42E17\";",
            "passes = \"2 of 3 passed\"",
        ] {
            assert_eq!(redact(line), (Cow::Borrowed(line), 0), "{line}");
        }
    }

    #[test]
    fn random_tokens_are_found_anywhere() {
        let key = "wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY123abc9Z";
        let line = format!("const X: &str = \"{key}\";\n");
        let (text, found) = redact(&line);
        assert!(!text.contains(key) && found == 1, "{text}");
    }
}
