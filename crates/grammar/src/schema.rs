//! JSON schemas as llguidance reads them rightly.
//!
//! It refuses what it lacks without saying where, and takes some of what it does not enforce. So a
//! schema is walked first: each part is kept, replaced by one of the same meaning or a narrower one, or
//! refused with its place. What is not strict is left out instead of being refused, as OpenAI's API has
//! it.

use crate::{
    GrammarError,
    formats::{Format, format},
    pointer::Pointer,
};
use serde_json::{Map, Value, json};

/// Deepest nesting of schemas.
const MAX_DEPTH: usize = 64;
/// Most schemas in a schema, those that are copied included.
const MAX_SCHEMAS: usize = 5_000;

/// Whole numbers up to here are exact in every reader.
const EXACT: f64 = 9_007_199_254_740_992.0;
/// Numbers end here where a schema does not say: models write digits without end.
const USUAL: f64 = 999_999_999_999_999.0;

/// Steps between numbers where a schema does not say, for the same reason.
const FINEST: f64 = 1e-8;

/// The definition of any value, in schemas that need it.
pub(crate) const ANY: &str = "taper-any-value";

const TYPES: [&str; 7] = ["null", "boolean", "integer", "number", "string", "array", "object"];

/// Keywords that allow everything with these values.
fn is_harmless(keyword: &str, value: &Value) -> bool {
    let anything = || *value == Value::Bool(true) || *value == json!({});
    match keyword {
        "uniqueItems" => *value == Value::Bool(false),
        "not" => *value == Value::Bool(false),
        "unevaluatedProperties" | "unevaluatedItems" => anything(),
        "propertyNames" => anything() || *value == json!({"type": "string"}),
        "dependentRequired" | "dependentSchemas" | "dependencies" => *value == json!({}),
        "$dynamicAnchor" | "$recursiveAnchor" => true,
        "minContains" | "maxContains" | "then" | "else" => false,
        _ => false,
    }
}

/// Keywords of JSON Schema that constrain and that llguidance lacks.
const LACKING: [&str; 17] = [
    "not",
    "if",
    "then",
    "else",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "propertyNames",
    "contains",
    "minContains",
    "maxContains",
    "uniqueItems",
    "unevaluatedItems",
    "unevaluatedProperties",
    "$dynamicRef",
    "$recursiveRef",
    "$dynamicAnchor",
];

/// A schema for llguidance.
///
/// # Errors
/// It is none, it is too large, or, if it is `strict`, a part is not supported.
pub(crate) fn prepare(schema: &Value, strict: bool) -> Result<Value, GrammarError> {
    let mut walk = Walk { root: schema, strict, schemas: 0, inlined: Vec::new(), any: false };
    let prepared = walk.schema(schema, &Pointer::root(), 0)?;
    let mut prepared = match prepared {
        Value::Bool(true) => any(),
        Value::Bool(false) => return Err(unsatisfiable(&Pointer::root())),
        schema => schema,
    };
    if let Some(root) = prepared.as_object_mut().filter(|_| walk.any) {
        let definitions = root.entry("$defs").or_insert_with(|| json!({}));
        if let Some(definitions) = definitions.as_object_mut() {
            definitions.insert(ANY.to_owned(), any_value());
        }
    }
    Ok(prepared)
}

fn unsatisfiable(at: &Pointer) -> GrammarError {
    wrong(at, "nothing matches this schema")
}

fn wrong(at: &Pointer, detail: impl Into<String>) -> GrammarError {
    GrammarError::Schema { pointer: at.to_string(), detail: detail.into() }
}

struct Walk<'a> {
    root: &'a Value,
    strict: bool,
    schemas: usize,
    /// References that are being copied into place.
    inlined: Vec<String>,
    /// The definition of any value is referred to.
    any: bool,
}

