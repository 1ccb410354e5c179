//! Codecs under whole models: held-out text, and random models whose keys have a bias.

use super::{
    CODECS, digits, divergence, gaussian,
    report::{Points, Table},
    row_bytes,
};
use crate::runner::{Piece, Runner, argmax};
use anyhow::Result;
use safetensors::{Dtype, tensor::TensorView};
use serde_json::json;
use std::{fs, path::Path};
use taper_base::TokenId;
use taper_chat::Tokenizer;
use taper_kv_codecs::Exact;
use taper_models::LoadOptions;

/// Tokens of a window, and of a step.
const WINDOW: usize = 1024;
const STEP: usize = 256;

/// Logits of every token, window by window.
fn logits(dir: &Path, codec: &str, exact: Option<Exact>, ids: &[TokenId]) -> Result<Vec<Vec<f64>>> {
    let mut runner = Runner::load(dir, codec, exact, WINDOW, LoadOptions::EXACT)?;
    let mut out = Vec::new();
    for window in ids.chunks(WINDOW) {
        for start in (0..window.len()).step_by(STEP) {
            let tokens = &window[start..(start + STEP).min(window.len())];
            let rows = runner.step(&[Piece::prompt(0, start, tokens)], false)?;
            out.extend(rows.into_iter().map(|r| r.into_iter().map(f64::from).collect::<Vec<_>>()));
        }
        runner.release(0);
    }
    Ok(out)
}

/// Mean divergence and share of equal first choices.
fn compare(truth: &[Vec<f64>], other: &[Vec<f64>]) -> (f64, f64) {
    let n = truth.len() as f64;
    let first = |row: &[f64]| argmax(&row.iter().map(|&x| x as f32).collect::<Vec<_>>());
    let kl = truth.iter().zip(other).map(|(p, q)| divergence(p, q)).sum::<f64>() / n;
    let same = truth.iter().zip(other).filter(|(p, q)| first(p) == first(q)).count();
    (kl, same as f64 / n)
}

/// Perplexity of each window's text.
fn perplexity(logits: &[Vec<f64>], ids: &[TokenId]) -> f64 {
    let (mut nll, mut scored) = (0.0, 0.0);
    for (rows, ids) in logits.chunks(WINDOW).zip(ids.chunks(WINDOW)) {
        for (row, &next) in rows.iter().zip(&ids[1..]) {
            let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let total: f64 = row.iter().map(|l| (l - max).exp()).sum();
            nll += total.ln() + max - row[next as usize];
            scored += 1.0;
        }
    }
    (nll / scored).exp()
}

pub(super) fn held_out(root: &Path, model: &Path, tokens: usize) -> Result<(Table, Points)> {
    let text = fs::read_to_string(root.join("tests/fixtures/heldout.txt"))?;
    let mut ids = Tokenizer::load(model)?.encode(&text, false)?;
    ids.truncate(tokens);
    let truth = logits(model, "f32", None, &ids)?;
    let base = perplexity(&truth, &ids);
    let (mut rows, mut points) = (Vec::new(), Points::new());
    for name in CODECS {
        let got = logits(model, name, None, &ids)?;
        let (kl, same) = compare(&truth, &got);
        let served = compare(&truth, &logits(model, name, Some(Exact::DEFAULT), &ids)?);
        let ppl = perplexity(&got, &ids);
        let bytes = row_bytes(name)?;
        rows.push(vec![
            name.to_owned(),
            format!("{bytes:.2}"),
            digits(kl),
            format!("{:.2}", same * 100.0),
            format!("{ppl:.4}"),
            format!("{:+.3}", (ppl / base - 1.0) * 100.0),
            digits(served.0),
            format!("{:.2}", served.1 * 100.0),
        ]);
        points.push((name.to_owned(), bytes, kl));
    }
    let name = model.file_name().unwrap_or_default().to_string_lossy();
    let header = [
        "codec",
        "bytes a row of 128",
        "KL",
        "same first choice %",
        "perplexity",
        "change %",
        "KL as served",
        "same first choice % as served",
    ];
    let table = Table {
        title: "Held-out text",
        note: format!(
            "{} tokens through {name} in windows of {WINDOW}, f32 arithmetic, every token attending \
             to the codec's rows. Perplexity over the f32 cache: {base:.4}. As served: the first {} \
             tokens and those since the last multiple of {} are read exactly.",
            ids.len(),
            Exact::DEFAULT.sink_tokens,
            Exact::DEFAULT.recent_tokens,
        ),
        header: header.map(str::to_owned).to_vec(),
        rows,
    };
    Ok((table, points))
}

const LAYERS: usize = 4;
const HIDDEN: usize = 256;
const HEAD_DIM: usize = 64;
const VOCAB: usize = 512;

/// Where in the rotary bands a bias is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bands {
    All,
    /// The slower half, where models have most of it.
    Slow,
}

