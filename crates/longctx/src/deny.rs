//! What is never read, whatever ignore files say: places and names of secrets.

use std::path::{Component, Path};

/// Directories that hold secrets.
const DIRS: [&str; 8] =
    [".ssh", ".aws", ".gnupg", "secrets", "credentials", ".kube", ".docker", ".azure"];

/// Names of files that hold secrets.
const NAMES: [&str; 12] = [
    ".netrc",
    "_netrc",
    ".npmrc",
    ".pypirc",
    ".htpasswd",
    ".git-credentials",
    ".pgpass",
    ".my.cnf",
    "credentials",
    "credentials.json",
    "secrets.json",
    "kubeconfig",
];

/// Suffixes of keys and of stores of keys.
const SUFFIXES: [&str; 10] =
    [".pem", ".key", ".p12", ".pfx", ".jks", ".keystore", ".kdbx", ".ppk", ".ovpn", ".env"];

/// Whether a path below a root may hold secrets: its own name, or that of a directory above it.
///
/// Names are compared without regard to case, as some file systems do.
#[must_use]
pub fn is_denied(relative: &Path) -> bool {
    let mut names = relative.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_string_lossy().to_ascii_lowercase()),
        _ => None,
    });
    let Some(last) = names.next_back() else { return false };
    names.any(|dir| is_denied_dir(&dir)) || is_denied_dir(&last) || is_denied_name(&last)
}

/// `name` is in lower case.
fn is_denied_dir(name: &str) -> bool {
    DIRS.contains(&name)
}

fn is_denied_name(name: &str) -> bool {
    name.starts_with(".env")
        || NAMES.contains(&name)
        || SUFFIXES.iter().any(|suffix| name.ends_with(suffix))
        || is_identity(name)
}

/// `id_rsa`, `id_ed25519.pub`, `id_work.bak`; but not `id_map.rs`, which is a source file.
fn is_identity(name: &str) -> bool {
    let Some(rest) = name.strip_prefix("id_") else { return false };
    rest.rsplit_once('.').is_none_or(|(_, suffix)| !is_source(suffix))
}

fn is_source(suffix: &str) -> bool {
    const SOURCES: [&str; 25] = [
        "rs", "py", "pyi", "js", "jsx", "mjs", "cjs", "ts", "tsx", "go", "c", "h", "cc", "cpp",
        "hpp", "java", "rb", "cs", "sh", "swift", "php", "kt", "scala", "md", "sql",
    ];
    SOURCES.contains(&suffix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_denied_and_sources_are_not() {
        for path in [
            ".env",
            ".env.local",
            "a/.ENV",
            "prod.env",
            "a/server.pem",
            "tls.KEY",
            "x.p12",
            "x.pfx",
            "id_rsa",
            "a/id_ed25519.pub",
            "id_dsa.bak",
            ".ssh/config",
            "a/.aws/config",
            ".gnupg/pubring.kbx",
            "secrets/db.yml",
            "a/credentials/x.txt",
            "a/Secrets/y",
            ".netrc",
            "a/.npmrc",
            "credentials.json",
            "release.jks",
        ] {
            assert!(is_denied(Path::new(path)), "{path}");
        }
        for path in [
            "src/id_map.rs",
            "id_token.py",
            "environment.rs",
            "src/keys.rs",
            "monkey.py",
            "secrets.py",
            "a/secret.md",
            "idx.txt",
            "",
        ] {
            assert!(!is_denied(Path::new(path)), "{path}");
        }
    }
}
