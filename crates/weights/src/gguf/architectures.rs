//! llama.cpp's architectures, and what each of its files says in its own way.
//!
//! Source: `src/llama-arch.cpp` and `conversion/` of llama.cpp.

mod fields;
mod mixed;

use super::{GgufError, config::Seen, file::Keys};
use fields::Fields;

/// How an architecture's files become a model of Hugging Face's.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Architecture {
    pub(crate) name: &'static str,
    /// Unless [`Self::fields`] knows better.
    pub(super) model_type: &'static str,
    /// Names of a layer's parts where they are not those of most: llama.cpp's, and Hugging Face's. One with its kind,
    /// as `exp_probs_b.bias`, stands for the whole name. Names outside layers have their `model.`.
    pub(super) parts: &'static [(&'static str, &'static str)],
    /// Rows of queries and keys are ordered for rotating neighbours.
    pub(super) neighbours: bool,
    /// Gains of norms have 1 added.
    pub(super) plus_one: bool,
    /// Heads of values of a delta rule have an order of their own ([`super::tiles`]).
    pub(super) tiled: bool,
    /// Adds fields beside those that all have.
    pub(super) fields: fn(Keys<'_>, &Seen, &mut Fields) -> Result<(), GgufError>,
}

const PLAIN: Architecture = Architecture {
    name: "",
    model_type: "",
    parts: &[],
    neighbours: false,
    plus_one: false,
    tiled: false,
    fields: fields::dense,
};

