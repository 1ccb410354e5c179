//! Configuration of the server.

use crate::{
    access::{AllowedHosts, AllowedOrigins},
    context::ContextSource,
    images::{ImageLimits, Vision},
    keys::ApiKeys,
    tls::Tls,
};
use axum::Router;
use serde_json::{Map, Value};
use std::{sync::Arc, time::Duration};
use taper_base::SamplingParams;
use taper_chat::{ReasoningFormat, ToolFormat};

/// Everything but the engine and the tokenizer.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Names that requests may use; the first stands in responses to requests that name none, and
    /// in the metrics.
    pub served_model_names: Vec<String>,
    /// The model's architecture, as `qwen3`; empty where nobody says it.
    pub architecture: String,
    /// Its parameters; 0 where nobody says it.
    pub parameters: u64,
    /// Whether its weights come from a GGUF file.
    pub gguf: bool,
    /// Whether its weights are on a GPU.
    pub on_gpu: bool,
    /// A request to a protected route needs one of these. [`route_table`](crate::route_table) says
    /// which routes are protected. With no keys, everything is open.
    pub api_keys: ApiKeys,
    /// Web pages of other origins are refused with 403.
    pub allowed_origins: AllowedOrigins,
    /// Requests by other names are refused with 403.
    pub allowed_hosts: AllowedHosts,
    /// Longer bodies get 413; compressed ones count as what comes out.
    pub max_body_bytes: usize,
    /// Longest file of sound, in bytes.
    pub max_audio_bytes: usize,
    /// Files that wait while another is transcribed.
    pub max_waiting_audio: u32,
    /// How long the head of a request may take to come, and how long a connection may stay idle.
    pub header_timeout: Duration,
    /// How long a body may take to come; every 64 KiB of it add a second.
    pub body_timeout: Duration,
    /// How long a client may read nothing while there is something to read.
    pub write_timeout: Duration,
    /// How long a generation may take, from when it is queued; `None` sets no limit.
    pub request_timeout: Option<Duration>,
    /// A model step that takes longer is taken for hung: `/health` says so. `None` trusts every step.
    pub step_timeout: Option<Duration>,
    /// What encrypts connections, if anything does.
    pub tls: Option<Tls>,
    /// Take fields that the API does not have. Fields that it has and this server does not honour
    /// are refused all the same.
    pub allow_unknown_fields: bool,
    /// Let the model decide to call tools. Off, requests with tools need `tool_choice: "none"`.
    pub enable_auto_tool_choice: bool,
    /// How the model writes tool calls.
    pub tool_format: ToolFormat,
    /// Recover calls that the model writes in another format.
    pub tool_call_recovery: bool,
    /// How the model marks its reasoning.
    pub reasoning_format: ReasoningFormat,
    /// What requests leave out; from the model's `generation_config.json`. Its `seed` is unused.
    pub default_sampling: SamplingParams,
    /// Template variables that requests can override.
    pub default_chat_template_kwargs: Map<String, Value>,
    /// A comment goes down a silent stream this often, so that nothing between closes it.
    pub keep_alive: Duration,
    /// Most choices of one request: `n`, times the prompts.
    pub max_choices: u32,
    /// Responses of `/v1/responses` that are kept for later requests; 0 keeps none.
    pub max_stored_responses: usize,
    /// Bytes that they may take in all.
    pub max_stored_bytes: usize,
    /// Adapters that may be loaded at a time, for the metrics.
    pub max_adapters: usize,
    /// Callers may load and unload adapters.
    pub allow_adapter_updates: bool,
    /// What puts texts behind a conversation, if anything does.
    pub context: Option<Arc<dyn ContextSource>>,
    /// What sees images, of a model that takes any.
    pub vision: Option<Vision>,
    /// Which images requests may have.
    pub images: ImageLimits,
    /// Services of others beside this API.
    pub mounts: Vec<Mount>,
    /// Public pages, such as those of a web app: they need no API key, and links from anywhere may
    /// open them. None of them may be a path of [`route_table`](crate::route_table).
    pub pages: Router,
}

/// A service at a path, behind the same API keys, hosts and origins.
#[derive(Debug, Clone)]
pub struct Mount {
    /// Where it is, such as `/mcp`.
    pub path: String,
    /// What answers there.
    pub service: Router,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            served_model_names: vec!["taper".to_owned()],
            architecture: String::new(),
            parameters: 0,
            gguf: false,
            on_gpu: false,
            api_keys: ApiKeys::default(),
            allowed_origins: AllowedOrigins::default(),
            allowed_hosts: AllowedHosts::default(),
            max_body_bytes: 16 << 20,
            max_audio_bytes: 25 << 20,
            max_waiting_audio: 64,
            header_timeout: Duration::from_secs(30),
            body_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_secs(60),
            request_timeout: None,
            step_timeout: None,
            tls: None,
            allow_unknown_fields: false,
            enable_auto_tool_choice: true,
            tool_format: ToolFormat::NONE,
            tool_call_recovery: true,
            reasoning_format: ReasoningFormat::NONE,
            default_sampling: SamplingParams::default(),
            default_chat_template_kwargs: Map::new(),
            keep_alive: Duration::from_secs(15),
            max_choices: 128,
            max_stored_responses: 1000,
            max_stored_bytes: 64 << 20,
            max_adapters: 0,
            allow_adapter_updates: false,
            context: None,
            vision: None,
            images: ImageLimits::default(),
            mounts: Vec::new(),
            pages: Router::new(),
        }
    }
}

impl ServerConfig {
    /// The name that stands for the model when a request names none.
    #[must_use]
    pub fn model_name(&self) -> &str {
        self.served_model_names.first().map_or("taper", String::as_str)
    }
}

/// Why a server cannot start with its configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A key is empty or blank.
    #[error("API key {number} is empty")]
    EmptyApiKey {
        /// Its index in the list, from 1.
        number: usize,
    },
    /// A key cannot be sent.
    #[error("API key {number} has a character that is not printable ASCII, or a blank")]
    ApiKeyCharacters {
        /// Its index in the list, from 1.
        number: usize,
    },
    /// No scope has this name.
    #[error("'{name}' is not a scope; scopes are inference, metrics and admin")]
    Scope {
        /// What was given.
        name: String,
    },
    /// An allowed origin is none.
    #[error("'{origin}' is not an origin; origins are like https://example.com:8443")]
    Origin {
        /// What was given.
        origin: String,
    },
    /// An allowed host is none.
    #[error("'{host}' is not a host name")]
    Host {
        /// What was given.
        host: String,
    },
}
