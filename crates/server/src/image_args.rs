//! Flags about images in requests.

use crate::sizes;
use clap::Args;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::time::Duration;
use taper::Builder;
use taper_openai_server::ImageLimits;

/// Which images requests may have, of models that see.
#[derive(Debug, Clone, Args)]
pub(crate) struct ImageArgs {
    /// Maximum number of images in a request, as JSON: '{"image": 4}'.
    #[arg(long, default_value = r#"{"image": 64}"#, value_name = "JSON", value_parser = per_prompt)]
    pub(crate) limit_mm_per_prompt: usize,
    /// Host that images are fetched from by http and https; "*" is every public one. Separate several with commas, or
    /// repeat the flag [default: none: images come as data URLs].
    ///
    /// Addresses of this machine and of private networks are never fetched from. Redirects are followed to allowed
    /// hosts only.
    #[arg(long, value_name = "DOMAIN", value_delimiter = ',')]
    pub(crate) allowed_media_domains: Vec<String>,
    /// Seconds that fetching an image may take, redirects included.
    #[arg(long, default_value_t = 5, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=600))]
    pub(crate) media_fetch_timeout: u64,
    /// Fields that count instead of those of the model's preprocessor_config.json, as JSON. Fewer pixels are fewer tokens,
    /// and less time: '{"max_pixels": 1003520}'.
    #[arg(long, value_name = "JSON", value_parser = object)]
    pub(crate) mm_processor_kwargs: Option<Map<String, Value>>,
    /// Memory for what was made of the last images, in GiB or with a unit, such as 512MiB; 0 keeps nothing.
    #[arg(long, default_value_t = 0.25, value_name = "GIB", value_parser = sizes::gib)]
    pub(crate) mm_processor_cache_gb: f64,
}

impl ImageArgs {
    /// A model with its tower, if images are taken.
    pub(crate) fn apply(&self, builder: Builder) -> Builder {
        let kwargs = self.mm_processor_kwargs.clone().unwrap_or_default();
        builder.images(self.limit_mm_per_prompt > 0).mm_processor_kwargs(kwargs)
    }

    /// What the server takes.
    pub(crate) fn limits(&self) -> ImageLimits {
        ImageLimits {
            allowed_media_domains: self.allowed_media_domains.clone(),
            media_fetch_timeout: Duration::from_secs(self.media_fetch_timeout),
            per_prompt: self.limit_mm_per_prompt,
            cache_bytes: (self.mm_processor_cache_gb * f64::from(1 << 30)) as usize,
        }
    }
}

/// Of kinds that are never taken any number may be allowed.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "read for the type check alone")]
struct PerPrompt {
    image: Option<usize>,
    video: Option<usize>,
    audio: Option<usize>,
}

fn object(text: &str) -> Result<Map<String, Value>, String> {
    let object: Result<Map<String, Value>, _> = serde_json::from_str(text);
    object.map_err(|error| format!("{error}; it is JSON like {{\"max_pixels\": 1003520}}"))
}

fn per_prompt(text: &str) -> Result<usize, String> {
    let limits: PerPrompt = serde_json::from_str(text)
        .map_err(|error| format!("{error}; it is JSON like {{\"image\": 4}}"))?;
    Ok(limits.image.unwrap_or(ImageLimits::default().per_prompt))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_json() {
        assert_eq!(per_prompt(r#"{"image": 4}"#), Ok(4));
        assert_eq!(per_prompt(r#"{"image": 0, "video": 1}"#), Ok(0));
        assert_eq!(per_prompt("{}"), Ok(64));
        for text in ["4", "image=4", r#"{"images": 4}"#, r#"{"image": -1}"#, ""] {
            assert!(per_prompt(text).is_err(), "{text}");
        }
    }
}
