//! Schemas of the kinds that JSONSchemaBench has, made at random.

use crate::support::Random;
use serde_json::{Map, Value, json};

const NAMES: [&str; 10] =
    ["id", "name", "user name", "größe", "a/b", "kind", "items", "x-y", "$ref2", "\"q\""];
const FORMATS: [&str; 10] =
    ["date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"];
const PATTERNS: [&str; 7] =
    ["^[a-z]{2,5}$", "^\\d{3}-\\d{2}$", "^(red|green)$", "[A-Z]", "^\\w+@\\w+$", "^x", "é$"];

/// A schema whose root is an object.
pub(crate) fn schema(random: &mut Random) -> Value {
    let mut root = object(random, 3);
    if random.one_in(3) {
        let node = json!({
            "type": "object",
            "properties": { "value": scalar(random), "next": {
                "anyOf": [{ "$ref": "#/$defs/node" }, { "type": "null" }] } },
            "required": ["value", "next"],
            "additionalProperties": false,
        });
        root["$defs"] = json!({ "node": node });
        root["properties"]["list"] = json!({ "$ref": "#/$defs/node" });
    }
    root
}

fn any(random: &mut Random, depth: usize) -> Value {
    match random.below(if depth == 0 { 6 } else { 11 }) {
        0..6 => scalar(random),
        6 | 7 => object(random, depth - 1),
        8 => array(random, depth - 1),
        9 => {
            let options: Vec<_> =
                (0..2 + random.below(2)).map(|_| any(random, depth - 1)).collect();
            json!({ "anyOf": options })
        }
        _ => {
            let option = |kind: &str, random: &mut Random| {
                json!({ "type": "object", "required": ["kind", "v"], "additionalProperties": false,
                        "properties": { "kind": { "const": kind }, "v": scalar(random) } })
            };
            let (a, b) = (option("a", random), option("b", random));
            json!({ "oneOf": [a, b] })
        }
    }
}

fn scalar(random: &mut Random) -> Value {
    match random.below(12) {
        0 => json!({ "type": "boolean" }),
        1 => json!({ "type": ["string", "null"], "maxLength": random.below(6) }),
        2 => json!({ "enum": ["low", "mid", 3, null, true, 2.5] }),
        3 => json!({ "const": random.of(&["fixed", "two words", "\\\"\n"]) }),
        4 => {
            let least = random.below(400) as i64 - 200;
            json!({ "type": "integer", "minimum": least, "maximum": least + random.below(90) as i64 })
        }
        5 => json!({ "type": "number", "exclusiveMinimum": -1, "maximum": 12.25 }),
        6 => json!({ "type": "integer", "multipleOf": random.below(7) + 1 }),
        7 => json!({ "type": "string", "format": random.of(&FORMATS) }),
        8 => json!({ "type": "string", "pattern": random.of(&PATTERNS) }),
        9 => {
            let least = random.below(4);
            json!({ "type": "string", "minLength": least, "maxLength": least + random.below(9) })
        }
        10 => json!({ "type": "number" }),
        _ => json!({ "type": "string" }),
    }
}

fn object(random: &mut Random, depth: usize) -> Value {
    let mut properties = Map::new();
    for _ in 0..1 + random.below(5) {
        properties.insert((*random.of(&NAMES)).to_owned(), any(random, depth));
    }
    let required: Vec<_> = properties.keys().filter(|_| !random.one_in(3)).cloned().collect();
    let mut schema = json!({ "type": "object", "properties": properties, "required": required });
    match random.below(6) {
        0 => {}
        1 => schema["additionalProperties"] = scalar(random),
        2 => {
            schema["patternProperties"] = json!({ "^p_": scalar(random) });
            schema["additionalProperties"] = json!(false);
        }
        _ => schema["additionalProperties"] = json!(false),
    }
    schema
}

fn array(random: &mut Random, depth: usize) -> Value {
    let least = random.below(3);
    let mut schema = json!({ "type": "array", "items": any(random, depth) });
    if random.one_in(2) {
        schema["minItems"] = json!(least);
        schema["maxItems"] = json!(least + random.below(3));
    }
    if random.one_in(4) {
        schema["prefixItems"] = json!([scalar(random), scalar(random)]);
    }
    schema
}

/// A value that a schema of this file describes, written as the grammars write JSON; `None` where
/// this writer does not know one.
pub(crate) fn example(schema: &Value, root: &Value, random: &mut Random) -> Option<Value> {
    if let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
        return example(root.pointer(&reference[1..])?, root, random);
    }
    if let Some(value) = schema.get("const") {
        return Some(value.clone());
    }
    if let Some(values) = schema.get("enum").and_then(Value::as_array) {
        return Some(random.of(values).clone());
    }
    for options in ["anyOf", "oneOf"] {
        if let Some(options) = schema.get(options).and_then(Value::as_array) {
            let at = if random.one_in(3) { 0 } else { options.len() - 1 };
            return example(&options[at], root, random);
        }
    }
    match schema.get("type")?.as_str()? {
        "boolean" => Some(json!(random.one_in(2))),
        "integer" => {
            let least = schema.get("minimum").and_then(Value::as_i64).unwrap_or(0);
            let step = schema.get("multipleOf").and_then(Value::as_i64).unwrap_or(1);
            Some(json!(least.div_euclid(step) * step))
        }
        "number" => Some(json!(2.5)),
        "string" => {
            let length = schema.get("minLength").and_then(Value::as_u64).unwrap_or(0);
            let plain = schema.get("pattern").is_none() && schema.get("format").is_none();
            let long = schema.get("maxLength").is_none() && random.one_in(2);
            let text = if long { "été \"1\"\n" } else { &"abcdef"[..length as usize] };
            plain.then(|| json!(text))
        }
        "array" => {
            let least = schema.get("minItems").and_then(Value::as_u64).unwrap_or(0);
            let plain = schema.get("prefixItems").is_none();
            let items = (0..least).map(|_| example(schema.get("items")?, root, random));
            items.collect::<Option<Vec<_>>>().filter(|_| plain).map(Value::from)
        }
        "object" => {
            let required = schema.get("required")?.as_array()?;
            let mut map = Map::new();
            for (name, property) in schema.get("properties")?.as_object()? {
                if required.iter().any(|n| n == name) || random.one_in(2) {
                    map.insert(name.clone(), example(property, root, random)?);
                }
            }
            Some(map.into())
        }
        _ => None,
    }
}