impl Walk<'_> {
    fn unsupported(&self, at: &Pointer, detail: impl Into<String>) -> Result<(), GrammarError> {
        match self.strict {
            true => {
                Err(GrammarError::Unsupported { pointer: at.to_string(), detail: detail.into() })
            }
            false => Ok(()),
        }
    }

    fn schema(&mut self, value: &Value, at: &Pointer, depth: usize) -> Result<Value, GrammarError> {
        self.schemas += 1;
        if depth > MAX_DEPTH {
            return Err(GrammarError::TooLarge { what: "the depth of a schema", limit: MAX_DEPTH });
        }
        if self.schemas > MAX_SCHEMAS {
            let what = "the number of schemas in a schema";
            return Err(GrammarError::TooLarge { what, limit: MAX_SCHEMAS });
        }
        match value {
            Value::Bool(true) => {
                self.any = true;
                Ok(any())
            }
            Value::Bool(false) => Ok(value.clone()),
            Value::Object(schema) => self.object(schema, at, depth),
            _ => Err(wrong(at, "a schema must be an object or a boolean")),
        }
    }

    fn object(
        &mut self,
        schema: &Map<String, Value>,
        at: &Pointer,
        depth: usize,
    ) -> Result<Value, GrammarError> {
        let mut out = Map::new();
        for (keyword, value) in schema {
            let place = at.at(keyword);
            match keyword.as_str() {
                "$ref" => {
                    out.insert(keyword.clone(), self.reference(value, &place)?);
                }
                "$id" | "id" if depth > 0 && value.is_string() => {
                    self.unsupported(&place, "a nested '$id'")?;
                }
                "type" => {
                    check_type(value, &place)?;
                    out.insert(keyword.clone(), value.clone());
                }
                "enum" | "const" => {
                    self.literal(keyword, value, &place)?;
                    out.insert(keyword.clone(), value.clone());
                }
                "$defs" | "definitions" | "properties" | "patternProperties" => {
                    let Value::Object(map) = value else {
                        return Err(wrong(&place, "must be an object"));
                    };
                    let one = |(name, schema): (&String, &Value)| {
                        Ok((name.clone(), self.schema(schema, &place.at(name), depth + 1)?))
                    };
                    let map: Map<_, _> = map.iter().map(one).collect::<Result<_, _>>()?;
                    out.insert(keyword.clone(), map.into());
                }
                "allOf" | "anyOf" | "oneOf" | "prefixItems" => {
                    let options = self.list(keyword, value, &place, depth)?;
                    out.insert(keyword.clone(), options);
                }
                "items" if value.is_array() => {
                    // As it was before 2020-12.
                    let items = self.list("prefixItems", value, &place, depth)?;
                    out.insert("prefixItems".to_owned(), items);
                    if let Some(rest) = schema.get("additionalItems") {
                        let rest = self.schema(rest, &at.at("additionalItems"), depth + 1)?;
                        out.insert("items".to_owned(), rest);
                    }
                }
                "items" | "additionalProperties" => {
                    out.insert(keyword.clone(), self.schema(value, &place, depth + 1)?);
                }
                "required" => {
                    let names = value.as_array();
                    if names.is_none_or(|names| !names.iter().all(Value::is_string)) {
                        return Err(wrong(&place, "must be a list of strings"));
                    }
                    out.insert(keyword.clone(), value.clone());
                }
                "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties"
                | "maxProperties" => {
                    out.insert(keyword.clone(), count(value, &place)?.into());
                }
                "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" | "multipleOf" => {
                    self.number(keyword, value, &place)?;
                    out.insert(keyword.clone(), value.clone());
                }
                "pattern" => {
                    if !value.is_string() {
                        return Err(wrong(&place, "must be a string"));
                    }
                    out.insert(keyword.clone(), value.clone());
                }
                // Below, as `allOf` may follow.
                "format" => {}
                lacking if LACKING.contains(&lacking) => {
                    let one = |name| schema.get(name).and_then(Value::as_u64) <= Some(1);
                    let single = lacking == "uniqueItems"
                        && schema.contains_key("maxItems")
                        && one("maxItems");
                    let alone = matches!(lacking, "then" | "else") && !schema.contains_key("if")
                        || matches!(lacking, "minContains" | "maxContains")
                            && !schema.contains_key("contains");
                    if !(is_harmless(lacking, value) || single || alone) {
                        self.unsupported(&place, format!("'{lacking}'"))?;
                    }
                }
                // Annotations, and what is no keyword.
                _ => {}
            }
        }
        if let Some(value) = schema.get("format") {
            self.format(value, &at.at("format"), &mut out)?;
        }
        self.complete(&mut out, at)?;
        if out.is_empty() && depth > 0 {
            self.any = true;
            return Ok(any());
        }
        Ok(out.into())
    }

    /// Closes the holes between keywords.
    fn complete(&mut self, out: &mut Map<String, Value>, at: &Pointer) -> Result<(), GrammarError> {
        // A name may be written twice: it would count twice.
        let required = out.get("required").and_then(Value::as_array).map_or(0, Vec::len) as u64;
        let least = out.get("minProperties").and_then(Value::as_u64).unwrap_or(0);
        let open = out.get("additionalProperties") != Some(&Value::Bool(false))
            || out.contains_key("patternProperties");
        if least > required + 1 && open {
            self.unsupported(&at.at("minProperties"), "more than one name that is not required")?;
        }
        let of = |name: &str| match out.get("type") {
            Some(Value::String(kind)) => kind == name,
            Some(Value::Array(kinds)) => kinds.iter().any(|kind| kind == name),
            _ => false,
        };
        let [number, integer, object, array] = ["number", "integer", "object", "array"].map(of);
        let fixed = ["enum", "const"].iter().any(|name| out.contains_key(*name));
        if (number || integer) && !fixed {
            end_digits(out, number);
        }
        if object && !out.contains_key("additionalProperties") {
            out.insert("additionalProperties".to_owned(), any());
            self.any = true;
        }
        if array && !out.contains_key("items") {
            out.insert("items".to_owned(), any());
            self.any = true;
        }
        Ok(())
    }

    fn list(
        &mut self,
        keyword: &str,
        value: &Value,
        at: &Pointer,
        depth: usize,
    ) -> Result<Value, GrammarError> {
        let Value::Array(options) = value else {
            return Err(wrong(at, "must be a list of schemas"));
        };
        if options.is_empty() && keyword != "prefixItems" {
            return Err(wrong(at, "must hold at least one schema"));
        }
        let one = |(i, schema): (usize, &Value)| {
            let place = at.at(i);
            match only_reference(schema).filter(|_| keyword == "oneOf") {
                Some(reference) => self.inline(reference, schema, &place, depth + 1),
                None => self.schema(schema, &place, depth + 1),
            }
        };
        let options: Vec<_> = options.iter().enumerate().map(one).collect::<Result<_, _>>()?;
        Ok(options.into())
    }

    /// An option of `oneOf`, in place of a reference to it: only so is it seen to differ from the
    /// others.
    fn inline(
        &mut self,
        reference: &str,
        schema: &Value,
        at: &Pointer,
        depth: usize,
    ) -> Result<Value, GrammarError> {
        self.reference(&reference.into(), &at.at("$ref"))?;
        let target = resolve(self.root, reference);
        match target.filter(|_| !self.inlined.iter().any(|r| r == reference)) {
            Some(target) => {
                self.inlined.push(reference.to_owned());
                let copy = self.schema(target, at, depth);
                self.inlined.pop();
                copy
            }
            None => self.schema(schema, at, depth),
        }
    }

    fn reference(&self, value: &Value, at: &Pointer) -> Result<Value, GrammarError> {
        let Value::String(reference) = value else { return Err(wrong(at, "must be a string")) };
        let local = reference == "#" || reference.starts_with("#/");
        if !local || reference.contains(['~', '%']) {
            // Without it the schema would mean something else, strict or not.
            let detail = format!("the reference '{reference}'");
            return Err(GrammarError::Unsupported { pointer: at.to_string(), detail });
        }
        match resolve(self.root, reference) {
            Some(_) => Ok(value.clone()),
            None => Err(wrong(at, format!("there is no schema at '{reference}'"))),
        }
    }

    fn literal(&self, keyword: &str, value: &Value, at: &Pointer) -> Result<(), GrammarError> {
        if keyword == "enum" && value.as_array().is_none_or(Vec::is_empty) {
            return Err(wrong(at, "must be a list of at least one value"));
        }
        let mut open = vec![value];
        while let Some(value) = open.pop() {
            match value {
                Value::Number(n) if n.as_f64().is_none_or(|x| x.abs() >= EXACT) => {
                    self.unsupported(at, "a number of more than 53 bits")?;
                }
                Value::Array(values) => open.extend(values),
                Value::Object(map) => open.extend(map.values()),
                _ => {}
            }
        }
        Ok(())
    }

    fn number(&self, keyword: &str, value: &Value, at: &Pointer) -> Result<(), GrammarError> {
        match value {
            Value::Number(n) => {
                let x = n.as_f64().unwrap_or(f64::INFINITY);
                if keyword == "multipleOf" && x <= 0.0 {
                    return Err(wrong(at, "must be above 0"));
                }
                if x.abs() >= EXACT {
                    self.unsupported(at, "a number of more than 53 bits")?;
                }
                Ok(())
            }
            Value::Bool(_) if keyword.starts_with("exclusive") => Ok(()),
            _ => Err(wrong(at, "must be a number")),
        }
    }

    /// A format becomes a pattern, beside one that is there.
    fn format(
        &self,
        value: &Value,
        at: &Pointer,
        out: &mut Map<String, Value>,
    ) -> Result<(), GrammarError> {
        let Value::String(name) = value else { return Err(wrong(at, "must be a string")) };
        match format(name) {
            Format::Annotation => Ok(()),
            Format::Unsupported => self.unsupported(at, format!("the format '{name}'")),
            Format::Expression(expression) => {
                let pattern = json!({ "pattern": format!("^(?:{expression})$") });
                let all = out.entry("allOf").or_insert_with(|| json!([]));
                if let Value::Array(all) = all {
                    all.push(pattern);
                }
                Ok(())
            }
        }
    }
}

