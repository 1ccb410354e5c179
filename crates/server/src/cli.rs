//! The command line.

use crate::{
    client::ServerArgs,
    config::ConfigArgs,
    config_file::ConfigArg,
    convert_args::ConvertArgs,
    download::DownloadArgs,
    eviction_args::{CalibrateArgs, EvictionArgs},
    expert_args::ExpertArgs,
    image_args::ImageArgs,
    kv_args::KvArgs,
    kv_report::KvReportArgs,
    launch::LaunchArgs,
    longctx_args::{CallerArgs, LongctxCommand, RescueArgs},
    lora_args::LoraArgs,
    model::NoGpu,
    models_args::ModelsArgs,
    parser_args::{ToolParser, reasoning_parsers},
    rm::RmArgs,
    search::SearchArgs,
    serving_args::ServingArgs,
    show::ShowArgs,
    sizes,
    speculation_args::SpeculationArgs,
    stop::StopArgs,
    transcribe_args::{SpeechArgs, TranscribeArgs},
};
use clap::{Args, Parser, Subcommand, builder::NonEmptyStringValueParser};
use clap_complete::Shell;
use serde_json::{Map, Value as Json};
use std::{path::PathBuf, time::Duration};
use taper::{
    ChatTemplateFrom, Exact, KvIdle, Options, Precision,
    gpu::{self, Gpu},
};
use taper_chat::ReasoningFormat;

const EXAMPLES: &str = "\
Examples:
  taper                                        serve the built-in demo model on 127.0.0.1:8000
  taper serve ./Qwen3-0.6B-4bit --port 9000    serve a model directory
  taper run \"Hello\"                            one reply on standard output
  taper run \"What is this?\" --image cat.png --model ./Qwen3-VL-2B-Instruct
  taper chat --model ./Qwen3-0.6B-4bit         chat in the terminal
  taper inspect ./Qwen3-0.6B-4bit              show a model and its memory needs
  taper kv-report ./Qwen3-0.6B-4bit            find a safe KV codec for a model
  taper download mlx-community/Qwen3-0.6B-4bit fetch a model from the Hugging Face hub
  taper convert ./Qwen3-0.6B ./out --bits 4    quantize a model
  taper convert model.gguf ./out               convert a GGUF file for mlx-lm
  taper search qwen3 4bit                      find models on the Hugging Face hub
  taper ps                                     show what a server on this machine does
  taper longctx search \"parse headers\" ./src    find code by words

Models are directories in Hugging Face or MLX layout (config.json, *.safetensors, tokenizer.json),
or GGUF files.

Numbers of tokens may end in k or m (4k is 4000) or in K or M (4K is 4096). Sizes may also end in
KB, MB, GB (decimal) or KiB, MiB, GiB (binary).";

/// More is a mistake: threads that have no core wait for each other in every product.
const MOST_THREADS: i64 = 1024;

/// Serves language models over the OpenAI API, from one binary.
#[derive(Debug, Parser)]
#[command(name = "taper", version, after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    #[command(flatten)]
    pub(crate) serve: ServeArgs,
}

