//! What the formats share: JSON scanned as it streams, tags, names before arguments, literals of
//! programming languages, and texts typed by a schema.

mod arguments;
mod literal;
mod named;
mod object;
mod objects;
mod tail;
mod types;
mod value;
mod xml;

pub(super) use arguments::{Arguments, Ends, Read};
pub(super) use literal::LiteralStyle;
pub(super) use named::{Named, NamedStyle};
pub(super) use object::{JsonCall, Rules, Step};
pub(super) use objects::{Json, JsonStyle};
pub(super) use tail::{Behind, Tail};
pub(super) use xml::{Xml, XmlStyle};
