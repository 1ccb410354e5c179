//! Fields of config.json that one architecture has, or a few.

use super::super::{
    GgufError,
    config::{Seen, head_dim},
    file::Keys,
};
use serde_json::{Map, Value, json};

/// Fields of config.json.
pub(in super::super) type Fields = Map<String, Value>;

/// Layers of Gemma 3 27B and of Gemma 2 27B, whose queries are scaled in a way of their own.
const GEMMA3_27B: u64 = 62;
const GEMMA2_27B: u64 = 46;

pub(super) fn set(fields: &mut Fields, name: &str, value: impl Into<Value>) {
    fields.insert(name.to_owned(), value.into());
}

/// Copies what the file has under llama.cpp's names: whole numbers and reals.
pub(super) fn copy(keys: Keys<'_>, fields: &mut Fields, names: &[(&str, &str)]) {
    for (theirs, ours) in names {
        if let Some(n) = keys.whole(theirs) {
            set(fields, ours, n);
        } else if let Some(x) = keys.real(theirs) {
            set(fields, ours, x);
        } else if let Some(flag) = keys.flag(theirs) {
            set(fields, ours, flag);
        }
    }
}

/// An architecture without experts.
pub(super) fn dense(keys: Keys<'_>, _: &Seen, _: &mut Fields) -> Result<(), GgufError> {
    match keys.whole("expert_count").unwrap_or(0) {
        0 => Ok(()),
        _ => {
            let own = keys.architecture;
            Err(GgufError::unsupported(format!("{own} with experts is not read yet")))
        }
    }
}

pub(super) fn llama(keys: Keys<'_>, _: &Seen, fields: &mut Fields) -> Result<(), GgufError> {
    let experts = keys.whole("expert_count").unwrap_or(0);
    if experts > 0 {
        set(fields, "model_type", "mixtral");
        set(fields, "num_local_experts", experts);
        set(fields, "num_experts_per_tok", keys.need("expert_used_count")?);
    }
    Ok(())
}

/// How many experts there are, what a token takes of them, and their size.
pub(super) fn experts(keys: Keys<'_>, fields: &mut Fields, count: &str) -> Result<(), GgufError> {
    set(fields, count, keys.need("expert_count")?);
    set(fields, "num_experts_per_tok", keys.need("expert_used_count")?);
    set(fields, "moe_intermediate_size", keys.need("expert_feed_forward_length")?);
    Ok(())
}

pub(super) fn qwen3_moe(keys: Keys<'_>, _: &Seen, fields: &mut Fields) -> Result<(), GgufError> {
    experts(keys, fields, "num_experts")?;
    // The files do not say it, and llama.cpp always does it.
    set(fields, "norm_topk_prob", true);
    set(fields, "decoder_sparse_step", 1);
    set(fields, "mlp_only_layers", json!([]));
    Ok(())
}

pub(super) fn qwen2_moe(keys: Keys<'_>, _: &Seen, fields: &mut Fields) -> Result<(), GgufError> {
    experts(keys, fields, "num_experts")?;
    let shared = keys.need("expert_shared_feed_forward_length")?;
    set(fields, "shared_expert_intermediate_size", shared);
    set(fields, "norm_topk_prob", false);
    set(fields, "decoder_sparse_step", 1);
    set(fields, "mlp_only_layers", json!([]));
    Ok(())
}

/// Gated DeltaNet in most layers.
pub(super) fn qwen3_5(keys: Keys<'_>, _: &Seen, fields: &mut Fields) -> Result<(), GgufError> {
    partial(keys, fields)?;
    let heads = keys.need("ssm.time_step_rank")?;
    set(fields, "linear_num_value_heads", heads);
    set(fields, "linear_num_key_heads", keys.need("ssm.group_count")?);
    set(fields, "linear_key_head_dim", keys.need("ssm.state_size")?);
    set(fields, "linear_value_head_dim", keys.need("ssm.inner_size")? / heads.max(1));
    set(fields, "linear_conv_kernel_dim", keys.need("ssm.conv_kernel")?);
    copy(keys, fields, &[("full_attention_interval", "full_attention_interval")]);
    if let Some(recurrent) = keys.flags("attention.recurrent_layers") {
        let kind = |own| if own { "linear_attention" } else { "full_attention" };
        set(fields, "layer_types", recurrent.into_iter().map(kind).collect::<Vec<_>>());
    }
    Ok(())
}

