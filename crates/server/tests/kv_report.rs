//! `taper kv-report`: the table, the recommendation, and Ctrl-C.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail the test")]

mod common;

use common::{fails, taper, text};
use serde_json::Value;

/// Short runs of the demo model in which most tokens are read from their codes.
const SHORT: [&str; 5] = ["kv-report", "--kv-recent-tokens", "32", "--kv-sink-tokens", "32"];

fn report(args: &[&str]) -> String {
    let output = taper(&[&SHORT[..], args].concat(), "");
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    text(&output.stdout)
}

#[test]
fn codecs_are_measured_and_the_smallest_good_one_recommended() {
    let json = report(&[
        "--context",
        "384",
        "--codecs",
        "f16,affine8,taper4,taper2",
        "--max-kl",
        "0.02",
        "--json",
    ]);
    let json: Value = serde_json::from_str(&json).unwrap();
    let rows = json["codecs"].as_array().unwrap();
    let of = |field: &str| rows.iter().map(|r| r[field].as_f64().unwrap()).collect::<Vec<_>>();
    let kl = of("mean_kl");
    assert!(kl[0].abs() < 1e-12, "f16 against itself: {kl:?}");
    assert!(kl[1] > 0.0 && kl[1] < kl[2] && kl[2] < kl[3] && kl[3] < 1.0, "{kl:?}");
    let bytes = of("bytes_per_token");
    assert!(bytes.windows(2).all(|w| w[1] < w[0]), "{bytes:?}");
    assert_eq!(of("ratio_to_f16")[0], 1.0);
    assert_eq!((&json["tokens"], &json["compared"]), (&384.into(), &352.into()));
    let same = of("same_first_choice");
    let good = |i: usize| kl[i] <= 0.02 && same[i] >= 0.97;
    let want = (0..4).rev().find(|&i| good(i)).map(|i| &rows[i]["codec"]).unwrap();
    assert_eq!(&json["recommended"], want);

    let table =
        report(&["--context", "384", "--codecs", "taper2", "--max-kl", "0", "--reference", "f32"]);
    assert!(
        table.contains("taper2") && table.contains("stay with --kv-cache-dtype f16"),
        "{table}"
    );
}

#[test]
fn prices_by_layer_give_a_scheme_that_is_taken_back() {
    let json = report(&["--codecs", "taper3", "--bits", "3", "--context", "128", "--json"]);
    let json: Value = serde_json::from_str(&json).unwrap();
    let rows = json["codecs"].as_array().unwrap();
    assert_eq!(rows.len(), 2, "{json}");
    let (all, layers) = (&rows[0], &rows[1]);
    assert!(layers["bytes_per_token"].as_f64() <= all["bytes_per_token"].as_f64(), "{json}");
    let config = json["additional_config"].to_string();
    let run = ["run", "Hello!", "--max-tokens", "3", "--additional-config", &config];
    assert_eq!(taper(&run, "").status.code(), Some(0), "{config}");
}

#[test]
fn mistakes_are_named() {
    assert!(fails(&["kv-report", "--codecs", "int1"]).contains("int1"));
    assert!(fails(&["kv-report", "--text", "/nothing/here"]).contains("/nothing/here"));
    assert!(fails(&["kv-report", "--context", "20"]).contains("--context"));
    assert!(fails(&["kv-report", "--kv-recent-tokens", "33"]).contains("multiples of 32"));
    assert!(fails(&["kv-report", "--bits", "1"]).contains("from 2 to 8"));
    assert!(fails(&["kv-report", "/nothing/here"]).contains("/nothing/here"));
}

#[cfg(unix)]
#[test]
fn ctrl_c_ends_it_with_what_was_measured() {
    use std::{
        process::{Command, Stdio},
        thread::sleep,
        time::Duration,
    };
    let child = Command::new(env!("CARGO_BIN_EXE_taper"))
        .args(["kv-report", "--context", "16384"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    sleep(Duration::from_secs(2));
    Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    let output = child.wait_with_output().unwrap();
    let err = text(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{err}");
    assert!(err.contains("error: interrupted") && !err.contains("panicked"), "{err}");
}
