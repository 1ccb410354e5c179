//! Scales that are searched for: the same layout, nearer to the floats.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{matrix, model};
use serde_json::json;
use std::path::Path;
use taper_tensor::{AffineFormat, ScaleMethod, cpu::RowSource};
use taper_weights::{Checkpoint, ConvertOptions, convert};

#[test]
fn errors_are_smaller_in_the_same_layout() {
    let dir = tempfile::tempdir().unwrap();
    let (src, shape) = (dir.path().join("src"), [8, 128]);
    model(&src, &json!({"model_type": "qwen3"}), &[matrix("q.weight", &shape)]);
    let values = |dir: &Path| {
        let checkpoint = Checkpoint::open(dir).unwrap();
        let mut out = vec![0.0; shape[0] * shape[1]];
        checkpoint.weight("q", shape[0], shape[1]).unwrap().read_rows(0, &mut out);
        (checkpoint.bytes(), out)
    };
    let (_, floats) = values(&src);
    let [range, least] = [ScaleMethod::Range, ScaleMethod::LeastSquares].map(|method| {
        let mut options = ConvertOptions::new(AffineFormat { bits: 3, group: 64 });
        options.method = method;
        let dst = dir.path().join(format!("{method:?}"));
        convert(&src, &dst, &options, &mut |_, _| {}).unwrap();
        let (bytes, out) = values(&dst);
        (bytes, out.iter().zip(&floats).map(|(a, b)| (a - b).powi(2)).sum::<f32>())
    });
    assert_eq!(range.0, least.0, "bytes");
    assert!(least.1 < range.1, "{least:?} {range:?}");
}
