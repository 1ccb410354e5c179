//! Filters and tests of Jinja that the engine lacks or has otherwise.

use super::{json::tojson, memory, methods, operators, python};
use minijinja::{
    Environment, Error, ErrorKind, State, Value,
    formatting::FormatStyle,
    value::{Kwargs, Rest, ValueKind, ValueOrKwargs, from_args},
};

pub(super) fn add_to(env: &mut Environment<'static>) {
    env.add_filter("tojson", tojson);
    env.add_filter("replace", replace);
    env.add_filter("join", join);
    env.add_filter("indent", indent);
    env.add_filter("format", format);
    env.add_filter("string", |value: &Value| python::str(value));
    env.add_filter("length", length);
    env.add_filter("count", length);
    env.add_filter("center", center);
    env.add_filter("wordcount", |value: &Value| {
        // A word of Jinja is a run of letters, digits and underscores.
        let text = python::str(value)?;
        let words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
        Ok::<_, Error>(words.filter(|word| !word.is_empty()).count())
    });
    // The engine's own write a value in full before anybody counts it.
    env.add_filter("upper", |value: &Value| python::str(value).map(|text| text.to_uppercase()));
    env.add_filter("lower", |value: &Value| python::str(value).map(|text| text.to_lowercase()));
    env.add_filter("title", |value: &Value| {
        python::str(value).map(|text| minijinja::filters::title(text.into()))
    });
    env.add_filter("capitalize", capitalize);
    env.add_filter("trim", trim);
    env.add_filter("safe", |value: &Value| python::str(value).map(Value::from_safe_string));
    env.add_filter("escape", escape);
    env.add_filter("e", escape);
    env.add_filter("map", map);
    env.add_filter("sum", sum);
    env.add_filter("batch", batch);
    env.add_filter("slice", slice);
    env.add_filter("list", list);
    env.add_filter("split", split);
    env.add_filter("lines", |state: &mut State, value: &Value| {
        let text = python::str(value)?;
        memory::pieces(state, text.matches('\n').count() + 1)?;
        minijinja::filters::lines(&Value::from(text))
    });
    // They make chains of lazy values or write them in full, and templates need none of them.
    env.remove_filter("chain");
    env.remove_filter("zip");
    env.remove_filter("pprint");
    env.add_test("iterable", |value: &Value| {
        value.is_undefined()
            || matches!(
                value.kind(),
                ValueKind::Seq | ValueKind::Map | ValueKind::String | ValueKind::Iterable
            )
    });
    // In Jinja whatever has a length and elements is a sequence.
    env.add_test("sequence", |value: &Value| {
        value.is_undefined()
            || matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::String)
    });
    env.add_test("number", |value: &Value| {
        matches!(value.kind(), ValueKind::Number | ValueKind::Bool)
    });
    env.add_function("namespace", namespace);
}

/// Sets up a namespace, as Jinja does, from values that it may hold.
fn namespace(state: &mut State, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let args = args.into_values();
    for values in &args {
        for key in values.try_iter()? {
            memory::store(state, values.get_item(&key)?)?;
        }
    }
    let (defaults,): (Option<ValueOrKwargs>,) = from_args(&args)?;
    minijinja::functions::namespace(defaults)
}

fn length(value: &Value) -> Result<usize, Error> {
    if value.is_undefined() {
        return Ok(0);
    }
    let none = || {
        let detail = format!("object of type '{}' has no len()", python::type_name(value));
        Error::new(ErrorKind::InvalidOperation, detail)
    };
    value.len().ok_or_else(none)
}

#[expect(clippy::needless_pass_by_value, reason = "filters take their arguments by value")]
fn replace(
    value: &Value,
    old: &Value,
    new: &Value,
    count: Option<i64>,
    kwargs: Kwargs,
) -> Result<String, Error> {
    let count = count.or(kwargs.get("count")?);
    kwargs.assert_all_used()?;
    let (text, old, new) = (python::str(value)?, python::str(old)?, python::str(new)?);
    methods::replaced(&text, &old, &new, count)
}

#[expect(clippy::needless_pass_by_value, reason = "filters take their arguments by value")]
fn join(
    state: &mut State,
    value: &Value,
    separator: Option<Value>,
    attribute: Option<Value>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let separator = separator.or(kwargs.get("d")?);
    let attribute = attribute.or(kwargs.get("attribute")?).filter(|a| !a.is_none());
    kwargs.assert_all_used()?;
    let separator = separator.map_or_else(|| Ok(String::new()), |s| python::str(&s))?;
    let Some(attribute) = attribute else {
        return methods::joined(state, value, &separator, false);
    };
    let path = python::str(&attribute)?;
    let mut values = Vec::new();
    for item in memory::items(state, value)? {
        values.push(at_path(item, &path)?);
    }
    let values = memory::sequence(state, values, false)?;
    methods::joined(state, &values, &separator, false)
}

fn capitalize(value: &Value) -> Result<String, Error> {
    let text = python::str(value)?;
    let mut chars = text.chars();
    let first = chars.next().map(|first| first.to_uppercase().collect::<String>());
    Ok(first.map_or_else(String::new, |first| first + &chars.as_str().to_lowercase()))
}

