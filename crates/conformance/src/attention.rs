//! Attention over compressed pages.

use super::{Case, EXACT, FORMATS, Filled, PLAIN, Pair, noise, slots, upload};
use taper_kv_codecs::{AttnBatch, AttnParams, ExactBlocks, KvCodecError, SeqSpan, parse_on};
use taper_tensor::{
    Sinks, Tensor,
    gpu::{Gpu, attention::BLOCK_TOKENS},
};

pub(super) fn cases(quick: bool) -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |codec, (kv_heads, group, head_dim), seqs: &[(usize, usize)], exact, params| {
        let seqs = seqs.to_vec();
        let (broken, sinks) = (false, false);
        cases.push(Case { codec, kv_heads, head_dim, group, seqs, exact, params, broken, sinks });
    };
    let short = &[(1, 1), (1, 33), (3, 70), (1, 40)];
    // Each format once, on both sides, with heads of every number of rings that share lanes.
    let names = FORMATS.into_iter().chain(["taper4v8", "turbo8v1", "turbo8v4"]);
    for (i, name) in names.enumerate() {
        add(name, (2, 2, 128), short, None, PLAIN);
        let d = [64, 256, 24, 16, 80, 32, 72, 144][i % 8];
        add(name, (1, [1, 3, 5][i % 3], d), &[(5, 5), (1, 40), (3, 70)], None, PLAIN);
        if i % 3 == 0 {
            add(name, (2, 4, 64), &[(1, 200), (40, 150), (2, 20)], Some(EXACT), PLAIN);
        }
    }
    let long: &[_] = if quick { &[(1, 513)] } else { &[(1, 513), (2, 1100), (1, 512), (1, 3)] };
    add("turbo4", (1, 4, 128), long, None, PLAIN);
    add("taper4", (1, 2, 64), long, Some(EXACT), PLAIN);
    let windowed = |tokens| AttnParams { window: Some(tokens), ..PLAIN };
    let window = windowed(33);
    // The last token's window begins with a block, and the tokens before it see some of the one before.
    let (block, at_block) = (windowed(BLOCK_TOKENS), &[(4, 3 * BLOCK_TOKENS)]);
    for name in ["turbo4", "taper3", "affine8"] {
        add(name, (1, 1, 64), at_block, None, block);
    }
    add("taper3", (1, 3, 64), &[(1, 100), (7, 90), (1, 20), (1, 1030)], None, window);
    // Rows that begin at odd bytes.
    add("turbo3-qjl", (2, 4, 24), short, Some(EXACT), PLAIN);
    add("turbo5v1-qjl", (1, 2, 40), short, None, PLAIN);
    add("turbo3", (2, 20, 32), &[(2, 37)], None, AttnParams { soft_cap: Some(2.5), ..PLAIN });
    for (i, name) in
        ["affine8", "affine4g32", "turbo4", "taper4", "turbo0v3"].into_iter().enumerate()
    {
        for (j, exact) in [None, Some(EXACT)].into_iter().enumerate() {
            let seqs = vec![(5, 5), (3, 70), (40, 150), (1, 90)];
            let params = if j == 0 { window } else { PLAIN };
            let (kv_heads, head_dim, group) = (1, [64, 128][i % 2], 1 + (i + j) % 4);
            let (codec, broken, sinks) = (name, true, false);
            cases.push(Case {
                codec,
                kv_heads,
                head_dim,
                group,
                seqs,
                exact,
                params,
                broken,
                sinks,
            });
        }
        let (kv_heads, head_dim, group) = (1, 64, 1);
        let (codec, seqs, exact, broken) = (name, at_block.to_vec(), None, true);
        let (params, sinks) = (block, false);
        cases.push(Case { codec, kv_heads, head_dim, group, seqs, exact, params, broken, sinks });
    }
    cases
}

/// Cases that came later. A check's number decides its data, which planted bugs were chosen on.
pub(super) fn more_cases() -> [Case; 1] {
    // Keys with a sketch, in heads of more than 128.
    [Case {
        codec: "turbo3-qjl",
        kv_heads: 1,
        head_dim: 256,
        group: 2,
        seqs: vec![(1, 33), (3, 70)],
        exact: None,
        params: PLAIN,
        broken: false,
        sinks: false,
    }]
}

