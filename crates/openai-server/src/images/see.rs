//! From the URLs of a request's images to what the engine is given.
//!
//! Files are fetched side by side; one image at a time, of all requests, is read, resized and encoded, away from the
//! async threads. A request that goes away leaves after the image that is in hand.

use super::{
    ImageLimits, Vision,
    cache::{Cache, ImageCounts, bytes},
    fetch::Fetcher,
    place::{Expansion, Placeholder},
    source::{Source, data, invalid, source},
    video::{self, Frames},
};
use crate::{config::ServerConfig, errors::ApiError};
use futures_util::future::try_join_all;
use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};
use taper_base::{EncodedImage, ImageError, Medium, PreparedImage, TokenId};
use taper_chat::{Content, ContentPart, Tokenizer};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    task::spawn_blocking,
    time::timeout,
};

/// Images that are fetched at a time, of all requests.
const FETCHES: usize = 8;
/// Bytes of image files that are in memory, of all requests.
const FILES: usize = 256 << 20;
/// Bytes of encoded images that requests hold, beside those that are kept for later ones.
const ENCODED: usize = 1 << 30;
/// How long a request waits for others to make room, or for its turn at the tower.
const PATIENCE: Duration = Duration::from_secs(60);

/// What sees images, if anything does.
#[derive(Debug)]
pub(crate) struct Images {
    sight: Option<Sight>,
    limits: ImageLimits,
    pub(crate) counts: Arc<ImageCounts>,
}

#[derive(Debug)]
pub(super) struct Sight {
    pub(super) vision: Vision,
    placeholder: Placeholder,
    fetcher: Fetcher,
    cache: Arc<Cache>,
    /// Who reads, resizes or encodes.
    turn: Arc<Semaphore>,
    /// Who holds encoded images while it waits for room for more: two would wait for each other.
    gathering: Arc<Semaphore>,
    fetching: Arc<Semaphore>,
    /// URLs of requests that wait for room for their files, in KiB like those below.
    queued: Arc<Semaphore>,
    files: Arc<Semaphore>,
    encoded: Arc<Semaphore>,
}

/// A prompt with its images.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) prompt: Vec<TokenId>,
    pub(crate) media: Arc<[Medium]>,
    /// Share of what encoded images may take.
    pub(crate) held: Vec<OwnedSemaphorePermit>,
}

/// An image in a prompt, and what a tower made of it, if that was asked for.
struct Made {
    expansion: Expansion,
    encoded: Option<EncodedImage>,
}

impl Images {
    pub(crate) fn new(config: &ServerConfig, tokenizer: &Tokenizer) -> Self {
        let limits = config.images.clone();
        let slots = |n| Arc::new(Semaphore::new(n));
        let sight = |vision: &Vision| Sight {
            placeholder: Placeholder::new(vision.encoder.placeholder(), tokenizer),
            vision: vision.clone(),
            fetcher: Fetcher::new(&limits, config.max_body_bytes),
            cache: Arc::new(Cache::new(limits.cache_bytes)),
            turn: slots(1),
            gathering: slots(1),
            fetching: slots(FETCHES),
            queued: slots(kib(FILES.max(config.max_body_bytes)) as usize),
            files: slots(kib(FILES.max(config.max_body_bytes)) as usize),
            encoded: slots(kib(ENCODED) as usize),
        };
        let sight = config.vision.as_ref().map(sight);
        Self { sight, limits, counts: Arc::default() }
    }

    /// Whether there is something that sees.
    pub(crate) fn see(&self) -> bool {
        self.sight.is_some()
    }

    /// What the model's template writes for an image.
    pub(crate) fn placeholder(&self) -> Option<&Placeholder> {
        self.sight.as_ref().map(|sight| &sight.placeholder)
    }

    /// Refuses images of models that take none. `at` is the field that holds one.
    pub(crate) fn takes(&self, at: &str) -> Result<(), ApiError> {
        self.sight_of(at).map(drop)
    }

    fn sight_of(&self, at: &str) -> Result<&Sight, ApiError> {
        let refused = || ApiError::unsupported(at, "this model does not take images");
        self.sight.as_ref().ok_or_else(refused)
    }

    /// The part of a message that is an image, if the server would get it from this URL.
    pub(crate) fn part(&self, url: Arc<str>, at: &str) -> Result<ContentPart, ApiError> {
        let sight = self.sight_of(at)?;
        let checked = source(&url).and_then(|source| match source {
            Source::Data { .. } => Ok(()),
            Source::Web(url) => sight.fetcher.check(&url),
        });
        checked.map(|()| ContentPart::Image(url)).map_err(|error| match error {
            ApiError::Image { detail, .. } => {
                ApiError::Image { param: Some(at.to_owned()), detail }
            }
            other => other,
        })
    }

