//! How values are read that clients write in more than one way, or whose contents do not matter.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{
    Deserialize, Deserializer,
    de::{self, Unexpected},
};
use std::{borrow::Cow, fmt, marker::PhantomData};

/// A whole number, also where it is written as `2.0`: some languages know no other numbers.
pub(crate) fn whole<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: TryFrom<i128>,
{
    Ok(Option::<Whole<T>>::deserialize(deserializer)?.map(|whole| whole.0))
}

/// The numbers of a type, by Rust's name for it.
pub(crate) fn whole_numbers(name: &str) -> Option<&'static str> {
    Some(match name {
        "u8" => "a whole number from 0 to 255",
        "u32" => "a whole number from 0 to 4294967295",
        "i32" => "a whole number from -2147483648 to 2147483647",
        "i64" => "a whole number from -9223372036854775808 to 9223372036854775807",
        _ => return None,
    })
}

struct Whole<T>(T);

impl<'de, T: TryFrom<i128>> Deserialize<'de> for Whole<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct V<T>(PhantomData<T>);
        impl<T: TryFrom<i128>> de::Visitor<'_> for V<T> {
            type Value = Whole<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let numbers = whole_numbers(std::any::type_name::<T>());
                f.write_str(numbers.unwrap_or("a whole number"))
            }
            fn visit_u64<E: de::Error>(self, v: u64) -> Result<Whole<T>, E> {
                let whole = T::try_from(i128::from(v)).map(Whole);
                whole.map_err(|_| E::invalid_value(Unexpected::Unsigned(v), &self))
            }
            fn visit_i64<E: de::Error>(self, v: i64) -> Result<Whole<T>, E> {
                let whole = T::try_from(i128::from(v)).map(Whole);
                whole.map_err(|_| E::invalid_value(Unexpected::Signed(v), &self))
            }
            fn visit_f64<E: de::Error>(self, v: f64) -> Result<Whole<T>, E> {
                if v.fract() != 0.0 {
                    return Err(E::invalid_type(Unexpected::Float(v), &self));
                }
                // A number below i64 is a float by now, and may have become i64's lowest by rounding.
                if v <= i64::MIN as f64 {
                    return Err(E::invalid_value(Unexpected::Float(v), &self));
                }
                // The cast saturates, far outside of every type that is asked for.
                let whole = T::try_from(v as i128).map(Whole);
                whole.map_err(|_| E::invalid_value(Unexpected::Float(v), &self))
            }
        }
        deserializer.deserialize_any(V(PhantomData))
    }
}

/// Reads structs, which are derived as `remote = "Self"`, from objects only: serde would take a list for
/// their fields in the order that Rust has them.
macro_rules! from_objects {
    ($($name:ident),+) => {$(
        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct V;
                impl<'de> serde::de::Visitor<'de> for V {
                    type Value = $name;
                    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        f.write_str("an object")
                    }
                    fn visit_map<A: serde::de::MapAccess<'de>>(
                        self,
                        map: A,
                    ) -> Result<$name, A::Error> {
                        // The derived function, which is not that of the trait.
                        $name::deserialize(serde::de::value::MapAccessDeserializer::new(map))
                    }
                }
                deserializer.deserialize_map(V)
            }
        }
    )+};
}
pub(crate) use from_objects;

/// Any value; only that it is there matters. Nothing is built from it. (serde's `IgnoredAny` would
/// be reported as a field that nobody knows.)
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Anything;

/// An object with any contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AnyObject;

impl JsonSchema for Anything {
    fn schema_name() -> Cow<'static, str> {
        "Anything".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({})
    }
}

impl JsonSchema for AnyObject {
    fn schema_name() -> Cow<'static, str> {
        "AnyObject".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "object" })
    }
}

impl<'de> Deserialize<'de> for Anything {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct V;
        impl<'de> de::Visitor<'de> for V {
            type Value = Anything;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("any value")
            }
            fn visit_bool<E>(self, _: bool) -> Result<Anything, E> {
                Ok(Anything)
            }
            fn visit_i64<E>(self, _: i64) -> Result<Anything, E> {
                Ok(Anything)
            }
            fn visit_u64<E>(self, _: u64) -> Result<Anything, E> {
                Ok(Anything)
            }
            fn visit_f64<E>(self, _: f64) -> Result<Anything, E> {
                Ok(Anything)
            }
            fn visit_str<E>(self, _: &str) -> Result<Anything, E> {
                Ok(Anything)
            }
            fn visit_unit<E>(self) -> Result<Anything, E> {
                Ok(Anything)
            }
            fn visit_seq<A: de::SeqAccess<'de>>(self, mut seq: A) -> Result<Anything, A::Error> {
                while seq.next_element::<Anything>()?.is_some() {}
                Ok(Anything)
            }
            fn visit_map<A: de::MapAccess<'de>>(self, mut map: A) -> Result<Anything, A::Error> {
                while map.next_entry::<Anything, Anything>()?.is_some() {}
                Ok(Anything)
            }
        }
        deserializer.deserialize_any(V)
    }
}

impl<'de> Deserialize<'de> for AnyObject {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct V;
        impl<'de> de::Visitor<'de> for V {
            type Value = AnyObject;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: de::MapAccess<'de>>(self, mut map: A) -> Result<AnyObject, A::Error> {
                while map.next_entry::<Anything, Anything>()?.is_some() {}
                Ok(AnyObject)
            }
        }
        deserializer.deserialize_map(V)
    }
}

/// A value at the top of a body, as far as it matters for fields that are not honoured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Glance {
    Null,
    Bool(bool),
    Number(f64),
    /// An empty text, list or object.
    Empty,
    Other,
}

impl<'de> Deserialize<'de> for Glance {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct V;
        impl<'de> de::Visitor<'de> for V {
            type Value = Glance;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("any value")
            }
            fn visit_bool<E>(self, v: bool) -> Result<Glance, E> {
                Ok(Glance::Bool(v))
            }
            fn visit_i64<E>(self, v: i64) -> Result<Glance, E> {
                Ok(Glance::Number(v as f64))
            }
            fn visit_u64<E>(self, v: u64) -> Result<Glance, E> {
                Ok(Glance::Number(v as f64))
            }
            fn visit_f64<E>(self, v: f64) -> Result<Glance, E> {
                Ok(Glance::Number(v))
            }
            fn visit_str<E>(self, v: &str) -> Result<Glance, E> {
                Ok(if v.is_empty() { Glance::Empty } else { Glance::Other })
            }
            fn visit_unit<E>(self) -> Result<Glance, E> {
                Ok(Glance::Null)
            }
            fn visit_seq<A: de::SeqAccess<'de>>(self, mut seq: A) -> Result<Glance, A::Error> {
                let mut glance = Glance::Empty;
                while seq.next_element::<de::IgnoredAny>()?.is_some() {
                    glance = Glance::Other;
                }
                Ok(glance)
            }
            fn visit_map<A: de::MapAccess<'de>>(self, mut map: A) -> Result<Glance, A::Error> {
                let mut glance = Glance::Empty;
                while map.next_entry::<de::IgnoredAny, de::IgnoredAny>()?.is_some() {
                    glance = Glance::Other;
                }
                Ok(glance)
            }
        }
        deserializer.deserialize_any(V)
    }
}
