//! Python's methods of texts, lists and maps: those that minijinja-contrib lacks or has otherwise.

use super::{memory, operators, python};
use minijinja::{
    Error, ErrorKind, State, Value,
    formatting::FormatStyle,
    value::{Kwargs, Tuple, ValueKind, from_args},
};
use minijinja_contrib::pycompat::unknown_method_callback as contrib;

pub(super) fn method(
    state: &mut State,
    value: &Value,
    name: &str,
    args: &[Value],
) -> Result<Value, Error> {
    match value.as_str() {
        Some(text) => text_method(state, value, text, name, args),
        None if matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable) => {
            list_method(state, value, name, args)
        }
        None => map_method(state, value, name, args),
    }
}

fn map_method(
    state: &mut State,
    value: &Value,
    name: &str,
    args: &[Value],
) -> Result<Value, Error> {
    if name == "copy" && value.kind() == ValueKind::Map {
        let () = from_args(args)?;
        return Ok(value.clone());
    }
    contrib(state, value, name, args)
}

fn list_method(
    state: &mut State,
    value: &Value,
    name: &str,
    args: &[Value],
) -> Result<Value, Error> {
    match name {
        "index" => {
            let (what,): (&Value,) = from_args(args)?;
            match value.try_iter()?.position(|item| item == *what) {
                Some(place) => Ok(Value::from(place)),
                None => {
                    let detail = format!("{} is not in list", python::str(what)?);
                    Err(Error::new(ErrorKind::InvalidOperation, detail))
                }
            }
        }
        "copy" => {
            let () = from_args(args)?;
            Ok(value.clone())
        }
        _ => contrib(state, value, name, args),
    }
}

fn text_method(
    state: &mut State,
    value: &Value,
    text: &str,
    name: &str,
    args: &[Value],
) -> Result<Value, Error> {
    match name {
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Ok(Value::from(text.strip_prefix(prefix).unwrap_or(text)))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Ok(Value::from(text.strip_suffix(suffix).unwrap_or(text)))
        }
        "partition" => {
            let (separator,): (&str,) = from_args(args)?;
            let parts = match text.split_once(separator) {
                Some((head, tail)) => [head, separator, tail],
                None => [text, "", ""],
            };
            Ok(Value::from(Tuple::from(parts.map(Value::from))))
        }
        "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            let parts = match text.rsplit_once(separator) {
                Some((head, tail)) => [head, separator, tail],
                None => ["", "", text],
            };
            Ok(Value::from(Tuple::from(parts.map(Value::from))))
        }
        "split" | "rsplit" => split(state, text, name == "rsplit", args),
        "splitlines" => {
            memory::pieces(state, text.matches(['\n', '\r']).count() + 1)?;
            contrib(state, value, name, args)
        }
        "find" | "rfind" | "index" | "rindex" => find(text, name, args),
        "startswith" | "endswith" => affix(text, name == "startswith", args),
        "count" => {
            let (what, start, stop): (&str, Option<i64>, Option<i64>) = from_args(args)?;
            let (_, part) = window(text, start, stop);
            let empty = what.is_empty();
            Ok(Value::from(if empty {
                part.chars().count() + 1
            } else {
                part.matches(what).count()
            }))
        }
        "center" | "ljust" | "rjust" | "zfill" => padded(state, text, name, args),
        "swapcase" => {
            let () = from_args(args)?;
            Ok(Value::from(text.chars().map(swapped).collect::<String>()))
        }
        "casefold" => {
            let () = from_args(args)?;
            Ok(Value::from(text.to_lowercase().replace('ß', "ss")))
        }
        "replace" => {
            let (old, new, count, kwargs): (&str, &str, Option<i64>, Kwargs) = from_args(args)?;
            let count = count.or(kwargs.get("count")?);
            kwargs.assert_all_used()?;
            memory::string(state, replaced(text, old, new, count)?)
        }
        "join" => {
            let (values,): (&Value,) = from_args(args)?;
            joined(state, values, text, true)
        }
        "format" => {
            memory::string(state, operators::formatted(FormatStyle::StrFormat, text, args)?)
        }
        "encode" => Err(Error::from(ErrorKind::UnknownMethod)),
        _ => contrib(state, value, name, args),
    }
}

/// Replaces at most so many times; all when there is no count or it is below zero.
pub(super) fn replaced(
    text: &str,
    old: &str,
    new: &str,
    count: Option<i64>,
) -> Result<String, Error> {
    let places = if old.is_empty() { text.chars().count() + 1 } else { text.matches(old).count() };
    let count = count.and_then(|n| usize::try_from(n).ok()).unwrap_or(usize::MAX);
    let grown = places.min(count).saturating_mul(new.len());
    memory::check_length(text.len().saturating_add(grown))?;
    Ok(text.replacen(old, new, count))
}

/// Joins values; Python's own `join` takes texts only, the filter takes everything.
pub(super) fn joined(
    state: &mut State,
    values: &Value,
    separator: &str,
    texts_only: bool,
) -> Result<Value, Error> {
    let mut out = memory::Text::default();
    for (i, item) in values.try_iter()?.checked().enumerate() {
        let item = item?;
        if i > 0 {
            out.push(separator)?;
        }
        if texts_only && item.as_str().is_none() {
            let found = python::type_name(&item);
            let detail = format!("sequence item {i}: expected str instance, {found} found");
            return Err(Error::new(ErrorKind::InvalidOperation, detail));
        }
        python::write_str(&mut out, &item)?;
    }
    memory::string(state, out.take())
}

