//! Finds the part of a schema that llguidance refuses: it does not say.

use serde_json::Value;
use std::time::{Duration, Instant};

use crate::pointer::Pointer;

/// How long it may take.
const PATIENCE: Duration = Duration::from_secs(1);
/// How many parts may be tried.
const TRIES: usize = 64;

/// The innermost part of a schema that is refused. `refuses` compiles one.
pub(crate) fn locate(schema: &Value, mut refuses: impl FnMut(&Value) -> bool) -> Pointer {
    let (start, mut tries) = (Instant::now(), 0);
    let (mut at, mut place) = (schema, Pointer::root());
    loop {
        let inner = parts(at).into_iter().find(|(_, part)| {
            tries += 1;
            let left = tries <= TRIES && start.elapsed() < PATIENCE;
            left && part.is_object() && refuses(&alone(schema, part))
        });
        let Some((path, part)) = inner else { return place };
        place = path.iter().fold(place, |place, name| place.at(name));
        at = part;
    }
}

/// A part with what its references need.
fn alone(root: &Value, part: &Value) -> Value {
    let mut part = part.clone();
    if let Some(part) = part.as_object_mut() {
        for name in ["$defs", "definitions", "x-guidance"] {
            if let Some(all) = root.get(name) {
                part.insert(name.to_owned(), all.clone());
            }
        }
    }
    part
}

/// The schemas in a schema, and where they are.
fn parts(schema: &Value) -> Vec<(Vec<String>, &Value)> {
    let mut parts = Vec::new();
    for keyword in ["properties", "patternProperties", "$defs", "definitions"] {
        for (name, part) in schema.get(keyword).and_then(Value::as_object).into_iter().flatten() {
            parts.push((vec![keyword.to_owned(), name.clone()], part));
        }
    }
    for keyword in ["allOf", "anyOf", "oneOf", "prefixItems"] {
        let all = schema.get(keyword).and_then(Value::as_array).into_iter().flatten();
        let named =
            all.enumerate().map(|(i, part)| (vec![keyword.to_owned(), i.to_string()], part));
        parts.extend(named);
    }
    for keyword in ["items", "additionalProperties"] {
        parts.extend(schema.get(keyword).map(|part| (vec![keyword.to_owned()], part)));
    }
    parts
}