pub(super) fn qwen3_5_moe(
    keys: Keys<'_>,
    seen: &Seen,
    fields: &mut Fields,
) -> Result<(), GgufError> {
    qwen3_5(keys, seen, fields)?;
    experts(keys, fields, "num_experts")?;
    let shared = keys.need("expert_shared_feed_forward_length")?;
    set(fields, "shared_expert_intermediate_size", shared);
    Ok(())
}

pub(super) fn gemma(_: Keys<'_>, _: &Seen, fields: &mut Fields) -> Result<(), GgufError> {
    set(fields, "hidden_activation", "gelu_pytorch_tanh");
    Ok(())
}

/// What queries are scaled by: a head's size, but in the largest model of a family.
fn query_scalar(keys: Keys<'_>, fields: &mut Fields, largest: u64) -> Result<(), GgufError> {
    let heads = keys.need("attention.head_count")?.max(1);
    let large = keys.need("block_count")? == largest;
    let scalar = if large { keys.need("embedding_length")? / heads } else { head_dim(keys)? };
    set(fields, "query_pre_attn_scalar", scalar);
    set(fields, "hidden_activation", "gelu_pytorch_tanh");
    Ok(())
}

pub(super) fn gemma2(keys: Keys<'_>, _: &Seen, fields: &mut Fields) -> Result<(), GgufError> {
    query_scalar(keys, fields, GEMMA2_27B)?;
    copy(
        keys,
        fields,
        &[
            ("attention.sliding_window", "sliding_window"),
            ("attn_logit_softcapping", "attn_logit_softcapping"),
            ("final_logit_softcapping", "final_logit_softcapping"),
        ],
    );
    Ok(())
}

pub(super) fn gemma3(keys: Keys<'_>, seen: &Seen, fields: &mut Fields) -> Result<(), GgufError> {
    query_scalar(keys, fields, GEMMA3_27B)?;
    set(fields, "rope_local_base_freq", 10_000.0);
    copy(keys, fields, &[("final_logit_softcapping", "final_logit_softcapping")]);
    windows(keys, seen, fields)
}

/// A window, and which layers have it where the file says it.
pub(super) fn windows(keys: Keys<'_>, _: &Seen, fields: &mut Fields) -> Result<(), GgufError> {
    if let Some(window) = keys.whole("attention.sliding_window").filter(|&window| window > 0) {
        set(fields, "sliding_window", window);
    }
    if let Some(pattern) = keys.flags("attention.sliding_window_pattern") {
        let kind = |slides| if slides { "sliding_attention" } else { "full_attention" };
        set(fields, "layer_types", pattern.into_iter().map(kind).collect::<Vec<_>>());
    }
    Ok(())
}

/// The part of a head that rotates.
pub(super) fn partial(keys: Keys<'_>, fields: &mut Fields) -> Result<(), GgufError> {
    let head = head_dim(keys)?;
    let turned = keys.whole("rope.dimension_count").unwrap_or(head);
    set(fields, "partial_rotary_factor", turned as f64 / head.max(1) as f64);
    Ok(())
}

pub(super) fn gpt_oss(keys: Keys<'_>, _: &Seen, fields: &mut Fields) -> Result<(), GgufError> {
    experts(keys, fields, "num_local_experts")?;
    copy(
        keys,
        fields,
        &[
            ("attention.sliding_window", "sliding_window"),
            ("expert_feed_forward_length", "intermediate_size"),
        ],
    );
    // Without a section the family takes the published model's.
    let plain = || json!({ "rope_type": "default" });
    let section = fields.entry("rope_scaling").or_insert_with(plain);
    if section["rope_type"] == "yarn" {
        section["truncate"] = false.into();
    }
    Ok(())
}

pub(super) fn glm(keys: Keys<'_>, seen: &Seen, fields: &mut Fields) -> Result<(), GgufError> {
    set(fields, "attention_bias", seen.query_bias);
    partial(keys, fields)
}

/// Experts as DeepSeek has them, with some shared and the first layers dense.
pub(super) fn routed(keys: Keys<'_>, fields: &mut Fields) -> Result<(), GgufError> {
    experts(keys, fields, "n_routed_experts")?;
    copy(
        keys,
        fields,
        &[
            ("expert_shared_count", "n_shared_experts"),
            ("expert_weights_norm", "norm_topk_prob"),
            ("expert_weights_scale", "routed_scaling_factor"),
            ("expert_group_count", "n_group"),
            ("expert_group_used_count", "topk_group"),
            ("leading_dense_block_count", "first_k_dense_replace"),
        ],
    );
    let missing =
        [("n_group", 1), ("topk_group", 1), ("n_shared_experts", 0), ("first_k_dense_replace", 0)];
    for (name, otherwise) in missing {
        fields.entry(name).or_insert_with(|| otherwise.into());
    }
    Ok(())
}

