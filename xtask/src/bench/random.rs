//! A checkpoint of random 4-bit weights, made in seconds: as fast to run as a trained one.

use super::shape::{Random, Shape, TensorSpec};
use anyhow::Result;
use serde_json::{Map, Value, json};

/// Weights that share a scale.
const GROUP: usize = 64;

/// Its `config.json`.
pub(super) fn config(shape: &Shape) -> Map<String, Value> {
    let mut config = shape.config();
    config.insert("quantization".into(), json!({"group_size": GROUP, "bits": 4}));
    config
}

/// Its safetensors file.
pub(super) fn checkpoint(shape: &Shape) -> Result<Vec<u8>> {
    let (mut header, mut at, mut parts) = (Map::new(), 0, Vec::new());
    let tensors = shape.tensors();
    for (name, dims) in tensors.iter().flat_map(TensorSpec::parts) {
        let mut add = |name: String, dtype: &str, dims: &[usize], bytes: usize, fill: Fill| {
            let entry = json!({"dtype": dtype, "shape": dims, "data_offsets": [at, at + bytes]});
            header.insert(name, entry);
            at += bytes;
            parts.push((bytes, fill));
        };
        let &[rows, cols] = dims else {
            add(name, "BF16", dims, 2 * dims.iter().product::<usize>(), Fill::Floats(1.0));
            continue;
        };
        let prefix = name.trim_end_matches("weight").to_owned();
        // Codes are uniform in 0..16: of standard deviation 4.6 around 7.5.
        let scale = (cols as f32).sqrt().recip() / 4.6;
        add(name, "U32", &[rows, cols / 8], rows * cols / 2, Fill::Codes);
        let groups = [rows, cols / GROUP];
        let bytes = 2 * rows * (cols / GROUP);
        add(format!("{prefix}scales"), "BF16", &groups, bytes, Fill::Floats(scale));
        add(format!("{prefix}biases"), "BF16", &groups, bytes, Fill::Floats(-7.5 * scale));
    }
    let mut header = serde_json::to_vec(&header)?;
    header.resize(header.len().next_multiple_of(8), b' ');
    let mut out = Vec::with_capacity(8 + header.len() + at);
    out.extend_from_slice(&(header.len() as u64).to_le_bytes());
    out.extend_from_slice(&header);
    let mut random = Random::new(1);
    for (bytes, fill) in parts {
        match fill {
            Fill::Codes => (0..bytes / 8).for_each(|_| out.extend(random.next().to_le_bytes())),
            Fill::Floats(x) => {
                let bits = ((x.to_bits() + 0x8000) >> 16) as u16;
                (0..bytes / 2).for_each(|_| out.extend(bits.to_le_bytes()));
            }
        }
    }
    Ok(out)
}

enum Fill {
    Codes,
    Floats(f32),
}
