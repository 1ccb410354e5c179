//! Schemas of the wire types, as parts of one document.

use schemars::{JsonSchema, Schema, SchemaGenerator, generate::SchemaSettings};
use serde_json::{Map, Value, json};

/// Where a document has its schemas.
const AT: &str = "/components/schemas";

/// The schemas so far.
pub(super) struct Schemas {
    requests: SchemaGenerator,
    responses: SchemaGenerator,
    bodies: Map<String, Value>,
}

/// Makes the schema of a type.
pub(super) type Part = fn(&mut SchemaGenerator) -> Schema;

impl Schemas {
    pub(super) fn new() -> Self {
        let settings = || SchemaSettings::draft2020_12().with(|s| s.definitions_path = AT.into());
        Self {
            requests: settings().into_generator(),
            responses: settings().for_serialize().into_generator(),
            bodies: Map::new(),
        }
    }

    /// A request's body, whose fields are those of several types.
    pub(super) fn request(&mut self, name: &str, parts: &[Part]) -> Value {
        let (mut properties, mut required) = (Map::new(), Vec::new());
        for part in parts {
            let mut schema = value(&part(&mut self.requests));
            if let Some(Value::Object(own)) = schema.get_mut("properties").map(Value::take) {
                properties.extend(own);
            }
            if let Some(Value::Array(own)) = schema.get_mut("required").map(Value::take) {
                required.extend(own);
            }
        }
        let body = json!({ "type": "object", "properties": properties, "required": required });
        self.bodies.insert(name.to_owned(), body);
        json!({ "$ref": format!("#{AT}/{name}") })
    }

    /// A response's body.
    pub(super) fn response<T: JsonSchema>(&mut self) -> Value {
        value(&self.responses.subschema_for::<T>())
    }

    /// All of them by their names.
    pub(super) fn components(self) -> Map<String, Value> {
        let Self { requests, responses, mut bodies } = self;
        bodies.extend(requests.definitions().clone());
        // Nothing else is taken.
        bodies.values_mut().for_each(close);
        bodies.extend(responses.definitions().clone());
        bodies
    }
}

fn value(schema: &Schema) -> Value {
    serde_json::to_value(schema).unwrap_or_default()
}

/// Lets objects with known fields have no others.
fn close(schema: &mut Value) {
    match schema {
        Value::Object(object) => {
            object.values_mut().for_each(close);
            let fields = object.get("properties").is_some_and(Value::is_object);
            if fields && !object.contains_key("additionalProperties") {
                object.insert("additionalProperties".to_owned(), false.into());
            }
        }
        Value::Array(list) => list.iter_mut().for_each(close),
        _ => {}
    }
}
