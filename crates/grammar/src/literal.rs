//! Arguments as literals of a programming language.
//!
//! llguidance writes values of a schema as JSON only. Numbers are the same here, and so is a string of
//! Python between double quotes; all else gets rules of its own.

mod members;

use crate::{
    GrammarError,
    calls::Writer,
    ebnf::quoted,
    pointer::Pointer,
    schema::{ANY, resolve},
    source::{Separators, with_options},
};
use serde_json::{Map, Value};
use std::{collections::HashMap, fmt::Write};
use taper_chat::Literals;

/// A list that a schema sets no end to, or a later one, has at most this many items.
const MOST_ITEMS: u64 = 1_000;
/// Longest name that the parsers of calls read.
const LONGEST_NAME: usize = 256;
/// What a name without quotes may not hold.
const NOT_IN_NAMES: &str = "{}[](),\"'<>\n:=";

/// Writes the rules of one tool's arguments.
pub(crate) struct Literal<'a> {
    writer: &'a Writer<'a>,
    style: Literals,
    strict: bool,
    root: &'a Value,
    prefix: String,
    rules: String,
    count: usize,
    /// Rules of schemas that are referred to, and of any value.
    named: HashMap<String, String>,
}

impl<'a> Literal<'a> {
    pub(crate) fn new(
        writer: &'a Writer<'a>,
        style: Literals,
        strict: bool,
        root: &'a Value,
    ) -> Self {
        let (prefix, rules, named) = Default::default();
        Self { writer, style, strict, root, prefix, rules, count: 0, named }
    }

    /// The arguments of the tool at `index`, without the brackets around them.
    pub(crate) fn arguments(mut self, index: usize) -> Result<String, GrammarError> {
        self.prefix = format!("lit_{index}");
        let schema = with_options(self.root.clone(), Separators::Spaced, None, self.strict);
        let none = Map::new();
        let root = match self.writer.is_usable(&schema, self.strict)? {
            true => self.root.as_object().unwrap_or(&none),
            false => &none,
        };
        let root = match root.get("$ref").and_then(Value::as_str) {
            Some(reference) => resolve(self.root, reference).and_then(Value::as_object),
            None => Some(root),
        };
        let members = self.members(root.unwrap_or(&none), &Pointer::root(), true)?;
        let members = self.sequence(&members);
        Ok(format!("args_{index}: {members}\n{}", self.rules))
    }

    fn is_python(&self) -> bool {
        self.style == Literals::Python
    }

