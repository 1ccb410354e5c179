//! What commands ask of a running server.

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde::Deserialize;
use serde_json::Value;
use std::time::Duration;
use ureq::{
    Body,
    http::{Response, Uri},
};

/// A server that is alive responds to these routes at once.
const PATIENCE: Duration = Duration::from_secs(10);

/// Where a server is, and the key that it wants.
#[derive(Debug, Args)]
pub(crate) struct ServerArgs {
    /// Address of the server.
    #[arg(long, default_value = "http://127.0.0.1:8000")]
    pub(crate) url: String,
    /// API key of the server.
    #[arg(long, value_name = "KEY", env = "TAPER_API_KEY", hide_env_values = true)]
    pub(crate) api_key: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Models {
    data: Vec<Served>,
}

/// A model of a server.
#[derive(Debug, Deserialize)]
pub(crate) struct Served {
    pub(crate) id: String,
    #[serde(default)]
    aliases: Vec<String>,
    /// In a server of several models.
    status: Option<Status>,
}

#[derive(Debug, Deserialize)]
struct Status {
    value: String,
}

impl Served {
    /// Whether it is in memory. A server of one model has it there always.
    pub(crate) fn is_loaded(&self) -> bool {
        self.status.as_ref().is_none_or(|status| status.value != "unloaded")
    }

    /// Whether its server has others too, and unloads it when it is asked to.
    pub(crate) fn can_go(&self) -> bool {
        self.status.is_some()
    }

    pub(crate) fn is(&self, name: &str) -> bool {
        self.id == name || self.aliases.iter().any(|alias| alias == name)
    }
}

/// The address of a server, without the path of its API.
pub(crate) fn server(url: &str) -> Result<&str> {
    let is_address = url.parse::<Uri>().is_ok_and(|uri| {
        matches!(uri.scheme_str(), Some("http" | "https"))
            && uri.host().is_some_and(|h| !h.is_empty())
    });
    ensure!(
        is_address,
        "--url {url:?} is not the address of a server; write it as http://127.0.0.1:8000"
    );
    Ok(url.trim_end_matches('/').trim_end_matches("/v1"))
}

/// Why a server did not do what it was asked to.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClientError {
    #[error("no server answers at {url}; start one with `taper serve`, or name another with --url")]
    Silent { url: String, source: Box<ureq::Error> },
    #[error("{url} wants a key that it knows; give one with --api-key")]
    Key { url: String },
    #[error("{url} answered with status {status}; is it Taper that serves there?")]
    Status { url: String, status: u16 },
    /// In the words of the server.
    #[error("{message}")]
    Refused { code: String, message: String },
}

/// A client of one server.
pub(crate) struct Client<'a> {
    agent: ureq::Agent,
    server: &'a str,
    authorization: Option<String>,
}

impl<'a> Client<'a> {
    pub(crate) fn of(args: &'a ServerArgs) -> Result<Self> {
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(PATIENCE))
            .http_status_as_error(false)
            // No environment variable changes what is asked.
            .proxy(None);
        let authorization = args.api_key.as_ref().map(|key| format!("Bearer {key}"));
        Ok(Self { agent: config.build().into(), server: server(&args.url)?, authorization })
    }

    /// The models that the server has.
    pub(crate) fn models(&self) -> Result<Vec<Served>> {
        let models = self.get("/v1/models")?;
        let models: Models = serde_json::from_str(&models)
            .with_context(|| format!("{} does not speak OpenAI's API", self.server))?;
        Ok(models.data)
    }

    pub(crate) fn get(&self, path: &str) -> Result<String> {
        let url = format!("{}{path}", self.server);
        let mut request = self.agent.get(&url);
        if let Some(authorization) = &self.authorization {
            request = request.header("Authorization", authorization);
        }
        read(request.call(), url)
    }

    /// Asks for something that may take as long as requests run.
    pub(crate) fn post(&self, path: &str, body: &Value) -> Result<String> {
        let url = format!("{}{path}", self.server);
        let request = self.agent.post(&url).config();
        let request = request.timeout_global(None).timeout_connect(Some(PATIENCE)).build();
        let mut request = request.header("Content-Type", "application/json");
        if let Some(authorization) = &self.authorization {
            request = request.header("Authorization", authorization);
        }
        read(request.send(body.to_string()), url)
    }
}

fn read(answer: Result<Response<Body>, ureq::Error>, url: String) -> Result<String> {
    let mut answer = match answer {
        Ok(answer) => answer,
        Err(source) => bail!(ClientError::Silent { url, source: Box::new(source) }),
    };
    let status = answer.status().as_u16();
    let text = answer.body_mut().read_to_string();
    if status == 200 {
        return text.with_context(|| format!("reading {url}"));
    }
    let said: Value =
        text.ok().and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
    let word = |field: &str| said.pointer(field).and_then(Value::as_str).map(str::to_owned);
    bail!(match (status, word("/error/message"), word("/error/code")) {
        (401, ..) => ClientError::Key { url },
        (_, Some(message), code) => {
            ClientError::Refused { code: code.unwrap_or_default(), message }
        }
        _ => ClientError::Status { url, status },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_a_scheme_and_a_host() {
        for url in ["http://a:1", "http://a:1/", "http://a:1/v1", "http://a:1/v1/"] {
            assert_eq!(server(url).unwrap(), "http://a:1");
        }
        assert_eq!(server("https://a").unwrap(), "https://a");
        for url in
            ["", "foo", "foo:99", "127.0.0.1:8000", "http://", "http://a b", "ftp://a", "/v1"]
        {
            let error = server(url).unwrap_err().to_string();
            assert!(error.contains("write it as http://127.0.0.1:8000"), "{url}: {error}");
        }
    }

    #[test]
    fn a_server_of_one_model_has_it_loaded() {
        let served = |text: &str| serde_json::from_str::<Served>(text).unwrap();
        let one = served(r#"{"id": "a"}"#);
        assert!(one.is_loaded() && !one.can_go() && one.is("a") && !one.is("b"));
        let text = r#"{"id": "a", "aliases": ["b"], "status": {"value": "unloaded"}}"#;
        let several = served(text);
        assert!(!several.is_loaded() && several.can_go() && several.is("b"));
    }
}
