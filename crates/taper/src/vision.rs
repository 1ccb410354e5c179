//! What sees images for a model.

use crate::{Error, ModelSource};
use serde_json::{Map, Value};
use std::sync::Arc;
use taper_base::{
    EncodedImage, ImageEncoder, ImageError, Medium, PreparedImage, RgbImage, TokenId, VideoFrame,
    expand_images,
};
use taper_chat::Tokenizer;
use taper_models::ModelInfo;
use taper_vision::DecodeLimits;

/// Opens a model's vision tower. `None` of a model that has none, or one that cannot be used: it answers texts then, and
/// the log says why. Fields of the processor that were asked for must be there.
pub(crate) fn open(
    source: &ModelSource,
    model: &ModelInfo,
    tokenizer: &Tokenizer,
    kwargs: &Map<String, Value>,
) -> Result<Option<Arc<dyn ImageEncoder>>, Error> {
    let Some(dir) = source.dir() else { return Ok(None) };
    if model.images.is_none() {
        if taper_vision::has_tower(dir) {
            tracing::warn!(
                family = model.family,
                "no images are taken: here the language model takes none; those of Gemma need the CPU"
            );
        }
        return Ok(None);
    }
    let opened = taper_vision::open_with(dir, &|text| tokenizer.token_id(text), kwargs);
    Ok(match opened {
        Ok(Some(encoder)) if encoder.hidden() == model.hidden => Some(encoder.into()),
        Ok(Some(encoder)) => {
            let (tower, model) = (encoder.hidden(), model.hidden);
            tracing::warn!(
                tower,
                model,
                "no images are taken: the tower's rows are of another width"
            );
            None
        }
        Ok(None) => None,
        Err(error) if !kwargs.is_empty() => return Err(Error::Vision(Box::new(error))),
        Err(error) => {
            tracing::warn!(%error, "no images are taken");
            None
        }
    })
}

/// An image of a conversation.
#[derive(Debug, Clone)]
pub(crate) struct Shown {
    expansion: Vec<TokenId>,
    image_token: TokenId,
    hash: [u8; 32],
    grid: Option<[u32; 3]>,
    encoded: EncodedImage,
}

impl Shown {
    pub(crate) fn new(encoder: &dyn ImageEncoder, file: &[u8]) -> Result<Self, ImageError> {
        let prepared = encoder.prepare(&decode_image(file)?)?;
        let encoded = encoder.encode(&prepared)?;
        let PreparedImage { expansion, image_token, hash, grid, .. } = prepared;
        Ok(Self { expansion, image_token, hash, grid, encoded })
    }

    /// Puts images into a prompt, in place of the template's placeholders.
    pub(crate) fn place(
        images: &[Self],
        prompt: &[TokenId],
        placeholder: TokenId,
    ) -> Result<(Vec<TokenId>, Arc<[Medium]>), Error> {
        let tokens: Vec<_> = images.iter().map(|image| image.expansion.as_slice()).collect();
        let (prompt, starts) =
            expand_images(prompt, placeholder, &tokens).ok_or(Error::ImagesNotShown)?;
        let media = images.iter().zip(starts).map(|(own, start)| Medium {
            start,
            tokens: own.expansion.len(),
            image_token: own.image_token,
            hash: own.hash,
            grid: own.grid,
            encoded: own.encoded.clone(),
        });
        Ok((prompt, media.collect()))
    }
}

/// Frames of a GIF file, or of an animated WebP or PNG file of up to 20 MiB, with up to 64 megapixels in all.
///
/// # Errors
/// The file is larger, of another format, damaged, or does not move.
pub fn video_frames(file: &[u8]) -> Result<Vec<VideoFrame>, ImageError> {
    let frames = taper_vision::frames(file, &DecodeLimits::default());
    frames.map_err(|error| ImageError::Refused(error.to_string()))
}

/// Reads an image file: PNG, JPEG, WebP, GIF (its first frame) or BMP, of up to 64 megapixels and 20 MiB.
///
/// # Errors
/// The file is larger, of another format, or damaged.
pub fn decode_image(file: &[u8]) -> Result<RgbImage, ImageError> {
    let image = taper_vision::decode(file, &DecodeLimits::default());
    image.map_err(|error| ImageError::Refused(error.to_string()))
}