/// Writes a Qwen2 of random weights whose keys have a bias of `ratio` times what varies.
fn write_model(dir: &Path, ratio: f32, bands: Bands) -> Result<()> {
    let config = json!({
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": HIDDEN,
        "intermediate_size": 512, "num_hidden_layers": LAYERS, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": VOCAB, "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6, "rope_theta": 1e6, "tie_word_embeddings": false,
        "hidden_act": "silu", "torch_dtype": "float32", "use_sliding_window": false,
    });
    fs::write(dir.join("config.json"), serde_json::to_vec(&config)?)?;
    let mut tensors: Vec<(String, Vec<usize>, Vec<u8>)> = Vec::new();
    let mut seed = 100;
    let mut add = |name: String, shape: &[usize], deviation: f32, mean: f32| {
        seed += 1;
        let mut x = gaussian(shape.iter().product(), seed);
        if name.ends_with("k_proj.bias") && bands == Bands::Slow {
            // Element i rotates with element i + d / 2, the slower the larger i is.
            let quarter = |i: usize| i % (HEAD_DIM / 2) / (HEAD_DIM / 4);
            x.iter_mut().enumerate().for_each(|(i, x)| *x *= [0.0, 2f32.sqrt()][quarter(i)]);
        }
        let bytes = x.iter().flat_map(|x| (x * deviation + mean).to_le_bytes()).collect();
        tensors.push((name, shape.to_vec(), bytes));
    };
    let kv = 2 * HEAD_DIM;
    add("model.embed_tokens.weight".into(), &[VOCAB, HIDDEN], 1.0, 0.0);
    for layer in 0..LAYERS {
        let at = |name: &str| format!("model.layers.{layer}.{name}");
        let unit = (HIDDEN as f32).powf(-0.5);
        add(at("input_layernorm.weight"), &[HIDDEN], 0.0, 1.0);
        add(at("post_attention_layernorm.weight"), &[HIDDEN], 0.0, 1.0);
        add(at("self_attn.q_proj.weight"), &[HIDDEN, HIDDEN], 2.0 * unit, 0.0);
        add(at("self_attn.q_proj.bias"), &[HIDDEN], 0.0, 0.0);
        add(at("self_attn.k_proj.weight"), &[kv, HIDDEN], unit, 0.0);
        add(at("self_attn.k_proj.bias"), &[kv], ratio, 0.0);
        add(at("self_attn.v_proj.weight"), &[kv, HIDDEN], unit, 0.0);
        add(at("self_attn.v_proj.bias"), &[kv], 0.0, 0.0);
        add(at("self_attn.o_proj.weight"), &[HIDDEN, HIDDEN], 2.0 * unit, 0.0);
        add(at("mlp.gate_proj.weight"), &[512, HIDDEN], unit, 0.0);
        add(at("mlp.up_proj.weight"), &[512, HIDDEN], unit, 0.0);
        add(at("mlp.down_proj.weight"), &[HIDDEN, 512], 0.03, 0.0);
    }
    add("model.norm.weight".into(), &[HIDDEN], 0.0, 1.0);
    add("lm_head.weight".into(), &[VOCAB, HIDDEN], 2.0 * (HIDDEN as f32).powf(-0.5), 0.0);
    let views = tensors
        .iter()
        .map(|(name, shape, bytes)| Ok((name, TensorView::new(Dtype::F32, shape.clone(), bytes)?)))
        .collect::<Result<Vec<_>>>()?;
    safetensors::serialize_to_file(views, None, &dir.join("model.safetensors"))?;
    Ok(())
}

pub(super) fn planted() -> Result<Table> {
    let ids: Vec<TokenId> =
        gaussian(WINDOW, 9).iter().map(|x| ((x.abs() * 1e4) as usize % VOCAB) as TokenId).collect();
    let cases = [(0.0, Bands::All), (10.0, Bands::Slow), (30.0, Bands::Slow), (10.0, Bands::All)];
    let mut rows: Vec<_> = CODECS.iter().map(|&name| vec![name.to_owned()]).collect();
    for (ratio, bands) in cases {
        let dir = std::env::temp_dir().join(format!("taper-kv-{}-{ratio}", std::process::id()));
        fs::create_dir_all(&dir)?;
        let columns = write_model(&dir, ratio, bands).and_then(|()| {
            let truth = logits(&dir, "f32", None, &ids)?;
            CODECS
                .iter()
                .map(|name| Ok(compare(&truth, &logits(&dir, name, None, &ids)?)))
                .collect()
        });
        fs::remove_dir_all(&dir)?;
        let columns: Vec<(f64, f64)> = columns?;
        for (row, (kl, same)) in rows.iter_mut().zip(columns) {
            row.extend([digits(kl), format!("{:.1}", same * 100.0)]);
        }
    }
    let columns = cases.iter().flat_map(|(ratio, bands)| {
        let what = match bands {
            _ if *ratio == 0.0 => "no bias".to_owned(),
            Bands::All => format!("bias {ratio} in all bands"),
            Bands::Slow => format!("bias {ratio} in slow bands"),
        };
        [format!("KL, {what}"), format!("same %, {what}")]
    });
    Ok(Table {
        title: "Random models with a key bias",
        note: format!(
            "Qwen2 with random weights ({LAYERS} layers, 2 KV heads of {HEAD_DIM}) whose key \
             projections have a bias of so many times what varies, before the rotary embedding turns \
             it; {WINDOW} random tokens."
        ),
        header: std::iter::once("codec".to_owned()).chain(columns).collect(),
        rows,
    })
}
