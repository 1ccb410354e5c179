//! Arguments in tags of their own, strings as plain text.

use crate::{
    GrammarError,
    calls::Writer,
    ebnf::quoted,
    pointer::Pointer,
    schema::resolve,
    source::{Separators, with_options},
};
use serde_json::{Map, Value, json};
use std::fmt::Write;
use taper_chat::Tags;

/// How deep an argument's schema is searched for the values that it names.
const MAX_NESTED: usize = 8;

/// Writes the rules of one tool's arguments.
pub(crate) struct Tagged<'a> {
    writer: &'a Writer<'a>,
    tags: Tags,
    strict: bool,
}

impl<'a> Tagged<'a> {
    pub(crate) fn new(writer: &'a Writer<'a>, tags: Tags, strict: bool) -> Self {
        Self { writer, tags, strict }
    }

    /// The arguments that the schema of the tool at `index` names, in its order.
    pub(crate) fn arguments(&self, index: usize, schema: &Value) -> Result<String, GrammarError> {
        let none = Map::new();
        let properties = schema.get("properties").and_then(Value::as_object).unwrap_or(&none);
        let required = schema.get("required").and_then(Value::as_array);
        let is_required = |name: &str| required.is_some_and(|all| all.iter().any(|n| n == name));
        let (mut parts, mut rules) = (Vec::new(), String::new());
        for (i, (name, property)) in properties.iter().enumerate() {
            let part = format!("arg_{index}_{i}");
            let rule = format!("{index}_{i}");
            let value = self.argument(schema, (name, property), &rule)?;
            let _ = write!(rules, "{part}{value}");
            parts.push(if is_required(name) { part } else { format!("{part}?") });
        }
        let parts = if parts.is_empty() { "\"\"".to_owned() } else { parts.join(" ") };
        Ok(format!("args_{index}: {parts}\n{rules}"))
    }

    /// An argument and its value, from the colon of its rule on.
    fn argument(
        &self,
        root: &Value,
        (name, property): (&str, &Value),
        rule: &str,
    ) -> Result<String, GrammarError> {
        let Tags { before_name, before_text, before_json, after_value } = self.tags;
        let head = |before| self.writer.text(&format!("{before_name}{name}{before}"));
        let reference = property.get("$ref").and_then(Value::as_str);
        let meant = reference.and_then(|r| resolve(root, r)).unwrap_or(property);
        let end = self.writer.text(after_value);
        let named = named_values(root, meant, MAX_NESTED).filter(|values| !values.is_empty());
        if let Some(values) = named {
            let one = |value: &Value| match value {
                Value::String(text) => format!("{} {}", head(before_text), quoted(text)),
                value => format!("{} {}", head(before_json), quoted(&value.to_string())),
            };
            let texts: Vec<_> = values.iter().map(one).collect();
            return Ok(format!(": ({}) {end}\n", texts.join(" | ")));
        }
        let text = may_be_text(meant);
        let (mut options, mut rules) = (Vec::new(), String::new());
        if text {
            self.refuse_limits(meant, name)?;
            options.push(format!("{} text_{rule}", head(before_text)));
            let up_to = (after_value, &self.not_in_texts()[..]);
            rules += &self.writer.text_up_to(&format!("text_{rule}"), up_to, (0, None));
        }
        // Where tags do not tell text from JSON, a text may be any of it.
        if !text || (before_text != before_json && may_be_other(meant)) {
            options.push(format!("{} json_{rule} {end}", head(before_json)));
            let _ = writeln!(rules, "json_{rule}: %json {}", self.json(root, property)?);
        }
        Ok(format!(": {}\n{rules}", options.join(" | ")))
    }

    /// What plain text cannot be held to is refused, if the tool is strict.
    fn refuse_limits(&self, schema: &Value, name: &str) -> Result<(), GrammarError> {
        let Some(limit) = text_limit(schema, MAX_NESTED).filter(|_| self.strict) else {
            return Ok(());
        };
        let pointer = Pointer::root().at("properties").at(name).at(limit).to_string();
        let detail = format!("'{limit}' of an argument that this model writes as text");
        Err(GrammarError::Unsupported { pointer, detail })
    }