impl Cli {
    /// How a model is run, by commands that run one.
    pub(crate) fn engine(&self) -> Option<&EngineArgs> {
        match &self.command {
            None => Some(&self.serve.engine),
            Some(Command::Serve(args)) => Some(&args.engine),
            Some(Command::Run(args)) => Some(&args.answer.engine),
            Some(Command::Chat(args)) => Some(&args.answer.engine),
            Some(_) => None,
        }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve a model over an OpenAI-compatible HTTP API.
    Serve(Box<ServeArgs>),
    /// Generate one reply to a prompt and print it.
    Run(RunArgs),
    /// Chat with a model in the terminal.
    Chat(ChatArgs),
    /// Write down what is said in a sound file.
    Transcribe(TranscribeArgs),
    /// Show a model's architecture, weight formats and memory needs.
    Inspect(InspectArgs),
    /// Measure the quality loss of each KV-cache codec on a model, and recommend one.
    ///
    /// Runs one text with each codec and compares the next-token distributions with those of an f16
    /// cache. Use it to choose --kv-cache-dtype. It cannot show losses that appear only in contexts
    /// longer than its text.
    KvReport(KvReportArgs),
    /// Write statistics of a model's queries to a file, for --kv-evict triattention.
    ///
    /// Runs the model over a text. With such a file a server starts without doing so.
    Calibrate(CalibrateArgs),
    /// Download a model from the Hugging Face hub; resumes interrupted downloads.
    #[command(visible_alias = "pull")]
    Download(DownloadArgs),
    /// List downloaded models.
    #[command(visible_alias = "ls")]
    List,
    /// Search the Hugging Face hub for models of architectures that Taper serves.
    Search(SearchArgs),
    /// Show what a model is: architecture, parameters, context, quantization, capabilities.
    Show(ShowArgs),
    /// Delete downloaded models.
    Rm(RmArgs),
    /// Have a running server unload a model.
    Stop(StopArgs),
    /// Show what a running server serves and how busy it is.
    Ps(ServerArgs),
    /// Show the file that flags are read from and what is in force, or write an example.
    Config(ConfigArgs),
    /// Check every GPU kernel of this machine against the CPU.
    Doctor(DoctorArgs),
    /// Quantize a model, or convert a GGUF file, to an MLX checkpoint, which mlx-lm can load too.
    Convert(ConvertArgs),
    /// Search source trees, and serve searches to models over HTTP and MCP.
    #[command(subcommand)]
    Longctx(LongctxCommand),
    /// Start a coding agent with a running server as its model.
    Launch(LaunchArgs),
    /// Print a shell's completions of commands and flags.
    ///
    /// For example: taper completions bash > ~/.local/share/bash-completion/completions/taper
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Write manual pages, one for each command, into a directory.
    Man {
        /// Directory; it is made if it is not there.
        dir: PathBuf,
    },
}

/// A model, as an argument or as a flag.
#[derive(Debug, Clone, Args)]
pub(crate) struct ModelArg {
    /// Model directory, GGUF file or downloaded Hugging Face id [default: the built-in demo model].
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    model: Option<String>,
    /// The model, as a flag instead of an argument.
    #[arg(long = "model", short, value_name = "MODEL", conflicts_with = "model", value_parser = NonEmptyStringValueParser::new())]
    model_flag: Option<String>,
}

impl ModelArg {
    pub(crate) fn name(&self) -> Option<&str> {
        self.model.as_deref().or(self.model_flag.as_deref())
    }
}

/// How a model is run.
#[derive(Debug, Clone, Args)]
pub(crate) struct EngineArgs {
    #[command(flatten)]
    pub(crate) file: ConfigArg,
    /// Maximum length of a sequence: prompt and output together, such as 32k [default: the model's
    /// own limit, or less if memory is short].
    #[arg(long, value_name = "TOKENS", value_parser = sizes::some_tokens::<u32>)]
    pub(crate) max_model_len: Option<u32>,
    /// Device to run on; cuda needs a build with that feature, metal is in every build for macOS.
    #[arg(long, default_value = "cpu", value_parser = ["cpu", "cuda", "metal"])]
    pub(crate) device: String,
    /// Precompiled Metal kernels from `cargo xtask metallib`, for --device metal.
    #[arg(long, value_name = "FILE")]
    pub(crate) metallib: Option<PathBuf>,
    /// Precision of activations in products with quantized weights.
    ///
    /// auto: prefill uses bf16 where the processor is fast at it (AMX, or AVX-512 BF16 on AMD),
    /// otherwise 16 bits; decode uses 16 bits with --max-num-seqs 1, otherwise 8.
    ///
    /// int8: 8 bits everywhere. Faster prefill on processors without AMX.
    ///
    /// float16: 16 bits everywhere. Long prompts and large batches run at down to half the speed.
    ///
    /// float32: exact and slow. Weights are read from the model's files while it runs; changing or
    /// truncating them meanwhile ends the process with SIGBUS.
    #[arg(long, default_value = "auto", value_parser = Precision::DTYPES)]
    pub(crate) dtype: String,
    #[command(flatten)]
    pub(crate) experts: ExpertArgs,
    #[command(flatten)]
    pub(crate) kv: KvArgs,
    #[command(flatten)]
    pub(crate) eviction: EvictionArgs,
    /// First tokens of each sequence that a compressed KV cache keeps in f16.
    #[arg(long, default_value_t = Exact::DEFAULT.sink_tokens, value_name = "TOKENS", value_parser = sizes::tokens::<usize>)]
    pub(crate) kv_sink_tokens: usize,
    /// Recent tokens of each sequence that a compressed KV cache keeps in f16.
    ///
    /// The window starts at the last multiple of this number. With 0 here and 0 sink tokens, every
    /// token is read from the compressed cache.
    #[arg(long, default_value_t = Exact::DEFAULT.recent_tokens, value_name = "TOKENS", value_parser = sizes::tokens::<usize>)]
    pub(crate) kv_recent_tokens: usize,
    /// Pages of 64 tokens that each new token attends to, beside the first page and 256 recent tokens.
    ///
    /// Prompts are computed over all pages, and all pages are kept; the pages of the highest scores are
    /// chosen anew every 8 tokens. 0 attends to all pages. A request's field `kv_recall_pages` overrides
    /// it. On the CPU only; see docs/recall.md.
    #[arg(long, default_value_t = 0, value_name = "PAGES")]
    pub(crate) kv_recall_pages: u32,
    /// Tokens of the KV cache that stay in memory beside those that a step reads.
    ///
    /// Pages beyond them lie on disk alone, the longest unused first, and are read when they are needed. With
    /// --kv-recall-pages and --kv-offloading-dir; see docs/recall.md. The output is the same for any number. By default
    /// every page stays in memory.
    #[arg(long, value_name = "TOKENS", value_parser = sizes::tokens::<usize>)]
    pub(crate) kv_hot_tokens: Option<usize>,
    /// Reuse the KV cache of shared prompt prefixes. This is the default.
    #[arg(long, overrides_with = "no_enable_prefix_caching")]
    pub(crate) enable_prefix_caching: bool,
    /// Disable prefix caching: compute every prompt from its first token.
    #[arg(long)]
    pub(crate) no_enable_prefix_caching: bool,
    /// Keep the prefix cache in this directory too, so that it survives restarts.
    ///
    /// Several servers and models may share one directory: an entry is used only by a model with the same weights,
    /// arithmetic and KV cache. To check this, all weights are read at startup. A server with --kv-hot-tokens needs a
    /// directory of its own. Keep the directory private: prompts can be recovered from it.
    #[arg(long, value_name = "DIR")]
    pub(crate) kv_offloading_dir: Option<PathBuf>,
    /// Maximum size of --kv-offloading-dir in GiB, or with a unit, such as 500MiB; the least
    /// recently used files are deleted first.
    #[arg(long, default_value_t = 10.0, value_name = "GIB", value_parser = sizes::gib, requires = "kv_offloading_dir")]
    pub(crate) kv_offloading_size: f64,
    /// Fraction of the free memory that weights and KV cache may use.
    #[arg(long, default_value_t = 0.6, value_name = "FRACTION")]
    pub(crate) gpu_memory_utilization: f64,
    /// Size of the KV cache, such as 4GiB; replaces --gpu-memory-utilization.
    ///
    /// With --kv-hot-tokens it counts pages on disk too, and --gpu-memory-utilization limits what is in memory.
    #[arg(long, value_name = "BYTES", value_parser = sizes::bytes)]
    pub(crate) kv_cache_memory_bytes: Option<u64>,
    /// Seconds without a request after which KV-cache memory is returned to the system; 0 keeps it.
    ///
    /// Only unused prefixes are evicted, the least recently used first.
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    pub(crate) kv_idle_seconds: u64,
    /// Bytes of prefixes to keep in memory after --kv-idle-seconds, such as 1GiB [default: a
    /// quarter of the weights' size].
    #[arg(long, value_name = "BYTES", value_parser = sizes::bytes)]
    pub(crate) kv_idle_memory_bytes: Option<u64>,
    /// Maximum number of sequences in a batch [default: 256 for a server, 1 for run and chat].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_num_seqs: Option<u32>,
    /// Maximum number of tokens in a step; longer prompts are prefilled in chunks of this size [default: 512 on
    /// a CPU, 2048 with --stream-experts; on a GPU 8192, or 2048 with less than 32 GB].
    #[arg(long, value_name = "TOKENS", value_parser = sizes::some_tokens::<u32>)]
    pub(crate) max_num_batched_tokens: Option<u32>,
    #[command(flatten)]
    pub(crate) speculation: SpeculationArgs,
    /// Compute threads [default: one per core]. More threads than cores slow every step.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=MOST_THREADS))]
    pub(crate) threads: Option<u16>,
    /// Chat template file to use instead of the model's own; "none" serves completions only.
    #[arg(long, value_name = "FILE")]
    pub(crate) chat_template: Option<String>,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    pub(crate) model: ModelArg,
    #[command(flatten)]
    pub(crate) models: ModelsArgs,
    /// Model name in the API [default: the model's]. Separate several with commas, or repeat the
    /// flag.
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = NonEmptyStringValueParser::new())]
    pub(crate) served_model_name: Vec<String>,
    /// What the model is for: generate text, embed texts (make vectors of them), score texts (a
    /// reranker) or transcribe speech; auto looks at its files. Qwen 3 Reranker, whose files are those of a language
    /// model, needs "score".
    #[arg(long, default_value = "auto", value_name = "TASK", value_parser = ["auto", "generate", "embed", "score", "transcribe"])]
    pub(crate) task: String,
    /// Address or host name to listen on; 0.0.0.0 opens the server to the network.
    ///
    /// A name, such as localhost, listens on all of its addresses.
    #[arg(long, default_value = "127.0.0.1")]
    pub(crate) host: String,
    /// Port to listen on; 0 picks a free one.
    #[arg(long, default_value_t = 8000)]
    pub(crate) port: u16,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    #[command(flatten)]
    pub(crate) lora: LoraArgs,
    #[command(flatten)]
    pub(crate) images: ImageArgs,
    #[command(flatten)]
    pub(crate) speech: SpeechArgs,
    #[command(flatten)]
    pub(crate) callers: CallerArgs,
    #[command(flatten)]
    pub(crate) rescue: RescueArgs,
    /// Let the model decide to call tools; `=false` disables this.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true")]
    pub(crate) enable_auto_tool_choice: bool,
    /// Format of the model's tool calls; auto detects it from the chat template and the
    /// architecture.
    #[arg(long, default_value = "auto", value_name = "NAME", value_parser = ToolParser::names())]
    pub(crate) tool_call_parser: ToolParser,
    /// Leave tool calls in another format than the model's own in the content.
    #[arg(long)]
    pub(crate) no_tool_call_recovery: bool,
    /// Variables of the chat template, as JSON, where requests give none: {"enable_thinking": false}.
    #[arg(long, value_name = "JSON", value_parser = json_object)]
    pub(crate) default_chat_template_kwargs: Option<Map<String, Json>>,
    /// Format of the model's reasoning [default: detected from the chat template and the
    /// architecture].
    #[arg(long, value_name = "NAME", value_parser = reasoning_parsers())]
    pub(crate) reasoning_parser: Option<ReasoningFormat>,
    /// Maximum number of queued requests; more are rejected.
    #[arg(long, default_value_t = 1024, value_name = "N")]
    pub(crate) max_waiting: u32,
    /// Order in which requests are served: "fcfs" is that of their arrival; with "priority", those
    /// of a lower number in the field of this name come first.
    #[arg(long, default_value = "fcfs", value_name = "POLICY", value_parser = ["fcfs", "priority"])]
    pub(crate) scheduling_policy: String,
    /// Accept request fields that the OpenAI API does not define.
    #[arg(long)]
    pub(crate) allow_unknown_fields: bool,
    /// Serve the API without the web app at /.
    #[arg(long)]
    pub(crate) no_ui: bool,
    /// Maximum size of a request body in MiB, after decompression.
    #[arg(long, default_value_t = 16, value_name = "MIB", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) max_body_mib: u16,
    /// Responses of /v1/responses that are kept for later requests; 0 keeps none.
    #[arg(long, default_value_t = 1000, value_name = "N")]
    pub(crate) max_stored_responses: u32,
    /// Memory for them in MiB.
    #[arg(long, default_value_t = 64, value_name = "MIB")]
    pub(crate) max_stored_mib: u16,
    /// Log level on standard error; info logs a line per request. RUST_LOG overrides it.
    #[arg(long, default_value = "info", value_name = "LEVEL", value_parser = ["error", "warn", "info", "debug", "trace"])]
    pub(crate) log_level: String,
    #[command(flatten)]
    pub(crate) serving: ServingArgs,
}

