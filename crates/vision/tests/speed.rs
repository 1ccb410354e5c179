//! How long a tower takes: `cargo test --release -p taper-vision --test speed -- --ignored --nocapture`.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use candle_core::Device;
use serde_json::json;
use std::time::Instant;
use taper_base::RgbImage;
use taper_vision::open_checkpoint;
use taper_weights::Checkpoint;

const HIDDEN: usize = 1024;
const INNER: usize = 4096;
const OUTPUT: usize = 2048;
const DEPTH: usize = 24;
const DEEP: [usize; 3] = [5, 11, 17];

/// Names and shapes of the tower of Qwen3-VL-2B.
fn tensors() -> Vec<(String, Vec<usize>)> {
    let mut all = vec![
        ("patch_embed.proj.weight".to_owned(), vec![HIDDEN, 3, 2, 16, 16]),
        ("patch_embed.proj.bias".to_owned(), vec![HIDDEN]),
        ("pos_embed.weight".to_owned(), vec![2304, HIDDEN]),
    ];
    let mut map = |name: String, outputs, inputs| {
        all.push((format!("{name}.weight"), vec![outputs, inputs]));
        all.push((format!("{name}.bias"), vec![outputs]));
    };
    let mut norms = Vec::new();
    for i in 0..DEPTH {
        map(format!("blocks.{i}.attn.qkv"), 3 * HIDDEN, HIDDEN);
        map(format!("blocks.{i}.attn.proj"), HIDDEN, HIDDEN);
        map(format!("blocks.{i}.mlp.linear_fc1"), INNER, HIDDEN);
        map(format!("blocks.{i}.mlp.linear_fc2"), HIDDEN, INNER);
        norms.extend([1, 2].map(|n| (format!("blocks.{i}.norm{n}"), HIDDEN)));
    }
    let mergers = (0..DEEP.len()).map(|i| format!("deepstack_merger_list.{i}"));
    for merger in mergers.chain(["merger".to_owned()]) {
        map(format!("{merger}.linear_fc1"), 4 * HIDDEN, 4 * HIDDEN);
        map(format!("{merger}.linear_fc2"), OUTPUT, 4 * HIDDEN);
        let normed = if merger == "merger" { HIDDEN } else { 4 * HIDDEN };
        norms.push((format!("{merger}.norm"), normed));
    }
    for (name, n) in norms {
        all.extend(["weight", "bias"].map(|part| (format!("{name}.{part}"), vec![n])));
    }
    all.into_iter().map(|(name, shape)| (format!("model.visual.{name}"), shape)).collect()
}

/// A safetensors file of small random weights in `bf16`.
fn weights() -> Vec<u8> {
    let (mut header, mut offset) = (serde_json::Map::new(), 0);
    let mut scales = Vec::new();
    for (name, shape) in tensors() {
        let n: usize = shape.iter().product();
        let inputs: usize = shape[1..].iter().product();
        scales.push((n, (3.0 / inputs as f32).sqrt().min(0.5)));
        let entry =
            json!({"dtype": "BF16", "shape": shape, "data_offsets": [offset, offset + 2 * n]});
        header.insert(name, entry);
        offset += 2 * n;
    }
    let header = serde_json::Value::Object(header).to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    let mut state = 1u32;
    for (n, scale) in scales {
        file.extend((0..n).flat_map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let x = ((state >> 8) as f32 / (1 << 23) as f32 - 1.0) * scale;
            let [_, _, low, high] = x.to_le_bytes();
            [low, high]
        }));
    }
    file
}

/// Seconds of all processors that this process took; 0 where the system does not tell it as Linux does.
fn processor_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<_> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let ticks = [11, 12].map(|i| fields.get(i).and_then(|n| n.parse().ok()).unwrap_or(0.0));
    ticks.iter().sum::<f64>() / 100.0
}

#[test]
#[ignore = "measures time"]
fn tower_of_qwen3_vl_2b() {
    let config = json!({
        "model_type": "qwen3_vl",
        "image_token_id": 1,
        "vision_config": {
            "depth": DEPTH, "hidden_size": HIDDEN, "intermediate_size": INNER, "num_heads": 16,
            "patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2,
            "out_hidden_size": OUTPUT, "num_position_embeddings": 2304,
            "deepstack_visual_indexes": DEEP,
        },
    });
    let processor = json!({
        "size": {"longest_edge": 16_777_216, "shortest_edge": 65_536},
        "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5],
    });
    let file: &'static [u8] = weights().leak();
    let checkpoint = Checkpoint::from_static(config.to_string().as_bytes(), file).unwrap();
    let encoder =
        open_checkpoint(&checkpoint, &processor, &|_| None, &Device::Cpu).unwrap().unwrap();
    let pixels = (0..448 * 448 * 3).map(|i: u32| (i.wrapping_mul(2_654_435_761) >> 24) as u8);
    let image = RgbImage { width: 448, height: 448, pixels: pixels.collect() };
    let start = Instant::now();
    let prepared = encoder.prepare(&image).unwrap();
    println!("prepare: {:.3} s", start.elapsed().as_secs_f64());
    for _ in 0..3 {
        let (start, before) = (Instant::now(), processor_seconds());
        let encoded = encoder.encode(&prepared).unwrap();
        let (seconds, all) = (start.elapsed().as_secs_f64(), processor_seconds() - before);
        let rows = encoded.rows.len() / OUTPUT;
        println!("encode: {seconds:.3} s, {all:.2} s of processors, {rows} rows");
    }
}
