//! Prompts with images, against transformers: logits by its own features, and the same bits however they are cut.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use safetensors::SafeTensors;
use std::{
    fs,
    ops::Range,
    path::{Path, PathBuf},
};
use taper_base::{EncodedImage, SeqId, TokenId};
use taper_kv_cache::{KvCache, KvConfig, SeqRange};
use taper_kv_codecs::MutualSpan;
use taper_models::{
    Ahead, Batch, ImagePositions, ImageRow, LoadOptions, Model, ModelError, StepImages, load,
};
use taper_weights::Checkpoint;

/// A prompt of transformers, with what it made of its images.
struct Fixture {
    prompt: Vec<TokenId>,
    image_token: TokenId,
    images: Vec<EncodedImage>,
    /// Rotary positions of three axes, where the model has such.
    axes: Vec<[u32; 3]>,
    logits: Vec<Vec<f32>>,
    greedy: Vec<TokenId>,
}

fn directories() -> Vec<PathBuf> {
    let all = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/vision");
    let mut all: Vec<_> = fs::read_dir(all).unwrap().map(|entry| entry.unwrap().path()).collect();
    all.retain(|dir| dir.join("expected.safetensors").exists());
    all.sort();
    assert!(!all.is_empty());
    all
}

fn fixture(dir: &Path, model: &Checkpoint) -> Fixture {
    let bytes = fs::read(dir.join("expected.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let ids = |name: &str| -> Option<Vec<u32>> {
        let data = file.tensor(name).ok()?.data().to_vec();
        let ids = data.as_chunks::<8>().0.iter().map(|b| i64::from_le_bytes(*b));
        Some(ids.map(|id| u32::try_from(id).unwrap()).collect())
    };
    let floats = |name: &str| -> Option<Vec<f32>> {
        let data = file.tensor(name).ok()?.data().to_vec();
        Some(data.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect())
    };
    let image = |i| {
        let deep = (0..).map_while(|l| floats(&format!("deep_{i}_{l}"))).map(Into::into);
        Some(EncodedImage { rows: floats(&format!("features_{i}"))?.into(), deep: deep.collect() })
    };
    let vocab = *file.tensor("logits").unwrap().shape().last().unwrap();
    let logits = floats("logits").unwrap();
    let prompt = ids("input_ids").unwrap();
    let config = model.config();
    let token = config.get("image_token_id").or(config.get("image_token_index")).unwrap();
    let positions = ids("position_ids").unwrap_or_default();
    let at = |axis: usize, i: usize| positions[axis * prompt.len() + i];
    let axes = match positions.len() == 3 * prompt.len() {
        true => (0..prompt.len()).map(|i| [0, 1, 2].map(|axis| at(axis, i))).collect(),
        false => Vec::new(),
    };
    Fixture {
        image_token: u32::try_from(token.as_u64().unwrap()).unwrap(),
        images: (0..).map_while(image).collect(),
        axes,
        logits: logits.chunks(vocab).map(<[f32]>::to_vec).collect(),
        greedy: ids("greedy").unwrap(),
        prompt,
    }
}

impl Fixture {
    /// The image and the row that each token stands for.
    fn rows(&self, hidden: usize) -> Vec<Option<(usize, usize)>> {
        let of = |(i, image): (usize, &EncodedImage)| {
            (0..image.rows.len() / hidden).map(move |row| (i, row)).collect::<Vec<_>>()
        };
        let mut rows = self.images.iter().enumerate().flat_map(of);
        self.prompt.iter().map(|&t| (t == self.image_token).then(|| rows.next().unwrap())).collect()
    }
}

/// Tokens of the prompt that see each other.
fn whole(model: &dyn Model, fixture: &Fixture) -> Vec<Range<usize>> {
    let stands = |at: usize| fixture.prompt.get(at) == Some(&fixture.image_token);
    let n = fixture.prompt.len();
    match model.info().ahead {
        None => Vec::new(),
        Some(Ahead::Prompts) => std::iter::once(0..n).collect(),
        Some(Ahead::Images | Ahead::ImagesInWindows) => {
            let firsts = (0..n).filter(|&at| stands(at) && (at == 0 || !stands(at - 1)));
            firsts.map(|from| from..(from..).find(|&at| !stands(at)).unwrap()).collect()
        }
    }
}

/// Sequences of one cache, each with the fixture's prompt and what follows.
struct Run<'a> {
    model: &'a dyn Model,
    fixture: &'a Fixture,
    whole: Vec<Range<usize>>,
    cache: KvCache,
}

