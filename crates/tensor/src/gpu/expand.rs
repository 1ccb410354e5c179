//! Attention of many rows over a compressed cache: what they see becomes pages of halves in the codes' space, and
//! kernels for caches of floats do the rest.

use super::{
    Buffer, Gpu, Launch, Operand,
    attention::{self, BLOCK_TOKENS, KvShape, Plan, Scoring, Sequence, Units, prompt},
    coded::{CodedCache, CodedPages},
    coded_format::RowFormat,
    coded_plan::CodedSequence,
    count, params,
};
use crate::{DType, Result, Tensor, tensor::GpuTensor};

params!(
    /// Parameters of `expand_*`.
    ExpandParams {
        kv_heads: u32,
        head_dim: u32,
        order: u32,
        rounds: u32,
        k_format: u32,
        k_region: u32,
        k_group: u32,
        v_format: u32,
        v_region: u32,
        v_group: u32,
    }
);
params!(
    /// Parameters of `rotate_rows`.
    RotateParams { rows: u32, head_dim: u32, order: u32, rounds: u32, back: u32 }
);

/// Tokens of a sequence from which on its rows share what is expanded.
pub(super) const FROM: usize = prompt::FROM;

/// Which blocks become pages, and which rows see which of them; made once a step and used by every layer.
#[derive(Debug)]
pub(super) struct Expanded {
    /// Where codes or exact rows are, and which of both.
    jobs: Buffer,
    pages: u32,
    shape: KvShape,
    plan: Plan,
}

/// Rows of a sequence that see the same blocks exactly.
struct Part {
    q_len: usize,
    kv_len: usize,
    table: Vec<u32>,
}

/// Numbers jobs, which are pages.
#[derive(Default)]
struct Jobs(Vec<[u32; 2]>);

impl Jobs {
    fn add(&mut self, from: u32, exact: bool) -> Result<u32> {
        self.0.push([from, exact.into()]);
        count("attention", self.0.len() - 1)
    }
}

impl Expanded {
    /// For the sequences that have at least [`FROM`] query tokens; the rows of others stay as they are.
    pub(super) fn new(
        gpu: &Gpu,
        (kv_heads, head_dim): (usize, usize),
        seqs: &[CodedSequence],
        group: usize,
        window: Option<usize>,
    ) -> Result<Self> {
        let (mut jobs, mut parts) = (Jobs::default(), Vec::new());
        for seq in seqs {
            match seq.q_len >= FROM {
                true => cut(seq, window, &mut jobs, &mut parts)?,
                false => parts.push(Part { q_len: seq.q_len, kv_len: seq.kv_len, table: vec![] }),
            }
        }
        let sequences: Vec<_> = parts
            .iter()
            .map(|p| Sequence { q_len: p.q_len, kv_len: p.kv_len, blocks: &p.table })
            .collect();
        let shape = KvShape { kv_heads, head_dim, dtype: DType::F16, latent: false };
        let units = match shape.is_typed() {
            true if gpu.has_prompt_tiles() && prompt::fits(shape, group) => Units::Prompt,
            true if gpu.has_fast_tiles() => Units::Tiles,
            _ => Units::Lanes,
        };
        let plan =
            Plan::of_some(gpu, shape, &sequences, |i| !parts[i].table.is_empty(), group, units)?;
        let pages = count("attention", jobs.0.len())?;
        Ok(Self { jobs: gpu.upload(jobs.0.as_flattened())?, pages, shape, plan })
    }

    /// What [`CodedCache::attend`] gives of these rows; other rows are any.
    pub(super) fn attend(
        &self,
        cache: &CodedCache,
        q: &GpuTensor,
        pages: CodedPages<'_>,
        scoring: &Scoring<'_>,
    ) -> Result<GpuTensor> {
        let (k, v) = self.pages(cache, pages)?;
        let [k_turned, v_turned] = [&cache.k, &cache.v].map(|side| side.format.is_rotated());
        let q: Tensor = if k_turned { rotate(cache, q, false)?.into() } else { q.clone().into() };
        let out = attention::attend(self.shape, &q, (&k, &v), &self.plan, scoring)?;
        let out = attention::on_gpu(&out)?;
        if v_turned { rotate(cache, out, true) } else { Ok(out.clone()) }
    }

