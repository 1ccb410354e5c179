//! JSON as Python writes it: with numbers that JSON does not have.

/// What Python's json module writes for numbers that JSON does not have.
const SPECIAL: [&[u8]; 3] = [b"-Infinity", b"Infinity", b"NaN"];

/// The text with a section in place of each such number, as transformers 5 writes them:
/// `{"__float__": "Infinity"}`. What is in strings stays.
pub(crate) fn with_sections(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let (mut rest, mut quoted) = (text, false);
    while let Some((&first, after)) = rest.split_first() {
        let special = SPECIAL.iter().find(|word| !quoted && rest.starts_with(word));
        if let Some(word) = special {
            out.extend([b"{\"__float__\": \"".as_slice(), word, b"\"}"].concat());
            rest = &rest[word.len()..];
            continue;
        }
        out.push(first);
        rest = after;
        match first {
            b'"' => quoted = !quoted,
            b'\\' if quoted => {
                out.extend(rest.first());
                rest = rest.get(1..).unwrap_or_default();
            }
            _ => {}
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_json_lacks_become_sections() {
        let plain = |text: &str| String::from_utf8(with_sections(text.as_bytes())).unwrap();
        let text = r#"{"a": [0.0, Infinity], "b": -Infinity, "c": "Infinity \" NaN"}"#;
        let want = r#"{"a": [0.0, {"__float__": "Infinity"}], "b": {"__float__": "-Infinity"}, "c": "Infinity \" NaN"}"#;
        assert_eq!(plain(text), want);
        assert_eq!(plain(r#"["a\\", NaN]"#), r#"["a\\", {"__float__": "NaN"}]"#);
        assert_eq!(plain(r#""\"#), r#""\"#);
    }
}