pub(super) fn glm4_moe(keys: Keys<'_>, seen: &Seen, fields: &mut Fields) -> Result<(), GgufError> {
    routed(keys, fields)?;
    set(fields, "use_qk_norm", seen.query_norm);
    glm(keys, seen, fields)
}

pub(super) fn deepseek(keys: Keys<'_>, seen: &Seen, fields: &mut Fields) -> Result<(), GgufError> {
    let Some(whole) = keys.whole("attention.key_length_mla") else {
        let what = "it is of an older form of DeepSeek's, without attention.key_length_mla; convert the model anew";
        return Err(GgufError::unsupported(what.to_owned()));
    };
    match keys.whole("expert_count").unwrap_or(0) {
        0 => set(fields, "model_type", "youtu_llm"),
        _ => experts_of_deepseek(keys, seen, fields)?,
    }
    let rotated = keys.need("rope.dimension_count")?;
    set(fields, "qk_rope_head_dim", rotated);
    set(fields, "qk_nope_head_dim", whole.saturating_sub(rotated));
    set(fields, "v_head_dim", keys.need("attention.value_length_mla")?);
    set(fields, "kv_lora_rank", keys.need("attention.kv_lora_rank")?);
    set(fields, "q_lora_rank", keys.whole("attention.q_lora_rank"));
    set(fields, "num_key_value_heads", keys.need("attention.head_count")?);
    // The model is absorbed, so the cache has one head; here as in Hugging Face's.
    fields.remove("head_dim");
    // Scores are scaled by a function of the factor, which the file has as a tenth of Hugging Face's.
    if let (Some(factor), Some(section)) =
        (keys.real("rope.scaling.yarn_log_multiplier"), fields.get_mut("rope_scaling"))
    {
        let all = 10.0 * factor;
        section["mscale"] = all.into();
        section["mscale_all_dim"] = all.into();
    }
    Ok(())
}

/// Version 2 takes a softmax of all; version 3 a sigmoid of each, and biases of the choice.
fn experts_of_deepseek(keys: Keys<'_>, seen: &Seen, fields: &mut Fields) -> Result<(), GgufError> {
    const SOFTMAX: u64 = 1;
    routed(keys, fields)?;
    let second = keys.whole("expert_gating_func") == Some(SOFTMAX) && !seen.choice_bias;
    if second {
        set(fields, "model_type", "deepseek_v2");
        let groups = fields.get("n_group").and_then(Value::as_u64).unwrap_or(1);
        set(fields, "topk_method", if groups > 1 { "group_limited_greedy" } else { "greedy" });
    }
    fields.entry("norm_topk_prob").or_insert_with(|| (!second).into());
    Ok(())
}

pub(super) fn olmo2(keys: Keys<'_>, seen: &Seen, fields: &mut Fields) -> Result<(), GgufError> {
    windows(keys, seen, fields)?;
    if !fields.contains_key("sliding_window") {
        return Ok(());
    }
    set(fields, "model_type", "olmo3");
    let base = keys.real("rope.freq_base");
    if let Some(windows) = keys.real("rope.freq_base_swa").filter(|own| Some(*own) != base) {
        let section = |theta| json!({ "rope_type": "default", "rope_theta": theta });
        let both =
            [("full_attention", section(base)), ("sliding_attention", section(Some(windows)))];
        set(
            fields,
            "rope_parameters",
            both.into_iter().map(|(k, v)| (k.to_owned(), v)).collect::<Fields>(),
        );
        fields.remove("rope_theta");
    }
    Ok(())
}

pub(super) fn cohere(keys: Keys<'_>, seen: &Seen, fields: &mut Fields) -> Result<(), GgufError> {
    copy(keys, fields, &[("logit_scale", "logit_scale")]);
    windows(keys, seen, fields)
}

pub(super) fn granite(keys: Keys<'_>, seen: &Seen, fields: &mut Fields) -> Result<(), GgufError> {
    multipliers(keys, fields);
    dense(keys, seen, fields)
}