    fn separator(&self) -> &'static str {
        if self.is_python() { "\", \"" } else { "\",\"" }
    }

    fn fresh(&mut self) -> String {
        self.count += 1;
        format!("{}_{}", self.prefix, self.count)
    }

    fn rule(&mut self, body: &str) -> String {
        let name = self.fresh();
        let _ = writeln!(self.rules, "{name}: {body}");
        name
    }

    /// What is not strict may be anything instead.
    fn unsupported(&mut self, at: &Pointer, what: &str) -> Result<String, GrammarError> {
        if self.strict {
            let detail = format!("{what} in the arguments of this model's calls");
            return Err(GrammarError::Unsupported { pointer: at.to_string(), detail });
        }
        Ok(self.any())
    }

    /// The name of a rule for a value.
    fn value(&mut self, schema: &Value, at: &Pointer) -> Result<String, GrammarError> {
        let Some(schema) = schema.as_object() else { return Ok(self.any()) };
        if let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
            return self.reference(reference, schema, at);
        }
        let fixed = schema.get("enum").and_then(Value::as_array).map(Vec::as_slice);
        let fixed = fixed.or_else(|| schema.get("const").map(std::slice::from_ref));
        if let Some(values) = fixed {
            return Ok(self.fixed(values, schema));
        }
        let options = ["anyOf", "oneOf"].into_iter().find(|name| schema.contains_key(*name));
        if let Some(name) = options {
            let beside = schema.keys().any(|k| k != name && !is_definition(k));
            if beside {
                return self.unsupported(&at.at(name), &format!("'{name}' beside other keywords"));
            }
            return self.options(&schema[name], &at.at(name));
        }
        self.typed(schema, at)
    }

    fn options(&mut self, options: &Value, at: &Pointer) -> Result<String, GrammarError> {
        let options = options.as_array().map_or(&[][..], Vec::as_slice);
        let possible =
            options.iter().enumerate().filter(|(_, option)| option.as_bool() != Some(false));
        let rules: Result<Vec<_>, _> = possible.map(|(i, o)| self.value(o, &at.at(i))).collect();
        Ok(self.rule(&rules?.join(" | ")))
    }

    fn reference(
        &mut self,
        reference: &str,
        schema: &Map<String, Value>,
        at: &Pointer,
    ) -> Result<String, GrammarError> {
        if reference.rsplit('/').next() == Some(ANY) {
            return Ok(self.any());
        }
        if schema.keys().any(|keyword| keyword != "$ref" && !is_definition(keyword)) {
            return self.unsupported(&at.at("$ref"), "'$ref' beside other keywords");
        }
        if let Some(rule) = self.named.get(reference) {
            return Ok(rule.clone());
        }
        let rule = self.fresh();
        self.named.insert(reference.to_owned(), rule.clone());
        let root = self.root;
        let target = match resolve(root, reference) {
            Some(target) => self.value(target, at)?,
            None => self.any(),
        };
        let _ = writeln!(self.rules, "{rule}: {target}");
        Ok(rule)
    }

    /// A schema without choices: those of its types.
    fn typed(&mut self, schema: &Map<String, Value>, at: &Pointer) -> Result<String, GrammarError> {
        let kinds = kinds(schema);
        if kinds.is_empty() {
            return match schema.contains_key("allOf") {
                true => self.unsupported(&at.at("allOf"), "'allOf'"),
                false => Ok(self.any()),
            };
        }
        let mut rules = Vec::new();
        for kind in kinds {
            rules.push(match kind {
                "null" => self.constant(&Value::Null),
                "boolean" => {
                    format!("{} | {}", self.constant(&true.into()), self.constant(&false.into()))
                }
                "string" => self.string(schema, at)?,
                "array" => self.array(schema, at)?,
                "object" => {
                    let members = self.members(schema, at, false)?;
                    format!("\"{{\" {} \"}}\"", self.sequence(&members))
                }
                number => self.number(number, schema),
            });
        }
        Ok(self.rule(&rules.join(" | ")))
    }

    fn number(&mut self, kind: &str, schema: &Map<String, Value>) -> String {
        let mut number = Map::from_iter([("type".to_owned(), kind.into())]);
        let limits =
            ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "allOf"];
        for limit in limits {
            number.extend(schema.get(limit).map(|value| (limit.to_owned(), value.clone())));
        }
        let number = with_options(number.into(), Separators::Spaced, None, self.strict);
        self.rule(&format!("%json {number}"))
    }

    fn string(
        &mut self,
        schema: &Map<String, Value>,
        at: &Pointer,
    ) -> Result<String, GrammarError> {
        let pattern = ["pattern", "allOf"].into_iter().find(|name| schema.contains_key(*name));
        if let Some(name) = pattern {
            return self.pattern(name, schema, at);
        }
        let limit = |name: &str| schema.get(name).and_then(Value::as_u64);
        let (least, most) = (limit("minLength").unwrap_or(0), limit("maxLength"));
        Ok(self.text(least, most))
    }

    /// A string that must match an expression.
    fn pattern(
        &mut self,
        name: &str,
        schema: &Map<String, Value>,
        at: &Pointer,
    ) -> Result<String, GrammarError> {
        if !self.is_python() {
            return self.unsupported(&at.at(name), &format!("'{name}' of a string"));
        }
        let mut string = Map::from_iter([("type".to_owned(), "string".into())]);
        for limit in ["pattern", "allOf", "minLength", "maxLength"] {
            string.extend(schema.get(limit).map(|value| (limit.to_owned(), value.clone())));
        }
        let string = with_options(string.into(), Separators::Spaced, None, self.strict);
        Ok(self.rule(&format!("%json {string}")))
    }

    /// Any string of a length.
    fn text(&mut self, least: u64, most: Option<u64>) -> String {
        let Literals::Delimited(delimiter) = self.style else {
            let length = match (least, most) {
                (0, None) => "*".to_owned(),
                (least, None) => format!("{{{least},}}"),
                (least, Some(most)) => format!("{{{least},{most}}}"),
            };
            return ['\'', '"']
                .map(|quote| format!("/{}/", python_string(quote, &length)))
                .join(" | ");
        };
        let name = self.fresh();
        let text = self.writer.text_up_to(&name, (delimiter, &[]), (least, most));
        self.rules.push_str(&text);
        format!("{} {name}", self.writer.text(delimiter))
    }

    fn array(&mut self, schema: &Map<String, Value>, at: &Pointer) -> Result<String, GrammarError> {
        let limit = |name: &str| schema.get(name).and_then(Value::as_u64);
        let least = limit("minItems").unwrap_or(0);
        let most = limit("maxItems").unwrap_or(MOST_ITEMS).min(MOST_ITEMS);
        if schema.contains_key("prefixItems") {
            return self.unsupported(&at.at("prefixItems"), "'prefixItems'");
        }
        if least > MOST_ITEMS {
            return self.unsupported(&at.at("minItems"), "a list of so many items");
        }
        let items = schema.get("items").filter(|items| items.as_bool() != Some(false));
        let Some(items) = items.filter(|_| most > 0) else { return Ok("\"[\" \"]\"".to_owned()) };
        let item = self.value(items, &at.at("items"))?;
        let more = format!(
            "{item} ({} {item}){{{},{}}}",
            self.separator(),
            least.saturating_sub(1),
            most.max(least).saturating_sub(1)
        );
        let more = if least == 0 { format!("({more})?") } else { more };
        Ok(format!("\"[\" {more} \"]\""))
    }

    fn colon(&self, arguments: bool) -> &'static str {
        match (self.is_python(), arguments) {
            (true, true) => "=",
            (true, false) => ": ",
            (false, _) => ":",
        }
    }

    /// A name and what stands behind it; `None` for a name that cannot be written.
    fn key(&self, name: &str, arguments: bool) -> Option<String> {
        let colon = self.colon(arguments);
        if self.is_python() && !arguments {
            let keys = ['\'', '"'].map(|quote| quoted(&format!("{}{colon}", python(name, quote))));
            return Some(format!("({})", keys.join(" | ")));
        }
        let fits = name.trim() == name && (1..=LONGEST_NAME).contains(&name.len());
        let plain = fits && !name.contains(|c| NOT_IN_NAMES.contains(c));
        plain.then(|| quoted(&format!("{name}{colon}")))
    }

    /// One of some values.
    fn fixed(&mut self, values: &[Value], schema: &Map<String, Value>) -> String {
        let kinds = if schema.contains_key("type") { kinds(schema) } else { Vec::new() };
        let fits = |value: &&Value| kinds.is_empty() || kinds.iter().any(|kind| is_a(value, kind));
        let values: Vec<_> = values.iter().filter(fits).map(|value| self.constant(value)).collect();
        self.rule(&values.join(" | "))
    }

    /// A value that is known.
    fn constant(&self, value: &Value) -> String {
        match (value, self.style) {
            (Value::Null, Literals::Python) => "\"None\"".to_owned(),
            (Value::Bool(true), Literals::Python) => "\"True\"".to_owned(),
            (Value::Bool(false), Literals::Python) => "\"False\"".to_owned(),
            (Value::String(text), Literals::Python) => {
                let both = ['\'', '"'].map(|quote| quoted(&python(text, quote)));
                format!("({})", both.join(" | "))
            }
            (Value::String(text), Literals::Delimited(delimiter)) => {
                let delimiter = self.writer.text(delimiter);
                format!("({delimiter} {} {delimiter})", quoted(text))
            }
            (Value::Array(values), _) => {
                let values: Vec<_> = values.iter().map(|value| self.constant(value)).collect();
                format!("(\"[\" {} \"]\")", values.join(&format!(" {} ", self.separator())))
            }
            (Value::Object(members), _) => {
                let member = |(name, value): (&String, &Value)| {
                    let key = self.key(name, false).unwrap_or_else(|| quoted(name));
                    format!("{key} {}", self.constant(value))
                };
                let members: Vec<_> = members.iter().map(member).collect();
                format!("(\"{{\" {} \"}}\")", members.join(&format!(" {} ", self.separator())))
            }
            (value, _) => quoted(&value.to_string()),
        }
    }

    /// The rule of any value.
    fn any(&mut self) -> String {
        if let Some(rule) = self.named.get("") {
            return rule.clone();
        }
        let rule = self.fresh();
        self.named.insert(String::new(), rule.clone());
        let constants =
            [Value::Null, true.into(), false.into()].map(|c| self.constant(&c)).join(" | ");
        let number = crate::schema::any_number();
        let number = self.number("number", &number);
        let text = self.text(0, None);
        let separator = self.separator();
        let list = self.rule(&format!("\"[\" ({rule} ({separator} {rule})*)? \"]\""));
        let colon = quoted(self.colon(false));
        let key = match self.is_python() {
            true => ['\'', '"'].map(|quote| format!("/{}/", python_string(quote, "*"))).join(" | "),
            false => format!("/{PLAIN_NAME}/"),
        };
        let key = self.rule(&key);
        let member = self.rule(&format!("{key} {colon} {rule}"));
        let object = self.rule(&format!("\"{{\" ({member} ({separator} {member})*)? \"}}\""));
        let _ = writeln!(self.rules, "{rule}: {constants} | {number} | {text} | {list} | {object}");
        rule
    }
}

