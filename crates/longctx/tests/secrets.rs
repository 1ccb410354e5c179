//! Forty planted secrets and every way out of a root: none is ever returned.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::{fs, path::Path};
use taper_longctx::{Library, ReadRequest, RelatedRequest, SearchRequest, Settings};

/// A mark that no redaction can miss by luck: it is searched for, and looked for.
fn secret(n: usize) -> String {
    format!("Zq{n:02}kT7vXw3Lp9RbYs5Hd8Nf2JgMc4Qe6Va")
}

fn write(root: &Path, name: &str, text: &str) {
    let path = root.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// Plants secrets; the marker `okapi` stands beside each.
fn plant(root: &Path, outside: &Path) -> usize {
    let mut planted = 0;
    let mut put = |base: &Path, name: &str, text: &dyn Fn(&str) -> String| {
        write(base, name, &format!("okapi\n{}\nokapi\n", text(&secret(planted))));
        planted += 1;
    };
    let plain = |s: &str| s.to_owned();
    // Places and names.
    for name in [
        ".env",
        ".env.production",
        "deploy/.env.local",
        "prod.env",
        "tls/server.pem",
        "tls/server.key",
        "cert.p12",
        "cert.pfx",
        "id_rsa",
        "keys/id_ed25519",
        "id_ecdsa.pub",
        ".ssh/config",
        ".aws/credentials",
        ".gnupg/secring.txt",
        "secrets/db.yml",
        "app/secrets/token.txt",
        "credentials/google.json",
        ".netrc",
        ".npmrc",
        ".pypirc",
        "credentials.json",
        "release.jks",
    ] {
        put(root, name, &plain);
    }
    // Ignored files, from here and from above.
    for name in ["ignored/a.txt", "config/local.yml", "deep/er/hidden.log"] {
        put(root, name, &plain);
    }
    // In sources.
    let lines: [&dyn Fn(&str) -> String; 12] = [
        &|s| format!("password = \"{s}\""),
        &|s| format!("API_KEY={s}"),
        &|s| format!("\"client_secret\": \"{s}\","),
        &|s| format!("Authorization: Bearer {s}"),
        &|s| format!("db = \"postgres://joe:{s}@db.local/x\""),
        &|s| format!("x = \"ghp_{s}\""),
        &|s| format!("x = 'sk-{s}'"),
        &|s| format!("export AUTH_TOKEN='{s}'"),
        &|s| format!("-----BEGIN RSA PRIVATE KEY-----\n{s}\n-----END RSA PRIVATE KEY-----"),
        &|s| format!("let anything = \"{s}\";"),
        &|s| format!("xoxb-{s}"),
        &|s| format!("# glpat-{s}"),
    ];
    for (n, line) in lines.iter().enumerate() {
        put(root, &format!("src/okapi{n}.py"), *line);
    }
    // Outside of the root.
    for name in ["beside.txt", "dir/far.txt", "x.txt"] {
        put(outside, name, &plain);
    }
    planted
}

#[test]
fn none_of_forty_secrets_is_returned() {
    let top = tempfile::tempdir().unwrap();
    let top = top.path().canonicalize().unwrap();
    let (root, outside) = (top.join("project"), top.join("outside"));
    write(&top, ".gitignore", "project/config/local.yml\n");
    write(&root, ".gitignore", "ignored/\n*.log\n");
    let planted = plant(&root, &outside);
    assert_eq!(planted, 40);
    #[cfg(unix)]
    {
        use std::os::unix::fs::symlink;
        symlink(outside.join("beside.txt"), root.join("link.txt")).unwrap();
        symlink(outside.join("dir"), root.join("linked")).unwrap();
        symlink(&root, root.join("loop")).unwrap();
        symlink(root.join(".env"), root.join("innocent.txt")).unwrap();
    }
    let index = tempfile::tempdir().unwrap();
    let settings =
        Settings { index_dir: Some(index.path().to_owned()), watch: true, ..Settings::default() };
    let library = Library::open(&[&root], &settings).unwrap();
    let holds = |text: &str| (0..planted).find(|n| text.contains(&secret(*n)[4..]));

    let mut queries = vec!["okapi".to_owned(), "password token secret key credentials".to_owned()];
    queries.extend((0..planted).map(secret));
    queries.extend(
        [root.join(".env"), outside.join("x.txt"), root.join("../outside/x.txt")]
            .map(|p| p.to_string_lossy().into_owned()),
    );
    for query in &queries {
        let request = SearchRequest {
            max_results: 64,
            max_tokens: 1_000_000,
            ..SearchRequest::new(query.as_str())
        };
        let answer = library.search(&request).unwrap();
        let text = serde_json::to_string(&answer).unwrap();
        assert_eq!(holds(&text), None, "{query}: {text}");
    }
    // What is left of the sources is found.
    let found =
        library.search(&SearchRequest { max_results: 64, ..SearchRequest::new("okapi") }).unwrap();
    assert_eq!(found.chunks.len(), 12);

    let mut paths: Vec<String> = [
        ".env",
        "tls/server.pem",
        "id_rsa",
        "secrets/db.yml",
        "ignored/a.txt",
        "config/local.yml",
        "deep/er/hidden.log",
        "../outside/x.txt",
        "../project/.env",
        "./.env",
        "src/../.env",
        "link.txt",
        "linked/far.txt",
        "loop/src/okapi0.py",
        "loop/.env",
        "innocent.txt",
        "",
        ".",
        "..",
        "/",
        "/etc/passwd",
        "src",
        "src/okapi0.py/../../.env",
        "src//okapi0.py",
        "\0",
        "src\\..\\.env",
    ]
    .map(str::to_owned)
    .to_vec();
    paths.extend(
        [root.join(".env"), outside.join("x.txt")].map(|p| p.to_string_lossy().into_owned()),
    );
    for file_path in paths {
        let read = ReadRequest {
            file_path: file_path.clone(),
            project: None,
            start_line: 1,
            end_line: None,
            max_tokens: 9999,
        };
        assert!(library.read(&read).is_err(), "{file_path}");
        let related = RelatedRequest {
            file_path: file_path.clone(),
            project: None,
            line: None,
            max_results: 5,
        };
        assert!(library.related(&related).is_err(), "{file_path}");
    }
    for n in 0..12 {
        let file_path = format!("src/okapi{n}.py");
        let read = ReadRequest {
            file_path,
            project: None,
            start_line: 1,
            end_line: None,
            max_tokens: 9999,
        };
        let text = library.read(&read).unwrap().text;
        assert!(text.contains("okapi") && text.contains("[redacted]"), "{text}");
        assert_eq!(holds(&text), None, "{text}");
    }
    // The index holds no text, redacted or not.
    library.projects()[0].save();
    for file in fs::read_dir(index.path()).unwrap() {
        let bytes = fs::read(file.unwrap().path()).unwrap();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        assert_eq!(holds(&text), None);
    }
    let status = &library.status().projects[0];
    assert!(status.redacted >= 12 && status.skipped.denied >= 14, "{status:?}");

    // A file that becomes a link after it was indexed.
    #[cfg(unix)]
    {
        fs::remove_file(root.join("src/okapi0.py")).unwrap();
        std::os::unix::fs::symlink(outside.join("x.txt"), root.join("src/okapi0.py")).unwrap();
        let answer = library.search(&SearchRequest::new("okapi")).unwrap();
        assert!(answer.chunks.iter().all(|c| c.file_path != "src/okapi0.py"));
        let file_path = "src/okapi0.py".to_owned();
        let read = ReadRequest {
            file_path,
            project: None,
            start_line: 1,
            end_line: None,
            max_tokens: 9999,
        };
        assert!(library.read(&read).is_err());
    }
}