/// Numbers have an end where the schema sets none.
fn end_digits(out: &mut Map<String, Value>, fractions: bool) {
    let bound = |names: [&str; 2]| {
        let bounds = names.iter().filter_map(|name| out.get(*name)?.as_f64());
        bounds.reduce(f64::max)
    };
    let lower = bound(["minimum", "exclusiveMinimum"]);
    let upper = bound(["maximum", "exclusiveMaximum"]);
    if lower.is_none() {
        let limit = if upper.is_some_and(|x| x < -USUAL) { EXACT } else { USUAL };
        out.insert("minimum".to_owned(), json!(-(limit as i64)));
    }
    if upper.is_none() {
        let limit = if lower.is_some_and(|x| x > USUAL) { EXACT } else { USUAL };
        out.insert("maximum".to_owned(), json!(limit as i64));
    }
    // Narrow bounds may leave nothing else.
    let wide = lower.zip(upper).is_none_or(|(lower, upper)| upper - lower >= 1e4 * FINEST);
    if fractions && wide {
        out.entry("multipleOf").or_insert_with(|| json!(FINEST));
    }
}

/// A reference to the schema of any value.
fn any() -> Value {
    json!({ "$ref": format!("#/$defs/{ANY}") })
}

/// Any value, of numbers that every reader takes.
fn any_value() -> Value {
    let number = any_number();
    json!({ "anyOf": [
        { "type": ["string", "boolean", "null"] },
        number,
        { "type": "array", "items": any() },
        { "type": "object", "additionalProperties": any() },
    ]})
}