/// The name of the one adapter of a conversation.
pub(crate) const ADAPTER: &str = "lora";

/// How replies are generated.
#[derive(Debug, Clone, Args)]
pub(crate) struct AnswerArgs {
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    /// LoRA adapter to run with: a directory in PEFT's layout or mlx-lm's.
    #[arg(long, value_name = "PATH")]
    pub(crate) lora: Option<PathBuf>,
    /// System message.
    #[arg(long)]
    pub(crate) system: Option<String>,
    /// Let the model reason before it replies.
    #[arg(long)]
    pub(crate) think: bool,
    /// Maximum number of tokens to generate.
    #[arg(long, value_name = "TOKENS", value_parser = sizes::tokens::<u32>, allow_negative_numbers = true)]
    pub(crate) max_tokens: Option<u32>,
    /// Sampling temperature; 0 is greedy [default: the model's].
    #[arg(long, allow_negative_numbers = true)]
    pub(crate) temperature: Option<f32>,
    /// Seed of the sampler.
    #[arg(long, default_value_t = 0, allow_negative_numbers = true, value_parser = sizes::seed)]
    pub(crate) seed: u64,
}

impl AnswerArgs {
    /// What the facade takes.
    pub(crate) fn options(&self) -> Options {
        let mut options = Options::default().seed(self.seed).think(self.think);
        options.max_tokens = self.max_tokens;
        options.temperature = self.temperature;
        options.adapter = self.lora.as_ref().map(|_| ADAPTER.into());
        options
    }
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// The prompt; "-" reads standard input.
    pub(crate) prompt: String,
    /// Image that the prompt is about, of a model that sees; repeat it for several.
    #[arg(long, value_name = "FILE", conflicts_with = "raw")]
    pub(crate) image: Vec<PathBuf>,
    /// Model directory, GGUF file or downloaded Hugging Face id [default: the built-in demo model].
    #[arg(long, short, value_parser = NonEmptyStringValueParser::new())]
    pub(crate) model: Option<String>,
    #[command(flatten)]
    pub(crate) answer: AnswerArgs,
    /// Continue the prompt as it is, without the chat template.
    #[arg(long)]
    pub(crate) raw: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ChatArgs {
    #[command(flatten)]
    pub(crate) model: ModelArg,
    #[command(flatten)]
    pub(crate) answer: AnswerArgs,
}

#[derive(Debug, Args)]
pub(crate) struct InspectArgs {
    #[command(flatten)]
    pub(crate) model: ModelArg,
    /// Context lengths to plan memory for, in tokens.
    #[arg(long, value_name = "TOKENS", value_delimiter = ',', value_parser = sizes::some_tokens::<u64>)]
    pub(crate) context: Vec<u64>,
    #[command(flatten)]
    pub(crate) kv: KvArgs,
    #[command(flatten)]
    pub(crate) experts: ExpertArgs,
    /// Show a LoRA adapter of the model too: its rank, its modules and its memory.
    #[arg(long, value_name = "PATH")]
    pub(crate) lora: Option<PathBuf>,
    /// List every tensor.
    #[arg(long)]
    pub(crate) tensors: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// GPU to check: cuda or metal [default: the one that this build supports].
    #[arg(long, value_parser = ["cuda", "metal"])]
    pub(crate) device: Option<String>,
    /// Precompiled Metal kernels from `cargo xtask metallib`, for --device metal.
    #[arg(long, requires = "device", value_name = "FILE")]
    pub(crate) metallib: Option<PathBuf>,
    /// Write the results to this file as JSON.
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
}

fn json_object(text: &str) -> Result<Map<String, Json>, String> {
    serde_json::from_str(text).map_err(|error| format!("is no JSON object: {error}"))
}

impl EngineArgs {
    /// The GPU that was asked for.
    pub(crate) fn gpu(&self) -> anyhow::Result<Option<Gpu>> {
        if self.device == "cpu" {
            anyhow::ensure!(self.metallib.is_none(), "--metallib needs --device metal");
            return Ok(None);
        }
        let opened = gpu::open_with(&self.device, self.metallib.as_deref());
        Ok(Some(opened.map_err(|source| NoGpu { device: self.device.clone(), source })?))
    }

    /// What a compressed cache keeps exactly.
    pub(crate) fn exact(&self) -> Option<Exact> {
        let (sink_tokens, recent_tokens) = (self.kv_sink_tokens, self.kv_recent_tokens);
        (sink_tokens + recent_tokens > 0).then_some(Exact { sink_tokens, recent_tokens })
    }

    /// What becomes of the cache's memory while there are no requests.
    pub(crate) fn idle(&self) -> Option<KvIdle> {
        let after = Duration::from_secs(self.kv_idle_seconds);
        (!after.is_zero()).then_some(KvIdle { after, keep_bytes: self.kv_idle_memory_bytes })
    }

    pub(crate) fn prefix_caching(&self) -> bool {
        !self.no_enable_prefix_caching
    }

    pub(crate) fn template(&self) -> ChatTemplateFrom {
        match self.chat_template.as_deref() {
            None => ChatTemplateFrom::Model,
            Some("none") => ChatTemplateFrom::Nowhere,
            Some(file) => ChatTemplateFrom::File(file.into()),
        }
    }
}

#[cfg(test)]
mod tests;
