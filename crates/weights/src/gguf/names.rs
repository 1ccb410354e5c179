//! llama.cpp's names of tensors as Hugging Face's, and what its converter changed in the numbers.

use super::{GgufError, architectures::Architecture, file::Keys, tiles::Tiles};

/// How a tensor of a file differs from Hugging Face's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Changes {
    /// Rows of each head of this size are ordered for rotating neighbours, not halves.
    pub(crate) neighbours: Option<usize>,
    /// Gains of norms have 1 added.
    pub(crate) plus_one: bool,
    /// Each channel's weights of a convolution are a row, and not a matrix of one row.
    pub(super) channels: bool,
    /// A matrix of one row may be a vector.
    pub(super) one_row: bool,
    /// `-exp(x)` stands for x.
    pub(super) decays: bool,
    /// Heads of values have an order of their own, in rows or in columns.
    pub(super) rows: Option<Tiles>,
    pub(super) columns: Option<Tiles>,
}

impl Changes {
    /// Which row of the file is row `r` here.
    pub(crate) fn source(self, r: usize) -> usize {
        if let Some(tiles) = self.rows {
            return tiles.source(r);
        }
        let Some(head) = self.neighbours else { return r };
        let (first, i, half) = (r / head * head, r % head, head / 2);
        first + if i < half { 2 * i } else { 2 * (i - half) + 1 }
    }

    /// Which `size` columns here are the file's columns `size * at` and so on.
    pub(crate) fn group(self, at: usize, size: usize) -> usize {
        self.columns.map_or(at, |tiles| tiles.in_units(size).target(at))
    }

    /// Whether it is more than another order of rows or columns.
    pub(super) fn changes_values(self) -> bool {
        self.plus_one || self.decays
    }
}

/// Sizes that the changes depend on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    /// Of a head of queries.
    pub(super) head: usize,
    /// Heads of values that a file has in an order of its own, in rows of nothing else.
    pub(super) values: Option<Tiles>,
    /// Rows of queries and keys before those of values, where they are together.
    pub(super) before: usize,
}

