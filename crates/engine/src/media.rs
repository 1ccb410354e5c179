//! Images of a request: whether they fit it, and what of them a step computes.

use sha2::{Digest, Sha256};
use std::{ops::Range, sync::Arc};
use taper_base::{EncodedImage, GenRequest, Medium, SubmitError, TokenId};
use taper_kv_cache::ImageSpan;
use taper_kv_codecs::MutualSpan;
use taper_models::{Ahead, ImagePositions, ImageRow, ModelInfo};

/// The images of a sequence.
#[derive(Debug, Clone, Default)]
pub(crate) struct Media {
    images: Arc<[Medium]>,
    /// Tokens that stand for rows, ascending.
    rows: Vec<Row>,
    /// Tokens that see each other, ascending.
    whole: Vec<Range<u32>>,
    /// Rotary positions, where those of text behind an image are not its tokens'.
    turns: Option<Turns>,
}

#[derive(Debug, Clone, Copy)]
struct Row {
    token: usize,
    image: usize,
    row: usize,
}

/// Rotary positions of three axes.
#[derive(Debug, Clone)]
struct Turns {
    /// Positions of the tokens up to the end of the last image.
    known: Vec<[u32; 3]>,
    /// The position of the next one.
    next: u32,
}

impl Media {
    /// The images of a request that [`check`] let through.
    pub(crate) fn new(
        request: &GenRequest,
        (positions, ahead): (Option<ImagePositions>, Option<Ahead>),
    ) -> Self {
        let images = Arc::clone(&request.media);
        let mut rows = Vec::new();
        for (image, medium) in images.iter().enumerate() {
            let own = tokens(&request.prompt, medium).enumerate();
            rows.extend(own.map(|(row, token)| Row { token, image, row }));
        }
        let turns = matches!(positions, Some(ImagePositions::Axes)) && !images.is_empty();
        let turns = turns.then(|| Turns::new(&request.prompt, &images));
        let whole = match ahead {
            None => Vec::new(),
            Some(Ahead::Prompts) => std::iter::once(0..request.prompt.len() as u32).collect(),
            Some(Ahead::Images | Ahead::ImagesInWindows) => stretches(&rows),
        };
        Self { images, rows, whole, turns }
    }

    /// Tokens that see each other, which a step must not cut.
    pub(crate) fn whole(&self) -> &[Range<u32>] {
        &self.whole
    }

    /// What of them is among the tokens `own`, where the first of these is a batch's `first`.
    pub(crate) fn mutual(
        &self,
        own: Range<usize>,
        first: usize,
    ) -> impl Iterator<Item = MutualSpan> + '_ {
        let (start, end) = (own.start as u32, own.end as u32);
        let from = self.whole.partition_point(|tokens| tokens.end <= start);
        let spans = self.whole[from..].iter().take_while(move |tokens| tokens.start < end);
        spans.map(move |tokens| {
            let begin = tokens.start.max(start);
            let place = |token: u32| first as u32 + token - start;
            let before = begin - tokens.start;
            MutualSpan { start: place(begin), end: place(tokens.end.min(end)), before }
        })
    }

    /// What keeps the prefix apart from others with equal tokens.
    pub(crate) fn spans(&self) -> Arc<[ImageSpan]> {
        self.images.iter().map(|m| ImageSpan { tokens: m.range(), hash: m.hash }).collect()
    }

    /// Rows of images that the tokens `own` stand for, where the first of them is a batch's `first`.
    pub(crate) fn rows(
        &self,
        own: Range<usize>,
        first: usize,
    ) -> impl Iterator<Item = ImageRow<'_>> {
        let Range { start, end } = own;
        let from = self.rows.partition_point(|row| row.token < start);
        let rows = self.rows[from..].iter().take_while(move |row| row.token < end);
        rows.map(move |row| ImageRow {
            token: (first + row.token - start) as u32,
            image: &self.images[row.image].encoded,
            row: row.row,
        })
    }

    /// Whether rotary positions are not the tokens'.
    pub(crate) fn turns(&self) -> bool {
        self.turns.is_some()
    }

    /// The rotary position of a token.
    pub(crate) fn turn(&self, token: usize) -> [u32; 3] {
        match &self.turns {
            Some(turns) => turns.of(token),
            None => [token as u32; 3],
        }
    }
}

impl Turns {
    /// As transformers' `get_rope_index`: an image begins at the position that follows, its tokens are counted by
    /// time, height and width from there, and text goes on behind the largest of them.
    fn new(prompt: &[TokenId], images: &[Medium]) -> Self {
        let end = images.last().map_or(0, |last| last.range().end);
        let (mut known, mut next) = (Vec::with_capacity(end), 0);
        for medium in images {
            let [t, h, w] = medium.grid.unwrap_or_default();
            let mut grid = (0..t)
                .flat_map(|t| (0..h).flat_map(move |h| (0..w).map(move |w| [t, h, w])))
                .peekable();
            for &token in &prompt[known.len()..medium.range().end] {
                let inside = known.len() >= medium.start && token == medium.image_token;
                match grid.next_if(|_| inside) {
                    Some(place) => {
                        known.push(place.map(|at| next + at));
                        if grid.peek().is_none() {
                            next += t.max(h).max(w);
                        }
                    }
                    None => {
                        known.push([next; 3]);
                        next += 1;
                    }
                }
            }
        }
        Self { known, next }
    }

