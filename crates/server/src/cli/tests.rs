//! What the flags mean, and that `docs/cli.md` says it.

use super::*;
use clap::CommandFactory;
use taper_chat::ToolFormat;

const REFERENCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/cli.md");

/// `docs/cli.md`: the long help of every command.
fn reference() -> String {
    let mut cli = Cli::command().term_width(96);
    cli.build();
    let mut page = String::from(
        "# The command line\n\n\
         Made from the program's own help; do not edit. To make it again:\n\n\
         ```sh\ncargo test -p server -- --ignored rewrite_the_reference\n```\n",
    );
    let mut add = |name: &str, command: &mut clap::Command| {
        let help = command.render_long_help().to_string();
        let lines: Vec<_> = help.lines().map(str::trim_end).collect();
        page += &format!("\n## {name}\n\n```text\n{}\n```\n", lines.join("\n").trim_end());
    };
    add("taper", &mut cli.clone());
    for command in cli.get_subcommands_mut().filter(|c| c.get_name() != "help") {
        let name = format!("taper {}", command.get_name());
        add(&name, command);
    }
    page
}

#[test]
fn the_reference_is_current() {
    let committed = std::fs::read_to_string(REFERENCE).unwrap().replace("\r\n", "\n");
    let again = "run `cargo test -p server -- --ignored rewrite_the_reference`";
    assert!(committed == reference(), "docs/cli.md is not what the program says; {again}");
}

#[test]
#[ignore = "writes docs/cli.md"]
fn rewrite_the_reference() {
    std::fs::write(REFERENCE, reference()).unwrap();
}

#[test]
fn the_command_line_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn serve_is_the_default_and_takes_its_flags_without_being_named() {
    let bare = Cli::parse_from(["taper"]);
    assert!(bare.command.is_none());
    assert_eq!((bare.serve.port, bare.serve.model.name()), (8000, None));
    let flags = Cli::parse_from(["taper", "--port", "9000", "--enable-auto-tool-choice=false"]);
    assert_eq!(flags.serve.port, 9000);
    assert!(!flags.serve.enable_auto_tool_choice);
    let named = Cli::parse_from(["taper", "serve", "--api-key", "a,b", "--api-key", "c", "m"]);
    let Some(Command::Serve(args)) = named.command else { panic!("serve") };
    assert_eq!(args.model.name(), Some("m"));
    assert_eq!(args.callers.api_key, ["a", "b", "c"]);
}

fn serve_args(words: &[&str]) -> ServeArgs {
    let named = Cli::try_parse_from([&["taper", "serve"], words].concat()).unwrap();
    let Some(Command::Serve(args)) = named.command else { panic!("serve") };
    *args
}

#[test]
fn the_format_of_tool_calls_is_detected_or_named() {
    let template = "[TOOL_CALLS]";
    let format =
        |words: &[&str]| serve_args(words).tool_call_parser.format(template, "").to_string();
    assert_eq!(format(&[]), "mistral");
    assert_eq!(format(&["--tool-call-parser", "auto"]), "mistral");
    for name in ToolFormat::names() {
        assert_eq!(format(&["--tool-call-parser", name]), name);
    }
}

#[test]
fn no_flag_swallows_the_model() {
    let lists = ["--served-model-name", "a,b", "--served-model-name", "c", "./m"];
    let args = serve_args(&lists);
    assert_eq!(
        (args.model.name(), &args.served_model_name[..]),
        (Some("./m"), &["a", "b", "c"].map(String::from)[..])
    );
    let args = serve_args(&["--enable-auto-tool-choice", "./m"]);
    assert_eq!((args.model.name(), args.enable_auto_tool_choice), (Some("./m"), true));
}

#[test]
fn a_model_is_a_word_or_a_flag() {
    for words in [["serve", "m"].as_slice(), &["serve", "-m", "m"], &["--model", "m"]] {
        let cli = Cli::try_parse_from([&["taper"], words].concat()).unwrap();
        let args = match cli.command {
            Some(Command::Serve(args)) => *args,
            _ => cli.serve,
        };
        assert_eq!(args.model.name(), Some("m"), "{words:?}");
    }
    for command in ["chat", "inspect", "kv-report"] {
        for words in [["m"].as_slice(), &["-m", "m"], &["--model", "m"]] {
            let words = [&["taper", command], words].concat();
            assert!(Cli::try_parse_from(&words).is_ok(), "{words:?}");
        }
    }
    assert!(Cli::try_parse_from(["taper", "serve", "m", "-m", "n"]).is_err());
}

#[test]
fn commands_have_the_names_of_other_programs_too() {
    let command = |words: &[&str]| Cli::try_parse_from(words).unwrap().command;
    assert!(matches!(command(&["taper", "pull", "a/b"]), Some(Command::Download(_))));
    assert!(matches!(command(&["taper", "ls"]), Some(Command::List)));
}

#[test]
fn settings_that_make_no_sense_are_refused() {
    for words in [
        ["serve", "--max-body-mib", "0"].as_slice(),
        &["serve", "--max-body-mib", "17592186044416"],
        &["serve", "--served-model-name", ""],
        &["serve", "--served-model-name", "a,,b"],
        &["serve", "--threads", "3000"],
        &["inspect", "--context", "4k,0"],
        &["run", "x", "--seed", "-1"],
        &["run", "x", "--max-model-len", "0"],
        &["serve", "--max-num-seqs", "0"],
        &["serve", "--max-num-batched-tokens", "0"],
        &["kv-report", "--context", "0"],
        &["run", "x", "--model", ""],
        &["serve", ""],
        &["convert", "", "out"],
        &["run", "x", "--max-tokens", "-1"],
    ] {
        let error = Cli::try_parse_from([&["taper"], words].concat()).unwrap_err().to_string();
        assert!(error.contains("value"), "{words:?}: {error}");
    }
    let size = ["taper", "serve", "--kv-offloading-size", "5"];
    assert!(Cli::try_parse_from(size).unwrap_err().to_string().contains("--kv-offloading-dir"));
}

#[test]
fn counts_and_sizes_take_suffixes() {
    let args = serve_args(&[
        "--max-model-len=32k",
        "--max-num-batched-tokens=1K",
        "--kv-cache-memory-bytes=64MiB",
        "--kv-offloading-dir=kept",
        "--kv-offloading-size=512MiB",
        "--kv-sink-tokens=1K",
    ]);
    let engine = args.engine;
    assert_eq!((engine.max_model_len, engine.max_num_batched_tokens), (Some(32_000), Some(1024)));
    assert_eq!(engine.kv_cache_memory_bytes, Some(64 << 20));
    assert_eq!((engine.kv_offloading_size, engine.kv_sink_tokens), (0.5, 1024));
}