/// A name without quotes that no schema has.
const PLAIN_NAME: &str = r#"[^{}\[\](),"'<>\s:=\x00-\x20]{1,64}"#;

fn is_definition(keyword: &str) -> bool {
    matches!(keyword, "$defs" | "definitions")
}

/// The types that a schema allows; none if it does not say.
fn kinds(schema: &Map<String, Value>) -> Vec<&str> {
    match schema.get("type") {
        Some(Value::String(kind)) => vec![kind],
        Some(Value::Array(kinds)) => kinds.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    }
}

fn is_a(value: &Value, kind: &str) -> bool {
    match value {
        Value::Null => kind == "null",
        Value::Bool(_) => kind == "boolean",
        Value::Number(n) => {
            kind == "number" || kind == "integer" && n.as_f64().is_some_and(|n| n.fract() == 0.0)
        }
        Value::String(_) => kind == "string",
        Value::Array(_) => kind == "array",
        Value::Object(_) => kind == "object",
    }
}

/// A text as a string of Python.
fn python(text: &str, quote: char) -> String {
    let mut out = String::from(quote);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote || c == '\\' => out.extend(['\\', c]),
            c if c < ' ' => {
                let _ = write!(out, "\\x{:02x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push(quote);
    out
}

/// The expression of any string of Python, of so many characters. It has JSON's escapes but `\u`.
fn python_string(quote: char, length: &str) -> String {
    format!(r#"{quote}(?:[^{quote}\\\x00-\x1f]|\\[nrtbf'"\\]){length}{quote}"#)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_of_python() {
        assert_eq!(python("it's \"a\"\n\\\u{1}", '\''), r#"'it\'s "a"\n\\\x01'"#);
        assert_eq!(python("it's", '"'), "\"it's\"");
    }
}
