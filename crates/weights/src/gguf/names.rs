//! llama.cpp's names of tensors as Hugging Face's, and what its converter changed in the numbers.

/// How a tensor of a file differs from Hugging Face's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Changes {
    /// Rows of each head of this size are ordered for rotating neighbours, not halves.
    pub(super) neighbours: Option<usize>,
    /// Gains of norms have 1 added.
    pub(super) plus_one: bool,
}

impl Changes {
    /// Which row of the file is row `r` here.
    pub(super) fn source(self, r: usize) -> usize {
        let Some(head) = self.neighbours else { return r };
        let (first, i, half) = (r / head * head, r % head, head / 2);
        first + if i < half { 2 * i } else { 2 * (i - half) + 1 }
    }
}

/// Names of a layer's parts: llama.cpp's, Hugging Face's.
const PARTS: [(&str, &str); 18] = [
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_qkv", "self_attn.qkv_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
    ("ffn_gate_inp", "mlp.gate"),
    ("ffn_gate_exps", "mlp.switch_mlp.gate_proj"),
    ("ffn_up_exps", "mlp.switch_mlp.up_proj"),
    ("ffn_down_exps", "mlp.switch_mlp.down_proj"),
    // Families with norms behind attention and feed-forward.
    ("post_attention_norm", "post_attention_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
];

/// Hugging Face's name of a weight; `None` for what is no weight, such as divisors of rotary
/// frequencies, or not known.
pub(super) fn of(architecture: &str, name: &str) -> Option<String> {
    let (stem, kind) = name.rsplit_once('.')?;
    let own = match stem {
        "token_embd" => return Some(format!("model.embed_tokens.{kind}")),
        "output_norm" => return Some(format!("model.norm.{kind}")),
        "output" => return Some(format!("lm_head.{kind}")),
        _ => stem.strip_prefix("blk.")?,
    };
    let (layer, part) = own.split_once('.')?;
    let part = match (architecture, part) {
        ("gemma3", "ffn_norm") => "pre_feedforward_layernorm",
        ("phi3", "ffn_up") => "mlp.gate_up_proj",
        _ => PARTS.iter().find(|(theirs, _)| *theirs == part)?.1,
    };
    Some(format!("model.layers.{layer}.{part}.{kind}"))
}

/// What the converter changed in a tensor of this name.
pub(super) fn changes(architecture: &str, name: &str, head: usize) -> Changes {
    let part = name.split('.').nth(2).unwrap_or_default();
    let rotated = matches!(part, "attn_q" | "attn_k");
    let norm = name.ends_with("_norm.weight");
    Changes {
        neighbours: (rotated && matches!(architecture, "llama" | "smollm3")).then_some(head),
        plus_one: norm && architecture == "gemma3",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_hugging_faces() {
        for (architecture, theirs, ours) in [
            ("llama", "token_embd.weight", "model.embed_tokens.weight"),
            ("llama", "blk.7.attn_q.bias", "model.layers.7.self_attn.q_proj.bias"),
            ("llama", "blk.0.ffn_norm.weight", "model.layers.0.post_attention_layernorm.weight"),
            ("gemma3", "blk.0.ffn_norm.weight", "model.layers.0.pre_feedforward_layernorm.weight"),
            ("phi3", "blk.1.ffn_up.weight", "model.layers.1.mlp.gate_up_proj.weight"),
        ] {
            assert_eq!(of(architecture, theirs).as_deref(), Some(ours));
        }
        assert_eq!(of("llama", "blk.0.ssm_a"), None);
        assert_eq!(of("llama", "blk.0.ssm_a.weight"), None);
    }

    #[test]
    fn rows_go_back_to_halves() {
        let rows: Vec<_> =
            (0..12).map(|r| changes("llama", "blk.0.attn_k.weight", 6).source(r)).collect();
        assert_eq!(rows, [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]);
        assert_eq!(changes("qwen2", "blk.0.attn_k.weight", 6).source(5), 5);
        assert_eq!(changes("llama", "blk.0.attn_v.weight", 6).source(5), 5);
        assert!(changes("gemma3", "output_norm.weight", 6).plus_one);
        assert!(!changes("llama", "output_norm.weight", 6).plus_one);
    }
}