/// Names of experts below a block, and of what scores them.
const MIXTRAL: &[(&str, &str)] = &[
    ("ffn_gate_inp", "block_sparse_moe.gate"),
    ("ffn_gate_exps", "block_sparse_moe.switch_mlp.gate_proj"),
    ("ffn_up_exps", "block_sparse_moe.switch_mlp.up_proj"),
    ("ffn_down_exps", "block_sparse_moe.switch_mlp.down_proj"),
    ("exp_probs_b.bias", "block_sparse_moe.e_score_correction_bias"),
];
const SHARED_EXPERTS: &[(&str, &str)] = &[
    ("exp_probs_b.bias", "mlp.gate.e_score_correction_bias"),
    ("ffn_gate_shexp", "mlp.shared_experts.gate_proj"),
    ("ffn_up_shexp", "mlp.shared_experts.up_proj"),
    ("ffn_down_shexp", "mlp.shared_experts.down_proj"),
    ("attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"),
    ("attn_kv_a_norm", "self_attn.kv_a_layernorm"),
    ("attn_q_a", "self_attn.q_a_proj"),
    ("attn_q_a_norm", "self_attn.q_a_layernorm"),
    ("attn_q_b", "self_attn.q_b_proj"),
    ("attn_k_b", "self_attn.embed_q"),
    ("attn_v_b", "self_attn.unembed_out"),
    ("attn_kv_b", "self_attn.kv_b_proj"),
];
const ERNIE: &[(&str, &str)] = &[
    ("exp_probs_b.bias", "mlp.moe_statics.e_score_correction_bias"),
    ("ffn_gate_shexp", "mlp.shared_experts.gate_proj"),
    ("ffn_up_shexp", "mlp.shared_experts.up_proj"),
    ("ffn_down_shexp", "mlp.shared_experts.down_proj"),
];
const LFM2: &[(&str, &str)] = &[
    ("token_embd_norm", "model.embedding_norm"),
    ("attn_norm", "operator_norm"),
    ("ffn_norm", "ffn_norm"),
    ("attn_q_norm", "self_attn.q_layernorm"),
    ("attn_k_norm", "self_attn.k_layernorm"),
    ("attn_output", "self_attn.out_proj"),
    ("shortconv.conv", "conv.conv"),
    ("shortconv.in_proj", "conv.in_proj"),
    ("shortconv.out_proj", "conv.out_proj"),
    ("ffn_gate", "feed_forward.w1"),
    ("ffn_up", "feed_forward.w3"),
    ("ffn_down", "feed_forward.w2"),
    ("ffn_gate_inp", "feed_forward.gate"),
    ("ffn_gate_exps", "feed_forward.switch_mlp.gate_proj"),
    ("ffn_up_exps", "feed_forward.switch_mlp.up_proj"),
    ("ffn_down_exps", "feed_forward.switch_mlp.down_proj"),
    ("exp_probs_b.bias", "feed_forward.expert_bias"),
];
/// Gated DeltaNet, and experts of which one is for every token.
const DELTA: &[(&str, &str)] = &[
    ("attn_qkv", "linear_attn.in_proj_qkv"),
    ("attn_gate", "linear_attn.in_proj_z"),
    ("ssm_beta", "linear_attn.in_proj_b"),
    ("ssm_alpha", "linear_attn.in_proj_a"),
    // Of Qwen3-Next, in groups of a key head as there, whose other maps are apart here.
    ("ssm_ba", "linear_attn.in_proj_ba"),
    ("ssm_a", "linear_attn.A_log"),
    ("ssm_dt.bias", "linear_attn.dt_bias"),
    ("ssm_conv1d", "linear_attn.conv1d"),
    ("ssm_norm", "linear_attn.norm"),
    ("ssm_out", "linear_attn.out_proj"),
    ("ffn_gate_inp_shexp", "mlp.shared_expert_gate"),
    ("ffn_gate_shexp", "mlp.shared_expert.gate_proj"),
    ("ffn_up_shexp", "mlp.shared_expert.up_proj"),
    ("ffn_down_shexp", "mlp.shared_expert.down_proj"),
];
const GRANITE_HYBRID: &[(&str, &str)] = &[
    ("ssm_in", "mamba.in_proj"),
    ("ssm_conv1d", "mamba.conv1d"),
    ("ssm_a", "mamba.A_log"),
    ("ssm_d", "mamba.D"),
    ("ssm_dt.bias", "mamba.dt_bias"),
    ("ssm_norm", "mamba.norm"),
    ("ssm_out", "mamba.out_proj"),
    ("ffn_gate_shexp", "mlp.shared_expert.gate_proj"),
    ("ffn_up_shexp", "mlp.shared_expert.up_proj"),
    ("ffn_down_shexp", "mlp.shared_expert.down_proj"),
];
/// A layer is one block.
const NEMOTRON_H: &[(&str, &str)] = &[
    ("token_embd", "model.embeddings"),
    ("output_norm", "model.norm_f"),
    ("attn_norm", "norm"),
    ("attn_q", "mixer.q_proj"),
    ("attn_k", "mixer.k_proj"),
    ("attn_v", "mixer.v_proj"),
    ("attn_output", "mixer.o_proj"),
    ("ssm_in", "mixer.in_proj"),
    ("ssm_conv1d", "mixer.conv1d"),
    ("ssm_a", "mixer.A_log"),
    ("ssm_d", "mixer.D"),
    ("ssm_dt.bias", "mixer.dt_bias"),
    ("ssm_norm", "mixer.norm"),
    ("ssm_out", "mixer.out_proj"),
    ("ffn_up", "mixer.up_proj"),
    ("ffn_down", "mixer.down_proj"),
    ("ffn_gate_inp", "mixer.gate"),
    ("ffn_up_exps", "mixer.switch_mlp.fc1"),
    ("ffn_down_exps", "mixer.switch_mlp.fc2"),
    ("exp_probs_b.bias", "mixer.gate.e_score_correction_bias"),
    ("ffn_up_shexp", "mixer.shared_experts.up_proj"),
    ("ffn_down_shexp", "mixer.shared_experts.down_proj"),
];
const GEMMA4: &[(&str, &str)] = &[
    ("per_layer_token_embd", "model.embed_tokens_per_layer"),
    ("per_layer_model_proj", "model.per_layer_model_projection"),
    ("per_layer_proj_norm", "model.per_layer_projection_norm"),
    ("inp_gate", "per_layer_input_gate"),
    ("proj", "per_layer_projection"),
    ("post_norm", "post_per_layer_input_norm"),
    ("layer_output_scale.weight", "layer_scalar"),
    ("ffn_norm", "pre_feedforward_layernorm"),
    ("pre_ffw_norm_2", "pre_feedforward_layernorm_2"),
    ("post_ffw_norm_1", "post_feedforward_layernorm_1"),
    ("post_ffw_norm_2", "post_feedforward_layernorm_2"),
    ("ffn_gate_inp.scale", "router.scale"),
    ("ffn_gate_inp", "router.proj"),
    ("ffn_gate_up_exps", "switch_mlp.gate_up_proj"),
    ("ffn_down_exps.scale", "router.per_expert_scale"),
    ("ffn_down_exps", "switch_mlp.down_proj"),
];
const GEMMA: &[(&str, &str)] = &[("ffn_norm", "pre_feedforward_layernorm")];
const FUSED_GATE: &[(&str, &str)] = &[("ffn_up", "mlp.gate_up_proj")];