impl<'a> Run<'a> {
    fn new(model: &'a dyn Model, fixture: &'a Fixture) -> Self {
        let codec = taper_kv_codecs::parse("f32").unwrap();
        let mut config = model.info().cache(codec, KvConfig::BLOCK_TOKENS, 32);
        config.recurrent = model.info().states(4, 0);
        let whole = whole(model, fixture);
        Self { model, fixture, whole, cache: KvCache::new(config) }
    }

    /// A place from this one on where a step may end.
    fn cut(&self, at: usize) -> usize {
        let inside = self.whole.iter().find(|tokens| tokens.start < at && at < tokens.end);
        inside.map_or(at, |tokens| tokens.end)
    }

    /// Logits of tokens `start..end` of these sequences, one after the other, where `tokens` are all there are.
    fn step(&mut self, tokens: &[TokenId], parts: &[(u64, usize, usize)]) -> Vec<Vec<f32>> {
        let (fixture, info) = (self.fixture, self.model.info());
        let of_images = fixture.rows(info.hidden);
        let (mut batch, mut positions, mut axes) = (Vec::new(), Vec::new(), Vec::new());
        let (mut rows, mut ranges, mut mutual) = (Vec::new(), Vec::new(), Vec::new());
        let last = fixture.axes.iter().flatten().max().map_or(0, |last| last + 1);
        for &(seq, start, end) in parts {
            for tokens in self.whole.iter().filter(|t| t.start < end && start < t.end) {
                assert!(tokens.end <= end);
                let place = |at: usize| (batch.len() + at - start) as u32;
                let first = tokens.start.max(start);
                let before = (first - tokens.start) as u32;
                mutual.push(MutualSpan { start: place(first), end: place(tokens.end), before });
            }
            for (at, &token) in tokens.iter().enumerate().take(end).skip(start) {
                if let Some(&Some((image, row))) = of_images.get(at) {
                    let image = &fixture.images[image];
                    rows.push(ImageRow { token: batch.len() as u32, image, row });
                }
                batch.push(token);
                positions.push(at as u32);
                let behind = at.saturating_sub(fixture.prompt.len()) as u32;
                axes.push(fixture.axes.get(at).copied().unwrap_or([last + behind; 3]));
            }
            self.cache.grow(SeqId(seq), end).unwrap();
            ranges.push(SeqRange { seq: SeqId(seq), start, len: end - start });
        }
        if fixture.axes.is_empty() {
            axes.clear();
        }
        let logits_at: Vec<u32> = (0..batch.len() as u32).collect();
        let images = StepImages { axes: &axes, rows: &rows, mutual: &mutual };
        let batch = Batch {
            tokens: &batch,
            positions: &positions,
            logits_at: &logits_at,
            images,
            ..Batch::default()
        };
        let mut session = self.cache.session(&ranges).unwrap();
        self.model.forward(&batch, &mut session).unwrap().to_vec2().unwrap()
    }
}

fn argmax(row: &[f32]) -> TokenId {
    let best = row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1).then(b.0.cmp(&a.0)));
    best.unwrap().0 as TokenId
}

/// Loads a fixture's model; `None` of those that take no images so far, and of those for servers, which have neither
/// positions nor what is added behind layers.
fn open(dir: &Path) -> Option<(Box<dyn Model>, Fixture)> {
    let checkpoint = Checkpoint::open(dir).unwrap();
    let fixture = fixture(dir, &checkpoint);
    match load(&checkpoint, LoadOptions::EXACT) {
        Ok(model) => {
            let axes = model.info().images? == ImagePositions::Axes;
            (axes != fixture.axes.is_empty()).then_some((model, fixture))
        }
        Err(ModelError::UnknownFamily { .. }) => None,
        Err(error) => panic!("{}: {error}", dir.display()),
    }
}