/// Cases with sinks, which came later still.
pub(super) fn sink_cases() -> [Case; 4] {
    let of = |codec, (kv_heads, group, head_dim), exact, params| {
        let (seqs, broken, sinks) = (vec![(1, 33), (3, 70), (1, 520)], false, true);
        Case { codec, kv_heads, head_dim, group, seqs, exact, params, broken, sinks }
    };
    let window = AttnParams { window: Some(40), ..PLAIN };
    [
        of("turbo4", (2, 2, 64), None, PLAIN),
        of("taper3", (1, 5, 128), Some(EXACT), window),
        of("affine8", (1, 4, 80), None, window),
        of("turbo3-qjl", (1, 2, 64), None, PLAIN),
    ]
}

/// Prompts, whose blocks are expanded, alone and beside sequences of few tokens.
pub(super) fn expanded_cases() -> Vec<Case> {
    let window = AttnParams { window: Some(40), ..PLAIN };
    let capped = AttnParams { soft_cap: Some(2.5), ..PLAIN };
    let names = FORMATS.into_iter().chain(["taper4v8", "turbo8v1", "turbo8v4", "turbo0v3"]);
    let each = names.filter(|name| !name.contains("qjl")).enumerate().map(|(i, codec)| Case {
        codec,
        kv_heads: 1 + i % 2,
        head_dim: [128, 64, 256, 24, 80, 128, 72][i % 7],
        group: [4, 3, 1, 2][i % 4],
        seqs: [vec![(16, 16), (1, 70)], vec![(37, 90)], vec![(2, 40), (45, 131), (20, 20)]][i % 3]
            .clone(),
        exact: (i % 2 == 0).then_some(EXACT),
        params: [PLAIN, window, PLAIN, capped, PLAIN][i % 5],
        broken: i % 4 == 1,
        sinks: i % 5 == 2,
    });
    each.collect()
}

impl Case {
    /// Whether what some of its rows see is expanded to halves.
    pub(super) fn expands(&self) -> bool {
        !self.codec.contains("qjl") && self.seqs.iter().any(|seq| seq.0 >= 16)
    }

    /// Attention over pages that the host wrote, against a softmax in f64 over what it decodes.
    pub(super) fn attend(&self, gpu: &Gpu, seed: u64) -> Result<Pair, KvCodecError> {
        let mut rows = self.rows(seed);
        for (&(_, kv_len), (_, k, v)) in self.seqs.iter().zip(&mut rows) {
            let width = self.kv_heads * self.head_dim;
            for at in self.broken_tokens(kv_len) {
                for side in [&mut *k, &mut *v] {
                    side[at * width..(at + 1) * width].fill(f32::NAN);
                }
            }
        }
        // All bits set is not a number in every format of floats.
        let filled = self.fill_over(rows, 0xff)?;
        let heads = self.kv_heads * self.group;
        let tokens: usize = self.seqs.iter().map(|s| s.0).sum();
        let mut state = seed ^ 0x5eed;
        let q = noise(&mut state, tokens * heads * self.head_dim);
        let there = Tensor::from_vec(q.clone(), &[tokens, heads, self.head_dim])?.to_gpu(gpu)?;
        let codec = parse_on(self.codec, gpu)?;
        let mut pages = self.pages(&*codec);
        upload(gpu, &filled, &mut pages)?;
        let exact: Vec<Vec<_>> =
            filled.seqs.iter().map(|(b, ..)| b.iter().copied().map(Some).collect()).collect();
        let own = |tokens, i: usize| ExactBlocks { tokens, blocks: &exact[i], skipped: 0 };
        let span = |(i, &(q_len, kv_len)): (usize, &(usize, usize))| SeqSpan {
            q_len,
            kv_len,
            blocks: &filled.seqs[i].0,
            exact: self.exact.map(|tokens| own(tokens, i)),
            together: None,
        };
        let seqs = self.seqs.iter().enumerate().map(span).collect();
        let sinks = self.sinks.then(|| Sinks::new(noise(&mut state, heads)));
        let params = AttnParams { sinks: sinks.as_ref(), ..self.params };
        let out = codec.attend(filled.g, &there, &pages, &AttnBatch { seqs }, &params)?;
        let sinks = sinks.as_ref().map(Sinks::scores);
        let (mut got, mut want) = (out.to_vec()?, self.softmax(&filled, &q, sinks)?);
        let width = heads * self.head_dim;
        let mut rows = got.chunks_mut(width).zip(want.chunks_mut(width));
        for &(q_len, kv_len) in &self.seqs {
            for (token, (got, want)) in rows.by_ref().take(q_len).enumerate() {
                let end = kv_len - q_len + token + 1;
                let start = self.params.window.map_or(0, |w| end.saturating_sub(w));
                if self.broken_tokens(kv_len).any(|at| (start..end).contains(&at)) {
                    got.fill(0.0);
                    want.fill(0.0);
                }
            }
        }
        Ok((got, want))
    }

