//! Texts to JSON values of the types that a schema names, as vLLM converts them.

use super::super::KnownTools;
use serde_json::Value;

/// How many references are followed for one argument.
const MAX_REFERENCES: usize = 64;

/// The types that an argument may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Types {
    null: bool,
    integer: bool,
    number: bool,
    boolean: bool,
    /// Objects and lists: whichever the text is, it is taken.
    json: bool,
    string: bool,
    /// A type that is none of the above.
    other: bool,
}

impl Types {
    /// The types of a schema: `type`, those of the values in `enum`, and those of all choices. A
    /// schema that names none, or that is absent, means a string.
    #[cfg(test)]
    pub(super) fn of(schema: Option<&Value>) -> Self {
        Self::within(&Value::Null, schema)
    }

    /// The types of a tool's argument; `None` if the tool does not name it. What its schema refers to
    /// counts.
    pub(super) fn of_argument(tools: &KnownTools, name: &str, argument: &str) -> Option<Self> {
        let root = tools.parameters(name)?;
        let schema = tools.schema(name, argument)?;
        Some(Self::within(root, Some(schema)))
    }

    fn within(root: &Value, schema: Option<&Value>) -> Self {
        let mut types = Self::default();
        if let Some(schema) = schema {
            types.add(root, schema, &mut { MAX_REFERENCES });
        }
        types.or_string()
    }

    /// What names no type means a string.
    fn or_string(self) -> Self {
        if self == Self::default() { Self::string() } else { self }
    }

    /// Only strings are taken, so that a value's text is its value whatever follows.
    pub(super) fn only_string(self) -> bool {
        self == Self::string()
    }

    /// A string, whatever it looks like.
    pub(super) fn string() -> Self {
        Self { string: true, ..Self::default() }
    }

    /// Any JSON.
    pub(super) fn json() -> Self {
        Self { json: true, ..Self::default() }
    }

    /// Strings are among what is taken.
    pub(super) fn takes_string(self) -> bool {
        self.string
    }

    fn add(&mut self, root: &Value, schema: &Value, references: &mut usize) {
        if let Some(path) = schema.get("$ref").and_then(|r| r.as_str()?.strip_prefix('#'))
            && let (Some(target), Some(left)) = (root.pointer(path), references.checked_sub(1))
        {
            *references = left;
            self.add(root, target, references);
        }
        match schema.get("type") {
            Some(Value::String(name)) => self.name(name),
            Some(Value::Array(names)) => {
                names.iter().filter_map(Value::as_str).for_each(|name| self.name(name));
            }
            _ => {}
        }
        for value in schema.get("enum").and_then(Value::as_array).into_iter().flatten() {
            match value {
                Value::Null => self.null = true,
                Value::Bool(_) => self.boolean = true,
                Value::Number(n) if n.is_f64() => self.number = true,
                Value::Number(_) => self.integer = true,
                Value::String(_) => self.string = true,
                Value::Array(_) | Value::Object(_) => self.json = true,
            }
        }
        for choices in ["anyOf", "oneOf", "allOf"] {
            let choices = schema.get(choices).and_then(Value::as_array).into_iter().flatten();
            choices.for_each(|choice| {
                let mut types = Self::default();
                types.add(root, choice, references);
                self.join(types.or_string());
            });
        }
    }

    fn join(&mut self, more: Self) {
        self.null |= more.null;
        self.integer |= more.integer;
        self.number |= more.number;
        self.boolean |= more.boolean;
        self.json |= more.json;
        self.string |= more.string;
        self.other |= more.other;
    }

    /// JSON's names, and those of languages whose types people write instead.
    fn name(&mut self, name: &str) {
        let field = match name.trim().to_lowercase().as_str() {
            "null" => &mut self.null,
            "integer" | "int" | "int32" | "int64" | "uint" | "uint32" | "uint64" | "long"
            | "short" | "unsigned" => &mut self.integer,
            "number" | "float" | "float32" | "float64" | "double" => &mut self.number,
            "boolean" | "bool" => &mut self.boolean,
            "object" | "dict" | "array" | "arr" | "list" | "sequence" => &mut self.json,
            "string" | "str" | "text" | "varchar" | "char" | "enum" => &mut self.string,
            _ => &mut self.other,
        };
        *field = true;
    }

    /// The text as JSON: the first type that fits, strings last. A text that fits none is the JSON
    /// that it happens to be, or else a string.
    pub(super) fn convert(self, text: &str) -> String {
        let null = || self.null.then(|| null(text)).flatten();
        let whole = || (self.integer || self.number).then(|| integer(text)).flatten();
        let number = || self.number.then(|| number(text)).flatten();
        let boolean = || self.boolean.then(|| boolean(text)).flatten();
        let any = || (self.json || !self.string).then(|| json(text)).flatten();
        let typed = null().or_else(whole).or_else(number).or_else(boolean).or_else(any);
        typed.unwrap_or_else(|| Value::from(text).to_string())
    }
}