    fn of(&self, token: usize) -> [u32; 3] {
        match token.checked_sub(self.known.len()) {
            None => self.known[token],
            Some(behind) => [self.next + behind as u32; 3],
        }
    }
}

/// Stretches of tokens that stand for rows of one image, one after the other.
fn stretches(rows: &[Row]) -> Vec<Range<u32>> {
    let runs = rows.chunk_by(|a, b| a.image == b.image && a.token + 1 == b.token);
    let range = |run: &[Row]| run[0].token as u32..run[0].token as u32 + run.len() as u32;
    runs.map(range).collect()
}

/// Under which salt a prompt is kept whose tokens all see each other: what is kept of one is of no use to another that
/// only begins like it.
pub(crate) fn salt(request: &GenRequest, ahead: Option<Ahead>) -> Option<Arc<str>> {
    if ahead != Some(Ahead::Prompts) {
        return None;
    }
    let mut hash = Sha256::new();
    hash.update((request.prompt.len() as u64).to_le_bytes());
    request.prompt.iter().for_each(|token| hash.update(token.to_le_bytes()));
    for medium in &*request.media {
        hash.update((medium.start as u64).to_le_bytes());
        hash.update(medium.hash);
    }
    let digest: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    let own = request.cache_salt.as_deref().unwrap_or_default();
    Some(format!("{digest}{own}").into())
}

/// Tokens of the prompt that stand for rows of an image.
fn tokens<'a>(prompt: &'a [TokenId], medium: &'a Medium) -> impl Iterator<Item = usize> + 'a {
    medium.range().filter(|&at| prompt.get(at) == Some(&medium.image_token))
}

/// Checks that the images of a request fit its prompt and the model. `evicts`: rows are evicted while they run.
pub(crate) fn check(
    request: &GenRequest,
    info: &ModelInfo,
    evicts: bool,
) -> Result<(), SubmitError> {
    if evicts && info.ahead == Some(Ahead::Prompts) {
        return Err(SubmitError::ImagesEvicted);
    }
    if request.media.is_empty() {
        return Ok(());
    }
    let positions = info.images.ok_or(SubmitError::NoImages)?;
    if evicts {
        return Err(SubmitError::ImagesEvicted);
    }
    let mut from = 0;
    for (image, medium) in request.media.iter().enumerate() {
        let fits = fits(&request.prompt, medium, (info, positions), from);
        fits.map_err(|reason| SubmitError::Medium { image, reason })?;
        from = medium.range().end;
    }
    Ok(())
}

