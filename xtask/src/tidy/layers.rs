//! Which crate may depend on which, and what every manifest says.

use super::Finding;
use anyhow::{Context, Result};
use serde_json::Value;
use std::path::Path;

/// A crate's tier: it may depend on every crate of a lower tier, and on those it names. Crates
/// without a tier hang off the side: they use what they name and are used by who names them.
struct Place {
    name: &'static str,
    tier: Option<u8>,
    also: &'static [&'static str],
}

const fn tier(name: &'static str, tier: u8) -> Place {
    Place { name, tier: Some(tier), also: &[] }
}

const fn side(name: &'static str, also: &'static [&'static str]) -> Place {
    Place { name, tier: None, also }
}

/// The directions of `docs/architecture.md`.
const PLACES: [Place; 26] = [
    tier("taper-base", 0),
    tier("taper-kernels", 0),
    tier("taper-cpu", 1),
    tier("taper-tensor", 2),
    tier("taper-weights", 3),
    tier("taper-kv-codecs", 3),
    tier("taper-triattention", 3),
    tier("taper-recall", 3),
    tier("taper-moe-streaming", 3),
    Place { name: "taper-conformance", tier: Some(4), also: &["taper-sampler"] },
    tier("taper-kv-cache", 4),
    tier("taper-vision", 4),
    Place { name: "taper-audio", tier: Some(4), also: &["taper-chat"] },
    tier("taper-models", 5),
    tier("taper-speculative", 6),
    Place { name: "taper-engine", tier: Some(7), also: &["taper-sampler", "taper-scheduler"] },
    Place { name: "taper", tier: Some(8), also: &["taper-chat", "taper-hub"] },
    Place {
        name: "server",
        tier: Some(9),
        also: &["taper-chat", "taper-hub", "taper-longctx", "taper-openai-server", "taper-web"],
    },
    side("taper-sampler", &["taper-base"]),
    side("taper-scheduler", &["taper-base"]),
    side("taper-chat", &["taper-base"]),
    side("taper-hub", &["taper-base"]),
    side("taper-longctx", &["taper-base"]),
    side("taper-grammar", &["taper-base", "taper-chat"]),
    side("taper-openai-server", &["taper-base", "taper-chat", "taper-grammar"]),
    side("taper-web", &[]),
];

/// Names of crates that only the tensor crate may know, of those of the product.
const BACKENDS: [&str; 4] = ["candle", "cudarc", "objc2", "metal"];
const TENSOR: &str = "taper-tensor";
/// Their encoders are made of candle's tensors.
const MEDIA: [&str; 2] = ["taper-vision", "taper-audio"];
/// They show how both are used together.
const EXAMPLES: &str = "examples";

/// A member of the workspace.
#[derive(Debug, Clone, Default)]
pub(super) struct Package {
    pub(super) name: String,
    /// From the workspace's root.
    pub(super) manifest: String,
    pub(super) licence: Option<String>,
    pub(super) dependencies: Vec<Dependency>,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Dependency {
    pub(super) name: String,
    pub(super) is_dev: bool,
    /// A member of the workspace too.
    pub(super) is_local: bool,
}

impl Package {
    /// Tasks, fuzzers and whole-server tests may see everything.
    fn is_product(&self) -> bool {
        self.manifest.starts_with("crates/")
    }
}

/// Reads `cargo metadata --no-deps`.
pub(super) fn packages(root: &Path, metadata: &Value) -> Result<Vec<Package>> {
    let list = metadata["packages"].as_array().context("cargo metadata lists packages")?;
    list.iter().map(|package| read(root, package)).collect()
}

fn read(root: &Path, package: &Value) -> Result<Package> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let manifest = Path::new(package["manifest_path"].as_str().context("a manifest's path")?);
    let manifest = manifest.strip_prefix(root).unwrap_or(manifest);
    let dependencies = package["dependencies"].as_array().context("dependencies")?;
    let dependency = |d: &Value| Dependency {
        name: text(&d["name"]).unwrap_or_default(),
        is_dev: d["kind"] == "dev",
        is_local: d["path"].is_string(),
    };
    Ok(Package {
        name: text(&package["name"]).context("a package's name")?,
        manifest: manifest.to_string_lossy().replace('\\', "/"),
        licence: text(&package["license"]),
        dependencies: dependencies.iter().map(dependency).collect(),
    })
}

/// Directions between crates. Tests may look where the product may not, but at no backend.
pub(super) fn check(packages: &[Package]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for package in packages {
        let mut error = |text: String| findings.push(Finding::error(&package.manifest, 1, text));
        let name = &package.name;
        for Dependency { name: of, .. } in &package.dependencies {
            let is = |backend: &str| of == backend || of.starts_with(&format!("{backend}-"));
            let knows = name == TENSOR
                || name == EXAMPLES
                || (MEDIA.contains(&name.as_str()) && is("candle"));
            if !knows && BACKENDS.into_iter().any(is) {
                error(format!("{name} depends on {of}, which only {TENSOR} may name"));
            }
        }
        if !package.is_product() {
            continue;
        }
        let Some(place) = PLACES.iter().find(|p| p.name == name) else {
            error(format!("{name} has no place in xtask/src/tidy/layers.rs"));
            continue;
        };
        let local = package.dependencies.iter().filter(|d| d.is_local && !d.is_dev);
        for Dependency { name: of, .. } in local {
            if !may_see(place, of) {
                error(format!("{name} may not depend on {of}: see docs/architecture.md"));
            }
        }
    }
    findings
}

fn may_see(place: &Place, other: &str) -> bool {
    let tier_of = |name: &str| PLACES.iter().find(|p| p.name == name)?.tier;
    let below = place.tier.zip(tier_of(other)).is_some_and(|(own, its)| its < own);
    below || place.also.contains(&other)
}

/// What a member's manifest and folder must have.
pub(super) fn check_manifest(package: &Package, manifest: &str, has_readme: bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut error = |text: &str| findings.push(Finding::error(&package.manifest, 1, text));
    if package.licence.as_deref() != Some("Apache-2.0") {
        error("the licence is not Apache-2.0: write `license.workspace = true`");
    }
    if package.is_product() && !has_readme {
        error("there is no README.md beside it");
    }
    let lines: Vec<_> = manifest.lines().map(str::trim).collect();
    if !lines.windows(2).any(|w| w == ["[lints]", "workspace = true"]) {
        error("the workspace's lints are not in force: write `[lints]` and `workspace = true`");
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, folder: &str, dependencies: &[(&str, bool)]) -> Package {
        let dependency = |&(name, is_dev): &(&str, bool)| Dependency {
            name: name.to_owned(),
            is_dev,
            is_local: name.starts_with("taper-"),
        };
        Package {
            name: name.to_owned(),
            manifest: format!("{folder}/Cargo.toml"),
            licence: Some("Apache-2.0".to_owned()),
            dependencies: dependencies.iter().map(dependency).collect(),
        }
    }

    fn errors(name: &str, dependencies: &[(&str, bool)]) -> usize {
        check(&[package(name, "crates/x", dependencies)]).len()
    }

    #[test]
    fn down_is_allowed_and_up_and_sideways_are_not() {
        assert_eq!(errors("taper-models", &[("taper-kv-cache", false), ("serde", false)]), 0);
        assert_eq!(errors("taper-kv-cache", &[("taper-models", false)]), 1);
        assert_eq!(errors("taper-weights", &[("taper-kv-codecs", false)]), 1, "the same tier");
        assert_eq!(errors("taper-base", &[("taper-tensor", false)]), 1);
        assert_eq!(errors("taper-engine", &[("taper-scheduler", false), ("taper-chat", false)]), 1);
        assert_eq!(errors("taper-models", &[("taper-engine", true)]), 0, "tests may");
    }

    #[test]
    fn the_side_sees_what_it_names() {
        assert_eq!(errors("taper-scheduler", &[("taper-base", false)]), 0);
        assert_eq!(errors("taper-scheduler", &[("taper-tensor", false)]), 1);
        assert_eq!(errors("taper-openai-server", &[("taper-chat", false)]), 0);
        assert_eq!(errors("taper-openai-server", &[("taper-engine", false)]), 1);
        assert_eq!(errors("server", &[("taper-hub", false), ("taper-engine", false)]), 0);
        assert_eq!(errors("taper-novel", &[]), 1, "a new crate needs a place");
    }

    #[test]
    fn backends_belong_to_the_tensor_crate() {
        assert_eq!(errors("taper-tensor", &[("candle-core", false)]), 0);
        assert_eq!(errors("taper-models", &[("candle-core", true)]), 1);
        assert_eq!(errors("taper-vision", &[("candle-nn", false)]), 0);
        assert_eq!(errors("taper-audio", &[("candle-core", false)]), 0);
        assert_eq!(errors("taper-vision", &[("cudarc", false)]), 1);
        assert_eq!(check(&[package("xtask", "xtask", &[("candle-nn", false)])]).len(), 1);
        assert_eq!(check(&[package("xtask", "xtask", &[("taper-models", false)])]).len(), 0);
        assert_eq!(errors("taper-hub", &[("metallic", false)]), 0);
    }

    #[test]
    fn manifests_have_licence_readme_and_lints() {
        let (mut crate_, lints) =
            (package("taper-base", "crates/base", &[]), "[lints]\nworkspace = true");
        assert_eq!(check_manifest(&crate_, lints, true), []);
        assert_eq!(check_manifest(&crate_, lints, false).len(), 1);
        assert_eq!(check_manifest(&crate_, "[lints]\n", true).len(), 1);
        crate_.licence = Some("MIT".to_owned());
        assert_eq!(check_manifest(&crate_, lints, true).len(), 1);
        assert_eq!(check_manifest(&package("xtask", "xtask", &[]), lints, false), []);
    }

    #[test]
    fn metadata_is_read() {
        let json = serde_json::json!({"packages": [{
            "name": "taper-x", "manifest_path": "/w/crates/x/Cargo.toml", "license": "MIT",
            "dependencies": [
                {"name": "a", "kind": "dev", "path": "/w/crates/a"},
                {"name": "b", "kind": null},
            ],
        }]});
        let got = packages(Path::new("/w"), &json).unwrap().remove(0);
        assert_eq!(
            (got.manifest.as_str(), got.licence.as_deref()),
            ("crates/x/Cargo.toml", Some("MIT"))
        );
        let flags: Vec<_> = got.dependencies.iter().map(|d| (d.is_dev, d.is_local)).collect();
        assert_eq!(flags, [(true, true), (false, false)]);
    }
}
