//! Models of real shapes with random weights: what to call the tensors, and what is in them.

use super::hybrid;
use serde_json::{Map, Value, json};

/// Words of the vocabulary, as in every Qwen3.
pub(crate) const VOCAB: usize = 151_936;
/// Longest sequence, as in every Qwen3.
pub(crate) const CONTEXT: usize = 40_960;
/// Elements of a head, as in every Qwen3.
pub(crate) const HEAD_DIM: usize = 128;
pub(crate) const ROPE_THETA: u32 = 1_000_000;
pub(crate) const RMS_EPS: f32 = 1e-6;

/// A Qwen3.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) name: &'static str,
    pub(crate) hidden: usize,
    pub(crate) layers: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) intermediate: usize,
    /// The embedding is the last projection too.
    pub(crate) tied: bool,
    /// Experts of `intermediate` each, and how many of them a token goes through.
    pub(crate) experts: Option<(usize, usize)>,
    /// A Qwen 3.5.
    pub(crate) hybrid: bool,
}

/// Qwen3-0.6B.
pub(crate) const SMALL: Shape = Shape {
    name: "qwen3-0.6b",
    hidden: 1024,
    layers: 28,
    heads: 16,
    kv_heads: 8,
    intermediate: 3072,
    tied: true,
    experts: None,
    hybrid: false,
};

/// Two of the 36 layers of Qwen3-8B, with its embedding and its last projection.
pub(crate) const WIDE: Shape = Shape {
    name: "qwen3-8b-2-layers",
    hidden: 4096,
    layers: 2,
    heads: 32,
    kv_heads: 8,
    intermediate: 12288,
    tied: false,
    experts: None,
    hybrid: false,
};

/// A small Qwen3 with experts; no such model was published.
pub(crate) const MOE: Shape = Shape {
    name: "qwen3-moe-small",
    hidden: 1024,
    layers: 12,
    heads: 16,
    kv_heads: 8,
    intermediate: 512,
    tied: true,
    experts: Some((32, 4)),
    hybrid: false,
};

/// A tensor of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TensorSpec {
    /// Its name in Hugging Face's files, `*` where those of experts have their number.
    pub(crate) name: String,
    /// Its name in GGUF files.
    pub(crate) gguf: String,
    /// Rows and columns, the number of experts before them, or the length of a vector.
    pub(crate) dims: Vec<usize>,
}

impl TensorSpec {
    fn new(name: &str, gguf: &str, dims: &[usize]) -> Self {
        let weight = |name: &str| format!("{name}.weight");
        Self { name: weight(name), gguf: weight(gguf), dims: dims.to_vec() }
    }

    pub(crate) fn len(&self) -> usize {
        self.dims.iter().product()
    }

    /// Names and dimensions in Hugging Face's files, in the order of the values.
    pub(crate) fn parts(&self) -> Vec<(String, &[usize])> {
        match &self.dims[..] {
            [experts, dims @ ..] if self.name.contains('*') => {
                (0..*experts).map(|e| (self.name.replace('*', &e.to_string()), dims)).collect()
            }
            dims => vec![(self.name.clone(), dims)],
        }
    }

    pub(crate) fn is_vector(&self) -> bool {
        self.dims.len() == 1
    }
}

impl Shape {
    /// Every tensor, in the order of the files.
    pub(crate) fn tensors(&self) -> Vec<TensorSpec> {
        let (h, q, kv) = (self.hidden, self.heads * HEAD_DIM, self.kv_heads * HEAD_DIM);
        let (m, e) = (self.intermediate, self.experts.map_or(0, |(experts, _)| experts));
        let attention: [(&str, &str, &[usize]); 8] = [
            ("input_layernorm", "attn_norm", &[h]),
            ("self_attn.q_proj", "attn_q", &[q, h]),
            ("self_attn.k_proj", "attn_k", &[kv, h]),
            ("self_attn.v_proj", "attn_v", &[kv, h]),
            ("self_attn.o_proj", "attn_output", &[h, q]),
            ("self_attn.q_norm", "attn_q_norm", &[HEAD_DIM]),
            ("self_attn.k_norm", "attn_k_norm", &[HEAD_DIM]),
            ("post_attention_layernorm", "ffn_norm", &[h]),
        ];
        let dense: [(&str, &str, &[usize]); 3] = [
            ("mlp.gate_proj", "ffn_gate", &[m, h]),
            ("mlp.up_proj", "ffn_up", &[m, h]),
            ("mlp.down_proj", "ffn_down", &[h, m]),
        ];
        let sparse: [(&str, &str, &[usize]); 4] = [
            ("mlp.gate", "ffn_gate_inp", &[e, h]),
            ("mlp.experts.*.gate_proj", "ffn_gate_exps", &[e, m, h]),
            ("mlp.experts.*.up_proj", "ffn_up_exps", &[e, m, h]),
            ("mlp.experts.*.down_proj", "ffn_down_exps", &[e, h, m]),
        ];
        let mlp = if e == 0 { &dense[..] } else { &sparse[..] };
        let mut all = vec![TensorSpec::new("model.embed_tokens", "token_embd", &[VOCAB, h])];
        for i in 0..self.layers {
            let own = |name: &str| !self.hybrid || !name.starts_with("self_attn");
            let attention = attention.iter().filter(|(name, ..)| own(name));
            all.extend(attention.chain(mlp).map(|(name, gguf, dims)| {
                let (name, gguf) = (format!("model.layers.{i}.{name}"), format!("blk.{i}.{gguf}"));
                TensorSpec::new(&name, &gguf, dims)
            }));
            if self.hybrid {
                all.extend(hybrid::mixer(self, i));
            }
        }
        all.push(TensorSpec::new("model.norm", "output_norm", &[h]));
        if !self.tied {
            all.push(TensorSpec::new("lm_head", "output", &[VOCAB, h]));
        }
        all
    }

