//! Qwen 3.5: three layers of four are Gated DeltaNets.

use super::shape::{Shape, TensorSpec};
use serde_json::{Value, json};

/// Qwen3.5-4B, with the vocabulary of Qwen 3.
pub(super) const QWEN: Shape = Shape {
    name: "qwen3.5-4b",
    hidden: 2560,
    layers: 32,
    heads: 16,
    kv_heads: 4,
    intermediate: 9216,
    tied: true,
    experts: None,
    hybrid: true,
};

/// Every so many-th layer attends.
const ATTENDS: usize = 4;
pub(super) const HEAD_DIM: usize = 256;
const KEY_HEADS: usize = 16;
const VALUE_HEADS: usize = 32;
const LINEAR_DIM: usize = 128;
const KERNEL: usize = 4;

/// Tensors of a layer's mixer.
pub(super) fn mixer(shape: &Shape, layer: usize) -> Vec<TensorSpec> {
    let (h, q, kv) = (shape.hidden, shape.heads * HEAD_DIM, shape.kv_heads * HEAD_DIM);
    let values = VALUE_HEADS * LINEAR_DIM;
    let channels = 2 * KEY_HEADS * LINEAR_DIM + values;
    let attention: [(&str, &[usize]); 6] = [
        ("self_attn.q_proj.weight", &[2 * q, h]),
        ("self_attn.k_proj.weight", &[kv, h]),
        ("self_attn.v_proj.weight", &[kv, h]),
        ("self_attn.o_proj.weight", &[h, q]),
        ("self_attn.q_norm.weight", &[HEAD_DIM]),
        ("self_attn.k_norm.weight", &[HEAD_DIM]),
    ];
    let delta: [(&str, &[usize]); 9] = [
        ("linear_attn.in_proj_qkv.weight", &[channels, h]),
        ("linear_attn.in_proj_z.weight", &[values, h]),
        ("linear_attn.in_proj_b.weight", &[VALUE_HEADS, h]),
        ("linear_attn.in_proj_a.weight", &[VALUE_HEADS, h]),
        ("linear_attn.conv1d.weight", &[channels, KERNEL, 1]),
        ("linear_attn.A_log", &[VALUE_HEADS]),
        ("linear_attn.dt_bias", &[VALUE_HEADS]),
        ("linear_attn.norm.weight", &[LINEAR_DIM]),
        ("linear_attn.out_proj.weight", &[h, values]),
    ];
    let own = if layer % ATTENDS == ATTENDS - 1 { &attention[..] } else { &delta[..] };
    let tensor = |&(name, dims): &(&str, &[usize])| {
        let name = format!("model.layers.{layer}.{name}");
        TensorSpec { gguf: name.clone(), name, dims: dims.to_vec() }
    };
    own.iter().map(tensor).collect()
}

/// Fields of config.json that a Qwen 3 has not, or others.
pub(super) fn config() -> [(&'static str, Value); 10] {
    [
        ("architectures", json!(["Qwen3_5ForCausalLM"])),
        ("model_type", json!("qwen3_5_text")),
        ("head_dim", json!(HEAD_DIM)),
        ("full_attention_interval", json!(ATTENDS)),
        ("linear_num_key_heads", json!(KEY_HEADS)),
        ("linear_num_value_heads", json!(VALUE_HEADS)),
        ("linear_key_head_dim", json!(LINEAR_DIM)),
        ("linear_value_head_dim", json!(LINEAR_DIM)),
        ("linear_conv_kernel_dim", json!(KERNEL)),
        (
            "rope_parameters",
            json!({"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25}),
        ),
    ]
}