    /// Keys and values of all jobs.
    fn pages(&self, cache: &CodedCache, pages: CodedPages<'_>) -> Result<(Buffer, Buffer)> {
        let bytes = self.pages as usize * cache.kv_heads * BLOCK_TOKENS * cache.head_dim * 2;
        let (k, v) = (cache.gpu.temporary(bytes)?, cache.gpu.temporary(bytes)?);
        let exact = pages.exact.unwrap_or(pages.coded);
        let is_wide = matches!(cache.k.format, RowFormat::Wide { .. });
        let params = ExpandParams {
            kv_heads: cache.kv_heads as u32,
            head_dim: cache.head_dim as u32,
            order: cache.order,
            rounds: cache.rounds,
            k_format: cache.k.format.number(),
            k_region: count("attention", cache.k.region)?,
            k_group: cache.k.format.group(),
            v_format: cache.v.format.number(),
            v_region: count("attention", cache.v.region)?,
            v_group: cache.v.format.group(),
        };
        cache.gpu.launch(&Launch {
            family: "expand",
            kernel: if is_wide { "expand_wide" } else { "expand_coded" },
            grid: [self.pages, cache.kv_heads as u32, 2],
            threads: 128,
            operands: &[
                Operand::In(pages.coded.0, 0),
                Operand::In(pages.coded.1, 0),
                Operand::In(exact.0, 0),
                Operand::In(exact.1, 0),
                Operand::In(&self.jobs, 0),
                Operand::In(&cache.constants, 0),
                Operand::Out(&k, 0),
                Operand::Out(&v, 0),
            ],
            params: bytemuck::bytes_of(&params),
        })?;
        Ok((k, v))
    }
}

/// Cuts a sequence's rows where other blocks begin to be read exactly, and numbers what they see.
fn cut(
    seq: &CodedSequence,
    window: Option<usize>,
    jobs: &mut Jobs,
    parts: &mut Vec<Part>,
) -> Result<()> {
    let before = seq.kv_len - seq.q_len;
    let first = window.map_or(0, |w| (before + 1).saturating_sub(w)) / BLOCK_TOKENS;
    let sinks = seq.exact.map_or(0, |exact| exact.sinks / BLOCK_TOKENS);
    // What no row sees has some page.
    let mut table = vec![0; first];
    let coded = |jobs: &mut Jobs, table: &mut Vec<u32>, to: usize| -> Result<()> {
        for i in table.len()..to {
            let (codes, exact) = seq.blocks[i];
            table.push(match exact.filter(|_| i < sinks) {
                Some(exact) => jobs.add(exact, true)?,
                None => jobs.add(codes, false)?,
            });
        }
        Ok(())
    };
    let mut exactly = std::collections::HashMap::new();
    let mut start = before;
    while start < seq.kv_len {
        let from = seq.exact.map_or(usize::MAX, |exact| start / exact.recent * exact.recent);
        let end = seq.exact.map_or(seq.kv_len, |exact| seq.kv_len.min(from + exact.recent));
        let blocks = end.div_ceil(BLOCK_TOKENS);
        let recent = blocks.min(from / BLOCK_TOKENS);
        coded(jobs, &mut table, recent)?;
        let mut own = table[..recent].to_vec();
        for i in recent..blocks {
            own.push(match (seq.blocks[i].1, exactly.get(&i)) {
                (None, _) => {
                    coded(jobs, &mut table, i + 1)?;
                    table[i]
                }
                (_, Some(&page)) => page,
                (Some(exact), None) => {
                    let page = jobs.add(exact, true)?;
                    exactly.insert(i, page);
                    page
                }
            });
        }
        parts.push(Part { q_len: end - start, kv_len: end, table: own });
        start = end;
    }
    Ok(())
}

/// Rows of queries into the codes' space, or sums of values out of it.
fn rotate(cache: &CodedCache, x: &GpuTensor, back: bool) -> Result<GpuTensor> {
    let out = GpuTensor::new(&cache.gpu, &x.dims)?;
    let rows = count("rotation", x.len() / cache.head_dim)?;
    let params = RotateParams {
        rows,
        head_dim: cache.head_dim as u32,
        order: cache.order,
        rounds: cache.rounds,
        back: back.into(),
    };
    cache.gpu.launch(&Launch {
        family: "expand",
        kernel: "rotate_rows",
        grid: [rows.div_ceil(4), 1, 1],
        threads: 128,
        operands: &[x.input(), Operand::In(&cache.constants, 0), out.output()],
        params: bytemuck::bytes_of(&params),
    })?;
    Ok(out)
}
