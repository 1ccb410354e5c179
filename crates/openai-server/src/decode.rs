//! From the bytes of a body to typed fields, with the path of whatever is wrong with it.
//!
//! A body is read several times, each time into another struct (the route's own fields, the
//! sampling fields, the fields that change nothing), which spares each route a copy of the shared
//! ones. No tree is built in between: a tree takes up to fifty times the bytes. A field that no
//! struct takes is an error: nothing is accepted and ignored.

use crate::{
    errors::ApiError,
    scan::scan,
    wire::{Glance, Unsupported, whole_numbers},
};
use serde::{
    Deserialize, Deserializer,
    de::{self, DeserializeOwned},
};
use std::{collections::HashSet, fmt};

/// No route has a tenth of that.
const MOST_FIELDS: usize = 512;

/// A body that is being read.
pub(crate) struct Body {
    json: Vec<u8>,
    fields: Vec<Field>,
    /// An unknown field inside a field that was taken.
    nested: Option<String>,
}

/// A field at the top.
#[derive(Debug)]
struct Field {
    name: String,
    value: Glance,
    /// A reader has taken it.
    read: bool,
}

impl Body {
    /// Takes what came and checks that it is an object.
    pub(crate) fn parse(mut bytes: Vec<u8>) -> Result<Self, ApiError> {
        // Editors of one maker write this mark in front of UTF-8.
        if bytes.starts_with(b"\xEF\xBB\xBF") {
            bytes.drain(..3);
        }
        scan(&mut bytes)?;
        match serde_json::from_slice(&bytes).map_err(ApiError::InvalidJson)? {
            Top::Object(fields) => Ok(Self { json: bytes, fields, nested: None }),
            Top::Other => Err(ApiError::NotAnObject),
            Top::TooMany => Err(ApiError::TooManyValues { limit: MOST_FIELDS }),
        }
    }

    /// What came, for another reader.
    pub(crate) fn into_json(self) -> Vec<u8> {
        self.json
    }

    /// Reads the fields that `T` knows.
    pub(crate) fn read<T: DeserializeOwned>(&mut self) -> Result<T, ApiError> {
        let mut track = serde_path_to_error::Track::new();
        let (mut unknown, nested) = (HashSet::new(), &mut self.nested);
        let mut json = serde_json::Deserializer::from_slice(&self.json);
        let source = serde_path_to_error::Deserializer::new(&mut json, &mut track);
        let result = serde_ignored::deserialize(source, |path| match path {
            serde_ignored::Path::Map { parent: serde_ignored::Path::Root, ref key } => {
                unknown.insert(key.clone());
            }
            // One is enough to refuse the body, and there may be millions.
            path if nested.is_none() => *nested = Some(path_of(&path)),
            _ => {}
        });
        let read = result.map_err(|e| located(&track.path(), &e))?;
        for field in &mut self.fields {
            field.read |= !unknown.contains(&field.name);
        }
        Ok(read)
    }

    /// Refuses what nobody has read. `unsupported` are fields of the API, or of vLLM, that would
    /// change the output and are not honoured yet: `allow_unknown` does not excuse those.
    pub(crate) fn finish(
        self,
        unsupported: &[Unsupported],
        allow_unknown: bool,
    ) -> Result<(), ApiError> {
        for Field { name, value, .. } in self.fields.into_iter().filter(|f| !f.read) {
            match unsupported.iter().find(|u| u.name == name) {
                Some(known) if value == Glance::Null || value == known.harmless => {}
                Some(Unsupported { why: detail, .. }) => {
                    return Err(ApiError::UnsupportedParameter { param: name, detail });
                }
                None if allow_unknown => {}
                None => return Err(ApiError::UnknownParameter { param: name }),
            }
        }
        match self.nested {
            Some(param) if !allow_unknown => Err(ApiError::UnknownParameter { param }),
            _ => Ok(()),
        }
    }
}

/// The value of a field that has two names. Both may be given, if they say the same.
pub(crate) fn either<T: PartialEq>(
    first: (&str, Option<T>),
    second: (&str, Option<T>),
) -> Result<Option<T>, ApiError> {
    match (first.1, second.1) {
        (Some(a), Some(b)) if a != b => {
            let detail = format!("'{}' says something else", first.0);
            Err(ApiError::value(second.0, detail))
        }
        (a, b) => Ok(a.or(b)),
    }
}

/// What a body is, and which fields it has.
#[derive(Debug)]
enum Top {
    Object(Vec<Field>),
    Other,
    TooMany,
}