fn fits(
    prompt: &[TokenId],
    medium: &Medium,
    (info, positions): (&ModelInfo, ImagePositions),
    from: usize,
) -> Result<(), &'static str> {
    let EncodedImage { rows, deep } = &medium.encoded;
    if medium.start < from {
        return Err("it begins before the one before it ends");
    }
    if medium.range().end > prompt.len() {
        return Err("it ends behind the prompt");
    }
    if rows.is_empty() || !rows.len().is_multiple_of(info.hidden) {
        return Err("its rows are not as wide as the model's");
    }
    if deep.len() > info.layers || deep.iter().any(|deep| deep.len() != rows.len()) {
        return Err("what is added behind layers is not as many rows");
    }
    let n = rows.len() / info.hidden;
    if tokens(prompt, medium).count() != n {
        return Err("it has not as many rows as tokens stand for them");
    }
    match (positions, medium.grid) {
        (ImagePositions::Text, None) => Ok(()),
        (ImagePositions::Text, Some(_)) => Err("its tokens count as text's, and it has a grid"),
        (ImagePositions::Axes, None) => Err("it has no grid"),
        (ImagePositions::Axes, Some(grid)) => {
            let all = grid.iter().try_fold(1usize, |all, &n| all.checked_mul(n as usize));
            let mut at = tokens(prompt, medium);
            let first = at.next().unwrap_or_default();
            match all == Some(n) && at.last().unwrap_or(first) == first + n - 1 {
                true => Ok(()),
                false => Err("its grid is not that of its tokens, one after the other"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HIDDEN: usize = 2;

    fn info(images: Option<ImagePositions>) -> ModelInfo {
        ModelInfo {
            family: "test",
            layers: 2,
            recurrent: Vec::new(),
            heads: 1,
            kv_heads: 1,
            head_dim: 2,
            layer_heads: Vec::new(),
            hidden: HIDDEN,
            vocab: 10,
            max_positions: 100,
            parameters: 0,
            weight_bytes: 0,
            prefill_apart: false,
            draft_heads: None,
            images,
            ahead: None,
        }
    }

    fn medium(start: usize, tokens: usize, grid: [u32; 3]) -> Medium {
        let rows = grid.iter().product::<u32>() as usize;
        let values = |n| vec![0.5; n * HIDDEN].into();
        let encoded = EncodedImage { rows: values(rows), deep: vec![values(rows)] };
        let hash = [start as u8; 32];
        Medium { start, tokens, image_token: 9, hash, grid: Some(grid), encoded }
    }

    fn request(media: Vec<Medium>) -> GenRequest {
        // Text, an image of 2 by 3 between its marks, text, one of 1 by 2, text.
        let prompt = [&[1, 2, 7][..], &[9; 6], &[8, 3], &[9; 2], &[4]].concat();
        GenRequest { prompt, media: media.into(), ..GenRequest::default() }
    }

    fn two() -> Vec<Medium> {
        vec![medium(2, 8, [1, 2, 3]), medium(11, 2, [1, 1, 2])]
    }

    #[test]
    fn positions_go_on_behind_the_largest_of_an_image() {
        let media = Media::new(&request(two()), (Some(ImagePositions::Axes), None));
        let turns: Vec<_> = (0..16).map(|at| media.turn(at)).collect();
        let grid = [[3, 3, 3], [3, 3, 4], [3, 3, 5], [3, 4, 3], [3, 4, 4], [3, 4, 5]];
        assert_eq!(turns[..3], [[0; 3], [1; 3], [2; 3]]);
        assert_eq!(turns[3..9], grid);
        assert_eq!(turns[9..11], [[6; 3], [7; 3]]);
        assert_eq!(turns[11..13], [[8, 8, 8], [8, 8, 9]]);
        assert_eq!(turns[13..], [[10; 3], [11; 3], [12; 3]]);
        let plain = Media::new(&request(two()), (Some(ImagePositions::Text), None));
        assert!(!plain.turns() && media.turns());
        assert_eq!(plain.turn(12), [12; 3]);
    }

    #[test]
    fn a_step_has_the_rows_of_its_tokens() {
        let media = Media::new(&request(two()), (Some(ImagePositions::Axes), None));
        let of = |own: Range<usize>, first| -> Vec<_> {
            media.rows(own, first).map(|row| (row.token, row.row)).collect()
        };
        assert_eq!(of(0..3, 0), []);
        assert_eq!(of(5..12, 20), [(20, 2), (21, 3), (22, 4), (23, 5), (26, 0)]);
        assert_eq!(of(13..20, 0), []);
    }

    #[test]
    fn tokens_of_an_image_or_of_a_prompt_see_each_other() {
        let media = |ahead| Media::new(&request(two()), (Some(ImagePositions::Text), Some(ahead)));
        let images = media(Ahead::Images);
        assert_eq!(images.whole(), [3..9, 11..13]);
        let of = |own, first| -> Vec<_> {
            images.mutual(own, first).map(|s| (s.start, s.end, s.before)).collect()
        };
        assert_eq!(of(0..3, 0), []);
        assert_eq!(of(5..14, 20), [(20, 24, 2), (26, 28, 0)]);
        assert_eq!(media(Ahead::Prompts).whole(), std::slice::from_ref(&(0..14)));
    }

    #[test]
    fn a_prompt_that_sees_itself_is_kept_by_its_own_name() {
        let name = |request: &GenRequest| salt(request, Some(Ahead::Prompts)).unwrap();
        let (one, longer) = (request(two()), GenRequest { prompt: vec![1; 3], ..request(vec![]) });
        let mut other = two();
        other[1].hash = [9; 32];
        let salted = GenRequest { cache_salt: Some("x".into()), ..one.clone() };
        let names = [&one, &longer, &request(other), &salted].map(name);
        assert!((0..4).all(|i| names[..i].iter().all(|name| *name != names[i])));
        assert_eq!(name(&one), name(&request(two())));
        assert_eq!(salt(&one, Some(Ahead::Images)), None);
    }

    #[test]
    fn images_that_do_not_fit_are_refused() {
        let axes = Some(ImagePositions::Axes);
        let refused = |change: &dyn Fn(&mut Vec<Medium>)| {
            let mut media = two();
            change(&mut media);
            check(&request(media), &info(axes), false).unwrap_err()
        };
        check(&request(two()), &info(axes), false).unwrap();
        check(&request(vec![]), &info(None), true).unwrap();
        assert_eq!(check(&request(two()), &info(None), false), Err(SubmitError::NoImages));
        assert_eq!(check(&request(two()), &info(axes), true), Err(SubmitError::ImagesEvicted));
        let text = check(&request(two()), &info(Some(ImagePositions::Text)), false);
        assert!(matches!(text, Err(SubmitError::Medium { image: 0, .. })));
        type Change = dyn Fn(&mut Vec<Medium>);
        let changes: [&Change; 9] = [
            &|media| media[1].start = 4,
            &|media| media[1].tokens = 9,
            &|media| media[1].start = usize::MAX,
            &|media| media[1].image_token = 4,
            &|media| media[1].grid = None,
            &|media| media[1].grid = Some([1, 2, 2]),
            &|media| media[1].grid = Some([u32::MAX; 3]),
            &|media| media[1].encoded.rows = [0.0; 3].into(),
            &|media| media[1].encoded.deep = vec![[0.0; 2].into()],
        ];
        for change in changes {
            assert!(matches!(refused(change), SubmitError::Medium { image: 1, .. }));
        }
    }
}