/// Every architecture that is read.
pub(super) const ALL: &[Architecture] = &[
    Architecture {
        name: "llama",
        model_type: "llama",
        parts: MIXTRAL,
        neighbours: true,
        fields: fields::llama,
        ..PLAIN
    },
    // Queries, keys and values are apart there, which InternLM's own files have in one.
    Architecture { name: "internlm2", model_type: "llama", neighbours: true, ..PLAIN },
    Architecture { name: "qwen2", model_type: "qwen2", ..PLAIN },
    // The text of a model that sees: its three position rows are equal.
    Architecture { name: "qwen2vl", model_type: "qwen2", ..PLAIN },
    Architecture {
        name: "qwen2moe",
        model_type: "qwen2_moe",
        parts: &[
            ("ffn_gate_inp_shexp", "mlp.shared_expert_gate"),
            ("ffn_gate_shexp", "mlp.shared_expert.gate_proj"),
            ("ffn_up_shexp", "mlp.shared_expert.up_proj"),
            ("ffn_down_shexp", "mlp.shared_expert.down_proj"),
        ],
        fields: fields::qwen2_moe,
        ..PLAIN
    },
    Architecture { name: "qwen3", model_type: "qwen3", ..PLAIN },
    Architecture { name: "qwen3vl", model_type: "qwen3", ..PLAIN },
    Architecture { name: "qwen3moe", model_type: "qwen3_moe", fields: fields::qwen3_moe, ..PLAIN },
    Architecture {
        name: "qwen3vlmoe",
        model_type: "qwen3_moe",
        fields: fields::qwen3_moe,
        ..PLAIN
    },
    Architecture {
        name: "qwen35",
        model_type: "qwen3_5_text",
        parts: DELTA,
        plus_one: true,
        tiled: true,
        fields: fields::qwen3_5,
        ..PLAIN
    },
    Architecture {
        name: "qwen35moe",
        model_type: "qwen3_5_moe_text",
        parts: DELTA,
        plus_one: true,
        tiled: true,
        fields: fields::qwen3_5_moe,
        ..PLAIN
    },
    Architecture {
        name: "qwen3next",
        model_type: "qwen3_next",
        parts: DELTA,
        plus_one: true,
        fields: mixed::qwen3_next,
        ..PLAIN
    },
    Architecture {
        name: "granitehybrid",
        model_type: "granitemoehybrid",
        parts: GRANITE_HYBRID,
        neighbours: true,
        fields: mixed::granite_hybrid,
        ..PLAIN
    },
    Architecture {
        name: "nemotron_h",
        model_type: "nemotron_h",
        parts: NEMOTRON_H,
        fields: mixed::nemotron_h,
        ..PLAIN
    },
    Architecture {
        name: "nemotron_h_moe",
        model_type: "nemotron_h",
        parts: NEMOTRON_H,
        fields: mixed::nemotron_h,
        ..PLAIN
    },
    Architecture {
        name: "gemma4",
        model_type: "gemma4_text",
        parts: GEMMA4,
        fields: mixed::gemma4,
        ..PLAIN
    },
    Architecture {
        name: "gemma",
        model_type: "gemma",
        plus_one: true,
        fields: fields::gemma,
        ..PLAIN
    },
    Architecture {
        name: "gemma2",
        model_type: "gemma2",
        parts: GEMMA,
        plus_one: true,
        fields: fields::gemma2,
        ..PLAIN
    },
    Architecture {
        name: "gemma3",
        model_type: "gemma3_text",
        parts: GEMMA,
        plus_one: true,
        fields: fields::gemma3,
        ..PLAIN
    },
    Architecture {
        name: "phi3",
        model_type: "phi3",
        parts: FUSED_GATE,
        fields: fields::phi3,
        ..PLAIN
    },
    Architecture { name: "smollm3", model_type: "smollm3", neighbours: true, ..PLAIN },
    Architecture {
        name: "gpt-oss",
        model_type: "gpt_oss",
        parts: &[
            ("attn_sinks.weight", "self_attn.sinks"),
            ("ffn_gate_inp", "mlp.router"),
            ("ffn_gate_exps", "mlp.experts.gate_proj"),
            ("ffn_up_exps", "mlp.experts.up_proj"),
            ("ffn_down_exps", "mlp.experts.down_proj"),
        ],
        fields: fields::gpt_oss,
        ..PLAIN
    },
    Architecture {
        name: "glm4",
        model_type: "glm4",
        parts: &[
            ("ffn_up", "mlp.gate_up_proj"),
            ("post_attention_norm", "post_self_attn_layernorm"),
            ("post_ffw_norm", "post_mlp_layernorm"),
        ],
        fields: fields::glm,
        ..PLAIN
    },
    Architecture {
        name: "chatglm",
        model_type: "glm",
        parts: FUSED_GATE,
        fields: fields::glm,
        ..PLAIN
    },
    Architecture {
        name: "glm4moe",
        model_type: "glm4_moe",
        parts: SHARED_EXPERTS,
        fields: fields::glm4_moe,
        ..PLAIN
    },
    Architecture {
        name: "deepseek2",
        model_type: "deepseek_v3",
        parts: SHARED_EXPERTS,
        fields: fields::deepseek,
        ..PLAIN
    },
    Architecture { name: "olmo2", model_type: "olmo2", fields: fields::olmo2, ..PLAIN },
    Architecture { name: "olmoe", model_type: "olmoe", fields: fields::olmoe, ..PLAIN },
    Architecture { name: "command-r", model_type: "cohere", fields: fields::cohere, ..PLAIN },
    Architecture { name: "cohere2", model_type: "cohere2", fields: fields::cohere, ..PLAIN },
    Architecture {
        name: "granite",
        model_type: "granite",
        neighbours: true,
        fields: fields::granite,
        ..PLAIN
    },
    Architecture { name: "seed_oss", model_type: "seed_oss", fields: fields::seed_oss, ..PLAIN },
    Architecture { name: "exaone4", model_type: "exaone4", fields: fields::windows, ..PLAIN },
    Architecture {
        name: "arcee",
        model_type: "arcee",
        neighbours: true,
        fields: fields::arcee,
        ..PLAIN
    },
    Architecture { name: "ernie4_5", model_type: "ernie4_5", fields: fields::ernie, ..PLAIN },
    Architecture {
        name: "ernie4_5-moe",
        model_type: "ernie4_5_moe",
        parts: ERNIE,
        fields: fields::ernie_moe,
        ..PLAIN
    },
    Architecture {
        name: "minimax-m2",
        model_type: "minimax_m2",
        parts: MIXTRAL,
        fields: fields::minimax,
        ..PLAIN
    },
    Architecture {
        name: "hunyuan-dense",
        model_type: "hunyuan_v1_dense",
        parts: &[
            ("attn_q_norm", "self_attn.query_layernorm"),
            ("attn_k_norm", "self_attn.key_layernorm"),
        ],
        ..PLAIN
    },
    Architecture {
        name: "starcoder2",
        model_type: "starcoder2",
        parts: &[("ffn_up", "mlp.c_fc"), ("ffn_down", "mlp.c_proj")],
        fields: fields::starcoder2,
        ..PLAIN
    },
    Architecture { name: "lfm2", model_type: "lfm2", parts: LFM2, fields: fields::lfm2, ..PLAIN },
    Architecture {
        name: "lfm2moe",
        model_type: "lfm2_moe",
        parts: LFM2,
        fields: fields::lfm2_moe,
        ..PLAIN
    },
];

/// The architecture of a name.
pub(super) fn find(name: &str) -> Result<&'static Architecture, GgufError> {
    ALL.iter().find(|own| own.name == name).ok_or_else(|| {
        let names: Vec<_> = ALL.iter().map(|own| own.name).collect();
        GgufError::unsupported(format!(
            "its architecture is {name:?}, and these are read from GGUF files: {}",
            names.join(", ")
        ))
    })
}
