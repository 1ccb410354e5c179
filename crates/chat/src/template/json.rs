//! `tojson` as Python's `json.dumps` writes it, which is what models were trained on.

use super::{memory::Text, python};
use minijinja::{
    Error, ErrorKind, Value,
    value::{Kwargs, ValueKind},
};

/// The widest indentation; a wider one is cut.
const WIDEST: usize = 1000;

/// `json.dumps(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
#[expect(clippy::needless_pass_by_value, reason = "filters take their arguments by value")]
pub(super) fn tojson(
    value: &Value,
    ensure_ascii: Option<bool>,
    indent: Option<Value>,
    kwargs: Kwargs,
) -> Result<String, Error> {
    let indent = indent.or(kwargs.get("indent")?).filter(|i| !i.is_none());
    let indent = indent.map(|i| match i.as_str() {
        Some(text) => text.to_owned(),
        // Python takes a number below zero as zero, and true as one.
        None if i.kind() == ValueKind::Bool => " ".repeat(usize::from(i.is_true())),
        None => " ".repeat(i.as_usize().unwrap_or(0).min(WIDEST)),
    });
    let separators: Option<Vec<String>> = kwargs.get("separators")?;
    let (item, key) = match separators.as_deref() {
        Some([item, key]) => (item.clone(), key.clone()),
        // Python leaves no space where a line ends.
        _ => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
    };
    let mut writer = Writer {
        out: Text::default(),
        ensure_ascii: match ensure_ascii {
            Some(yes) => yes,
            None => kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        },
        sort_keys: kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        indent,
        item,
        key,
    };
    kwargs.assert_all_used()?;
    writer.value(value, 0)?;
    Ok(writer.out.take())
}

struct Writer {
    out: Text,
    ensure_ascii: bool,
    sort_keys: bool,
    indent: Option<String>,
    item: String,
    key: String,
}

impl Writer {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        match value.kind() {
            ValueKind::None => self.out.push("null")?,
            ValueKind::Bool => self.out.push(if value.is_true() { "true" } else { "false" })?,
            ValueKind::Number if value.is_integer() => self.out.push(&value.to_string())?,
            ValueKind::Number => {
                let number = f64::try_from(value.clone())?;
                self.out.push(&python::float(number, ["NaN", "Infinity", "-Infinity"]))?;
            }
            ValueKind::String => self.string(value.as_str().unwrap_or_default())?,
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.out.push("[")?;
                for (i, item) in items.iter().enumerate() {
                    self.between(i, depth)?;
                    self.value(item, depth + 1)?;
                }
                self.close(items.is_empty(), depth, "]")?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort_keys {
                    keys.sort();
                }
                self.out.push("{")?;
                for (i, key) in keys.iter().enumerate() {
                    self.between(i, depth)?;
                    match key.as_str() {
                        Some(text) => self.string(text)?,
                        None => self.other_key(key)?,
                    }
                    self.out.push(&self.key)?;
                    self.value(&value.get_item(key)?, depth + 1)?;
                }
                self.close(keys.is_empty(), depth, "}")?;
            }
            kind => {
                let detail = format!("a value of type {kind} cannot be written as JSON");
                return Err(Error::new(ErrorKind::BadSerialization, detail));
            }
        }
        Ok(())
    }

    /// A key that is no text, as Python writes it.
    fn other_key(&mut self, key: &Value) -> Result<(), Error> {
        match key.kind() {
            ValueKind::None => self.string("null"),
            ValueKind::Bool => self.string(if key.is_true() { "true" } else { "false" }),
            _ => self.string(&python::str(key)?),
        }
    }

    fn between(&mut self, index: usize, depth: usize) -> Result<(), Error> {
        if index > 0 {
            self.out.push(&self.item)?;
        }
        self.line(depth + 1)
    }

    fn close(&mut self, empty: bool, depth: usize, bracket: &str) -> Result<(), Error> {
        if !empty {
            self.line(depth)?;
        }
        self.out.push(bracket)
    }

    fn line(&mut self, depth: usize) -> Result<(), Error> {
        let Some(indent) = &self.indent else { return Ok(()) };
        self.out.push("\n")?;
        self.out.repeat(indent, depth)
    }

    fn string(&mut self, text: &str) -> Result<(), Error> {
        self.out.push("\"")?;
        for c in text.chars() {
            match c {
                '"' => self.out.push("\\\"")?,
                '\\' => self.out.push("\\\\")?,
                '\n' => self.out.push("\\n")?,
                '\r' => self.out.push("\\r")?,
                '\t' => self.out.push("\\t")?,
                '\u{8}' => self.out.push("\\b")?,
                '\u{c}' => self.out.push("\\f")?,
                c if c < ' ' || (self.ensure_ascii && !(' '..='~').contains(&c)) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        self.out.push(&format!("\\u{unit:04x}"))?;
                    }
                }
                c => self.out.push_char(c)?,
            }
        }
        self.out.push("\"")
    }
}
