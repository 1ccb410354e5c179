//! One request as a user sends it: a stream of `/v1/completions` of any server with OpenAI's API.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::{
    io::{BufRead, BufReader},
    time::{Duration, Instant},
};
use ureq::Agent;

/// A server and how to speak to it.
#[derive(Debug, Clone)]
pub(super) struct Client {
    agent: Agent,
    /// Up to and with `/v1`.
    url: String,
    key: Option<String>,
    model: String,
}

/// When the tokens of one request came.
#[derive(Debug, Clone)]
pub(super) struct Timing {
    pub(super) sent: Instant,
    /// Times of events with output, since the request was sent.
    pub(super) events: Vec<Duration>,
    /// Tokens of the output, as the server counts them.
    pub(super) tokens: u64,
    /// Tokens of the prompt, as the server counts them.
    pub(super) prompt: u64,
    pub(super) took: Duration,
}

impl Client {
    /// Asks the server which model it has, unless `model` names one.
    ///
    /// # Errors
    /// The server can't be reached, or lists no model.
    pub(super) fn new(url: &str, key: Option<&str>, model: Option<&str>) -> Result<Self> {
        let base = url.trim_end_matches('/');
        let url = if base.ends_with("/v1") { base.to_owned() } else { format!("{base}/v1") };
        let config = Agent::config_builder().http_status_as_error(false).build();
        let mut client =
            Self { agent: config.into(), url, key: key.map(str::to_owned), model: String::new() };
        client.model = match model {
            Some(name) => name.to_owned(),
            None => client.first_model()?,
        };
        Ok(client)
    }

    fn first_model(&self) -> Result<String> {
        let mut request = self.agent.get(format!("{}/models", self.url));
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let mut response = request.call().with_context(|| format!("asking {}", self.url))?;
        let text = response.body_mut().read_to_string()?;
        ensure!(response.status().is_success(), "{} says {text}", self.url);
        let models: Value = serde_json::from_str(&text)?;
        let name = models["data"][0]["id"].as_str();
        Ok(name.with_context(|| format!("{} lists no model", self.url))?.to_owned())
    }

    /// Sends a prompt and reads `tokens` tokens of output.
    ///
    /// # Errors
    /// The server refuses, ends early or counts other tokens.
    pub(super) fn complete(&self, prompt: &[u32], tokens: u32) -> Result<Timing> {
        let body = json!({ "model": self.model, "prompt": prompt, "max_tokens": tokens,
            "temperature": 0, "ignore_eos": true, "stream": true,
            "stream_options": { "include_usage": true } });
        let mut request = self.agent.post(format!("{}/completions", self.url));
        request = request.header("content-type", "application/json");
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let sent = Instant::now();
        let mut response = request.send(body.to_string())?;
        if !response.status().is_success() {
            let text = response.body_mut().read_to_string().unwrap_or_default();
            anyhow::bail!("{}: {text}", response.status());
        }
        let mut timing = Timing {
            sent,
            events: Vec::new(),
            tokens: 0,
            prompt: prompt.len() as u64,
            took: Duration::ZERO,
        };
        for line in BufReader::new(response.into_body().into_reader()).lines() {
            let line = line?;
            let Some(data) = line.strip_prefix("data: ") else { continue };
            if data == "[DONE]" {
                break;
            }
            timing.read(&serde_json::from_str(data)?);
        }
        timing.took = sent.elapsed();
        ensure!(!timing.events.is_empty(), "no output came");
        if timing.tokens == 0 {
            // A server without usage in streams sends an event a token.
            timing.tokens = timing.events.len() as u64;
        }
        Ok(timing)
    }
}

impl Timing {
    fn read(&mut self, event: &Value) {
        if event["choices"].get(0).is_some_and(|choice| choice["text"].is_string()) {
            self.events.push(self.sent.elapsed());
        }
        let usage = &event["usage"];
        if let Some(tokens) = usage["completion_tokens"].as_u64() {
            self.tokens = tokens;
        }
        if let Some(prompt) = usage["prompt_tokens"].as_u64() {
            self.prompt = prompt;
        }
    }

    /// Time to the first output.
    pub(super) fn first(&self) -> Duration {
        self.events.first().copied().unwrap_or(self.took)
    }

    /// Times between one output and the next.
    pub(super) fn gaps(&self) -> impl Iterator<Item = Duration> + '_ {
        self.events.windows(2).map(|pair| pair[1] - pair[0])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_and_usage_are_read() {
        let mut timing = Timing {
            sent: Instant::now(),
            events: Vec::new(),
            tokens: 0,
            prompt: 3,
            took: Duration::ZERO,
        };
        timing.read(&json!({ "choices": [{ "text": "a" }] }));
        timing.read(&json!({ "choices": [{ "text": "" }] }));
        timing.read(
            &json!({ "choices": [], "usage": { "completion_tokens": 5, "prompt_tokens": 4 } }),
        );
        assert_eq!((timing.events.len(), timing.tokens, timing.prompt), (2, 5, 4));
        assert_eq!(timing.gaps().count(), 1);
    }
}
