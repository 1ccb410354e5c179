//! Videos of requests: images of a few frames each, with texts before them that say when these are shown.
//!
//! What the model's template writes for such an image is what it writes for any other.

use super::{
    see::Sight,
    source::{data_of, invalid, strip_scheme},
};
use crate::errors::ApiError;
use std::{fmt::Write as _, sync::Arc};
use taper_base::{ImageError, VideoEncoder, VideoFrame};
use taper_chat::ContentPart;

/// How the address of some frames begins. No request may have one.
const SCHEME: &str = "frames:";
/// Frames a second of a list of frames, where nothing is said: as many as are looked at of other videos.
const PER_SECOND: f64 = 2.0;

/// Frames that are seen as one image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Frames {
    /// Files of images.
    pub(super) files: Vec<Vec<u8>>,
    /// Frames of the video that are looked at.
    pub(super) sampled: usize,
}

impl Frames {
    /// Reads an address that [`parts`] made.
    pub(super) fn read(url: &str) -> Option<Result<Self, ApiError>> {
        let (sampled, files) = url.strip_prefix(SCHEME)?.split_once(',')?;
        let sampled = sampled.parse().ok()?;
        let files: Result<_, _> = files.split(',').map(data_of).collect();
        Some(files.map(|files| Self { files, sampled }))
    }
}

/// A video as parts of a message, and how many of its frames are looked at.
pub(super) fn parts(
    sight: &Sight,
    url: &str,
    per_second: Option<f64>,
    at: &str,
) -> Result<(Vec<ContentPart>, usize), ApiError> {
    let Some(encoder) = sight.vision.encoder.videos() else {
        let detail = "this model takes no videos; send some frames as images";
        return Err(ApiError::unsupported(at, detail));
    };
    let wrong = |error| match error {
        ApiError::Image { detail, .. } => ApiError::Image { param: Some(at.to_owned()), detail },
        other => other,
    };
    let frames = chosen(sight, encoder, url, per_second).map_err(wrong)?;
    Ok((written(encoder, &frames), frames.len()))
}

/// The frames that are looked at.
fn chosen(
    sight: &Sight,
    encoder: &dyn VideoEncoder,
    url: &str,
    per_second: Option<f64>,
) -> Result<Vec<VideoFrame>, ApiError> {
    let Some((kind, data)) =
        strip_scheme(url, "data:").and_then(|rest| rest.split_once(";base64,"))
    else {
        return Err(invalid(
            "videos come in requests: data:image/gif;base64,... or data:video/jpeg;base64,<frame>,<frame>,...",
        ));
    };
    if kind.eq_ignore_ascii_case("video/jpeg") {
        let per_second = per_second.unwrap_or(PER_SECOND);
        if !(per_second.is_finite() && (1e-3..=1e3).contains(&per_second)) {
            return Err(invalid("'fps' must be from 0.001 to 1000"));
        }
        let frame =
            |(i, data)| Ok(VideoFrame { file: data_of(data)?, seconds: i as f64 / per_second });
        return data.split(',').enumerate().map(frame).collect();
    }
    if per_second.is_some() {
        return Err(invalid("'fps' is for lists of frames: other files say it themselves"));
    }
    let all = (sight.vision.frames)(&data_of(data)?).map_err(|error| match error {
        ImageError::Refused(why) => invalid(format!("the video cannot be used: {why}")),
        ImageError::Failed(_) => ApiError::ImageFailed,
    })?;
    // The last frame is shown as long as those before it.
    let last = all.last().map_or(0.0, |frame| frame.seconds);
    let rate = if last > 0.0 { (all.len() - 1) as f64 / last } else { PER_SECOND };
    let places = encoder.sample(all.len(), rate);
    Ok(places.into_iter().filter_map(|at| all.get(at)).cloned().collect())
}

/// A text and an image for every few frames.
fn written(encoder: &dyn VideoEncoder, frames: &[VideoFrame]) -> Vec<ContentPart> {
    let together = encoder.together().max(1);
    let mut parts = Vec::new();
    for group in frames.chunks(together) {
        let mut seconds: Vec<_> = group.iter().map(|frame| frame.seconds).collect();
        seconds.resize(together, seconds.last().copied().unwrap_or_default());
        parts.push(ContentPart::Text(encoder.label(&seconds)));
        let mut url = format!("{SCHEME}{}", frames.len());
        for frame in group {
            // Writing to a string cannot fail.
            let _ = write!(url, ",{}", super::source::base64_of(&frame.file));
        }
        parts.push(ContentPart::Image(Arc::from(url)));
    }
    parts
}
