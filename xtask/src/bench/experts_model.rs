//! A mixture of experts of random weights on disk, in the shapes of Qwen3-30B-A3B as MLX stores them: 4 bits, groups
//! of 64.

use super::shape::Random;
use anyhow::{Context, Result, ensure};
use serde_json::{Map, Value, json};
use std::{
    fs::{self, File},
    io::{BufWriter, Write},
    path::Path,
};

const HIDDEN: usize = 2048;
const INNER: usize = 768;
const EXPERTS: usize = 128;
const CHOSEN: usize = 8;
const HEADS: usize = 32;
const KV_HEADS: usize = 4;
const HEAD_DIM: usize = 128;
const VOCAB: usize = 151_936;
const GROUP: usize = 64;

/// What a tensor's bytes are.
enum Fill {
    Codes,
    /// BF16, all the same.
    Same(f32),
    /// BF16, normal with this deviation.
    Normal(f32),
}

/// Writes a checkpoint, if there is none.
pub(super) fn make(dir: &Path, layers: usize) -> Result<()> {
    ensure!((1..=48).contains(&layers), "1 to 48 layers");
    fs::create_dir_all(dir)?;
    let path = dir.join("model.safetensors");
    if path.is_file() {
        println!("{} is there", path.display());
        return Ok(());
    }
    let config = json!({
        "model_type": "qwen3_moe",
        "hidden_size": HIDDEN,
        "intermediate_size": 6144,
        "moe_intermediate_size": INNER,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "num_experts": EXPERTS,
        "num_experts_per_tok": CHOSEN,
        "norm_topk_prob": true,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "vocab_size": VOCAB,
        "max_position_embeddings": 40_960,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": false,
        "quantization": {"bits": 4, "group_size": GROUP},
    });
    fs::write(dir.join("config.json"), serde_json::to_vec_pretty(&config)?)?;
    let part = dir.join("model.part");
    let mut writer = Writer::default();
    tensors(&mut writer, layers);
    let file = File::create(&part).with_context(|| format!("writing {}", part.display()))?;
    writer.write(file)?;
    fs::rename(part, path)?;
    Ok(())
}

/// Tensors in the order of the file.
#[derive(Default)]
struct Writer {
    header: Map<String, Value>,
    at: usize,
    parts: Vec<(usize, Fill)>,
}

impl Writer {
    fn add(&mut self, name: &str, dtype: &str, dims: &[usize], bytes: usize, fill: Fill) {
        let offsets = [self.at, self.at + bytes];
        let entry = json!({"dtype": dtype, "shape": dims, "data_offsets": offsets});
        self.header.insert(name.to_owned(), entry);
        self.at += bytes;
        self.parts.push((bytes, fill));
    }

    fn norm(&mut self, name: &str, n: usize) {
        self.add(name, "BF16", &[n], 2 * n, Fill::Same(1.0));
    }

    /// A quantized matrix, or several, that keeps the size of what it reads.
    fn affine(&mut self, prefix: &str, count: Option<usize>, rows: usize, cols: usize) {
        self.scaled(prefix, count, (rows, cols), (cols as f32).sqrt().recip());
    }

    /// A quantized matrix, or several, of weights with this deviation. Codes are uniform in 0..16: of deviation 4.6
    /// around 7.5.
    fn scaled(
        &mut self,
        prefix: &str,
        count: Option<usize>,
        (rows, cols): (usize, usize),
        deviation: f32,
    ) {
        let scale = deviation / 4.6;
        let all = count.unwrap_or(1) * rows;
        let dims = |last| count.into_iter().chain([rows, last]).collect::<Vec<_>>();
        let codes = dims(cols / 8);
        self.add(&format!("{prefix}.weight"), "U32", &codes, all * cols / 2, Fill::Codes);
        let (groups, bytes) = (dims(cols / GROUP), 2 * all * (cols / GROUP));
        self.add(&format!("{prefix}.scales"), "BF16", &groups, bytes, Fill::Same(scale));
        self.add(&format!("{prefix}.biases"), "BF16", &groups, bytes, Fill::Same(-7.5 * scale));
    }

    fn write(self, file: File) -> Result<()> {
        let mut header = serde_json::to_vec(&self.header)?;
        header.resize(header.len().next_multiple_of(8), b' ');
        let mut out = BufWriter::with_capacity(4 << 20, file);
        out.write_all(&(header.len() as u64).to_le_bytes())?;
        out.write_all(&header)?;
        let mut random = Random::new(1);
        let mut piece = Vec::new();
        for (bytes, fill) in self.parts {
            let mut left = bytes;
            while left > 0 {
                piece.clear();
                let n = left.min(1 << 20);
                match fill {
                    Fill::Codes => {
                        while piece.len() < n {
                            piece.extend(random.next().to_le_bytes());
                        }
                    }
                    Fill::Same(x) => piece.extend(bf16(x).repeat(n / 2)),
                    Fill::Normal(x) => {
                        (0..n / 2).for_each(|_| piece.extend(bf16(x * random.normal())));
                    }
                }
                piece.truncate(n);
                out.write_all(&piece)?;
                left -= n;
            }
        }
        out.into_inner().map_err(std::io::IntoInnerError::into_error)?.sync_all()?;
        Ok(())
    }
}

fn bf16(x: f32) -> [u8; 2] {
    (((x.to_bits() + 0x8000) >> 16) as u16).to_le_bytes()
}

fn tensors(out: &mut Writer, layers: usize) {
    // As large as what layers add, so that tokens differ and are routed differently.
    out.scaled("model.embed_tokens", None, (VOCAB, HIDDEN), 4.0);
    for layer in 0..layers {
        let at = format!("model.layers.{layer}");
        let own = |name: &str| format!("{at}.{name}");
        out.norm(&own("input_layernorm.weight"), HIDDEN);
        out.norm(&own("post_attention_layernorm.weight"), HIDDEN);
        out.affine(&own("self_attn.q_proj"), None, HEADS * HEAD_DIM, HIDDEN);
        out.affine(&own("self_attn.k_proj"), None, KV_HEADS * HEAD_DIM, HIDDEN);
        out.affine(&own("self_attn.v_proj"), None, KV_HEADS * HEAD_DIM, HIDDEN);
        out.affine(&own("self_attn.o_proj"), None, HIDDEN, HEADS * HEAD_DIM);
        out.norm(&own("self_attn.q_norm.weight"), HEAD_DIM);
        out.norm(&own("self_attn.k_norm.weight"), HEAD_DIM);
        let (router, bytes) = (own("mlp.gate.weight"), 2 * EXPERTS * HIDDEN);
        let deviation = (HIDDEN as f32).sqrt().recip();
        out.add(&router, "BF16", &[EXPERTS, HIDDEN], bytes, Fill::Normal(deviation));
        for (name, rows, cols) in
            [("gate_proj", INNER, HIDDEN), ("up_proj", INNER, HIDDEN), ("down_proj", HIDDEN, INNER)]
        {
            out.affine(&own(&format!("mlp.switch_mlp.{name}")), Some(EXPERTS), rows, cols);
        }
    }
    out.norm("model.norm.weight", HIDDEN);
    out.affine("lm_head", None, VOCAB, HIDDEN);
}