/// What Granite multiplies embeddings, residuals, scores and logits with.
pub(super) fn multipliers(keys: Keys<'_>, fields: &mut Fields) {
    copy(
        keys,
        fields,
        &[
            ("embedding_scale", "embedding_multiplier"),
            ("residual_scale", "residual_multiplier"),
            ("attention.scale", "attention_multiplier"),
            ("logit_scale", "logits_scaling"),
        ],
    );
}

pub(super) fn seed_oss(_: Keys<'_>, seen: &Seen, fields: &mut Fields) -> Result<(), GgufError> {
    set(fields, "attention_bias", seen.query_bias);
    set(fields, "attention_out_bias", seen.attention_bias);
    Ok(())
}

pub(super) fn arcee(_: Keys<'_>, seen: &Seen, fields: &mut Fields) -> Result<(), GgufError> {
    set(fields, "hidden_act", "relu2");
    set(fields, "mlp_bias", seen.up_bias);
    Ok(())
}

pub(super) fn ernie(_: Keys<'_>, seen: &Seen, fields: &mut Fields) -> Result<(), GgufError> {
    set(fields, "use_bias", seen.query_bias);
    Ok(())
}

pub(super) fn ernie_moe(keys: Keys<'_>, seen: &Seen, fields: &mut Fields) -> Result<(), GgufError> {
    ernie(keys, seen, fields)?;
    set(fields, "moe_num_experts", keys.need("expert_count")?);
    set(fields, "moe_k", keys.need("expert_used_count")?);
    set(fields, "moe_intermediate_size", keys.need("expert_feed_forward_length")?);
    copy(
        keys,
        fields,
        &[
            ("expert_shared_count", "moe_num_shared_experts"),
            ("leading_dense_block_count", "moe_layer_start_index"),
            ("interleave_moe_layer_step", "moe_layer_interval"),
        ],
    );
    Ok(())
}

pub(super) fn minimax(keys: Keys<'_>, _: &Seen, fields: &mut Fields) -> Result<(), GgufError> {
    set(fields, "num_local_experts", keys.need("expert_count")?);
    set(fields, "num_experts_per_tok", keys.need("expert_used_count")?);
    set(fields, "intermediate_size", keys.need("expert_feed_forward_length")?);
    set(fields, "scoring_func", "sigmoid");
    set(fields, "use_qk_norm", true);
    copy(keys, fields, &[("rope.dimension_count", "rotary_dim")]);
    Ok(())
}

pub(super) fn starcoder2(_: Keys<'_>, seen: &Seen, fields: &mut Fields) -> Result<(), GgufError> {
    set(fields, "hidden_act", "gelu_pytorch_tanh");
    set(fields, "use_bias", seen.query_bias);
    Ok(())
}

/// Layers without heads of keys convolve.
pub(super) fn lfm2(keys: Keys<'_>, _: &Seen, fields: &mut Fields) -> Result<(), GgufError> {
    let heads = keys.list("attention.head_count_kv").unwrap_or_default();
    let kind = |&n: &u64| if n == 0 { "conv" } else { "full_attention" };
    set(fields, "layer_types", heads.iter().map(kind).collect::<Vec<_>>());
    set(fields, "num_key_value_heads", heads.into_iter().max().unwrap_or(0));
    set(fields, "conv_L_cache", keys.need("shortconv.l_cache")?);
    set(fields, "block_auto_adjust_ff_dim", false);
    Ok(())
}

pub(super) fn lfm2_moe(keys: Keys<'_>, seen: &Seen, fields: &mut Fields) -> Result<(), GgufError> {
    lfm2(keys, seen, fields)?;
    experts(keys, fields, "num_experts")?;
    copy(keys, fields, &[("leading_dense_block_count", "num_dense_layers")]);
    set(fields, "use_expert_bias", seen.choice_bias);
    set(fields, "norm_topk_prob", true);
    Ok(())
}

/// A part of a head rotates, and there may be a window.
pub(super) fn phi3(keys: Keys<'_>, seen: &Seen, fields: &mut Fields) -> Result<(), GgufError> {
    partial(keys, fields)?;
    windows(keys, seen, fields)
}

pub(super) fn olmoe(keys: Keys<'_>, _: &Seen, fields: &mut Fields) -> Result<(), GgufError> {
    set(fields, "num_experts", keys.need("expert_count")?);
    set(fields, "num_experts_per_tok", keys.need("expert_used_count")?);
    Ok(())
}