fn trim(value: &Value, chars: Option<&str>) -> Result<String, Error> {
    let text = python::str(value)?;
    Ok(match chars {
        Some(chars) => text.trim_matches(|c| chars.contains(c)).to_owned(),
        None => text.trim().to_owned(),
    })
}

fn escape(state: &mut State, value: &Value) -> Result<Value, Error> {
    if value.as_str().is_some() {
        return minijinja::filters::escape(state, value);
    }
    let text = Value::from(python::str(value)?);
    minijinja::filters::escape(state, &text)
}

/// `map(filter, arguments)`, each result counted as it comes; or `map(attribute=…)`.
fn map(state: &mut State, value: Value, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let values = args.into_values();
    let Some(filter) = values.first().and_then(|name| name.as_str()).map(str::to_owned) else {
        let (args,): (Rest<ValueOrKwargs>,) = from_args(&values)?;
        return minijinja::filters::map(state, value, args).map(Value::from);
    };
    let mut results = Vec::new();
    for item in memory::items(state, &value)? {
        let args: Vec<_> = std::iter::once(item).chain(values[1..].iter().cloned()).collect();
        let result = state.apply_filter(&filter, &args)?;
        results.push(memory::charge(state, result)?);
    }
    memory::sequence(state, results, false)
}

#[expect(clippy::needless_pass_by_value, reason = "filters take their arguments by value")]
fn sum(
    state: &mut State,
    value: &Value,
    attribute: Option<Value>,
    start: Option<Value>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let attribute = attribute.or(kwargs.get("attribute")?).filter(|a| !a.is_none());
    let mut sum = start.or(kwargs.get("start")?).unwrap_or_else(|| Value::from(0));
    kwargs.assert_all_used()?;
    for item in memory::items(state, value)? {
        let item = match &attribute {
            Some(path) => at_path(item, &python::str(path)?)?,
            None => item,
        };
        sum = operators::add(state, &sum, &item)?;
    }
    Ok(sum)
}

fn batch(
    state: &mut State,
    value: Value,
    count: usize,
    fill_with: Option<Value>,
) -> Result<Value, Error> {
    if fill_with.is_some() {
        memory::pieces(state, count)?;
    }
    minijinja::filters::batch(state, value, count, fill_with)
}

fn slice(
    state: &mut State,
    value: Value,
    count: usize,
    fill_with: Option<Value>,
) -> Result<Value, Error> {
    memory::pieces(state, count)?;
    minijinja::filters::slice(state, value, count, fill_with)
}

fn list(state: &mut State, value: Value) -> Result<Value, Error> {
    let count = value.as_str().map_or(0, |text| text.chars().count());
    memory::pieces(state, count)?;
    minijinja::filters::list(state, value)
}

fn split(
    state: &mut State,
    value: &Value,
    separator: Option<Value>,
    limit: Option<i64>,
) -> Result<Value, Error> {
    let text = Value::from(python::str(value)?);
    let args = [separator.unwrap_or_default(), Value::from(limit.unwrap_or(-1))];
    methods::method(state, &text, "split", &args)
}

/// What an attribute such as `a.b.0` leads to.
fn at_path(item: Value, path: &str) -> Result<Value, Error> {
    path.split('.').try_fold(item, |value, name| match name.parse::<usize>() {
        Ok(place) => value.get_item_by_index(place),
        Err(_) => value.get_attr(name),
    })
}

/// `indent(width=4, first=False, blank=False)`; the width may be a text.
#[expect(clippy::needless_pass_by_value, reason = "filters take their arguments by value")]
fn indent(
    value: &Value,
    width: Option<Value>,
    first: Option<bool>,
    blank: Option<bool>,
    kwargs: Kwargs,
) -> Result<String, Error> {
    let width = width.or(kwargs.get("width")?);
    let first = first.or(kwargs.get("first")?).unwrap_or(false);
    let blank = blank.or(kwargs.get("blank")?).unwrap_or(false);
    kwargs.assert_all_used()?;
    let (unit, times) = match &width {
        None => (" ", 4),
        Some(width) => match width.as_str() {
            Some(text) => (text, 1),
            None => (" ", usize::try_from(i64::try_from(width.clone())?.max(0)).unwrap_or(0)),
        },
    };
    let text = python::str(value)? + "\n";
    let mut out = memory::Text::default();
    for (i, line) in text.lines().enumerate() {
        if i > 0 {
            out.push("\n")?;
        }
        if if i == 0 { first } else { blank || !line.is_empty() } {
            out.repeat(unit, times)?;
        }
        out.push(line)?;
    }
    Ok(out.take())
}

#[expect(clippy::needless_pass_by_value, reason = "the engine passes arguments so")]
fn format(value: &Value, arguments: Rest<Value>) -> Result<String, Error> {
    operators::formatted(FormatStyle::Printf, &python::str(value)?, &arguments)
}

#[expect(clippy::needless_pass_by_value, reason = "filters take their arguments by value")]
fn center(
    state: &mut State,
    value: &Value,
    width: Option<i64>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let width = width.or(kwargs.get("width")?).unwrap_or(80);
    kwargs.assert_all_used()?;
    let text = Value::from(python::str(value)?);
    methods::method(state, &text, "center", &[Value::from(width)])
}
