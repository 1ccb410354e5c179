//! The members of an object, and the arguments of a call.

use super::{Literal, PLAIN_NAME, python, python_string};
use crate::{GrammarError, calls::escaped, ebnf::quoted, pointer::Pointer, schema::ANY};
use serde_json::{Map, Value, json};
use std::fmt::Write;

/// The members of an object.
pub(super) struct Members {
    /// Each from its name on, and whether it must be there.
    named: Vec<(String, bool)>,
    /// Any other.
    other: Option<String>,
}

impl Literal<'_> {
    /// The members of an object, or the arguments of a call.
    pub(super) fn members(
        &mut self,
        schema: &Map<String, Value>,
        at: &Pointer,
        arguments: bool,
    ) -> Result<Members, GrammarError> {
        self.check_members(schema, at)?;
        let none = Map::new();
        let properties = schema.get("properties").and_then(Value::as_object).unwrap_or(&none);
        let required: Vec<_> =
            schema.get("required").and_then(Value::as_array).into_iter().flatten().collect();
        let other = schema.get("additionalProperties").filter(|other| {
            let any = other.get("$ref").and_then(Value::as_str);
            let any = any.is_some_and(|reference| reference.ends_with(ANY));
            other.as_bool() != Some(false) && (properties.is_empty() || !any)
        });
        let mut named = Vec::new();
        for (name, property) in properties.iter().filter(|(_, p)| p.as_bool() != Some(false)) {
            let at = at.at("properties").at(name);
            let Some(key) = self.key(name, arguments) else {
                self.unsupported(&at, "such a name")?;
                continue;
            };
            let value = self.value(property, &at)?;
            let member = self.rule(&format!("{key} {value}"));
            named.push((member, required.iter().any(|r| *r == name)));
        }
        let other = match other {
            Some(schema) => Some(self.other(schema, properties, arguments, at)?),
            None if schema.contains_key("type") || arguments && !schema.is_empty() => None,
            None => Some(self.other(&json!({}), properties, arguments, at)?),
        };
        Ok(Members { named, other })
    }

    /// What rules for members cannot enforce.
    fn check_members(
        &mut self,
        schema: &Map<String, Value>,
        at: &Pointer,
    ) -> Result<(), GrammarError> {
        let properties = schema.get("properties").and_then(Value::as_object);
        let known = |name: &Value| {
            name.as_str().is_some_and(|name| properties.is_some_and(|p| p.contains_key(name)))
        };
        let required = schema.get("required").and_then(Value::as_array);
        let required = required.map_or(&[][..], Vec::as_slice);
        if !required.iter().all(known) {
            self.unsupported(&at.at("required"), "a name that 'properties' does not have")?;
        }
        let least = schema.get("minProperties").and_then(Value::as_u64).unwrap_or(0);
        if least > required.len() as u64 {
            self.unsupported(&at.at("minProperties"), "more names than are required")?;
        }
        for keyword in ["maxProperties", "patternProperties", "allOf"] {
            if schema.contains_key(keyword) {
                self.unsupported(&at.at(keyword), &format!("'{keyword}'"))?;
            }
        }
        Ok(())
    }

    /// A member of any name but those of `properties`.
    fn other(
        &mut self,
        schema: &Value,
        properties: &Map<String, Value>,
        arguments: bool,
        at: &Pointer,
    ) -> Result<String, GrammarError> {
        let value = self.value(schema, &at.at("additionalProperties"))?;
        let colon = self.colon(arguments);
        let key = match (self.is_python(), arguments) {
            (true, false) => ['\'', '"'].map(|quote| python_string(quote, "*")).join("|"),
            (true, true) => "[A-Za-z_][A-Za-z0-9_]{0,63}".to_owned(),
            (false, _) => PLAIN_NAME.to_owned(),
        };
        let names = properties.keys().flat_map(|name| match (self.is_python(), arguments) {
            (true, false) => ['\'', '"'].map(|quote| python(name, quote)).to_vec(),
            _ => vec![name.clone()],
        });
        let names: Vec<_> = names.map(|name| escaped(&name)).collect();
        let but =
            if names.is_empty() { String::new() } else { format!(" & ~/({})/", names.join("|")) };
        let token = self.fresh().to_uppercase();
        let _ = writeln!(self.rules, "{token}: /{key}/{but}");
        Ok(self.rule(&format!("{token} {} {value}", quoted(colon))))
    }

    /// Members with what stands between them, in their order.
    pub(super) fn sequence(&mut self, members: &Members) -> String {
        let separator = self.separator();
        let mut tail = match &members.other {
            Some(other) => self.rule(&format!("({separator} {other})*")),
            None => "\"\"".to_owned(),
        };
        let mut whole: Vec<String> = Vec::new();
        if let Some(other) = &members.other {
            whole.push(format!("{other} {tail}"));
        }
        whole.push("\"\"".to_owned());
        for (member, required) in members.named.iter().rev() {
            if *required {
                whole.clear();
            }
            whole.push(format!("{member} {tail}"));
            let optional = if *required { "" } else { "?" };
            tail = self.rule(&format!("({separator} {member}){optional} {tail}"));
        }
        self.rule(&whole.join(" | "))
    }
}
