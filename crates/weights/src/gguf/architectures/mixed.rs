//! Fields of config.json of architectures whose layers differ.

use super::{
    super::{GgufError, config::Seen, file::Keys},
    fields::{Fields, copy, experts, multipliers, qwen3_5_moe, routed, set, windows},
};
use serde_json::{Value, json};

pub(super) fn qwen3_next(
    keys: Keys<'_>,
    seen: &Seen,
    fields: &mut Fields,
) -> Result<(), GgufError> {
    qwen3_5_moe(keys, seen, fields)?;
    // The files do not say it, and llama.cpp always does it.
    set(fields, "norm_topk_prob", true);
    set(fields, "decoder_sparse_step", 1);
    set(fields, "mlp_only_layers", json!([]));
    Ok(())
}

/// Sizes of Mamba 2: of a head, and all heads together.
fn mamba(keys: Keys<'_>) -> Result<[u64; 3], GgufError> {
    let (inner, heads) = (keys.need("ssm.inner_size")?, keys.need("ssm.time_step_rank")?);
    if heads == 0 || !inner.is_multiple_of(heads) {
        let what = format!("its {inner} channels of Mamba are not of {heads} heads");
        return Err(GgufError::damaged(what));
    }
    Ok([heads, inner / heads, inner])
}

/// Layers without heads of keys are Mamba 2.
pub(super) fn granite_hybrid(
    keys: Keys<'_>,
    _: &Seen,
    fields: &mut Fields,
) -> Result<(), GgufError> {
    multipliers(keys, fields);
    let [heads, size, inner] = mamba(keys)?;
    for (name, value) in [
        ("mamba_n_heads", heads),
        ("mamba_d_head", size),
        ("mamba_d_ssm", inner),
        ("mamba_n_groups", keys.need("ssm.group_count")?),
        ("mamba_d_state", keys.need("ssm.state_size")?),
        ("mamba_d_conv", keys.need("ssm.conv_kernel")?),
        ("shared_intermediate_size", keys.need("expert_shared_feed_forward_length")?),
        ("num_local_experts", keys.whole("expert_count").unwrap_or(0)),
        ("num_experts_per_tok", keys.whole("expert_used_count").unwrap_or(0)),
    ] {
        set(fields, name, value);
    }
    let kind = |&n: &u64| if n == 0 { "mamba" } else { "attention" };
    let kinds = keys.list("attention.head_count_kv").unwrap_or_default();
    set(fields, "layer_types", kinds.iter().map(kind).collect::<Vec<_>>());
    // llama.cpp tells it by this flag.
    let rotates = keys.flag("rope.scaling.finetuned").unwrap_or(true);
    set(fields, "position_embedding_type", if rotates { "rope" } else { "nope" });
    Ok(())
}

/// What a layer is shows in what it has.
pub(super) fn nemotron_h(
    keys: Keys<'_>,
    seen: &Seen,
    fields: &mut Fields,
) -> Result<(), GgufError> {
    let kind = |layer: u64| {
        let has = |part: &str| seen.parts.contains(&format!("{layer}.{part}"));
        match () {
            () if has("ssm_in") => "mamba",
            () if has("attn_q") => "attention",
            () if has("ffn_up_exps") => "moe",
            () => "mlp",
        }
    };
    let kinds: Vec<_> = (0..keys.need("block_count")?).map(kind).collect();
    if kinds.contains(&"moe") {
        routed(keys, fields)?;
        let shared = keys.need("expert_shared_feed_forward_length")?;
        set(fields, "moe_shared_expert_intermediate_size", shared);
    }
    set(fields, "layers_block_type", kinds);
    if let Some(inner) = seen.inner {
        set(fields, "intermediate_size", inner);
    }
    let [heads, size, _] = mamba(keys)?;
    for (name, value) in [
        ("mamba_num_heads", heads),
        ("mamba_head_dim", size),
        ("n_groups", keys.need("ssm.group_count")?),
        ("ssm_state_size", keys.need("ssm.state_size")?),
        ("conv_kernel", keys.need("ssm.conv_kernel")?),
    ] {
        set(fields, name, value);
    }
    set(fields, "mlp_hidden_act", "relu2");
    if let Some(eps) = fields.get("rms_norm_eps").cloned() {
        set(fields, "layer_norm_epsilon", eps);
    }
    Ok(())
}

/// Heads of two sizes, angles of two kinds, and layers that read the keys and values of earlier ones.
pub(super) fn gemma4(keys: Keys<'_>, seen: &Seen, fields: &mut Fields) -> Result<(), GgufError> {
    windows(keys, seen, fields)?;
    set(fields, "hidden_activation", "gelu_pytorch_tanh");
    set(fields, "global_head_dim", keys.need("attention.key_length")?);
    set(fields, "head_dim", keys.need("attention.key_length_swa")?);
    set(fields, "attention_k_eq_v", seen.keys_are_values);
    let slides = keys.flags("attention.sliding_window_pattern").unwrap_or_default();
    if let Some(heads) = keys.list("attention.head_count_kv") {
        let of = |kind| heads.iter().zip(&slides).find(|(_, slides)| **slides == kind);
        let named = [("num_key_value_heads", true), ("num_global_key_value_heads", false)];
        for (name, kind) in named {
            if let Some((&n, _)) = of(kind) {
                set(fields, name, n);
            }
        }
    }
    if let Some(inner) = keys.list("feed_forward_length") {
        let least = inner.iter().copied().min().unwrap_or(0);
        set(fields, "intermediate_size", least);
        set(fields, "use_double_wide_mlp", inner.iter().any(|&n| n != least));
    }
    copy(
        keys,
        fields,
        &[
            ("attention.shared_kv_layers", "num_kv_shared_layers"),
            ("embedding_length_per_layer_input", "hidden_size_per_layer_input"),
            ("final_logit_softcapping", "final_logit_softcapping"),
        ],
    );
    set(fields, "vocab_size_per_layer_input", seen.vocab);
    if keys.whole("expert_count").unwrap_or(0) > 0 {
        experts(keys, fields, "num_experts")?;
        set(fields, "top_k_experts", keys.need("expert_used_count")?);
        set(fields, "enable_moe_block", true);
    }
    let theta = |key, otherwise| keys.real(key).unwrap_or(otherwise);
    fields.remove("rope_scaling");
    fields.remove("rope_theta");
    let sections = json!({
        "full_attention": {
            "rope_type": "proportional",
            "rope_theta": theta("rope.freq_base", 1e6),
            "partial_rotary_factor": turned(seen)?,
        },
        "sliding_attention": {
            "rope_type": "default",
            "rope_theta": theta("rope.freq_base_swa", 1e4),
        },
    });
    set(fields, "rope_parameters", sections);
    Ok(())
}

/// The part of a head that rotates: the others' angles are divided by a number that leaves nothing of them.
fn turned(seen: &Seen) -> Result<Value, GgufError> {
    const ALL: f32 = 1e29;
    let Some([divisors, _]) = &seen.divisors else { return Ok(1.0.into()) };
    let turned = divisors.iter().take_while(|&&by| by == 1.0).count();
    if divisors.is_empty() || divisors[turned..].iter().any(|&by| by < ALL) {
        let what = "its divisors of rotary frequencies are not those of Gemma 4";
        return Err(GgufError::unsupported(what.to_owned()));
    }
    Ok((turned as f64 / divisors.len() as f64).into())
}