    /// Tokens of a sequence that are not numbers: the last one, most times, and where there is a window,
    /// the first and the one before the last one's window.
    fn broken_tokens(&self, kv_len: usize) -> impl Iterator<Item = usize> + use<> {
        let before = self.params.window.and_then(|w| kv_len.checked_sub(w + 1));
        let first = self.params.window.map(|_| 0);
        // Who fills its last block has a sound last token, whose row shows what it sees of others.
        let last = (!kv_len.is_multiple_of(BLOCK_TOKENS)).then(|| kv_len - 1);
        let all = first.into_iter().chain(before).chain(last);
        let broken = self.broken;
        all.filter(move |_| broken)
    }

    fn softmax(
        &self,
        filled: &Filled,
        q: &[f32],
        sinks: Option<&[f32]>,
    ) -> Result<Vec<f32>, KvCodecError> {
        let (d, heads) = (self.head_dim, self.kv_heads * self.group);
        let (mut out, mut queries) = (Vec::with_capacity(q.len()), q.chunks_exact(d));
        let flat = |(k, v): (Tensor, Tensor)| -> Result<_, KvCodecError> {
            Ok((k.to_vec()?, v.to_vec()?))
        };
        for (&(q_len, kv_len), (blocks, ..)) in self.seqs.iter().zip(&filled.seqs) {
            let slots = slots(blocks, kv_len);
            let (ck, cv) = flat(filled.codec.decode(filled.g, &slots, &filled.pages)?)?;
            let (k, v) = match self.exact {
                Some(_) => flat(filled.codec.decode_exact(filled.g, &slots, &filled.pages)?)?,
                None => (Vec::new(), Vec::new()),
            };
            for (i, q) in queries.by_ref().take(q_len * heads).enumerate() {
                let (token, head) = (i / heads, i % heads / self.group);
                let end = kv_len - q_len + token + 1;
                let start = self.params.window.map_or(0, |w| end.saturating_sub(w));
                let row = |t: usize, exact: &'_ [f32], coded: &'_ [f32], e: usize| {
                    let block = t / BLOCK_TOKENS * BLOCK_TOKENS;
                    let exactly = self.exact.is_some_and(|x| x.reads(end - 1, block));
                    let at = (t * self.kv_heads + head) * d + e;
                    f64::from(if exactly { exact[at] } else { coded[at] })
                };
                let score = |t: usize| {
                    let dot: f64 =
                        q.iter().enumerate().map(|(e, &q)| f64::from(q) * row(t, &k, &ck, e)).sum();
                    let s = dot * f64::from(self.params.scale);
                    self.params.soft_cap.map_or(s, |c| f64::from(c) * (s / f64::from(c)).tanh())
                };
                let scores: Vec<_> = (start..end).map(score).collect();
                let sink = sinks.map(|sinks| f64::from(sinks[i % heads]));
                let top = scores.iter().copied().chain(sink).fold(f64::MIN, f64::max);
                let weights: Vec<_> = scores.iter().map(|s| (s - top).exp()).collect();
                let total = weights.iter().sum::<f64>() + sink.map_or(0.0, |s| (s - top).exp());
                out.extend((0..d).map(|e| {
                    let sum: f64 =
                        weights.iter().zip(start..end).map(|(w, t)| w * row(t, &v, &cv, e)).sum();
                    (sum / total) as f32
                }));
            }
        }
        Ok(out)
    }
}
