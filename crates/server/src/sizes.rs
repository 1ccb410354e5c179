//! Counts and sizes as people write them: `32k` tokens, `4GiB`.

use indicatif::BinaryBytes;

/// Multiples that a suffix stands for: lower case is decimal and upper case binary, as in vLLM.
const SUFFIXES: [(&str, u64); 8] = [
    ("k", 1000),
    ("K", 1 << 10),
    ("m", 1_000_000),
    ("M", 1 << 20),
    ("g", 1_000_000_000),
    ("G", 1 << 30),
    ("t", 1_000_000_000_000),
    ("T", 1 << 40),
];

/// Multiples of bytes, in any case.
const UNITS: [(&str, u64); 9] = [
    ("KIB", 1 << 10),
    ("MIB", 1 << 20),
    ("GIB", 1 << 30),
    ("TIB", 1 << 40),
    ("KB", 1000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("B", 1),
];

/// A number of tokens: `4096`, `4k` (4000), `4K` (4096), `1.5k`.
///
/// # Errors
/// It is no such number, or too large for `T`.
pub(crate) fn tokens<T: TryFrom<u64>>(text: &str) -> Result<T, String> {
    let (number, suffix) = split(text);
    let unit =
        suffix_of(suffix).ok_or("not a number of tokens; write 4096, 4k (4000) or 4K (4096)")?;
    whole(number, unit)
}

/// A number of tokens that is not 0.
///
/// # Errors
/// It is no such number, or too large.
pub(crate) fn some_tokens<T: TryFrom<u64>>(text: &str) -> Result<T, String> {
    match tokens::<u64>(text)? {
        0 => Err("must be above 0".to_owned()),
        _ => tokens(text),
    }
}

/// A seed of the sampler.
///
/// # Errors
/// It is no such number.
pub(crate) fn seed(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("must be a whole number from 0 to {}", u64::MAX))
}

/// A number of bytes: `1073741824`, `1GiB`, `1G`, `1GB` (1000000000).
///
/// # Errors
/// It is no such number, or too large.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    let (number, suffix) = split(text);
    let unit = unit_of(suffix).ok_or("not a number of bytes; write 4294967296, 4GiB or 4.3GB")?;
    whole(number, unit)
}

/// A size in GiB unless it says otherwise: `10`, `512MiB`.
///
/// # Errors
/// It is no size.
pub(crate) fn gib(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(gib) if gib.is_finite() => Ok(gib),
        _ => bytes(text).map(|n| n as f64 / (1u64 << 30) as f64),
    }
}

/// `4k` -> ("4", "k").
fn split(text: &str) -> (&str, &str) {
    let text = text.trim();
    let end = text.find(|c: char| c.is_alphabetic()).unwrap_or(text.len());
    (text[..end].trim_end(), &text[end..])
}

fn suffix_of(suffix: &str) -> Option<u64> {
    if suffix.is_empty() {
        return Some(1);
    }
    SUFFIXES.iter().find(|s| s.0 == suffix).map(|s| s.1)
}

fn unit_of(suffix: &str) -> Option<u64> {
    let upper = suffix.to_ascii_uppercase();
    suffix_of(suffix).or_else(|| UNITS.iter().find(|u| u.0 == upper).map(|u| u.1))
}

fn whole<T: TryFrom<u64>>(number: &str, unit: u64) -> Result<T, String> {
    let too_large = || "too large".to_owned();
    if let Ok(number) = number.parse::<u64>() {
        let product = number.checked_mul(unit).ok_or_else(too_large)?;
        return T::try_from(product).map_err(|_| too_large());
    }
    if number.starts_with('-') {
        return Err("must not be below 0".to_owned());
    }
    let number: f64 = number.parse().map_err(|_| "not a number".to_owned())?;
    let exact = number * unit as f64;
    let product = exact.round();
    // 4.1 has no end in binary, so that 4.1 GB is whole only nearly.
    if (exact - product).abs() > exact * 1e-12 {
        return Err("not a whole number".to_owned());
    }
    // 2^53: above it floats skip whole numbers.
    if product >= 9_007_199_254_740_992.0 {
        return Err(too_large());
    }
    T::try_from(product as u64).map_err(|_| too_large())
}

/// 1536 -> "1.5 KiB".
pub(crate) fn human(bytes: u64) -> String {
    BinaryBytes(bytes).to_string()
}

/// "1 token", "2 tokens".
pub(crate) fn count(n: usize, what: &str) -> String {
    match n {
        1 => format!("1 {what}"),
        n => format!("{n} {what}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_have_the_suffixes_of_vllm() {
        for (text, want) in [
            ("4096", 4096),
            ("4k", 4000),
            ("4K", 4096),
            ("32k", 32_000),
            ("32K", 32_768),
            ("25.6k", 25_600),
            ("1.5K", 1536),
            ("2m", 2_000_000),
            ("1M", 1_048_576),
            ("0", 0),
        ] {
            assert_eq!(tokens::<u32>(text), Ok(want), "{text}");
        }
        for (text, why) in [
            ("", "not a number"),
            ("k", "not a number"),
            ("4kb", "write 4096"),
            ("4 tokens", "write 4096"),
            ("-1", "below 0"),
            ("1.5", "whole"),
            ("5G", "too large"),
            ("1e99k", "write 4096"),
            ("99999999999999999999", "too large"),
            ("99999999999999999T", "too large"),
            ("NaN", "write 4096"),
        ] {
            let error = tokens::<u32>(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
        assert_eq!(tokens::<u64>("5G"), Ok(5 << 30));
        assert_eq!((some_tokens("4K"), some_tokens("1")), (Ok(4096_u64), Ok(1_u32)));
        for (text, why) in [("0", "above 0"), ("5G", "too large"), ("-1", "below 0")] {
            assert!(some_tokens::<u32>(text).unwrap_err().contains(why), "{text}");
        }
    }

    #[test]
    fn seeds_are_whole_numbers() {
        assert_eq!((seed("0"), seed("18446744073709551615")), (Ok(0), Ok(u64::MAX)));
        for text in ["-1", "1.5", "x", "", "18446744073709551616"] {
            assert!(seed(text).unwrap_err().contains("whole number from 0"), "{text}");
        }
    }

    #[test]
    fn bytes_have_units_in_any_case() {
        for (text, want) in [
            ("10", 10),
            ("512MiB", 512 << 20),
            ("512mib", 512 << 20),
            ("2 GiB", 2 << 30),
            ("2G", 2 << 30),
            ("2g", 2_000_000_000),
            ("2GB", 2_000_000_000),
            ("1.5GiB", 3 << 29),
            ("64B", 64),
            ("4.1GB", 4_100_000_000),
        ] {
            assert_eq!(bytes(text), Ok(want), "{text}");
        }
        assert!(bytes("2 gallons").unwrap_err().contains("4GiB"));
        assert_eq!((gib("10"), gib("512MiB"), gib("0.5")), (Ok(10.0), Ok(0.5), Ok(0.5)));
        assert!(gib("inf").is_err() && gib("x").is_err());
    }

    #[test]
    fn one_is_singular() {
        assert_eq!((count(1, "token"), count(0, "token")), ("1 token".into(), "0 tokens".into()));
        assert_eq!(human(1536), "1.50 KiB");
    }
}
