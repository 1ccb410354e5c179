//! `taper launch`: a coding agent with a running server as its model.

use crate::{
    client::{self, Client, ServerArgs},
    output::Out,
};
use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use serde_json::json;
use std::process::{Command, ExitStatus};

/// Which agent, and which server.
#[derive(Debug, Args)]
pub(crate) struct LaunchArgs {
    /// The agent. It must be installed.
    #[arg(value_enum)]
    tool: Tool,
    #[command(flatten)]
    server: ServerArgs,
    /// Name of the model [default: the first that the server has].
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Print the settings as shell commands, and start nothing.
    #[arg(long)]
    print: bool,
    /// Arguments of the agent, after --.
    #[arg(last = true)]
    args: Vec<String>,
}

/// A program that uses a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Tool {
    /// Claude Code, over the Messages API.
    Claude,
    /// OpenAI's Codex, over the Responses API.
    Codex,
    /// opencode, over chat completions.
    Opencode,
    /// aider, over chat completions.
    Aider,
}

/// How a program is started so that it uses a server.
#[derive(Debug, PartialEq, Eq)]
struct Settings {
    program: &'static str,
    env: Vec<(&'static str, String)>,
    args: Vec<String>,
}

/// Where the server is, and what it serves.
#[derive(Debug, Clone, Copy)]
struct Served<'a> {
    server: &'a str,
    key: &'a str,
    model: &'a str,
}

pub(crate) fn run(args: &LaunchArgs) -> Result<()> {
    let server = client::server(&args.server.url)?;
    let model = match &args.model {
        Some(model) => model.clone(),
        None => Client::of(&args.server)?
            .models()?
            .into_iter()
            .next()
            .map(|model| model.id)
            .with_context(|| format!("{server} serves no model"))?,
    };
    // Tools want a key where the server wants none.
    let key = args.server.api_key.as_deref().unwrap_or("none");
    let mut settings = args.tool.settings(Served { server, key, model: &model });
    settings.args.extend(args.args.iter().cloned());
    if args.print { settings.print() } else { settings.start() }
}

impl Tool {
    fn settings(self, Served { server, key, model }: Served<'_>) -> Settings {
        let (key, owned, v1) = (key.to_owned(), model.to_owned(), format!("{server}/v1"));
        match self {
            Self::Claude => Settings {
                program: "claude",
                env: vec![
                    ("ANTHROPIC_BASE_URL", server.to_owned()),
                    ("ANTHROPIC_AUTH_TOKEN", key),
                    ("ANTHROPIC_MODEL", owned.clone()),
                    ("ANTHROPIC_SMALL_FAST_MODEL", owned),
                ],
                args: Vec::new(),
            },
            Self::Codex => {
                // Values are TOML, of which a JSON string is one.
                let set = |(name, value): (&str, &str)| {
                    ["-c".to_owned(), format!("{name}={}", json!(value))]
                };
                let values = [
                    ("model", model),
                    ("model_provider", "taper"),
                    ("web_search", "disabled"),
                    ("model_providers.taper.name", "taper"),
                    ("model_providers.taper.base_url", &v1),
                    ("model_providers.taper.env_key", "TAPER_API_KEY"),
                    ("model_providers.taper.wire_api", "responses"),
                ];
                let args = values.into_iter().flat_map(set).collect();
                Settings { program: "codex", env: vec![("TAPER_API_KEY", key)], args }
            }
            Self::Opencode => {
                let config = json!({
                    "$schema": "https://opencode.ai/config.json",
                    "model": format!("taper/{model}"),
                    "provider": {"taper": {
                        "npm": "@ai-sdk/openai-compatible",
                        "name": "Taper",
                        "options": {"baseURL": v1, "apiKey": key},
                        "models": {model: {"name": model}},
                    }},
                });
                let env = vec![("OPENCODE_CONFIG_CONTENT", config.to_string())];
                Settings { program: "opencode", env, args: Vec::new() }
            }
            Self::Aider => Settings {
                program: "aider",
                env: vec![("OPENAI_API_BASE", v1), ("OPENAI_API_KEY", key)],
                args: vec!["--model".to_owned(), format!("openai/{model}")],
            },
        }
    }
}

impl Settings {
    /// As a shell reads it.
    fn print(&self) -> Result<()> {
        for (name, value) in &self.env {
            writeln!(Out, "export {name}={}", quoted(value))?;
        }
        let words = self.args.iter().map(|arg| quoted(arg));
        let words: Vec<_> = [self.program.to_owned()].into_iter().chain(words).collect();
        Ok(writeln!(Out, "{}", words.join(" "))?)
    }

    fn start(&self) -> Result<()> {
        let mut command = Command::new(self.program);
        command.args(&self.args).envs(self.env.iter().map(|(name, value)| (name, value)));
        let ended = ended(command).with_context(|| {
            format!(
                "{0} cannot be started; is it installed? `taper launch {0} --print` shows its settings",
                self.program
            )
        })?;
        match ended.success() {
            true => Ok(()),
            false => bail!("{} ended with {ended}", self.program),
        }
    }
}

/// Becomes the program, so that signals and its exit code are its own.
#[cfg(unix)]
fn ended(mut command: Command) -> std::io::Result<ExitStatus> {
    use std::os::unix::process::CommandExt as _;
    Err(command.exec())
}

#[cfg(not(unix))]
fn ended(mut command: Command) -> std::io::Result<ExitStatus> {
    command.status()
}

/// A word that a POSIX shell reads as it is.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@,".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVED: Served<'_> =
        Served { server: "http://127.0.0.1:8000", key: "k", model: "org/a \"model\"" };

    #[test]
    fn each_tool_learns_where_the_server_is_and_what_it_serves() {
        for tool in Tool::value_variants() {
            let settings = tool.settings(SERVED);
            let env = settings.env.iter().map(|(_, value)| value.clone());
            let said = env.chain(settings.args).collect::<Vec<_>>().join("\n");
            let named = said.contains("org/a \"model\"") || said.contains(r#"org/a \"model\""#);
            assert!(said.contains(SERVED.server) && named, "{tool:?}: {said}");
        }
    }

    #[test]
    fn opencode_gets_a_configuration() {
        let settings = Tool::Opencode.settings(SERVED);
        let config: serde_json::Value = serde_json::from_str(&settings.env[0].1).unwrap();
        assert_eq!(config["model"], r#"taper/org/a "model""#);
        let provider = &config["provider"]["taper"];
        assert_eq!(provider["options"]["baseURL"], "http://127.0.0.1:8000/v1");
        assert!(provider["models"].get(SERVED.model).is_some());
    }

    #[test]
    fn words_survive_a_shell() {
        assert_eq!(quoted("http://a:1/v1"), "http://a:1/v1");
        assert_eq!(quoted(""), "''");
        assert_eq!(quoted("it's $HOME"), r"'it'\''s $HOME'");
    }
}
