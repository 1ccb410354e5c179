//! Bounds of numbers, and settings with two names.

use super::*;
use crate::{LoadOptions, families};
use serde_json::json;

fn config() -> Value {
    json!({"vocab_size": 8, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 2,
           "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 4,
           "max_position_embeddings": 16, "rms_norm_eps": 1e-5, "rope_theta": 1e4,
           "partial_rotary_factor": 1.0})
}

#[test]
fn hostile_numbers_are_refused_by_the_name_of_their_field() {
    let fields: Vec<String> = config().as_object().unwrap().keys().cloned().collect();
    for field in fields {
        for value in [json!(-1), json!(1e18), json!(1_000_000_000_000_000_000u64), json!(-1e300)] {
            let mut config = config();
            config[&field] = value.clone();
            let error = families::spec("llama", &config, LoadOptions::default());
            let error = error.map(|_| ()).expect_err(&format!("{field} = {value}")).to_string();
            assert!(error.contains(&field), "{field} = {value}: {error}");
        }
        // Zero may be a result, but never a panic.
        let mut config = config();
        config[&field] = json!(0);
        let _ = families::spec("llama", &config, LoadOptions::default());
    }
}

#[test]
fn hostile_rotary_settings_are_refused() {
    for kind in ["linear", "llama3", "yarn", "longrope"] {
        for field in [
            "factor",
            "rope_theta",
            "partial_rotary_factor",
            "original_max_position_embeddings",
            "attention_factor",
            "low_freq_factor",
            "high_freq_factor",
            "beta_fast",
            "beta_slow",
            "mscale",
            "mscale_all_dim",
        ] {
            for value in [json!(-1), json!(1e18), json!(-1e300)] {
                let mut config = config();
                config["rope_theta"] = Value::Null;
                config["rope_scaling"] = json!({"rope_type": kind, field: value});
                let error = families::spec("llama", &config, LoadOptions::default());
                let error = error.map(|_| ()).expect_err(field).to_string();
                assert!(error.contains(field), "{kind}, {field} = {value}: {error}");
            }
        }
    }
}

#[test]
fn rope_scaling_counts_before_rope_parameters() {
    let yarn = json!({"rope_type": "yarn", "factor": 4.0});
    let read = |config: Value| rope("llama", &config, 7.0).map(|r| format!("{r:?}"));
    let both = json!({"rope_theta": 5.0, "rope_scaling": yarn,
                      "rope_parameters": {"rope_type": "default", "rope_theta": 5.0}});
    let alone = json!({"rope_theta": 5.0, "rope_scaling": yarn});
    assert_eq!(read(both).unwrap(), read(alone.clone()).unwrap());
    // The base is in the section that gives way: it is kept.
    let kept = json!({"rope_scaling": yarn, "rope_parameters": {"rope_theta": 5.0}});
    assert_eq!(read(kept).unwrap(), read(alone).unwrap());
    let empty = json!({"rope_scaling": {}, "rope_parameters": {"rope_theta": 5.0}});
    assert!(read(empty).unwrap().contains("rope_theta: Some(5.0)"));
    let differ = json!({"rope_theta": 6.0, "rope_scaling": yarn,
                        "rope_parameters": {"rope_theta": 5.0}});
    assert!(matches!(rope("llama", &differ, 7.0), Err(ModelError::Contradiction { .. })));
}

#[test]
fn two_names_of_one_setting_agree_or_are_refused() {
    let one = |config: Value| one_name(&config, "a", "b");
    assert_eq!(one(json!({"b": 2})).unwrap(), json!({"a": 2}));
    assert_eq!(one(json!({"a": 2, "b": 2})).unwrap(), json!({"a": 2}));
    assert_eq!(one(json!({"a": null, "b": 2})).unwrap(), json!({"a": 2}));
    let error = one(json!({"a": 1, "b": 2})).unwrap_err();
    assert!(error.to_string().contains("a and b"), "{error}");
}

#[test]
fn layer_settings_that_no_model_has_are_refused() {
    let refused = |family: &str, field: &str, value: Value| {
        let mut config = config();
        config["rope_theta"] = json!(1e4);
        (config["use_sliding_window"], config["sliding_window"]) = (json!(true), json!(8));
        config["layer_types"] = json!(["full_attention", "sliding_attention"]);
        config["partial_rotary_factor"] = Value::Null;
        families::spec(family, &config, LoadOptions::default()).expect(family);
        config[field] = value.clone();
        let error = families::spec(family, &config, LoadOptions::default());
        let error = error.map(|_| ()).expect_err(&format!("{family} {value}")).to_string();
        assert!(error.contains(field), "{family}, {field} = {value}: {error}");
    };
    for family in ["qwen2", "qwen3", "smollm3", "mistral", "gemma3_text"] {
        for window in [json!(0), json!(-1), json!(1_000_000_000_000u64), json!(4.5)] {
            refused(family, "sliding_window", window);
        }
    }
    for family in ["qwen2", "qwen3", "smollm3", "gemma3_text"] {
        refused(family, "layer_types", json!(["full_attention"]));
        refused(family, "layer_types", json!(["full_attention", "linear_attention"]));
    }
}
