//! What a file of flags does to a command line, and how its mistakes are said.

use super::*;
use clap::Parser;

fn file(text: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), text).unwrap();
    file
}

/// A command line as it is read with a file.
fn with(text: &str, words: &[&str]) -> Vec<String> {
    let file = file(text);
    let path = file.path().to_str().unwrap();
    let arguments = words.iter().chain(&["--config", path]).map(OsString::from).collect();
    let all = merged(arguments).unwrap().arguments;
    all.into_iter().map(|word| word.into_string().unwrap()).filter(|word| word != path).collect()
}

fn refused(text: &str) -> String {
    let error = ConfigFile::parse("the/file.toml".into(), text).unwrap_err().to_string();
    assert!(error.starts_with("the/file.toml: "), "{error}");
    error
}

#[test]
fn entries_stand_before_the_users_own_flags() {
    let text = "port = 9000\nmax-model-len = \"8k\"\nno-ui = true\nallow-unknown-fields = false";
    let flags = ["--max-model-len=8k", "--no-ui", "--port=9000"];
    let own = ["m", "--threads", "1"];
    for start in [&["taper"][..], &["taper", "serve"]] {
        let words = with(text, &[start, &own].concat());
        assert_eq!(words, [start, &flags, &own, &["--config"]].concat());
    }
    // `run` has some of them, and others none.
    assert_eq!(
        with(text, &["taper", "run", "x"]),
        ["taper", "run", "--max-model-len=8k", "x", "--config"]
    );
    let arguments = ["taper", "ps"].map(OsString::from).to_vec();
    assert_eq!(merged(arguments.clone()).unwrap().arguments, arguments);
}

#[test]
fn the_command_line_wins() {
    let text = "port = 9000\nmodel = \"a\"\nenable-prefix-caching = false";
    let all = |words: &[&str]| {
        let cli = Cli::try_parse_from(with(text, words).iter().filter(|w| *w != "--config"));
        let cli = cli.unwrap();
        let engine = cli.serve.engine;
        (cli.serve.port, cli.serve.model.name().unwrap().to_owned(), engine.prefix_caching())
    };
    assert_eq!(all(&["taper"]), (9000, "a".to_owned(), false));
    assert_eq!(all(&["taper", "--port", "1", "b"]), (1, "b".to_owned(), false));
    assert_eq!(all(&["taper", "-m", "c", "--port=2"]), (2, "c".to_owned(), false));
    assert!(!with(text, &["taper", "--port", "1"]).contains(&"--port=9000".to_owned()));
    // A flag that cannot stand beside one of the file replaces it.
    let evict = "kv-evict-warmup = 4096\nkv-evict = \"triattention\"";
    let stats = ["taper", "serve", "--kv-evict-stats", "x"];
    assert!(!with(evict, &stats).iter().any(|word| word.contains("warmup")));
}

#[test]
fn lists_tables_and_switches_have_their_form() {
    let text = "served-model-name = [\"a\", \"b\"]\nenable-auto-tool-choice = false\n\
                keep-alive = -1\ndefault-chat-template-kwargs = { enable_thinking = false }\n\
                models-dir = \"models\"\n";
    assert_eq!(
        with(text, &["taper", "serve"])[2..7],
        [
            "--default-chat-template-kwargs={\"enable_thinking\":false}",
            "--enable-auto-tool-choice=false",
            "--keep-alive=-1",
            "--models-dir=models",
            "--served-model-name=a",
        ]
    );
}

#[test]
fn mistakes_name_the_file_and_the_key() {
    let near = refused("max_model_len = 1");
    assert!(near.contains("\"max_model_len\"") && near.contains("mean max-model-len"), "{near}");
    assert!(refused("[serve]\nport = 1").contains("\"serve\" is no flag"));
    assert!(refused("config = \"x\"").contains("\"config\" is no flag"));
    assert!(refused("port = 99999").contains("port = 99999: 99999 is not in 0..=65535"));
    assert!(refused("device = \"tpu\"").contains("must be one of cpu, cuda, metal"));
    assert!(refused("port = [1, 2]").contains("one value"));
    assert!(refused("no-ui = 1").contains("true or false"));
    assert!(refused("port = 1979-05-27").contains("must be text"));
    assert!(refused("# x\nport = ").contains("line 2: "));
    assert!(refused("port = 1\nport = 2").contains("line 2: "));
    let secret = refused("api-key = [[\"secret\"]]");
    assert!(secret.contains("api-key") && !secret.contains("secret"), "{secret}");
}

#[test]
fn a_file_that_is_named_must_be_there() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("none.toml");
    let error = ConfigFile::find(Some(&path)).unwrap_err().to_string();
    assert!(error.contains("none.toml") && error.contains("taper config init"), "{error}");
}
