//! The official test suite of JSON Schema, which npm's `json-schema-test-suite` carries.

use crate::support::{grammar, schema, takes};
use serde_json::{Value, json};
use std::{fs, path::Path};

/// Of a schema that is accepted, no instance is allowed that the suite says is invalid. Needs the
/// suite's files for draft 2020-12 in the folder `json-schema-test-suite` of Cargo's folder for
/// files of tests.
#[test]
#[ignore = "needs the official test suite"]
fn no_invalid_instance_of_the_official_suite_can_be_written() {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("json-schema-test-suite");
    let (mut schemas, mut accepted, mut right, mut narrow) = (0, 0, 0, 0);
    let mut wrong = Vec::new();
    for file in fs::read_dir(dir).unwrap().map(|f| f.unwrap().path()) {
        if file.extension().is_none_or(|e| e != "json") {
            continue;
        }
        let groups: Vec<Value> = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        for group in groups {
            schemas += 1;
            let Ok(grammar) = grammar(&schema(&group["schema"], true)) else { continue };
            accepted += 1;
            for test in group["tests"].as_array().unwrap() {
                let text = test["data"].to_string();
                let (taken, ends) = takes(&grammar, &text);
                match (taken == text.len() && ends, test["valid"] == json!(true)) {
                    (true, false) => wrong.push(format!(
                        "{} in {}: {text}",
                        group["description"],
                        file.display()
                    )),
                    (false, true) => narrow += 1,
                    _ => right += 1,
                }
            }
        }
    }
    println!(
        "{accepted} of {schemas} schemas accepted: {right} instances right, {narrow} valid ones refused, {} invalid ones taken",
        wrong.len()
    );
    assert_eq!(wrong, Vec::<String>::new());
}