fn split(state: &mut State, text: &str, from_right: bool, args: &[Value]) -> Result<Value, Error> {
    let (separator, limit, kwargs): (Option<Value>, Option<i64>, Kwargs) = from_args(args)?;
    let separator = separator.or(kwargs.get("sep")?).filter(|s| !s.is_none());
    let limit = limit.or(kwargs.get("maxsplit")?);
    kwargs.assert_all_used()?;
    let pieces =
        limit.and_then(|n| usize::try_from(n).ok()).map_or(usize::MAX, |n| n.saturating_add(1));
    let count = match separator.as_ref().and_then(|s| s.as_str()) {
        None => text.split_whitespace().count(),
        Some(separator) => text.matches(separator).count() + 1,
    };
    memory::pieces(state, count.min(pieces))?;
    let wrong = |detail: &'static str| Error::new(ErrorKind::InvalidOperation, detail);
    let mut parts: Vec<&str> = match &separator {
        None => return Ok(list(split_whitespace(text, from_right, pieces))),
        Some(separator) => match separator.as_str() {
            None => return Err(wrong("must be str or None")),
            Some("") => return Err(wrong("empty separator")),
            Some(separator) if from_right => text.rsplitn(pieces, separator).collect(),
            Some(separator) => text.splitn(pieces, separator).collect(),
        },
    };
    if from_right {
        parts.reverse();
    }
    Ok(list(parts))
}

fn split_whitespace(text: &str, from_right: bool, pieces: usize) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        if parts.len() + 1 == pieces {
            // Python leaves the space at the far end of the rest.
            let at = rest.as_ptr().addr() - text.as_ptr().addr();
            let kept = if from_right { &text[..at + rest.len()] } else { &text[at..] };
            parts.push(kept);
            break;
        }
        let (part, others) = if from_right {
            match rest.rfind(char::is_whitespace) {
                Some(at) => (rest[at..].trim_start(), rest[..at].trim_end()),
                None => (rest, ""),
            }
        } else {
            match rest.find(char::is_whitespace) {
                Some(at) => (&rest[..at], rest[at..].trim_start()),
                None => (rest, ""),
            }
        };
        parts.push(part);
        rest = others;
    }
    if from_right {
        parts.reverse();
    }
    parts
}

/// The part of a text from a character to another, and the number of characters before it.
fn window(text: &str, start: Option<i64>, stop: Option<i64>) -> (usize, &str) {
    if start.is_none() && stop.is_none() {
        return (0, text);
    }
    let len = i64::try_from(text.chars().count()).unwrap_or(i64::MAX);
    let place = |i: i64| (if i < 0 { i.saturating_add(len) } else { i }).clamp(0, len);
    let (start, stop) = (place(start.unwrap_or(0)), place(stop.unwrap_or(len)));
    let byte = |chars: i64| {
        let chars = usize::try_from(chars).unwrap_or(0);
        text.char_indices().nth(chars).map_or(text.len(), |(at, _)| at)
    };
    (usize::try_from(start).unwrap_or(0), text.get(byte(start)..byte(stop)).unwrap_or(""))
}

fn find(text: &str, name: &str, args: &[Value]) -> Result<Value, Error> {
    let (what, start, stop): (&str, Option<i64>, Option<i64>) = from_args(args)?;
    let (before, part) = window(text, start, stop);
    let place = if name.starts_with('r') { part.rfind(what) } else { part.find(what) };
    match place {
        Some(at) => Ok(Value::from(before + part[..at].chars().count())),
        None if name.ends_with("find") => Ok(Value::from(-1)),
        None => Err(Error::new(ErrorKind::InvalidOperation, "substring not found")),
    }
}

fn affix(text: &str, at_start: bool, args: &[Value]) -> Result<Value, Error> {
    let (what, start, stop): (&Value, Option<i64>, Option<i64>) = from_args(args)?;
    let (_, part) = window(text, start, stop);
    let fits = |affix: &str| if at_start { part.starts_with(affix) } else { part.ends_with(affix) };
    if let Some(affix) = what.as_str() {
        return Ok(Value::from(fits(affix)));
    }
    if !memory::is_tuple(what) {
        let name = if at_start { "startswith" } else { "endswith" };
        let found = python::type_name(what);
        let detail = format!("{name} first arg must be str or a tuple of str, not {found}");
        return Err(Error::new(ErrorKind::InvalidOperation, detail));
    }
    Ok(Value::from(what.try_iter()?.any(|affix| affix.as_str().is_some_and(fits))))
}

fn padded(state: &mut State, text: &str, name: &str, args: &[Value]) -> Result<Value, Error> {
    let (width, fill): (i64, Option<&str>) = from_args(args)?;
    let fill = fill.unwrap_or(if name == "zfill" { "0" } else { " " });
    let missing = usize::try_from(width).unwrap_or(0).saturating_sub(text.chars().count());
    let (sign, digits) = match text.strip_prefix(['-', '+']) {
        Some(digits) if name == "zfill" => text.split_at(text.len() - digits.len()),
        _ => ("", text),
    };
    let before = match name {
        "ljust" => 0,
        // Python puts the odd one to the left where the width is odd.
        "center" => missing / 2 + (missing & usize::try_from(width).unwrap_or(0) & 1),
        _ => missing,
    };
    let mut out = memory::Text::default();
    out.push(sign)?;
    out.repeat(fill, before)?;
    out.push(digits)?;
    out.repeat(fill, missing - before)?;
    memory::string(state, out.take())
}

fn swapped(c: char) -> char {
    let other: Option<char> =
        if c.is_lowercase() { c.to_uppercase().next() } else { c.to_lowercase().next() };
    other.unwrap_or(c)
}

fn list<'a>(parts: impl IntoIterator<Item = &'a str>) -> Value {
    parts.into_iter().map(Value::from).collect()
}