impl Sizes {
    /// By the metadata.
    pub(super) fn of(keys: Keys<'_>, own: &Architecture, head: u64) -> Result<Self, GgufError> {
        let size = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        let head = size(head).max(2);
        if !own.tiled {
            return Ok(Self { head, values: None, before: 0 });
        }
        let need = |key| keys.need(key).map(size);
        let (keys_of, heads) = (need("ssm.group_count")?, need("ssm.time_step_rank")?);
        let dim = need("ssm.inner_size")? / heads.max(1);
        let before = keys_of.saturating_mul(need("ssm.state_size")?).saturating_mul(2);
        let values = Tiles::new(keys_of, heads, dim).ok_or_else(|| {
            GgufError::damaged(format!("it has {heads} heads of values for {keys_of} of keys"))
        })?;
        Ok(Self { head, values: Some(values), before })
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
pub(super) fn of(architecture: &Architecture, name: &str) -> Option<String> {
    let (whole, layer) = match name.strip_prefix("blk.") {
        Some(place) => place.split_once('.').map(|(layer, whole)| (whole, Some(layer)))?,
        None => (name, None),
    };
    // A few have no kind.
    let (part, kind) = whole.rsplit_once('.').unwrap_or((whole, ""));
    let found = |name: &str| architecture.parts.iter().find(|(theirs, _)| *theirs == name);
    let own = match (found(whole), found(part)) {
        (Some((_, ours)), _) => Some((*ours).to_owned()),
        (None, Some((_, ours))) if !kind.is_empty() => Some(format!("{ours}.{kind}")),
        _ => None,
    };
    let Some(layer) = layer else {
        return own.or_else(|| match part {
            "token_embd" => Some(format!("model.embed_tokens.{kind}")),
            "output_norm" => Some(format!("model.norm.{kind}")),
            "output" => Some(format!("lm_head.{kind}")),
            _ => None,
        });
    };
    let usual = || PARTS.iter().find(|(theirs, _)| *theirs == part && !kind.is_empty());
    let ours = own.or_else(|| usual().map(|(_, ours)| format!("{ours}.{kind}")))?;
    Some(format!("model.layers.{layer}.{ours}"))
}

/// llama.cpp's name of a weight; the other way of [`of`].
pub(super) fn to(architecture: &Architecture, name: &str) -> Option<String> {
    let (stem, kind) = name.rsplit_once('.')?;
    let own = match stem {
        "model.embed_tokens" => return Some(format!("token_embd.{kind}")),
        "model.norm" => return Some(format!("output_norm.{kind}")),
        "lm_head" => return Some(format!("output.{kind}")),
        _ => stem.strip_prefix("model.layers.")?,
    };
    let (layer, _) = own.split_once('.')?;
    let mut theirs = PARTS.iter().map(|(theirs, _)| format!("blk.{layer}.{theirs}.{kind}"));
    theirs.find(|theirs| of(architecture, theirs).as_deref() == Some(name))
}

/// What the converter changed in a tensor of this name.
pub(super) fn changes(architecture: &Architecture, name: &str, sizes: Sizes) -> Changes {
    let part = name.split('.').nth(2).unwrap_or_default();
    let rotated = matches!(part, "attn_q" | "attn_k");
    // The norm of a recurrence's output is as it is applied.
    let norm = name.ends_with("_norm.weight") && part != "ssm_norm";
    let rows = sizes.values.and_then(|values| match part {
        "attn_qkv" | "ssm_conv1d" => Some(values.after(sizes.before)),
        "attn_gate" => Some(values),
        "ssm_alpha" | "ssm_beta" | "ssm_a" | "ssm_dt" => Some(values.of_one()),
        _ => None,
    });
    Changes {
        neighbours: (rotated && architecture.neighbours).then_some(sizes.head),
        plus_one: norm && architecture.plus_one,
        channels: part == "ssm_conv1d" || name.contains(".shortconv.conv."),
        one_row: part == "ffn_gate_inp_shexp",
        decays: part == "ssm_a",
        rows,
        columns: sizes.values.filter(|_| part == "ssm_out"),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::architectures::find, *};

    fn known(name: &str) -> &'static Architecture {
        find(name).unwrap()
    }

    #[test]
    fn names_are_hugging_faces() {
        for (architecture, theirs, ours) in [
            ("llama", "token_embd.weight", "model.embed_tokens.weight"),
            ("llama", "blk.7.attn_q.bias", "model.layers.7.self_attn.q_proj.bias"),
            ("llama", "blk.0.ffn_norm.weight", "model.layers.0.post_attention_layernorm.weight"),
            ("gemma3", "blk.0.ffn_norm.weight", "model.layers.0.pre_feedforward_layernorm.weight"),
            ("phi3", "blk.1.ffn_up.weight", "model.layers.1.mlp.gate_up_proj.weight"),
        ] {
            assert_eq!(of(known(architecture), theirs).as_deref(), Some(ours));
            assert_eq!(to(known(architecture), ours).as_deref(), Some(theirs));
        }
        assert_eq!(to(known("llama"), "model.layers.0.pre_feedforward_layernorm.weight"), None);
        assert_eq!(of(known("llama"), "blk.0.ssm_a"), None);
        assert_eq!(of(known("llama"), "blk.0.ssm_a.weight"), None);
    }

    #[test]
    fn rows_go_back_to_halves() {
        let sizes = Sizes { head: 6, values: None, before: 0 };
        let of = |architecture, name| changes(known(architecture), name, sizes);
        let rows: Vec<_> = (0..12).map(|r| of("llama", "blk.0.attn_k.weight").source(r)).collect();
        assert_eq!(rows, [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]);
        assert_eq!(of("qwen2", "blk.0.attn_k.weight").source(5), 5);
        assert_eq!(of("llama", "blk.0.attn_v.weight").source(5), 5);
        assert!(of("gemma3", "output_norm.weight").plus_one);
        assert!(!of("llama", "output_norm.weight").plus_one);
    }

    #[test]
    fn heads_of_values_go_back_to_those_of_their_keys() {
        let values = Tiles::new(2, 4, 64);
        let sizes = Sizes { head: 6, values, before: 10 };
        let of = |name| changes(known("qwen35"), name, sizes);
        let rows = |name, n| (0..n).map(|r| of(name).source(r)).collect::<Vec<_>>();
        assert_eq!(rows("blk.0.ssm_beta.weight", 4), [0, 2, 1, 3]);
        assert_eq!(rows("blk.0.attn_qkv.weight", 11), (0..11).collect::<Vec<_>>());
        assert_eq!(of("blk.0.attn_qkv.weight").source(10 + 64), 10 + 128);
        assert_eq!(of("blk.0.attn_gate.weight").source(128 + 5), 64 + 5);
        let out = of("blk.0.ssm_out.weight");
        let groups: Vec<_> = (0..8).map(|g| out.group(g, 32)).collect();
        assert_eq!(groups, [0, 1, 4, 5, 2, 3, 6, 7]);
        assert!(of("blk.0.attn_norm.weight").plus_one && !of("blk.0.ssm_norm.weight").plus_one);
        assert!(of("blk.0.ssm_a").decays && of("blk.0.ssm_conv1d.weight").channels);
        assert_eq!(
            super::of(known("qwen35"), "blk.3.ssm_a").as_deref(),
            Some("model.layers.3.linear_attn.A_log")
        );
    }
}