    /// The schema of an argument that is JSON.
    fn json(&self, root: &Value, property: &Value) -> Result<Value, GrammarError> {
        let mut schema = property.clone();
        if let Some(schema) = schema.as_object_mut() {
            for definitions in ["$defs", "definitions"] {
                if let Some(all) = root.get(definitions) {
                    schema.insert(definitions.to_owned(), all.clone());
                }
            }
        }
        let schema = with_options(schema, Separators::Spaced, None, self.strict);
        Ok(match self.writer.is_usable(&schema, self.strict)? {
            true => schema,
            false => with_options(json!({}), Separators::Spaced, None, false),
        })
    }

    /// Marks that would end a text, its argument or its call early.
    fn not_in_texts(&self) -> Vec<&'static str> {
        let syntax = self.writer.syntax;
        let first_tag = |text: &'static str| text.find('>').map_or(text, |at| &text[..=at]);
        let marks = [self.tags.before_name, first_tag(syntax.after_arguments), syntax.end];
        let marks = marks.into_iter().map(str::trim);
        marks.filter(|mark| !mark.is_empty() && !self.tags.after_value.contains(mark)).collect()
    }
}

/// Whether an argument is, or may be, a string, which is written as plain text.
fn may_be_text(schema: &Value) -> bool {
    match schema.get("type") {
        Some(Value::String(kind)) => kind == "string",
        Some(Value::Array(kinds)) => kinds.iter().any(|kind| kind == "string"),
        _ => options(schema).is_none_or(|options| options.iter().any(may_be_text)),
    }
}

/// Whether an argument may be something other than a string.
fn may_be_other(schema: &Value) -> bool {
    match schema.get("type") {
        Some(Value::String(kind)) => kind != "string",
        Some(Value::Array(kinds)) => kinds.iter().any(|kind| kind != "string"),
        _ => options(schema).is_none_or(|options| options.iter().any(may_be_other)),
    }
}

/// The schemas of which one must match.
fn options(schema: &Value) -> Option<&Vec<Value>> {
    ["anyOf", "oneOf"].iter().find_map(|name| schema.get(*name)?.as_array())
}

/// All values of an argument, where its schema names each.
fn named_values(root: &Value, schema: &Value, nested: usize) -> Option<Vec<Value>> {
    let nested = nested.checked_sub(1)?;
    let reference = schema.get("$ref").and_then(Value::as_str);
    let schema = reference.and_then(|r| resolve(root, r)).unwrap_or(schema);
    if let Some(value) = schema.get("const") {
        return Some(vec![value.clone()]);
    }
    if let Some(values) = schema.get("enum").and_then(Value::as_array) {
        return Some(values.clone());
    }
    if schema.get("type").is_some_and(|kind| kind == "null") {
        return Some(vec![Value::Null]);
    }
    let all = options(schema)?.iter().map(|option| named_values(root, option, nested));
    Some(all.collect::<Option<Vec<_>>>()?.concat())
}

/// What a schema asks of a text that plain text cannot be held to.
fn text_limit(schema: &Value, nested: usize) -> Option<&'static str> {
    let nested = nested.checked_sub(1)?;
    let limits = ["pattern", "minLength", "maxLength", "allOf"];
    let own = limits.into_iter().find(|limit| schema.get(*limit).is_some());
    own.or_else(|| options(schema)?.iter().find_map(|option| text_limit(option, nested)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_named_through_options_and_references() {
        let root = json!({"$defs": {
            "unit": {"enum": ["C", "F"]},
            "loop": {"anyOf": [{"$ref": "#/$defs/loop"}, {"type": "null"}]},
        }});
        let named = |schema: Value| named_values(&root, &schema, MAX_NESTED);
        let optional = json!({"anyOf": [{"$ref": "#/$defs/unit"}, {"type": "null"}]});
        assert_eq!(named(optional), Some(vec![json!("C"), json!("F"), Value::Null]));
        assert_eq!(named(json!({"const": 3})), Some(vec![json!(3)]));
        assert_eq!(named(json!({"anyOf": [{"const": 3}, {"type": "string"}]})), None);
        assert_eq!(named(json!({"$ref": "#/$defs/loop"})), None);
    }

    #[test]
    fn limits_of_texts_are_found_in_options() {
        let limited = json!({"anyOf": [{"type": "null"}, {"type": "string", "maxLength": 3}]});
        assert_eq!(text_limit(&limited, MAX_NESTED), Some("maxLength"));
        assert_eq!(text_limit(&json!({"type": "string"}), MAX_NESTED), None);
    }
}
