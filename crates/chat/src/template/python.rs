//! Values as Python writes them: `str` and `repr`.

use super::memory::{self, Text};
use minijinja::{Error, ErrorKind, Value, value::ValueKind};

/// `str(value)`.
pub(super) fn str(value: &Value) -> Result<String, Error> {
    let mut out = Text::default();
    write_str(&mut out, value)?;
    Ok(out.take())
}

pub(super) fn write_str(out: &mut Text, value: &Value) -> Result<(), Error> {
    match value.as_str() {
        Some(text) => out.push(text),
        None if value.is_undefined() => Ok(()),
        None => write_repr(out, value),
    }
}

/// `repr(value)`.
fn write_repr(out: &mut Text, value: &Value) -> Result<(), Error> {
    match value.kind() {
        ValueKind::Undefined => out.push("Undefined"),
        ValueKind::Number if !value.is_integer() => {
            out.push(&float(f64::try_from(value.clone())?, ["nan", "inf", "-inf"]))
        }
        ValueKind::Seq | ValueKind::Iterable => {
            let (open, close) = match (memory::is_tuple(value), value.len()) {
                (true, Some(1)) => ("(", ",)"),
                (true, _) => ("(", ")"),
                (false, _) => ("[", "]"),
            };
            out.push(open)?;
            for (i, item) in value.try_iter()?.checked().enumerate() {
                out.push(if i > 0 { ", " } else { "" })?;
                write_repr(out, &item?)?;
            }
            out.push(close)
        }
        ValueKind::Map => {
            out.push("{")?;
            for (i, key) in value.try_iter()?.checked().enumerate() {
                let key = key?;
                out.push(if i > 0 { ", " } else { "" })?;
                write_repr(out, &key)?;
                out.push(": ")?;
                write_repr(out, &value.get_item(&key)?)?;
            }
            out.push("}")
        }
        // The engine writes texts, integers, booleans and none as Python does.
        _ => {
            memory::check_length(value.len().unwrap_or(0).saturating_mul(10))?;
            out.push(&format!("{value:?}"))
        }
    }
}

/// Python's `repr` of a float: the same digits as Rust's, another rule for the exponent. JSON has
/// other words than `repr` for what is not a number or not finite.
pub(super) fn float(x: f64, [nan, infinity, negative_infinity]: [&str; 3]) -> String {
    if x.is_nan() {
        return nan.to_owned();
    }
    if x.is_infinite() {
        return if x > 0.0 { infinity } else { negative_infinity }.to_owned();
    }
    let scientific = format!("{x:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let plain = format!("{x}");
        return if plain.contains('.') { plain } else { plain + ".0" };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.unsigned_abs())
}

/// The name of a value's type in Python's messages.
pub(super) fn type_name(value: &Value) -> &'static str {
    match value.kind() {
        ValueKind::Undefined => "Undefined",
        ValueKind::None => "NoneType",
        ValueKind::Bool => "bool",
        ValueKind::Number if value.is_integer() => "int",
        ValueKind::Number => "float",
        ValueKind::String => "str",
        ValueKind::Bytes => "bytes",
        ValueKind::Seq | ValueKind::Iterable if memory::is_tuple(value) => "tuple",
        ValueKind::Seq | ValueKind::Iterable => "list",
        ValueKind::Map => "dict",
        _ => "object",
    }
}

/// A `TypeError`, in Python's words.
pub(super) fn unsupported(operator: &str, a: &Value, b: &Value) -> Error {
    let (a, b) = (type_name(a), type_name(b));
    let detail = format!("unsupported operand type(s) for {operator}: '{a}' and '{b}'");
    Error::new(ErrorKind::InvalidOperation, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_as_python_writes_them() {
        let cases = [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (0.1, "0.1"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (-2.5e-7, "-2.5e-07"),
            (f64::INFINITY, "Infinity"),
        ];
        for (x, text) in cases {
            assert_eq!(float(x, ["NaN", "Infinity", "-Infinity"]), text);
        }
    }
}
