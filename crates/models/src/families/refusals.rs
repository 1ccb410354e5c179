//! Settings that change the arithmetic and that a family does not have are refused by their names.

use super::{MULTIMODAL, spec};
use crate::LoadOptions;
use serde_json::{Value, json};

fn small(field: &str, value: Value) -> Value {
    let mut config = json!({
        "vocab_size": 8, "hidden_size": 16, "intermediate_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
        "max_position_embeddings": 16, "head_dim": 8,
    });
    config[field] = value;
    config
}

#[test]
fn what_a_family_lacks_is_refused_by_name() {
    for (family, field, value) in [
        ("apertus", "hidden_act", json!("gelu")),
        ("arcee", "hidden_act", json!("mish")),
        ("bitnet", "quantization_config", json!({"quant_method": "bitnet"})),
        ("cohere", "use_qk_norm", json!(true)),
        ("cohere2", "logit_scale", json!(0.0)),
        ("falcon", "alibi", json!(true)),
        ("gptj", "rotary_dim", json!(9)),
        ("gpt2", "add_cross_attention", json!(true)),
        ("gpt2", "scale_attn_by_inverse_layer_idx", json!(true)),
        ("gpt2", "tie_word_embeddings", json!(false)),
        ("granite_swa", "layer_rope_theta", json!([1e4])),
        ("hunyuan_v1_dense", "use_cla", json!(true)),
        ("iquestcoder", "clip_qkv", json!(8.0)),
        ("iquestcoder", "use_sliding_window", json!(true)),
        ("lfm3", "rope_scaling", json!({"rope_type": "linear", "factor": 2.0})),
        ("lfm3", "rope_theta", json!(5.0)),
        ("llava_next", "model_type", json!("qwen2")),
        ("mimo", "use_sliding_window", json!(true)),
        ("mistral3", "model_type", json!("mistral_large4")),
        ("muse_glimmer", "layer_rope_theta", json!([1e4, 5e3])),
        ("muse_glimmer", "post_norm_eps", json!(-1.0)),
        ("olmo", "clip_qkv", json!(8.0)),
        ("olmo3", "layer_types", json!(["full_attention"])),
        ("phi", "qk_layernorm", json!(true)),
        ("phi", "tie_word_embeddings", json!(true)),
        ("stablelm", "qk_layernorm", json!(true)),
        ("qwen2_moe", "use_sliding_window", json!(true)),
        ("qwen3_moe", "use_sliding_window", json!(true)),
        ("qwen3_vl", "use_sliding_window", json!(true)),
        ("starcoder2", "mlp_type", json!("gated")),
    ] {
        let error = spec(family, &small(field, value), LoadOptions::default()).unwrap_err();
        let error = error.to_string();
        assert!(error.contains(field), "{family}: {error}");
    }
}

#[test]
fn dynamic_scaling_is_refused_beyond_the_configured_context() {
    let config = small("rope_scaling", json!({"rope_type": "dynamic", "factor": 2.0}));
    let run = |max_model_len| {
        spec("internlm3", &config, LoadOptions { max_model_len, ..LoadOptions::default() })
    };
    assert!(run(None).is_ok() && run(Some(16)).is_ok());
    assert!(run(Some(17)).unwrap_err().to_string().contains("dynamic"));
}

#[test]
fn of_both_llavas_the_language_model_is_read() {
    for family in ["llava", "llava_next"] {
        assert!(MULTIMODAL.contains(&family));
        let mistral = small("model_type", json!("mistral"));
        let mistral = spec(family, &mistral, LoadOptions::default());
        // Eight heads of keys are more than two of queries: Mistral's own number is taken.
        assert!(mistral.unwrap_err().to_string().contains("num_key_value_heads"), "{family}");
        let llama = spec(family, &small("model_type", json!("llama")), LoadOptions::default());
        assert!(llama.is_ok(), "{family}");
    }
}

#[test]
fn published_configurations_without_optional_fields_are_read() {
    let none = || small("unused", Value::Null);
    for family in ["apertus", "arcee", "cohere", "cohere2", "ernie4_5", "exaone4", "glm", "glm4"] {
        assert!(spec(family, &none(), LoadOptions::default()).is_ok(), "{family}");
    }
    let tied = spec("cohere", &none(), LoadOptions::default()).unwrap();
    assert!(tied.tied && tied.parallel && tied.logit_scale == Some(0.0625));
    let glm = spec("glm4", &none(), LoadOptions::default()).unwrap();
    assert_eq!(glm.ropes.first().map(|rope| rope.pairs()), Some(2));
}

/// Every value below `value` gets each of these in turn, and `f` the whole.
fn each_changed(whole: &Value, at: &str, f: &mut impl FnMut(Value)) {
    let strange = [
        json!(0),
        json!(1),
        json!(3),
        json!(-1),
        json!(1u64 << 40),
        json!(u64::MAX),
        json!(0.5),
        json!(1e300),
        json!(null),
        json!(true),
        json!("x"),
        json!([]),
        json!([0]),
        json!({}),
    ];
    for value in strange {
        let mut changed = whole.clone();
        if let Some(place) = changed.pointer_mut(at) {
            *place = value;
        }
        f(changed);
    }
    let below: Vec<String> = match whole.pointer(at) {
        Some(Value::Object(fields)) => fields.keys().map(|name| format!("{at}/{name}")).collect(),
        Some(Value::Array(list)) => (0..list.len().min(2)).map(|i| format!("{at}/{i}")).collect(),
        _ => Vec::new(),
    };
    below.iter().for_each(|at| each_changed(whole, at, f));
}

#[test]
fn no_value_of_any_field_is_more_than_an_error() {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/parity");
    let mut tried = 0;
    for entry in std::fs::read_dir(dir).unwrap() {
        let text = std::fs::read_to_string(entry.unwrap().path().join("config.json")).unwrap();
        let Ok(config) = serde_json::from_str::<Value>(&text) else { continue };
        let model_type = config["model_type"].as_str().unwrap().to_owned();
        let nested =
            config.get("text_config").filter(|_| super::MULTIMODAL.contains(&&*model_type));
        let config = super::text_config(&config, nested);
        each_changed(&config, "", &mut |changed| {
            tried += 1;
            let _ = spec(&model_type, &changed, LoadOptions::default());
        });
    }
    assert!(tried > 50_000, "{tried} configurations");
}