impl<'de> Deserialize<'de> for Top {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct V;
        impl<'de> de::Visitor<'de> for V {
            type Value = Top;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("any value")
            }
            fn visit_bool<E>(self, _: bool) -> Result<Top, E> {
                Ok(Top::Other)
            }
            fn visit_i64<E>(self, _: i64) -> Result<Top, E> {
                Ok(Top::Other)
            }
            fn visit_u64<E>(self, _: u64) -> Result<Top, E> {
                Ok(Top::Other)
            }
            fn visit_f64<E>(self, _: f64) -> Result<Top, E> {
                Ok(Top::Other)
            }
            fn visit_str<E>(self, _: &str) -> Result<Top, E> {
                Ok(Top::Other)
            }
            fn visit_unit<E>(self) -> Result<Top, E> {
                Ok(Top::Other)
            }
            fn visit_seq<A: de::SeqAccess<'de>>(self, mut seq: A) -> Result<Top, A::Error> {
                while seq.next_element::<de::IgnoredAny>()?.is_some() {}
                Ok(Top::Other)
            }
            fn visit_map<A: de::MapAccess<'de>>(self, mut map: A) -> Result<Top, A::Error> {
                let mut fields = Vec::new();
                while fields.len() < MOST_FIELDS {
                    let Some((name, value)) = map.next_entry()? else {
                        return Ok(Top::Object(fields));
                    };
                    fields.push(Field { name, value, read: false });
                }
                // The rest is still checked for being JSON.
                while map.next_entry::<de::IgnoredAny, de::IgnoredAny>()?.is_some() {}
                Ok(Top::TooMany)
            }
        }
        deserializer.deserialize_any(V)
    }
}

/// Names what serde found wrong, and where.
fn located(path: &serde_path_to_error::Path, error: &serde_json::Error) -> ApiError {
    let detail = error.to_string();
    // The path says more than the column does.
    let detail = detail.rsplit_once(" at line ").map_or(detail.as_str(), |(what, _)| what);
    let at = path.to_string();
    let at = if at == "." { String::new() } else { at };
    // serde reports fields that are missing or there twice at their parent, by name, in this form.
    let named = |what: &str| {
        let name = detail.strip_prefix(what)?.strip_prefix(" field `")?.split('`').next()?;
        let dot = if at.is_empty() { "" } else { "." };
        Some(format!("{at}{dot}{name}"))
    };
    if let Some(param) = named("missing") {
        return ApiError::MissingParameter { param };
    }
    if let Some(param) = named("duplicate") {
        return ApiError::value(param, "is there twice");
    }
    let detail = in_terms_of_json(detail);
    let values = ["invalid value", "unknown variant", "number out of range"];
    if values.iter().any(|kind| detail.starts_with(kind)) {
        return ApiError::InvalidValue { param: at, detail };
    }
    ApiError::InvalidType { param: at, detail }
}

/// serde names what it expected as Rust does; who sends JSON does not know `f32`.
fn in_terms_of_json(detail: &str) -> String {
    let Some((got, expected)) = detail.rsplit_once(", expected ") else { return detail.to_owned() };
    let expected = match expected {
        "a map" => "an object",
        "a sequence" => "a list",
        "f32" => "a number",
        other => whole_numbers(other).unwrap_or(other),
    };
    let got = match got {
        "invalid type: map" => "invalid type: object",
        "invalid type: sequence" => "invalid type: list",
        other => other,
    };
    format!("{got}, expected {expected}")
}

/// `messages[0].content`, as OpenAI writes it.
fn path_of(path: &serde_ignored::Path<'_>) -> String {
    use serde_ignored::Path;
    match path {
        Path::Root => String::new(),
        Path::Seq { parent, index } => format!("{}[{index}]", path_of(parent)),
        Path::Map { parent, key } => {
            let parent = path_of(parent);
            if parent.is_empty() { key.clone() } else { format!("{parent}.{key}") }
        }
        Path::Some { parent }
        | Path::NewtypeStruct { parent }
        | Path::NewtypeVariant { parent } => path_of(parent),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_expected_is_named_as_json_has_it() {
        for (serde, json) in [
            ("invalid type: map, expected f32", "invalid type: object, expected a number"),
            ("invalid type: sequence, expected a map", "invalid type: list, expected an object"),
            ("invalid type: null, expected a sequence", "invalid type: null, expected a list"),
            (
                "invalid type: string \"f32\", expected a string",
                "invalid type: string \"f32\", expected a string",
            ),
            (
                "invalid value: integer `-1`, expected u32",
                "invalid value: integer `-1`, expected a whole number from 0 to 4294967295",
            ),
            ("something else", "something else"),
        ] {
            assert_eq!(in_terms_of_json(serde), json);
        }
    }
}