#[test]
fn logits_are_those_of_transformers_and_do_not_depend_on_cuts_or_company() {
    let mut taken = 0;
    for dir in directories() {
        let name = dir.display();
        let Some((model, fixture)) = open(&dir) else { continue };
        taken += 1;
        let n = fixture.prompt.len();
        let whole = Run::new(&*model, &fixture).step(&fixture.prompt, &[(1, 0, n)]);
        let all = || fixture.logits.iter().flatten().copied();
        let range = all().fold(0f32, |most, x| most.max(x.abs()));
        let off = whole.iter().flatten().zip(all()).map(|(a, b)| (a - b).abs());
        let off = off.fold(0f32, f32::max) / range;
        assert!(off < 1e-4, "{name}: {off}");
        println!("{name}: {off:e} of the range");
        for len in [1, 5, 7, 16] {
            let mut run = Run::new(&*model, &fixture);
            let (mut cut, mut start) = (Vec::new(), 0);
            while start < n {
                let end = run.cut(n.min(start + len));
                cut.extend(run.step(&fixture.prompt, &[(1, start, end)]));
                start = end;
            }
            assert_eq!(cut, whole, "{name}: steps of {len}");
        }
        // What sees itself may have come to the cache in part.
        let mut run = Run::new(&*model, &fixture);
        run.step(&fixture.prompt, &[(1, 0, n)]);
        for tokens in run.whole.clone() {
            let middle = tokens.start.midpoint(tokens.end);
            let rest = run.step(&fixture.prompt, &[(1, middle, n)]);
            assert_eq!(rest, whole[middle..], "{name}: from the middle of {tokens:?}");
        }
        // Two more, of which one is in the middle of its first image, where it may be.
        let mut run = Run::new(&*model, &fixture);
        let (some, few) = (run.cut(n / 3), run.cut(2));
        run.step(&fixture.prompt, &[(2, 0, some)]);
        let parts = [(1, 0, n), (2, some.min(n - 1), n), (3, 0, few)];
        let beside = run.step(&fixture.prompt, &parts);
        let (first, rest) = beside.split_at(n);
        assert_eq!(first, whole, "{name}");
        let (second, third) = rest.split_at(n - some.min(n - 1));
        assert_eq!(second, &whole[some.min(n - 1)..], "{name}");
        assert_eq!(third, &whole[..few], "{name}");
    }
    assert!(taken > 0);
}

#[test]
fn what_follows_a_prompt_with_images_is_what_transformers_writes() {
    for dir in directories() {
        let Some((model, fixture)) = open(&dir) else { continue };
        let mut run = Run::new(&*model, &fixture);
        let (mut tokens, mut start) = (fixture.prompt.clone(), 0);
        for _ in &fixture.greedy {
            let logits = run.step(&tokens, &[(1, start, tokens.len())]);
            start = tokens.len();
            tokens.push(argmax(logits.last().unwrap()));
        }
        assert_eq!(tokens[fixture.prompt.len()..], fixture.greedy, "{}", dir.display());
    }
}

#[test]
fn a_model_of_text_refuses_images() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/parity/qwen3-bf16");
    let model = load(&Checkpoint::open(&dir).unwrap(), LoadOptions::EXACT).unwrap();
    let info = model.info();
    let codec = taper_kv_codecs::parse("f32").unwrap();
    let mut cache = KvCache::new(info.cache(codec, KvConfig::BLOCK_TOKENS, 2));
    let (seq, image) =
        (SeqId(1), EncodedImage { rows: vec![0.0; info.hidden].into(), deep: Vec::new() });
    cache.grow(seq, 1).unwrap();
    let mut session = cache.session(&[SeqRange { seq, start: 0, len: 1 }]).unwrap();
    let rows = [ImageRow { token: 0, image: &image, row: 0 }];
    let images = StepImages { rows: &rows, ..StepImages::default() };
    let batch = Batch { tokens: &[1], positions: &[0], images, ..Batch::default() };
    let refused = model.forward(&batch, &mut session);
    assert!(matches!(refused, Err(ModelError::NoImages { .. })));
}
