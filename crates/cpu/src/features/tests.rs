//! One list for detection and compilation, and no way to a level but detection.

use super::LISTS;
use crate::{
    TensorError,
    {Level, codes::CodeLevel, dense::DenseLevel, int8::Int8Level},
};
use std::{
    collections::BTreeSet,
    fmt::Debug,
    fs,
    path::{Path, PathBuf},
    str::FromStr,
};

fn sources(dir: &Path, all: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, all);
        } else if path.extension().is_some_and(|e| e == "rs") {
            all.push(path);
        }
    }
}

/// Lists of features in some Rust: strings that begin with one that is detected somewhere.
fn lists(text: &str) -> impl Iterator<Item = &str> {
    let known: BTreeSet<_> = LISTS.iter().flat_map(|(_, list)| list.iter().copied()).collect();
    let enabled = text.split("enable = \"").skip(1).filter_map(|rest| rest.split('"').next());
    let given = text.split('"').skip(1).step_by(2);
    enabled.chain(given.filter(move |s| s.split(',').all(|f| known.contains(f)) && s.contains(',')))
}

#[test]
fn kernels_are_compiled_with_what_is_detected() {
    let lists_of_tokens: BTreeSet<_> = LISTS.iter().map(|(_, list)| list.join(",")).collect();
    let (mut files, mut found) = (Vec::new(), BTreeSet::new());
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut files);
    for path in files.iter().filter(|path| !path.ends_with("features/tests.rs")) {
        let text = fs::read_to_string(path).unwrap();
        if !path.ends_with("features.rs") {
            assert!(!text.contains("feature_detected!"), "{}: use a token", path.display());
        }
        for list in lists(&text) {
            assert!(lists_of_tokens.contains(list), "{}: {list:?} is no token's", path.display());
            found.insert(list.to_owned());
        }
    }
    // "neon" alone is no list of several features.
    let several: BTreeSet<_> = lists_of_tokens.into_iter().filter(|l| l.contains(',')).collect();
    assert!(found.is_superset(&several), "compiled with {found:?}");
}

/// Levels under every name there is: those of this machine parse to themselves, all others are errors.
fn names<L: FromStr<Err = TensorError> + Debug + PartialEq>(available: &[L], all: &[&str]) {
    for name in all {
        match (name.parse::<L>(), available.iter().find(|l| format!("{l:?}") == *name)) {
            (Ok(level), Some(have)) => assert_eq!(level, *have),
            (Err(TensorError::Level { name: refused, available: others }), None) => {
                assert_eq!((&*refused, others), (*name, format!("{available:?}")));
            }
            (got, have) => panic!("{name}: {got:?}, of {have:?}"),
        }
    }
    let known = |level: &L| all.contains(&&*format!("{level:?}"));
    assert!(available.iter().all(known), "{available:?}");
    for wrong in ["", "avx2", "Avx2(())", "Portable "] {
        assert!(wrong.parse::<L>().is_err(), "{wrong:?}");
    }
}

#[test]
fn a_level_that_the_machine_lacks_is_an_error() {
    names(&Level::available(), &["Avx512", "Avx2", "Neon", "Portable"]);
    names(&CodeLevel::available(), &["Vbmi", "Avx2", "Neon", "Portable"]);
    let dense = ["Amx", "Avx512Bf16", "Fma(Avx512)", "Fma(Avx2)", "Fma(Neon)", "Fma(Portable)"];
    names(&DenseLevel::available(), &dense);
    let int8 = ["Amx", "Vnni", "AvxVnni", "Avx2", "I8mm", "DotProd", "Neon", "Portable"];
    names(&Int8Level::available(), &int8);
}

#[test]
fn the_best_level_is_the_first_that_was_detected() {
    assert_eq!(Level::available().first(), Some(&Level::detect()));
    assert_eq!(CodeLevel::available().first(), Some(&CodeLevel::detect()));
    assert_eq!(DenseLevel::available().first(), Some(&DenseLevel::detect()));
    assert_eq!(Int8Level::available().first(), Some(&Int8Level::detect()));
}
