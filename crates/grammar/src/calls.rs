//! Tool calls as a grammar.

use crate::{
    GrammarError, Grammars,
    ebnf::quoted,
    schema::{prepare, resolve},
    source::{Separators, with_options},
};
use serde_json::{Map, Value, json};
use std::fmt::Write;
use taper_chat::{ArgumentSyntax, CallSyntax, OutputFormat, Tool, ToolFormat};

/// How deep an argument's schema is searched for the values that it names.
const MAX_NESTED: usize = 8;

/// The calls that an output may have.
#[derive(Debug, Clone, Copy)]
pub struct CallRules<'a> {
    /// How they are written.
    pub format: ToolFormat,
    /// The tools that may be called.
    pub tools: &'a [Tool],
    /// There must be a call, and no text beside it.
    pub required: bool,
    /// There may be more than one.
    pub many: bool,
}

/// Writes rules of Lark.
pub(crate) struct Writer<'a> {
    grammars: &'a Grammars,
    rules: CallRules<'a>,
    pub(crate) syntax: CallSyntax,
    lark: String,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(grammars: &'a Grammars, rules: CallRules<'a>) -> Result<Self, GrammarError> {
        let format = rules.format.get().map_or("none", OutputFormat::name);
        let syntax = rules.format.syntax(grammars.vocabulary.tokenizer());
        let syntax = syntax.ok_or(GrammarError::Format { format })?;
        Ok(Self { grammars, rules, syntax, lark: String::new() })
    }

    /// All of a message that has calls and nothing else; or `content` instead, a rule of Lark.
    pub(crate) fn whole(mut self, content: Option<&str>) -> Result<String, GrammarError> {
        let or_content = if content.is_some() { " | content" } else { "" };
        let calls = self.several(self.syntax.begin);
        let _ = writeln!(self.lark, "start: calls{or_content}\ncalls: {calls}");
        self.calls("call", self.syntax.before_name)?;
        if let Some(content) = content {
            let _ = writeln!(self.lark, "content: {content}");
        }
        Ok(self.lark)
    }

    /// What follows the opener in free text, up to the end of the calls that it opens.
    pub(crate) fn after_opener(mut self) -> Result<String, GrammarError> {
        let syntax = self.syntax;
        let opener = syntax.opener.text();
        if let Some(begin) = syntax.begin.strip_prefix(opener) {
            let calls = self.several(begin);
            let _ = writeln!(self.lark, "start: {calls}");
            self.calls("call", syntax.before_name)?;
        } else {
            let before = syntax.before_name.strip_prefix(opener).unwrap_or(syntax.before_name);
            self.lark.push_str("start: call\n");
            self.calls("call", before)?;
        }
        Ok(self.lark)
    }

    /// One call or several, from `begin` to the end.
    fn several(&self, begin: &str) -> String {
        let more = match self.syntax.between.filter(|_| self.rules.many) {
            Some(between) => format!("({} call)*", self.text(between)),
            None => String::new(),
        };
        format!("{} call {more} {}", self.text(begin), self.text(self.syntax.end))
    }

    fn calls(&mut self, rule: &str, before_name: &str) -> Result<(), GrammarError> {
        let all: Vec<_> = (0..self.rules.tools.len()).map(|i| format!("{rule}_{i}")).collect();
        let _ = writeln!(self.lark, "{rule}: {}", all.join(" | "));
        for (index, tool) in self.rules.tools.iter().enumerate() {
            let in_tool = |source| GrammarError::Tool { index, source: Box::new(source) };
            // In JSON the name is a string.
            let name = match before_name.ends_with('"') {
                true => quoted(&tool.name).trim_matches('"').to_owned(),
                false => tool.name.clone(),
            };
            let head = self.text(&format!("{before_name}{name}{}", self.syntax.after_name));
            let tail = self.text(self.syntax.after_arguments);
            let _ = writeln!(self.lark, "{rule}_{index}: {head} args_{index} {tail}");
            self.arguments(index, tool).map_err(in_tool)?;
        }
        Ok(())
    }

    fn arguments(&mut self, index: usize, tool: &Tool) -> Result<(), GrammarError> {
        let strict = tool.strict == Some(true);
        let nothing = json!({ "type": "object", "properties": {}, "additionalProperties": false });
        let parameters = tool.parameters.as_ref().unwrap_or(&nothing);
        let mut schema = prepare(parameters, strict)?;
        if let Some(schema) = schema.as_object_mut() {
            schema.entry("type").or_insert_with(|| "object".into());
        }
        match self.syntax.arguments {
            ArgumentSyntax::Json => {
                let spaced = with_options(schema, Separators::Spaced, None, strict);
                if let Err(error) = self.grammars.check(&spaced) {
                    if strict {
                        return Err(error);
                    }
                    tracing::debug!(%error, "a tool's schema is not enforced");
                    let any = json!({ "type": "object" });
                    let any = with_options(any, Separators::Spaced, None, false);
                    let _ = writeln!(self.lark, "args_{index}: %json {any}");
                    return Ok(());
                }
                let _ = writeln!(self.lark, "args_{index}: %json {spaced}");
                Ok(())
            }
            ArgumentSyntax::Tagged { before_name, after_name, after_value } => {
                let tags = (before_name, after_name, after_value);
                self.tagged(index, &schema, strict, tags)
            }
        }
    }

    /// The arguments that the schema names, in its order.
    fn tagged(
        &mut self,
        index: usize,
        schema: &Value,
        strict: bool,
        (before_name, after_name, after_value): (&str, &str, &str),
    ) -> Result<(), GrammarError> {
        let none = Map::new();
        let properties = schema.get("properties").and_then(Value::as_object).unwrap_or(&none);
        let required = schema.get("required").and_then(Value::as_array);
        let is_required = |name: &str| required.is_some_and(|all| all.iter().any(|n| n == name));
        let (mut parts, mut rules) = (Vec::new(), String::new());
        for (i, (name, property)) in properties.iter().enumerate() {
            let part = format!("arg_{index}_{i}");
            let head = self.text(&format!("{before_name}{name}{after_name}"));
            let _ = writeln!(rules, "{part}: {head} value_{index}_{i}");
            let rule = format!("{index}_{i}");
            let value = self.value(schema, (property, name), strict, after_value, &rule)?;
            let _ = writeln!(rules, "value_{rule}{value}");
            parts.push(if is_required(name) { part } else { format!("{part}?") });
        }
        let parts = if parts.is_empty() { "\"\"".to_owned() } else { parts.join(" ") };
        let _ = write!(self.lark, "args_{index}: {parts}\n{rules}");
        Ok(())
    }

    /// A value, from the colon of its rule on.
    fn value(
        &self,
        root: &Value,
        (property, name): (&Value, &str),
        strict: bool,
        after: &str,
        rule: &str,
    ) -> Result<String, GrammarError> {
        let reference = property.get("$ref").and_then(Value::as_str);
        let meant = reference.and_then(|r| resolve(root, r)).unwrap_or(property);
        let end = self.text(after);
        let named = named_values(root, meant, MAX_NESTED).filter(|values| !values.is_empty());
        if let Some(values) = named {
            let plain = |value: &Value| match value {
                Value::String(text) => quoted(text),
                value => quoted(&value.to_string()),
            };
            let texts: Vec<_> = values.iter().map(plain).collect();
            return Ok(format!(": ({}) {end}", texts.join(" | ")));
        }
        if may_be_text(meant) {
            if let Some(limit) = text_limit(meant, MAX_NESTED).filter(|_| strict) {
                let pointer = crate::pointer::Pointer::root().at("properties").at(name).at(limit);
                let detail = format!("'{limit}' of an argument that this model writes as text");
                return Err(GrammarError::Unsupported { pointer: pointer.to_string(), detail });
            }
            return Ok(format!("[lazy]: /(?s:.*){}/{}", escaped(after), self.not_in_texts(after)));
        }
        let mut schema = property.clone();
        if let Some(schema) = schema.as_object_mut() {
            for definitions in ["$defs", "definitions"] {
                if let Some(all) = root.get(definitions) {
                    schema.insert(definitions.to_owned(), all.clone());
                }
            }
        }
        let mut schema = with_options(schema, Separators::Spaced, None, strict);
        if let Err(error) = self.grammars.check(&schema) {
            if strict {
                return Err(error);
            }
            tracing::debug!(%error, "a tool's schema is not enforced");
            schema = with_options(json!({}), Separators::Spaced, None, false);
        }
        Ok(format!(": json_{rule} {end}\njson_{rule}: %json {schema}"))
    }

    /// What a plain text must not hold, behind its expression: marks that would end the call inside it.
    fn not_in_texts(&self, after: &str) -> String {
        let ends = [self.syntax.after_arguments, self.syntax.end].map(str::trim);
        let ends = ends.into_iter().filter(|end| !end.is_empty() && !after.contains(end));
        ends.map(|end| format!(" & ~/(?s:.*){}(?s:.*)/", escaped(end))).collect()
    }

    /// A text, in which marks may be special tokens.
    fn text(&self, text: &str) -> String {
        let format = self.rules.format.get();
        let marks = format.iter().flat_map(|f| f.openers().iter().chain(f.marks()));
        let special =
            |mark: &&'static str| Some((*mark, self.grammars.vocabulary.special_token(mark)?));
        let special: Vec<_> = marks.filter_map(special).collect();
        let (mut out, mut rest) = (Vec::new(), text);
        while !rest.is_empty() {
            let found =
                special.iter().filter_map(|(mark, id)| Some((rest.find(mark)?, *mark, *id)));
            let Some((at, mark, id)) = found.min_by_key(|(at, ..)| *at) else {
                out.push(quoted(rest));
                break;
            };
            if at > 0 {
                out.push(quoted(&rest[..at]));
            }
            out.push(format!("<[{id}]>"));
            rest = &rest[at + mark.len()..];
        }
        if out.is_empty() { "\"\"".to_owned() } else { out.join(" ") }
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

/// A text as a regular expression of Lark.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            // Before other characters a backslash may mean something, as `\<` does.
            c if r"\.+*?()|[]{}^$/#&-~".contains(c) => out.extend(['\\', c]),
            c => out.push(c),
        }
    }
    out
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