fn null(text: &str) -> Option<String> {
    text.eq_ignore_ascii_case("null").then(|| "null".to_owned())
}

/// Digits of any number, with a sign; leading zeros, which JSON does not have, are dropped.
fn integer(text: &str) -> Option<String> {
    let text = text.trim();
    let (minus, digits) = match text.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", text.strip_prefix('+').unwrap_or(text)),
    };
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let digits = digits.trim_start_matches('0');
    Some(if digits.is_empty() { "0".to_owned() } else { format!("{minus}{digits}") })
}

/// A finite number; one without a fraction is written as an integer.
fn number(text: &str) -> Option<String> {
    let number: f64 = text.trim().parse().ok().filter(|n: &f64| n.is_finite())?;
    if number == 0.0 {
        return Some("0".to_owned());
    }
    Some(if number.fract() == 0.0 {
        format!("{number:.0}")
    } else {
        Value::from(number).to_string()
    })
}

fn boolean(text: &str) -> Option<String> {
    match text.trim().to_lowercase().as_str() {
        "true" | "1" => Some("true".to_owned()),
        "false" | "0" => Some("false".to_owned()),
        _ => None,
    }
}

/// Any JSON, as it is written. Numbers must be finite.
fn json(text: &str) -> Option<String> {
    serde_json::from_str::<Value>(text).ok().map(|_| text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Values that vLLM 0.33's `coerce_to_schema_type` gave for the types that its
    /// `extract_types_from_schema` found.
    #[test]
    fn values_are_those_of_vllm() {
        let table = [
            (json!({"type": "string"}), "42", json!("42")),
            (json!({"type": "str"}), "true", json!("true")),
            (json!({}), "42", json!("42")),
            (json!({"$ref": "#/x"}), "{}", json!("{}")),
            (json!({"type": "integer"}), "42", json!(42)),
            (json!({"type": "integer"}), " +042\n", json!(42)),
            (json!({"type": "integer"}), "-0", json!(0)),
            (json!({"type": "integer"}), "4.5", json!(4.5)),
            (json!({"type": "integer"}), "four", json!("four")),
            (json!({"type": "integer"}), "", json!("")),
            (json!({"type": "number"}), "2.75", json!(2.75)),
            (json!({"type": "float"}), "3.0", json!(3)),
            (json!({"type": "number"}), "1e3", json!(1000)),
            (json!({"type": "number"}), "-0.0", json!(0)),
            (json!({"type": "number"}), "inf", json!("inf")),
            (json!({"type": "number"}), "nan", json!("nan")),
            (json!({"type": "number"}), "1e999", json!("1e999")),
            (json!({"type": "boolean"}), " True ", json!(true)),
            (json!({"type": "boolean"}), "0", json!(false)),
            (json!({"type": "boolean"}), "yes", json!("yes")),
            (json!({"type": "object"}), "{\"a\": [1,\n2]}", json!({"a": [1, 2]})),
            (json!({"type": "array"}), "{\"a\": 1}", json!({"a": 1})),
            (json!({"type": "object"}), "{'a': 1}", json!("{'a': 1}")),
            (json!({"type": "array"}), "[1e999]", json!("[1e999]")),
            (json!({"type": ["string", "null"]}), "null", Value::Null),
            (json!({"type": ["string", "null"]}), "NULL", Value::Null),
            (json!({"type": ["string", "null"]}), " null", json!(" null")),
            (json!({"type": ["integer", "null"]}), "7", json!(7)),
            (json!({"anyOf": [{"type": "string"}, {"type": "integer"}]}), "7", json!(7)),
            (
                json!({"anyOf": [{"type": "object"}, {"type": "null"}]}),
                "{\"k\": 1}",
                json!({"k": 1}),
            ),
            (json!({"oneOf": [{"type": "string"}, {"type": "object"}]}), "{no", json!("{no")),
            (json!({"enum": ["a", "b"]}), "a", json!("a")),
            (json!({"enum": [1, 2]}), "2", json!(2)),
            (json!({"enum": [1.5]}), "1.5", json!(1.5)),
            (json!({"enum": [null, true]}), "1", json!(true)),
            (json!({"type": "any"}), "[1]", json!([1])),
            (json!({"type": "any"}), "x", json!("x")),
        ];
        for (schema, text, value) in table {
            let got = Types::of(Some(&schema)).convert(text);
            assert_eq!(serde_json::from_str::<Value>(&got).unwrap(), value, "{text:?} as {schema}");
        }
    }

    #[test]
    fn digits_are_kept() {
        let convert = |kind: &str, text| Types::of(Some(&json!({ "type": kind }))).convert(text);
        assert_eq!(convert("integer", "123456789012345678901234567890").len(), 30);
        assert_eq!(convert("number", "-00012345678901234567890"), "-12345678901234567890");
        assert_eq!(
            convert("object", " {\"n\": 12345678901234567890123} "),
            "{\"n\": 12345678901234567890123}"
        );
        assert_eq!(convert("number", "1e22"), "10000000000000000000000");
    }
}
