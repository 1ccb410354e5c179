//! One new token a sequence: what is written and attended to in one call, against writing and attending one after
//! the other.

use super::{Case, EXACT, PLAIN, Pair, noise, upload};
use taper_kv_codecs::{AttnBatch, AttnParams, ExactBlocks, KvCodecError, SeqSpan, parse_on};
use taper_tensor::{
    Projected, RmsNorm, RopeTable, Tensor,
    gpu::{Gpu, attention::BLOCK_TOKENS},
};

pub(super) fn cases() -> Vec<Case> {
    let names = ["turbo4", "taper4", "turbo8v4", "taper3-l9", "affine8", "turbo3v2"];
    let each = names.into_iter().enumerate().map(|(i, codec)| Case {
        codec,
        kv_heads: 1 + i % 2,
        head_dim: [128, 64, 128, 128, 80, 256][i],
        group: [4, 3, 1, 2, 5, 2][i],
        seqs: vec![(1, 70), (1, 33), (1, 1), (1, 300 + 32 * i)],
        exact: Some(EXACT),
        params: AttnParams { window: (i == 4).then_some(40), ..PLAIN },
        broken: false,
        sinks: false,
    });
    each.collect()
}

impl Case {
    /// Outputs, then keys and values as the codes have them.
    pub(super) fn attend_new(&self, gpu: &Gpu, seed: u64) -> Result<Vec<Pair>, KvCodecError> {
        let filled = self.fill_over(self.rows(seed), 0)?;
        let (g, codec) = (filled.g, parse_on(self.codec, gpu)?);
        let (tokens, heads, d) = (self.seqs.len(), self.kv_heads * self.group, self.head_dim);
        let mut state = seed ^ 0x0e3d;
        let mut rows = |heads: usize| {
            Tensor::from_vec(noise(&mut state, tokens * heads * d), &[tokens, heads * d])?
                .to_gpu(gpu)
        };
        let (q, k, v) = (rows(heads)?, rows(self.kv_heads)?, rows(self.kv_heads)?);
        let norms = [1e-6, 1e-5].map(|eps| RmsNorm::new(noise(&mut state, d), eps));
        let positions: Vec<_> = self.seqs.iter().map(|seq| seq.1 - 1).collect();
        let turns = (0..d / 2).map(|i| 0.9f32.powi(i as i32)).collect();
        let places: Vec<_> = positions.iter().map(|&at| at as u32).collect();
        let angles = RopeTable::new(turns, 1.0).angles(&places);
        let projected = Projected {
            q: &q,
            k: &k,
            v: &v,
            head_dim: d,
            norms: Some((&norms[0], &norms[1])),
            rope: Some(&angles),
            next: None,
        };
        let exact: Vec<Vec<_>> =
            filled.seqs.iter().map(|(b, ..)| b.iter().copied().map(Some).collect()).collect();
        let span = |(i, &(q_len, kv_len)): (usize, &(usize, usize))| SeqSpan {
            q_len,
            kv_len,
            blocks: &filled.seqs[i].0,
            exact: self.exact.map(|tokens| ExactBlocks { tokens, blocks: &exact[i], skipped: 0 }),
            together: None,
        };
        let batch = AttnBatch { seqs: self.seqs.iter().enumerate().map(span).collect() };
        let slot = |(seq, at): (&super::Rows, &usize)| {
            seq.0[at / BLOCK_TOKENS].0 as usize * BLOCK_TOKENS + at % BLOCK_TOKENS
        };
        let slots: Vec<_> = filled.seqs.iter().zip(&positions).map(slot).collect();

        let mut apart = self.pages(&*codec);
        upload(gpu, &filled, &mut apart)?;
        let [q, k, v] = projected.turned()?;
        codec.encode(g, &k, &v, &slots, &mut apart)?;
        let own: Vec<_> = slots.iter().copied().map(Some).collect();
        codec.encode_exact(g, &k, &v, &own, &mut apart)?;
        let want = codec.attend(g, &q, &apart, &batch, &self.params)?;

        let mut pages = self.pages(&*codec);
        upload(gpu, &filled, &mut pages)?;
        let got = codec.attend_new(g, &projected, &slots, &mut pages, &batch, &self.params)?;
        let none = KvCodecError::Shape { expected: "kernels of new tokens", got: vec![] };
        let mut pairs = vec![(got.ok_or(none)?.to_vec()?, want.to_vec()?)];
        let (got, want) = (codec.decode(g, &slots, &pages)?, codec.decode(g, &slots, &apart)?);
        pairs.push((got.0.to_vec()?, want.0.to_vec()?));
        pairs.push((got.1.to_vec()?, want.1.to_vec()?));
        // What is written exactly is there for whoever reads it next.
        let again = codec.attend(g, &q, &pages, &batch, &self.params)?;
        pairs.push((again.to_vec()?, pairs[0].1.clone()));
        Ok(pairs)
    }
}
