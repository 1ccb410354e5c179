//! Scores of the keys of a paged cache on a GPU: `kernels/eviction/score.metal`.

use super::{
    Buffer, Gpu, Launch, Operand,
    attention::{BLOCK_TOKENS, KvShape},
    count, params,
};
use crate::{KeyScorer, Result, TensorError};

params!(
    /// Parameters of `key_scores_*`.
    KeyScoreParams { heads: u32, kv_heads: u32, head_dim: u32, tokens: u32 }
);
params!(
    /// Parameters of `coded_key_scores`.
    CodedKeyScoreParams {
        heads: u32,
        kv_heads: u32,
        head_dim: u32,
        tokens: u32,
        format: u32,
        region: u32,
        group: u32,
        rounds: u32,
        order: u32,
    }
);

/// Query heads of a KV head that a threadgroup takes.
const AT_ONCE: usize = 8;

/// What a scorer and a sequence are to a kernel.
#[derive(Debug)]
pub(super) struct Task {
    vectors: Buffer,
    weights: Buffer,
    blocks: Buffer,
    out: Buffer,
    pub(super) shape: KeyScoreParams,
    parts: u32,
}

impl Task {
    pub(super) fn new(
        gpu: &Gpu,
        scorer: &KeyScorer,
        (kv_heads, head_dim): (usize, usize),
        blocks: &[u32],
        tokens: usize,
    ) -> Result<Self> {
        scorer.check(kv_heads, head_dim)?;
        if tokens.div_ceil(BLOCK_TOKENS) > blocks.len() {
            let limit = blocks.len() * BLOCK_TOKENS;
            return Err(TensorError::Index { op: "key scores", index: tokens, limit });
        }
        let heads = scorer.heads();
        Ok(Self {
            vectors: gpu.upload(scorer.vectors())?,
            weights: gpu.upload(scorer.weights())?,
            blocks: gpu.upload(blocks)?,
            out: gpu.temporary(4 * heads * tokens)?,
            shape: KeyScoreParams {
                heads: count("key scores", heads)?,
                kv_heads: kv_heads as u32,
                head_dim: head_dim as u32,
                tokens: count("key scores", tokens)?,
            },
            parts: (heads / kv_heads).div_ceil(AT_ONCE) as u32,
        })
    }

    /// Runs a kernel with `each` blocks a threadgroup; `tables` is the operand before the last.
    pub(super) fn run(
        &self,
        gpu: &Gpu,
        kernel: &str,
        each: u32,
        (pages, tables): (&Buffer, Option<&Buffer>),
        params: &[u8],
    ) -> Result<Vec<f32>> {
        let mut operands = vec![
            Operand::In(pages, 0),
            Operand::In(&self.vectors, 0),
            Operand::In(&self.weights, 0),
            Operand::In(&self.blocks, 0),
        ];
        operands.extend(tables.map(|tables| Operand::In(tables, 0)));
        operands.push(Operand::Out(&self.out, 0));
        let KeyScoreParams { heads, kv_heads, tokens, .. } = self.shape;
        let blocks = tokens.div_ceil(BLOCK_TOKENS as u32);
        gpu.launch(&Launch {
            family: "score",
            kernel,
            grid: [blocks.div_ceil(each), kv_heads, self.parts],
            threads: 128,
            operands: &operands,
            params,
        })?;
        self.out.read(0, heads as usize * tokens as usize)
    }
}

/// Scores of the keys of a sequence's tokens, in pages of plain floats.
///
/// # Shapes
/// `blocks` are the sequence's, of 32 tokens each -> `[heads, tokens]`.
///
/// # Errors
/// The scorer is for other heads, there are fewer blocks than tokens, or no kernels for the shape.
pub fn key_scores(
    shape: KvShape,
    k_pages: &Buffer,
    blocks: &[u32],
    tokens: usize,
    scorer: &KeyScorer,
) -> Result<Vec<f32>> {
    shape.check()?;
    let gpu = k_pages.gpu();
    let task = Task::new(gpu, scorer, (shape.kv_heads, shape.head_dim), blocks, tokens)?;
    let kernel = format!("key_scores_{}", shape.name());
    task.run(gpu, &kernel, 4, (k_pages, None), bytemuck::bytes_of(&task.shape))
}