    /// The parts of a message that are a video. `at` is the field that holds it.
    pub(crate) fn video(
        &self,
        url: &str,
        per_second: Option<f64>,
        at: &str,
    ) -> Result<Vec<ContentPart>, ApiError> {
        let (parts, frames) = video::parts(self.sight_of(at)?, url, per_second, at)?;
        self.counts.video(frames);
        Ok(parts)
    }

    /// The images of a request, if they are not too many.
    pub(crate) fn of<'a>(
        &self,
        contents: impl Iterator<Item = &'a Content>,
        param: &str,
    ) -> Result<Vec<Arc<str>>, ApiError> {
        let all: Vec<_> = contents.flat_map(Content::images).cloned().collect();
        let most = self.limits.per_prompt;
        if all.len() > most {
            let detail = format!("takes at most {most} images, got {}", all.len());
            return Err(ApiError::value(param, detail));
        }
        Ok(all)
    }

    /// Puts images that [`Self::part`] let through into a prompt of at most `max` tokens. Without `encode` it is only
    /// counted.
    pub(crate) async fn place(
        &self,
        urls: Vec<Arc<str>>,
        prompt: Vec<TokenId>,
        max: u32,
        encode: bool,
    ) -> Result<Seen, ApiError> {
        let (Some(sight), false) = (&self.sight, urls.is_empty()) else {
            return Ok(Seen { prompt, media: Arc::default(), held: Vec::new() });
        };
        let (mut expansions, mut encoded, mut held) = (Vec::new(), Vec::new(), Vec::new());
        sight.placeholder.check(&prompt, urls.len())?;
        // Each placeholder makes room for the tokens that replace it.
        let mut tokens = prompt.len() - urls.len().min(prompt.len());
        let gathers = encode && urls.len() > 1;
        let (files, room) = sight.files(urls, &self.counts).await?;
        let gathering = match gathers {
            true => Some(permit(&sight.gathering, 1, Some(PATIENCE)).await?),
            false => None,
        };
        let mut left = kib(ENCODED);
        for file in files {
            let turn = permit(&sight.turn, 1, Some(PATIENCE)).await?;
            let work = Work {
                vision: sight.vision.clone(),
                cache: Arc::clone(&sight.cache),
                counts: Arc::clone(&self.counts),
                room: (max as usize).saturating_sub(tokens),
                max,
                encode,
            };
            // Who runs keeps its turn, even where nobody waits for it any more.
            let made = spawn_blocking(move || (work.make(&file), turn)).await;
            let (made, turn) = made.map_err(|error| {
                tracing::error!(%error, "an image's tower panicked");
                ApiError::Internal
            })?;
            drop(turn);
            let Made { expansion, encoded: own } = made?;
            tokens += expansion.tokens.len();
            expansions.push(expansion);
            if let Some(own) = own {
                // A request that wants more than there is runs alone.
                let wanted = kib(bytes(&own)).min(left);
                left -= wanted;
                held.push(permit(&sight.encoded, wanted, Some(PATIENCE)).await?);
                encoded.push(own);
            }
        }
        drop((room, gathering));
        let (prompt, starts) = sight.placeholder.expand(&prompt, &expansions)?;
        let all = expansions.into_iter().zip(starts).zip(encoded);
        let media = all.map(|((own, start), encoded)| Medium {
            start,
            tokens: own.tokens.len(),
            image_token: own.image_token,
            hash: own.hash,
            grid: own.grid,
            encoded,
        });
        Ok(Seen { prompt, media: media.collect(), held })
    }
}

impl Sight {
    /// The files of all URLs, and their share of memory.
    async fn files(
        &self,
        urls: Vec<Arc<str>>,
        counts: &ImageCounts,
    ) -> Result<(Vec<File>, OwnedSemaphorePermit), ApiError> {
        let own: usize = urls.iter().map(|url| url.len()).sum();
        let web = |url: &Arc<str>| matches!(source(url), Ok(Source::Web(_)));
        let fetched = urls.iter().filter(|url| web(url)).count();
        let most = FILES.max(self.fetcher.max_bytes());
        // Of many files from the web none may be as long as one alone.
        let each = most.saturating_sub(own) / fetched.max(1);
        let each = each.min(self.fetcher.max_bytes());
        let room = own.saturating_add(fetched.saturating_mul(each)).min(most);
        let queued = Arc::clone(&self.queued).try_acquire_many_owned(kib(own.min(most)));
        let queued = queued.map_err(|_| ApiError::Busy)?;
        let room = permit(&self.files, kib(room), Some(PATIENCE)).await?;
        drop(queued);
        let mut files = Vec::with_capacity(urls.len());
        for url in &urls {
            files.push(self.file(url, each, counts));
        }
        Ok((try_join_all(files).await?, room))
    }

