//! The template environment of Hugging Face transformers, on minijinja.

use super::{json::tojson, time};
use minijinja::{
    AutoEscape, Environment, Error, ErrorKind, State, Value,
    syntax::SyntaxConfig,
    value::{ValueKind, from_args},
};
use std::{fmt, time::SystemTime};

/// Steps that a rendering may take: far beyond any conversation, yet over within seconds.
pub(super) const FUEL: u64 = 20_000_000;

/// What `raise_exception` carries through the engine.
#[derive(Debug)]
struct Raised(String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

pub(super) fn environment() -> Environment<'static> {
    let mut env = Environment::new();
    let mut syntax = SyntaxConfig::builder();
    syntax.trim_blocks(true).lstrip_blocks(true);
    if let Ok(syntax) = syntax.build() {
        env.set_syntax(syntax);
    }
    env.set_auto_escape_callback(|_| AutoEscape::None);
    env.set_fuel(Some(FUEL));
    env.set_unknown_method_callback(method);
    env.add_filter("tojson", tojson);
    env.add_function("raise_exception", raise_exception);
    env.add_function("strftime_now", |format: &str| {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        time::strftime(format, now.as_secs().cast_signed())
    });
    // In Jinja whatever has a length and elements is a sequence.
    env.add_test("sequence", |value: &Value| {
        value.is_undefined()
            || matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::String)
    });
    env
}

pub(super) fn fix_time(env: &mut Environment<'static>, unix_seconds: i64) {
    env.add_function("strftime_now", move |format: &str| time::strftime(format, unix_seconds));
}

fn raise_exception(message: &Value) -> Result<Value, Error> {
    let message = message.to_string();
    Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
}

/// The message of a `raise_exception` behind an error.
pub(super) fn raised(error: &Error) -> Option<String> {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(raised) = error.downcast_ref::<Raised>() {
            return Some(raised.0.clone());
        }
        cause = error.source();
    }
    None
}

/// Kind and detail, without the place, which is told apart.
pub(super) fn reason(error: &Error) -> String {
    match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    }
}

/// Python's methods: a few that minijinja-contrib lacks, then its own.
fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    let Some(text) = value.as_str() else {
        return minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args);
    };
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
            let (head, tail) = text.split_once(separator).unwrap_or((text, ""));
            let found = if head.len() < text.len() { separator } else { "" };
            Ok(list([head, found, tail]))
        }
        "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            let (head, tail) = text.rsplit_once(separator).unwrap_or(("", text));
            let found = if tail.len() < text.len() { separator } else { "" };
            Ok(list([head, found, tail]))
        }
        "rsplit" => {
            let (separator, limit): (Option<&str>, Option<i64>) = from_args(args)?;
            let pieces = limit.and_then(|n| usize::try_from(n).ok()).map_or(usize::MAX, |n| n + 1);
            let mut parts: Vec<&str> = match separator {
                Some(separator) => text.rsplitn(pieces, separator).collect(),
                None if pieces == usize::MAX => text.split_whitespace().rev().collect(),
                None => text.trim_end().rsplitn(pieces, char::is_whitespace).collect(),
            };
            parts.reverse();
            Ok(list(parts))
        }
        _ => minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args),
    }
}

fn list<'a>(parts: impl IntoIterator<Item = &'a str>) -> Value {
    parts.into_iter().map(Value::from).collect()
}

/// `{% generation %}` marks what an assistant says, for training masks; a prompt ignores it. It
/// becomes an `if` that always holds, with the same effect on whitespace and lines.
pub(super) fn without_generation_tags(source: &str) -> String {
    if !source.contains("generation") {
        return source.to_owned();
    }
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at + 2);
        out.push_str(before);
        rest = tag;
        let Some(end) = tag.find("%}") else { break };
        let inside = &tag[..end];
        let word = inside.trim_matches(['-', '+']).trim();
        let replacement = match word {
            "generation" => "if true",
            "endgeneration" => "endif",
            _ => continue,
        };
        out.push_str(&inside.replace(word, replacement));
        rest = &tag[end..];
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(source: &str) -> String {
        let mut env = environment();
        env.add_template_owned("t", without_generation_tags(source)).unwrap();
        env.get_template("t").unwrap().render(()).unwrap()
    }

    #[test]
    fn generation_tags_vanish_like_any_block() {
        assert_eq!(render("a\n  {% generation %}\nb\n  {% endgeneration %}\nc"), "a\nb\nc");
        assert_eq!(render("a {%- generation -%} b {%- endgeneration -%} c"), "abc");
    }

    #[test]
    fn pythons_methods() {
        assert_eq!(render("{{ 'a.b.c'.rsplit('.', 1) | tojson }}"), r#"["a.b", "c"]"#);
        assert_eq!(render("{{ 'a.b.c'.partition('.') | tojson }}"), r#"["a", ".", "b.c"]"#);
        assert_eq!(render("{{ 'abc'.rpartition('.') | tojson }}"), r#"["", "", "abc"]"#);
        assert_eq!(render("{{ 'xab'.removeprefix('x').removesuffix('b') }}"), "a");
        assert_eq!(render("{{ 'a b'.split() | tojson }}{{ ' a'.lstrip() }}"), r#"["a", "b"]a"#);
        assert_eq!(
            render("{{ 'x' is sequence }}{{ {} is sequence }}{{ 1 is sequence }}"),
            "TrueTrueFalse"
        );
        assert_eq!(render("{{ 'x' is iterable }}{{ ('a,b').split(',')[-1] }}"), "Trueb");
    }
}
