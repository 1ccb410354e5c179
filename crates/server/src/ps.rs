//! `taper ps`: what a running server serves, and how busy it is.

use crate::output::Out;
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde::Deserialize;
use std::time::Duration;
use ureq::http::Uri;

/// A server that is alive responds to these routes at once.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug, Deserialize)]
struct Models {
    data: Vec<Model>,
}

#[derive(Debug, Deserialize)]
struct Model {
    id: String,
}

#[derive(Debug, Args)]
pub(crate) struct PsArgs {
    /// Address of the server.
    #[arg(long, default_value = "http://127.0.0.1:8000")]
    pub(crate) url: String,
    /// API key of the server.
    #[arg(long, value_name = "KEY")]
    pub(crate) api_key: Option<String>,
}

pub(crate) fn run(args: &PsArgs) -> Result<()> {
    let server = server(&args.url)?;
    let client = Client::new(args.api_key.as_deref());
    let models = client.models(server)?;
    let metrics = client.get(&format!("{server}/metrics"))?;
    let value = |name: &str| metric(&metrics, name);
    let used = 100.0 * value("vllm:kv_cache_usage_perc");
    writeln!(Out, "{:<40} {:>8} {:>8} {:>9}", "model", "running", "waiting", "KV cache")?;
    for id in models {
        writeln!(
            Out,
            "{id:<40} {:>8} {:>8} {used:>8.1}%",
            value("vllm:num_requests_running"),
            value("vllm:num_requests_waiting"),
        )?;
    }
    Ok(())
}

/// Names of the models that a server has.
pub(crate) fn models(server: &str, key: Option<&str>) -> Result<Vec<String>> {
    Client::new(key).models(server)
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

struct Client {
    agent: ureq::Agent,
    authorization: Option<String>,
}

impl Client {
    fn new(key: Option<&str>) -> Self {
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(PATIENCE))
            .http_status_as_error(false)
            // No environment variable changes what is asked.
            .proxy(None);
        let authorization = key.map(|key| format!("Bearer {key}"));
        Self { agent: config.build().into(), authorization }
    }

    fn models(&self, server: &str) -> Result<Vec<String>> {
        let models = self.get(&format!("{server}/v1/models"))?;
        let models: Models = serde_json::from_str(&models)
            .with_context(|| format!("{server} does not speak OpenAI's API"))?;
        Ok(models.data.into_iter().map(|model| model.id).collect())
    }

    fn get(&self, url: &str) -> Result<String> {
        let mut request = self.agent.get(url);
        if let Some(authorization) = &self.authorization {
            request = request.header("Authorization", authorization);
        }
        let mut answer = request.call().with_context(|| {
            format!("no server answers at {url}; start one with `taper serve`, or name another with --url")
        })?;
        match answer.status().as_u16() {
            200 => answer.body_mut().read_to_string().with_context(|| format!("reading {url}")),
            401 => bail!("{url} wants a key that it knows; give one with --api-key"),
            status => bail!("{url} answered with status {status}; is it Taper that serves there?"),
        }
    }
}

/// The sum of a metric over its labels.
fn metric(page: &str, name: &str) -> f64 {
    let values = page.lines().filter_map(|line| {
        let rest = line.strip_prefix(name)?;
        rest.starts_with(['{', ' ']).then(|| line.rsplit(' ').next()?.parse::<f64>().ok())?
    });
    values.sum()
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
    fn metrics_are_read_with_and_without_labels() {
        let page = "# HELP a:b x\na:b{model=\"x y\"} 2\na:b_total{model=\"x\"} 7\na:c 1.5\na:b 1\n";
        assert_eq!(
            (metric(page, "a:b"), metric(page, "a:c"), metric(page, "a:d")),
            (3.0, 1.5, 0.0)
        );
    }
}