/// Any number.
pub(crate) fn any_number() -> Map<String, Value> {
    let mut number = Map::from_iter([("type".to_owned(), "number".into())]);
    end_digits(&mut number, true);
    number
}

/// Any JSON object.
pub(crate) fn any_object() -> Value {
    let definitions = Map::from_iter([(ANY.to_owned(), any_value())]);
    json!({ "type": "object", "additionalProperties": any(), "$defs": definitions })
}

fn check_type(value: &Value, at: &Pointer) -> Result<(), GrammarError> {
    let known = |kind: &Value| kind.as_str().is_some_and(|kind| TYPES.contains(&kind));
    let good = match value {
        Value::Array(kinds) => !kinds.is_empty() && kinds.iter().all(known),
        kind => known(kind),
    };
    let detail = || format!("must be one of {}, or a list of them", TYPES.join(", "));
    if good { Ok(()) } else { Err(wrong(at, detail())) }
}

fn count(value: &Value, at: &Pointer) -> Result<u64, GrammarError> {
    let whole = |x: f64| (x >= 0.0 && x.fract() == 0.0 && x < EXACT).then_some(x as u64);
    let count = value.as_u64().or_else(|| whole(value.as_f64()?));
    count.ok_or_else(|| wrong(at, "must be a whole number of at least 0"))
}

/// The reference that is all of a schema.
fn only_reference(schema: &Value) -> Option<&str> {
    let schema = schema.as_object().filter(|schema| schema.len() == 1)?;
    schema.get("$ref")?.as_str()
}

/// What a reference within a schema stands for.
pub(crate) fn resolve<'a>(root: &'a Value, reference: &str) -> Option<&'a Value> {
    let path = reference.strip_prefix('#')?;
    let mut at = root;
    for name in path.split('/').skip(1).filter(|name| !name.is_empty()) {
        at = match at {
            Value::Array(values) => values.get(name.parse::<usize>().ok()?)?,
            value => value.get(name)?,
        };
    }
    Some(at)
}
