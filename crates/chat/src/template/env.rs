//! The template environment of Hugging Face transformers, on minijinja.

use super::{filters, memory, methods, operators, python, time};
use minijinja::{
    AutoEscape, Environment, Error, ErrorKind, Output, State, Value, syntax::SyntaxConfig,
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
    env.set_unknown_method_callback(methods::method);
    env.set_formatter(write);
    filters::add_to(&mut env);
    operators::add_to(&mut env);
    env.add_function("raise_exception", raise_exception);
    env.add_function("strftime_now", |format: &str| {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        time::strftime(format, now.as_secs().cast_signed())
    });
    env
}

pub(super) fn fix_time(env: &mut Environment<'static>, unix_seconds: i64) {
    env.add_function("strftime_now", move |format: &str| time::strftime(format, unix_seconds));
}

/// Writes a value to the prompt.
fn write(out: &mut Output<'_>, state: &mut State<'_, '_>, value: &Value) -> Result<(), Error> {
    let written = match value.as_str() {
        Some(text) => {
            memory::write(state, text.len())?;
            out.write_str(text)
        }
        None => {
            let text = python::str(value)?;
            memory::write(state, text.len())?;
            out.write_str(&text)
        }
    };
    written.map_err(Error::from)
}

fn raise_exception(message: &Value) -> Result<Value, Error> {
    let message = python::str(message)?;
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

/// Kind and detail, without the location, which is reported separately.
pub(super) fn reason(error: &Error) -> String {
    match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    }
}

/// Writes Jinja's tags as the engine knows them.
///
/// `{% generation %}` marks what an assistant says, for training masks; a prompt ignores it. It
/// becomes an `if` that always holds, with the same effect on whitespace and lines. The line break
/// after `{% raw %}` stays, as in Jinja.
pub(super) fn known_tags(source: &str) -> String {
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
            // The engine takes one line break away, so it is given one more.
            "raw" if !inside.ends_with('-') => {
                out.push_str(inside);
                out.push_str("%}\n");
                rest = &tag[end + 2..];
                continue;
            }
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
        env.add_template_owned("t", known_tags(source)).unwrap();
        operators::render(&env, "t", Value::from(())).unwrap()
    }

    #[test]
    fn generation_tags_vanish_like_any_block() {
        assert_eq!(render("a\n  {% generation %}\nb\n  {% endgeneration %}\nc"), "a\nb\nc");
        assert_eq!(render("a {%- generation -%} b {%- endgeneration -%} c"), "abc");
    }

    #[test]
    fn line_breaks_at_the_start_of_raw_text_stay() {
        assert_eq!(render("{% raw %}\n{{ a }}\n{% endraw %}\nb"), "\n{{ a }}\nb");
        assert_eq!(render("{% raw -%}\n a{% endraw %}"), "a");
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
        let same = [
            ("{{ none is iterable }}{{ 1 is iterable }}{{ x is iterable }}", "FalseFalseTrue"),
            ("{{ [5, 4, 3, 2, 1][3:0:-1] | join }}{{ 'abcd'[::-1] }}{{ 'aé'[-1:] }}", "234dcbaé"),
            ("{{ [1, 2][0:] is sequence }}{{ (1, 2)[:1] }}", "True(1,)"),
            ("{{ 'a-b-c' | replace('-', '+', 1) }}{{ 'abc'.index('c') }}", "a+b-c2"),
            ("{{ x | length }}{{ x[1:] | length }}{{ none | string }}", "00None"),
            (
                "{{ 1e16 }} {{ 1.0 }} {{ 7 / 2 }} {{ 6 / 2 }} {{ 7 // 2 }} {{ -7 % 3 }}",
                "1e+16 1.0 3.5 3.0 3 2",
            ),
            (
                "{{ [1, 'a', none, true, 1.5, {'k': 'it\\'s'}] }}",
                "[1, 'a', None, True, 1.5, {'k': \"it's\"}]",
            ),
            (
                "{{ '%s is %d%%' % ('x', 3) }}{{ 'ab' * 2 }}{{ 2 * [1] }}{{ 'a' * -1 }}",
                "x is 3%abab[1, 1]",
            ),
            ("{{ true + 1 }}{{ [1] + [2] }}{{ (1,) + (2,) }}{{ 1 ~ none }}", "2[1, 2](1, 2)1None"),
            (
                "{{ 'a  b c'.split(none, 1) }}{{ ' a  b '.rsplit(maxsplit=1) }}",
                "['a', 'b c'][' a', 'b']",
            ),
            (
                "{{ 'abcabc'.find('c', 3) }}{{ 'abc'.startswith(('x', 'a')) }}{{ 'abc'.center(6, '*') }}",
                "5True*abc**",
            ),
            (
                "{{ 'a\nb\n\nc' | indent(2) }}|{{ 'a\nb' | indent('> ', true) }}",
                "a\n  b\n\n  c|> a\n> b",
            ),
            (
                "{{ true is number }}{{ 'Ab'.swapcase() }}{{ '7'.zfill(3) }}{{ 'a b_c d' | wordcount }}",
                "TrueaB0073",
            ),
            ("{{ [{'a': {'b': 1}}, {'a': {'b': 2}}] | join('-', attribute='a.b') }}", "1-2"),
        ];
        for (source, right) in same {
            assert_eq!(render(source), right, "{source}");
        }
        assert_eq!(render("{{ 'x' is iterable }}{{ ('a,b').split(',')[-1] }}"), "Trueb");
    }
}
