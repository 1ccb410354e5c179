//! Images in requests, as OpenAI and Anthropic write them.

use super::from_objects;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, de};
use std::fmt;

from_objects!(ImageObject, ImageFrom, VideoUrl);

/// A video, as vLLM takes it.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(remote = "Self")]
pub(crate) struct VideoUrl {
    /// `data:image/gif;base64,...`, likewise of an animated WebP or PNG, or `data:video/jpeg;base64,<frame>,<frame>,...`.
    pub(crate) url: String,
    /// Frames a second, of a list of frames [default: 2].
    pub(crate) fps: Option<f64>,
}

/// The URL of an image, or an object that has it.
#[derive(Debug, JsonSchema)]
#[schemars(untagged)]
pub(crate) enum ImageUrl {
    Url(String),
    Object(ImageObject),
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(remote = "Self")]
pub(crate) struct ImageObject {
    /// `data:image/png;base64,...`, or `https` where the server fetches images.
    pub(crate) url: String,
    /// `auto` or `high`: images have the size that the model takes.
    pub(crate) detail: Option<String>,
    /// The file says it itself.
    #[serde(rename = "format")]
    _format: Option<String>,
}

impl<'de> Deserialize<'de> for ImageUrl {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct V;
        impl<'de> de::Visitor<'de> for V {
            type Value = ImageUrl;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a URL or an object with one")
            }
            fn visit_str<E: de::Error>(self, v: &str) -> Result<ImageUrl, E> {
                Ok(ImageUrl::Url(v.to_owned()))
            }
            fn visit_string<E: de::Error>(self, v: String) -> Result<ImageUrl, E> {
                Ok(ImageUrl::Url(v))
            }
            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<ImageUrl, A::Error> {
                let map = de::value::MapAccessDeserializer::new(map);
                // The derived function would take a list too.
                <ImageObject as Deserialize>::deserialize(map).map(ImageUrl::Object)
            }
        }
        deserializer.deserialize_any(V)
    }
}

/// Where an image of Anthropic's API comes from; which fields there are depends on `type`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(remote = "Self")]
#[schemars(rename = "ImageSource")]
pub(crate) struct ImageFrom {
    #[serde(rename = "type")]
    #[schemars(required, extend("enum" = ["base64", "url"]))]
    pub(crate) kind: Option<String>,
    /// Of `base64`; the file says it itself.
    pub(crate) media_type: Option<String>,
    /// Of `base64`.
    pub(crate) data: Option<String>,
    /// Of `url`.
    pub(crate) url: Option<String>,
}

/// The `source` of a block: of an image, or the name that search results have there.
#[derive(Debug, JsonSchema)]
#[schemars(untagged)]
pub(crate) enum BlockSource {
    Image(ImageFrom),
    #[expect(dead_code, reason = "read for the type check alone")]
    Name(String),
}

impl<'de> Deserialize<'de> for BlockSource {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct V;
        impl<'de> de::Visitor<'de> for V {
            type Value = BlockSource;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_str<E: de::Error>(self, v: &str) -> Result<BlockSource, E> {
                Ok(BlockSource::Name(v.to_owned()))
            }
            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<BlockSource, A::Error> {
                let map = de::value::MapAccessDeserializer::new(map);
                <ImageFrom as Deserialize>::deserialize(map).map(BlockSource::Image)
            }
        }
        deserializer.deserialize_any(V)
    }
}