    pub(crate) fn parameters(&self) -> usize {
        self.tensors().iter().map(TensorSpec::len).sum()
    }

    /// `config.json`.
    pub(crate) fn config(&self) -> Map<String, Value> {
        let config = json!({
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": HEAD_DIM,
            "intermediate_size": self.intermediate,
            "vocab_size": VOCAB,
            "tie_word_embeddings": self.tied,
            "rope_theta": ROPE_THETA,
            "rope_scaling": null,
            "rms_norm_eps": 1e-6,
            "hidden_act": "silu",
            "attention_bias": false,
            "attention_dropout": 0.0,
            "max_position_embeddings": CONTEXT,
            "max_window_layers": self.layers,
            "sliding_window": null,
            "use_sliding_window": false,
            "initializer_range": 0.02,
            "torch_dtype": "bfloat16",
            "use_cache": true,
        });
        let mut config = match config {
            Value::Object(map) => map,
            _ => Map::new(),
        };
        if let Some((experts, chosen)) = self.experts {
            let fields = [
                ("architectures", json!(["Qwen3MoeForCausalLM"])),
                ("model_type", json!("qwen3_moe")),
                ("num_experts", json!(experts)),
                ("num_experts_per_tok", json!(chosen)),
                ("moe_intermediate_size", json!(self.intermediate)),
                ("norm_topk_prob", json!(true)),
                ("decoder_sparse_step", json!(1)),
                ("mlp_only_layers", json!([])),
            ];
            config.extend(fields.map(|(key, value)| (key.to_owned(), value)));
        }
        if self.hybrid {
            config.extend(hybrid::config().map(|(key, value)| (key.to_owned(), value)));
        }
        config
    }
}

/// Numbers that look random, the same in every run.
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0xD134_2543_DE82_EF95))
    }

    /// The splitmix64 generator.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    /// Near to normal with variance 1: the sum of four uniform numbers.
    pub(crate) fn normal(&mut self) -> f32 {
        let bits = self.next();
        let sum: u32 = (0..4).map(|i| (bits >> (16 * i)) as u32 & 0xFFFF).sum();
        (sum as f32 / 65536.0 - 2.0) * 3_f32.sqrt()
    }
}

/// The values of the `index`th tensor as bf16, low byte first. Norms are near one; projections have
/// the variance that keeps the activations' size.
pub(crate) fn values(index: usize, tensor: &TensorSpec) -> Vec<u8> {
    let mut random = Random::new(index as u64 + 1);
    let (mean, scale) = match tensor.dims[..] {
        [VOCAB, _] if index == 0 => (0.0, 0.02),
        [.., columns] if !tensor.is_vector() => (0.0, (columns as f32).sqrt().recip()),
        _ => (1.0, 0.05),
    };
    let mut bytes = Vec::with_capacity(2 * tensor.len());
    for _ in 0..tensor.len() {
        let bits = (mean + scale * random.normal()).to_bits();
        let rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
        bytes.extend_from_slice(&(rounded as u16).to_le_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_small_shape_has_the_parameters_of_qwen3_0_6b() {
        assert_eq!(SMALL.parameters(), 596_049_920);
        assert_eq!(SMALL.tensors().len(), 28 * 11 + 2);
        assert_eq!(WIDE.tensors().len(), 2 * 11 + 3);
        assert_eq!(MOE.tensors().len(), 12 * 12 + 2);
    }

    #[test]
    fn values_are_the_same_in_every_run_and_have_the_size_they_should() {
        let tensor = TensorSpec::new("a", "b", &[64, 256]);
        let bytes = values(3, &tensor);
        assert_eq!(bytes, values(3, &tensor));
        assert_ne!(bytes, values(4, &tensor));
        let widen = |b: &[u8]| f32::from_bits(u32::from(u16::from_le_bytes([b[0], b[1]])) << 16);
        let squares: f32 = bytes.chunks(2).map(|b| widen(b).powi(2)).sum();
        assert!((squares / 64.0 - 1.0).abs() < 0.05, "{squares}");
        let norm = values(1, &TensorSpec::new("a", "b", &[512]));
        let mean = norm.chunks(2).map(widen).sum::<f32>() / 512.0;
        assert!((mean - 1.0).abs() < 0.02, "{mean}");
    }
}
