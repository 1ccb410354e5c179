//! Words of texts and code, as numbers.

use rust_stemmers::{Algorithm, Stemmer};
use std::{cell::RefCell, collections::HashMap};
use xxhash_rust::xxh3::xxh3_64;

/// A word of the index: a hash of its stem. Two of a million words share one with a chance of 1 in
/// 40 million.
pub(crate) type Term = u64;

/// Longer words are data.
const MAX_WORD: usize = 64;

/// Stems that a thread remembers.
const MAX_STEMS: usize = 1 << 17;

thread_local! {
    static STEMS: RefCell<HashMap<Box<str>, Term>> = RefCell::default();
}

/// Calls `each` with the terms of a text, in their order.
///
/// An identifier gives its parts, stemmed (`parseHTTPRequests` is `parse`, `http`, `request`), and
/// itself, without case and underscores. A character of a language without blanks is a word.
pub(crate) fn terms(text: &str, mut each: impl FnMut(Term)) {
    let mut rest = text;
    while let Some(start) = rest.find(is_word_char) {
        let word = &rest[start..];
        let end = word.find(|c| !is_word_char(c)).unwrap_or(word.len());
        if end <= MAX_WORD {
            identifier(&word[..end], &mut each);
        }
        rest = &word[end..];
    }
}

/// The term of a whole identifier, as a query and the name of a definition share it.
pub(crate) fn whole(identifier: &str) -> Term {
    let plain: String =
        identifier.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect();
    xxh3_64(plain.as_bytes())
}

fn is_word_char(c: char) -> bool {
    c == '_' || c.is_alphanumeric()
}

fn identifier(word: &str, each: &mut impl FnMut(Term)) {
    let mut parts = 0;
    split(word, |part| {
        parts += 1;
        if let Some(term) = stemmed(part) {
            each(term);
        }
    });
    if parts > 1 {
        each(whole(word));
    }
}

/// Splits at underscores, at capitals, between letters and digits, and around characters of
/// languages without blanks.
fn split<'a>(word: &'a str, mut each: impl FnMut(&'a str)) {
    let mut start = 0;
    let mut before: Option<char> = None;
    let mut chars = word.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        let next = chars.peek().map(|(_, c)| *c);
        let cut = before.is_some_and(|b| {
            b == '_'
                || c == '_'
                || b.is_numeric() != c.is_numeric()
                || is_ideograph(b)
                || is_ideograph(c)
                || (b.is_lowercase() && c.is_uppercase())
                // The last capital of several begins a word: HTTPServer.
                || (b.is_uppercase() && c.is_uppercase() && next.is_some_and(char::is_lowercase))
        });
        if cut {
            if before != Some('_') {
                each(&word[start..at]);
            }
            start = at;
        }
        before = Some(c);
    }
    if before.is_some_and(|b| b != '_') {
        each(&word[start..]);
    }
}

/// Scripts that are written without blanks.
fn is_ideograph(c: char) -> bool {
    matches!(c, '\u{3040}'..='\u{30ff}' | '\u{3400}'..='\u{9fff}' | '\u{f900}'..='\u{faff}')
}

/// The term of one part; none of a single letter.
fn stemmed(part: &str) -> Option<Term> {
    if part.len() < 2 {
        return None;
    }
    let mut buffer = [0; MAX_WORD];
    let lower;
    let key = if part.is_ascii() {
        let buffer = &mut buffer[..part.len()];
        buffer.copy_from_slice(part.as_bytes());
        buffer.make_ascii_lowercase();
        std::str::from_utf8(buffer).ok()?
    } else {
        lower = part.to_lowercase();
        &lower
    };
    Some(STEMS.with_borrow_mut(|stems| {
        if let Some(term) = stems.get(key) {
            return *term;
        }
        let stem = Stemmer::create(Algorithm::English).stem(key);
        let term = xxh3_64(stem.as_bytes());
        if stems.len() >= MAX_STEMS {
            stems.clear();
        }
        stems.insert(key.into(), term);
        term
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(word: &str) -> Vec<&str> {
        let mut all = Vec::new();
        split(word, |part| all.push(part));
        all
    }

    fn of(text: &str) -> Vec<Term> {
        let mut all = Vec::new();
        terms(text, |term| all.push(term));
        all
    }

    #[test]
    fn identifiers_are_split_where_people_see_words() {
        assert_eq!(parts("parseHTTPRequest2xx"), ["parse", "HTTP", "Request", "2", "xx"]);
        assert_eq!(parts("__snake_case__"), ["snake", "case"]);
        assert_eq!(parts("SCREAMING_CASE"), ["SCREAMING", "CASE"]);
        assert_eq!(parts("日本語abc"), ["日", "本", "語", "abc"]);
        assert!(parts("___").is_empty() && parts("").is_empty());
    }

    #[test]
    fn forms_of_a_word_are_one_term() {
        assert_eq!(of("parses"), of("parsing"));
        assert_eq!(of("getUserIds"), of("get_user_ids"));
        let user = of("user")[0];
        assert!(of("getUserId").contains(&user));
        assert!(of("getUserId").contains(&whole("get_user_id")));
        assert_ne!(of("getUserId").len(), of("get user id").len(), "the whole counts too");
    }

    #[test]
    fn data_and_signs_are_no_words() {
        assert!(of(&"x".repeat(65)).is_empty());
        assert!(of("a + b == {}").is_empty());
        assert_eq!(of("naïve Straße").len(), 2);
    }
}