    /// The file of a URL, of at most so many bytes if it comes from the web.
    async fn file(
        &self,
        url: &Arc<str>,
        most: usize,
        counts: &ImageCounts,
    ) -> Result<File, ApiError> {
        let panicked = |error| {
            tracing::error!(%error, "a fetch panicked");
            ApiError::Internal
        };
        let (own, source) = (Arc::clone(url), source(url));
        let url = match source {
            Ok(Source::Web(url)) => url,
            // Megabytes of base64 take their time.
            _ => return spawn_blocking(move || written(&own)).await.map_err(panicked)?,
        };
        let turn = permit(&self.fetching, 1, Some(PATIENCE)).await?;
        let fetcher = self.fetcher.clone();
        let patience = fetcher.timeout();
        let fetch = spawn_blocking(move || (fetcher.fetch(url, most), turn));
        // A name server may take longer than the fetch may.
        let late = |_| invalid("the image did not come in time");
        let (file, _) = timeout(patience, fetch).await.map_err(late)?.map_err(panicked)?;
        counts.fetched.fetch_add(u64::from(file.is_ok()), Relaxed);
        file.map(File::Image)
    }
}

/// The file, or the frames, that a URL holds itself.
fn written(url: &str) -> Result<File, ApiError> {
    if let Some(frames) = Frames::read(url) {
        return frames.map(File::Frames);
    }
    match source(url)? {
        Source::Data { at } => data(url, at).map(File::Image),
        Source::Web(_) => Err(ApiError::Internal),
    }
}

/// What one image is made of.
enum File {
    Image(Vec<u8>),
    Frames(Frames),
}

/// What is done with one file.
struct Work {
    vision: Vision,
    cache: Arc<Cache>,
    counts: Arc<ImageCounts>,
    /// Tokens that are left of the model's context, which has `max`.
    room: usize,
    max: u32,
    encode: bool,
}

impl Work {
    fn prepare(&self, file: &File) -> Result<PreparedImage, ImageError> {
        let Vision { encoder, decode, .. } = &self.vision;
        match (file, encoder.videos()) {
            (File::Image(file), _) => encoder.prepare(&decode(file)?),
            (File::Frames(Frames { files, sampled }), Some(videos)) => {
                let frames: Result<Vec<_>, _> = files.iter().map(|file| decode(file)).collect();
                videos.prepare_frames(&frames?, *sampled)
            }
            (File::Frames(_), None) => {
                Err(ImageError::Refused("this model takes no videos".to_owned()))
            }
        }
    }

    fn make(&self, file: &File) -> Result<Made, ApiError> {
        let since = Instant::now();
        let prepared = self.prepare(file).map_err(|error| refused(&error))?;
        self.counts.prepared(since.elapsed());
        let expansion = Expansion::from(&prepared);
        if expansion.tokens.len() > self.room {
            let (got, max) = (expansion.tokens.len(), self.max);
            return Err(invalid(format!(
                "this model's maximum context length is {max} tokens, and an image of {got} does not fit it"
            )));
        }
        if !self.encode {
            return Ok(Made { expansion, encoded: None });
        }
        self.counts.count(expansion.tokens.len());
        if let Some(encoded) = self.cache.get(&expansion.hash) {
            self.counts.hits.fetch_add(1, Relaxed);
            return Ok(Made { expansion, encoded: Some(encoded) });
        }
        let since = Instant::now();
        let encoded = self.vision.encoder.encode(&prepared).map_err(|error| refused(&error))?;
        self.counts.encoded(since.elapsed());
        self.cache.put(expansion.hash, &encoded);
        Ok(Made { expansion, encoded: Some(encoded) })
    }
}

fn refused(error: &ImageError) -> ApiError {
    match error {
        ImageError::Refused(_) => invalid(error.to_string()),
        ImageError::Failed(_) => {
            tracing::error!(%error, "an image's tower failed");
            ApiError::ImageFailed
        }
    }
}

async fn permit(
    of: &Arc<Semaphore>,
    n: u32,
    patience: Option<Duration>,
) -> Result<OwnedSemaphorePermit, ApiError> {
    let permit = Arc::clone(of).acquire_many_owned(n);
    let permit = match patience {
        Some(patience) => timeout(patience, permit).await.map_err(|_| ApiError::Busy)?,
        None => permit.await,
    };
    permit.map_err(|_| ApiError::Internal)
}

fn kib(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(1 << 10)).unwrap_or(u32::MAX)
}
