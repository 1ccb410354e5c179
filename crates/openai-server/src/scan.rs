//! A first look at a body, before anything is built from it.
//!
//! Two bytes of JSON can become a hundred in memory: `{},{},..`. How many values there are is
//! counted here in one pass over the bytes, and a body with too many of them is refused.

use crate::errors::ApiError;
use memchr::memchr2;

/// Most values and keys of a body; a long conversation with many tools has some ten thousand.
const MOST_VALUES: usize = 128 << 10;

/// Most numbers in lists at the top of a body, as in prompts of tokens. They cost four bytes each.
const MOST_NUMBERS: usize = 4 << 20;

/// Refuses bodies that cost too much to read, and mends what Unicode has no character for: half
/// of a surrogate pair, which clients send when they cut a text, becomes U+FFFD.
pub(crate) fn scan(json: &mut [u8]) -> Result<(), ApiError> {
    let (mut values, mut numbers) = (0, 0);
    let mut objects = 0_usize;
    let mut at = 0;
    while let Some(&byte) = json.get(at) {
        at += 1;
        match byte {
            b'"' => at = text(json, at),
            b'{' => {
                objects += 1;
                values += 1;
            }
            b'}' => objects = objects.saturating_sub(1),
            b'[' | b',' if objects == 1 && number_follows(json, at) => numbers += 1,
            b'[' | b',' | b':' => values += 1,
            _ => {}
        }
        if values > MOST_VALUES {
            return Err(ApiError::TooManyValues { limit: MOST_VALUES });
        }
        if numbers > MOST_NUMBERS {
            return Err(ApiError::TooManyValues { limit: MOST_NUMBERS });
        }
    }
    Ok(())
}

fn number_follows(json: &[u8], at: usize) -> bool {
    let rest = json.get(at..).unwrap_or_default();
    let next = rest.iter().find(|b| !b.is_ascii_whitespace());
    next.is_some_and(|b| b.is_ascii_digit() || *b == b'-')
}

/// Where the text that begins at `at` ends.
fn text(json: &mut [u8], mut at: usize) -> usize {
    loop {
        let rest = json.get(at..).unwrap_or_default();
        let Some(found) = memchr2(b'"', b'\\', rest) else { return json.len() };
        at += found;
        if json.get(at) == Some(&b'"') {
            return at + 1;
        }
        at = escape(json, at);
    }
}

/// Where the escape that begins at `at` ends, pairs of surrogates included.
fn escape(json: &mut [u8], at: usize) -> usize {
    match unit(json, at) {
        Some(0xD800..=0xDBFF) if matches!(unit(json, at + 6), Some(0xDC00..=0xDFFF)) => at + 12,
        Some(0xD800..=0xDFFF) => {
            if let Some(digits) = json.get_mut(at + 2..at + 6) {
                digits.copy_from_slice(b"fffd");
            }
            at + 6
        }
        Some(_) => at + 6,
        None => at + 2,
    }
}

/// The UTF-16 unit of `\uXXXX`.
fn unit(json: &[u8], at: usize) -> Option<u16> {
    let digits = json.get(at..at + 6)?.strip_prefix(b"\\u")?;
    let hex = |value: u16, digit: &u8| Some(value << 4 | char::from(*digit).to_digit(16)? as u16);
    digits.iter().try_fold(0, hex)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scanned(json: &str) -> String {
        let mut bytes = json.as_bytes().to_vec();
        scan(&mut bytes).unwrap();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn lone_surrogates_become_replacement_characters() {
        for (given, expected) in [
            (r#"{"a": "\ud83d"}"#, r#"{"a": "\ufffd"}"#),
            (r#"{"a": "\ude00 x"}"#, r#"{"a": "\ufffd x"}"#),
            (r#"{"a": "\ud83d\u0041"}"#, r#"{"a": "\ufffd\u0041"}"#),
            (r#"{"a": "\ud83d\ud83d\ude00"}"#, r#"{"a": "\ufffd\ud83d\ude00"}"#),
            // No escape, no text, no end: left as it is.
            (r#"{"a": "\\ud83d"}"#, r#"{"a": "\\ud83d"}"#),
            (r#"\ud83d"#, r#"\ud83d"#),
            (r#""\ud8"#, r#""\ud8"#),
            (r#""\"#, r#""\"#),
        ] {
            assert_eq!(scanned(given), expected);
        }
    }

    #[test]
    fn values_are_counted_and_texts_are_not() {
        let many = |one: &str, n: usize| format!("{{\"a\": [{}0]}}", one.repeat(n));
        for small in [many("7, ", 3 << 20), format!("{{\"a\": \"{}\"}}", "{},[]:".repeat(1 << 20))]
        {
            assert!(scan(&mut small.into_bytes()).is_ok());
        }
        for large in [
            many("{},", 1 << 20),
            many("\"\",", 1 << 20),
            many("[],", 1 << 20),
            many("7,", 5 << 20),
            format!("{{\"a\": {{\"b\": [{}0]}}}}", "7,".repeat(1 << 20)),
            "{\"\":0,".repeat(1 << 20),
        ] {
            assert!(matches!(scan(&mut large.into_bytes()), Err(ApiError::TooManyValues { .. })));
        }
    }
}
