//! The command line.

use crate::{kv_report::KvReportArgs, kv_scheme::KvArgs, sizes};
use clap::{
    Args, Parser, Subcommand,
    builder::{NonEmptyStringValueParser, PossibleValuesParser, TypedValueParser},
};
use std::{iter, path::PathBuf, time::Duration};
use taper_chat::{ReasoningFormat, ToolFormat};
use taper_engine::KvIdle;
use taper_kv_codecs::Exact;
use taper_models::Activations;
use taper_tensor::gpu::{self, Gpu};

const EXAMPLES: &str = "\
Examples:
  taper                                        serve the built-in demo model on 127.0.0.1:8000
  taper serve ./Qwen3-0.6B-4bit --port 9000    serve a model directory
  taper run \"Hello\"                            one answer on standard output
  taper chat --model ./Qwen3-0.6B-4bit         a conversation in the terminal
  taper inspect ./Qwen3-0.6B-4bit              what a model is, and whether it fits
  taper kv-report ./Qwen3-0.6B-4bit            which KV codec is safe for this model
  taper download mlx-community/Qwen3-0.6B-4bit fetch a model from the Hugging Face hub
  taper convert ./Qwen3-0.6B ./out --bits 4    quantize a model
  taper convert model.gguf ./out               a GGUF file for mlx-lm
  taper ps                                     what the server on this machine does

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

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve a model over HTTP, with OpenAI's API.
    Serve(ServeArgs),
    /// Answer one prompt.
    Run(RunArgs),
    /// Talk in the terminal.
    Chat(ChatArgs),
    /// Show a model's architecture, formats and memory needs.
    Inspect(InspectArgs),
    /// Measure what each KV codec costs a model, and recommend one.
    ///
    /// Runs a text over a cache of every codec and compares the distributions of the next token
    /// with those of an f16 cache: the way to a safe --kv-cache-dtype for a model. What a text of
    /// this length does not show, such as answers from far back in a long context, it cannot tell.
    KvReport(KvReportArgs),
    /// Fetch a model from the Hugging Face hub; an interrupted download goes on where it stopped.
    #[command(visible_alias = "pull")]
    Download(DownloadArgs),
    /// List the models that were downloaded.
    #[command(visible_alias = "ls")]
    List,
    /// Show what a running server serves, and how busy it is.
    Ps(PsArgs),
    /// Check every GPU kernel against the CPU, on the GPU that is there.
    Doctor(DoctorArgs),
    /// Quantize a model, or convert a GGUF file, to an MLX checkpoint, which mlx-lm loads too.
    Convert(ConvertArgs),
}

/// A model, as the first word or as a flag.
#[derive(Debug, Clone, Args)]
pub(crate) struct ModelArg {
    /// A model directory, or a Hugging Face id that was downloaded [default: the built-in demo model].
    model: Option<String>,
    /// Another way to name the model.
    #[arg(long = "model", short, value_name = "MODEL", conflicts_with = "model")]
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
    /// Longest sequence, prompt and output together, such as 32k [default: the model's own, as far as
    /// memory goes].
    #[arg(long, value_name = "TOKENS", value_parser = sizes::tokens::<u32>)]
    pub(crate) max_model_len: Option<u32>,
    /// Where the model runs: cpu, cuda or metal. A GPU needs a build with the feature of its name.
    #[arg(long, default_value = "cpu", value_parser = ["cpu", "cuda", "metal"])]
    pub(crate) device: String,
    /// Kernels that `cargo xtask metallib` has compiled, for --device metal.
    #[arg(long, value_name = "FILE")]
    pub(crate) metallib: Option<PathBuf>,
    /// Arithmetic of products with quantized weights. auto rounds activations of prompts to bf16 where the
    /// processor is fast at that (AMX, AVX-512 BF16 of AMD), elsewhere to 16 bits a group, and those of
    /// answers to 16 bits with --max-num-seqs 1, as that costs one sequence little, otherwise to 8; int8
    /// rounds all to 8 bits, for faster prompts where there is no AMX; float16 all to 16, which makes long
    /// prompts and many sequences up to half as fast; float32 is exact, and slow,
    /// and reads weights from the model's files while it runs: these must not be changed or cut short
    /// meanwhile, as that ends the process with SIGBUS.
    #[arg(long, default_value = "auto", value_parser = Activations::DTYPES)]
    pub(crate) dtype: String,
    #[command(flatten)]
    pub(crate) kv: KvArgs,
    /// First tokens of a sequence that a compressed KV cache keeps as f16 too.
    #[arg(long, default_value_t = Exact::DEFAULT.sink_tokens, value_name = "TOKENS", value_parser = sizes::tokens::<usize>)]
    pub(crate) kv_sink_tokens: usize,
    /// Recent tokens that a compressed KV cache keeps as f16 too: a token reads exactly from the
    /// last multiple of so many on. 0, with no sinks either, reads all tokens from their codes.
    #[arg(long, default_value_t = Exact::DEFAULT.recent_tokens, value_name = "TOKENS", value_parser = sizes::tokens::<usize>)]
    pub(crate) kv_recent_tokens: usize,
    /// Let requests that begin alike share keys and values. On by default.
    #[arg(long, overrides_with = "no_enable_prefix_caching")]
    pub(crate) enable_prefix_caching: bool,
    /// Compute every prompt from its first token.
    #[arg(long)]
    pub(crate) no_enable_prefix_caching: bool,
    /// Keep computed prompts in this directory too, and find them there after a restart. Several
    /// servers and models may share one. Only a model with the same weights, arithmetic and KV
    /// cache uses what is there; all weights are read at the start to make sure. Keep it private:
    /// what prompts say can be computed from it.
    #[arg(long, value_name = "DIR")]
    pub(crate) kv_offloading_dir: Option<PathBuf>,
    /// Room for that directory's files, in GiB or such as 500MiB; those that were used longest ago make room.
    #[arg(long, default_value_t = 10.0, value_name = "GIB", value_parser = sizes::gib, requires = "kv_offloading_dir")]
    pub(crate) kv_offloading_size: f64,
    /// Share of the free memory that weights and KV cache may take.
    #[arg(long, default_value_t = 0.6, value_name = "FRACTION")]
    pub(crate) gpu_memory_utilization: f64,
    /// Bytes for the KV cache, such as 4GiB, instead of a share of the memory.
    #[arg(long, value_name = "BYTES", value_parser = sizes::bytes)]
    pub(crate) kv_cache_memory_bytes: Option<u64>,
    /// Give memory of the KV cache back to the system after so many seconds without a request; 0 keeps it.
    /// Only prefixes that nobody uses are given up, the longest unused first.
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    pub(crate) kv_idle_seconds: u64,
    /// Bytes of prefixes that stay in memory then, such as 1GiB [default: a quarter of the weights' size].
    #[arg(long, value_name = "BYTES", value_parser = sizes::bytes)]
    pub(crate) kv_idle_memory_bytes: Option<u64>,
    /// Sequences computed together [default: 256 for a server, 1 for a conversation].
    #[arg(long, value_name = "N")]
    pub(crate) max_num_seqs: Option<u32>,
    /// Tokens computed together; long prompts are cut into pieces of this size.
    #[arg(long, default_value_t = 512, value_name = "TOKENS", value_parser = sizes::tokens::<u32>)]
    pub(crate) max_num_batched_tokens: u32,
    /// Threads that compute [default: one a core]. More than cores make every step slower.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=MOST_THREADS))]
    pub(crate) threads: Option<u16>,
    /// A chat template file instead of the model's own, or "none" to serve completions only.
    #[arg(long, value_name = "FILE")]
    pub(crate) chat_template: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    pub(crate) model: ModelArg,
    /// Name in the API [default: the model's]. Several are separated by commas, or each has the flag.
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = NonEmptyStringValueParser::new())]
    pub(crate) served_model_name: Vec<String>,
    /// Address to listen on, or a name: localhost listens on all addresses of that name. 0.0.0.0
    /// opens the server to the network.
    #[arg(long, default_value = "127.0.0.1")]
    pub(crate) host: String,
    /// Port to listen on; 0 picks a free one.
    #[arg(long, default_value_t = 8000)]
    pub(crate) port: u16,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    /// Key that clients must send; for several, use commas or give the flag again [default: none
    /// needed].
    ///
    /// All users of this machine can see the flags of its processes: --api-key-file and the
    /// variable hide the key from them.
    #[arg(
        long,
        value_name = "KEY",
        value_delimiter = ',',
        env = "TAPER_API_KEY",
        hide_env_values = true
    )]
    pub(crate) api_key: Vec<String>,
    /// File of such keys, one a line. Empty lines and lines that begin with # are left out.
    #[arg(long, value_name = "FILE")]
    pub(crate) api_key_file: Option<PathBuf>,
    /// Origins of web pages that may call, as https://example.com; "*" is any. For several, use
    /// commas or give the flag again [default: none].
    #[arg(long, value_name = "ORIGIN", value_delimiter = ',')]
    pub(crate) allowed_origins: Vec<String>,
    /// Host names that requests may come by, besides localhost, 127.0.0.1 and [::1]; "*" is any.
    /// For several, use commas or give the flag again [default: only those three on a loopback
    /// address without keys, otherwise any].
    #[arg(long, value_name = "HOST", value_delimiter = ',')]
    pub(crate) allowed_hosts: Vec<String>,
    /// Let the model decide to call tools. On by default; `=false` turns it off.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true")]
    pub(crate) enable_auto_tool_choice: bool,
    /// How the model writes tool calls; auto takes what its chat template shows.
    #[arg(long, default_value = "auto", value_name = "NAME", value_parser = ToolParser::names())]
    pub(crate) tool_call_parser: ToolParser,
    /// How the model marks reasoning: none, qwen3 or deepseek_r1 [default: what its template shows].
    #[arg(long, value_name = "NAME")]
    pub(crate) reasoning_parser: Option<ReasoningFormat>,
    /// Requests that may wait before new ones are refused.
    #[arg(long, default_value_t = 1024, value_name = "N")]
    pub(crate) max_waiting: u32,
    /// Accept request fields that the OpenAI API does not have.
    #[arg(long)]
    pub(crate) allow_unknown_fields: bool,
    /// Largest request body, in MiB; compressed bodies count as what comes out.
    #[arg(long, default_value_t = 16, value_name = "MIB", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) max_body_mib: u16,
    /// What is logged to standard error. info has a line for each request. RUST_LOG overrides it.
    #[arg(long, default_value = "info", value_name = "LEVEL", value_parser = ["error", "warn", "info", "debug", "trace"])]
    pub(crate) log_level: String,
    /// Seconds that running requests may take to finish after Ctrl-C or SIGTERM.
    #[arg(long, default_value_t = 30, value_name = "SECONDS")]
    pub(crate) drain_timeout: u64,
}

/// How answers are made.
#[derive(Debug, Clone, Args)]
pub(crate) struct AnswerArgs {
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    /// A system message.
    #[arg(long)]
    pub(crate) system: Option<String>,
    /// Let the model reason before it answers.
    #[arg(long)]
    pub(crate) think: bool,
    /// Most tokens of an answer.
    #[arg(long, value_name = "TOKENS", value_parser = sizes::tokens::<u32>, allow_negative_numbers = true)]
    pub(crate) max_tokens: Option<u32>,
    /// 0 is greedy [default: the model's].
    #[arg(long, allow_negative_numbers = true)]
    pub(crate) temperature: Option<f32>,
    /// Makes sampling reproducible.
    #[arg(long, default_value_t = 0, allow_negative_numbers = true)]
    pub(crate) seed: u64,
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// The prompt; "-" reads standard input.
    pub(crate) prompt: String,
    /// A model directory, or a Hugging Face id that was downloaded [default: the built-in demo model].
    #[arg(long, short)]
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
    #[arg(long, value_name = "TOKENS", value_delimiter = ',', value_parser = sizes::some_tokens)]
    pub(crate) context: Vec<u64>,
    #[command(flatten)]
    pub(crate) kv: KvArgs,
    /// List every tensor.
    #[arg(long)]
    pub(crate) tensors: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DownloadArgs {
    /// `org/name`, with `@revision` if another than main is wanted.
    pub(crate) id: String,
    /// Branch, tag or commit.
    #[arg(long)]
    pub(crate) revision: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct PsArgs {
    /// Where the server is.
    #[arg(long, default_value = "http://127.0.0.1:8000")]
    pub(crate) url: String,
    /// Key that the server wants.
    #[arg(long, value_name = "KEY")]
    pub(crate) api_key: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// The GPU: cuda or metal [default: whichever this build supports].
    #[arg(long, value_parser = ["cuda", "metal"])]
    pub(crate) device: Option<String>,
    /// Kernels that `cargo xtask metallib` has compiled, for --device metal.
    #[arg(long, requires = "device", value_name = "FILE")]
    pub(crate) metallib: Option<PathBuf>,
    /// Write what was found as JSON, for a report.
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct ConvertArgs {
    /// A model directory with dense weights, a Hugging Face id that was downloaded, or a GGUF file.
    pub(crate) model: String,
    /// Directory to write.
    pub(crate) out: PathBuf,
    /// Format to write: a directory that mlx-lm and Taper load.
    #[arg(long, value_parser = ["mlx"], default_value = "mlx", value_name = "FORMAT")]
    pub(crate) to: String,
    /// Bits a weight: 2, 3, 4, 5, 6 or 8 [default: 4; a GGUF file's own].
    #[arg(long)]
    pub(crate) bits: Option<u8>,
    /// Weights that share a scale: 32, 64 or 128 [default: 64; a GGUF file's own].
    #[arg(long)]
    pub(crate) group: Option<usize>,
    /// Bits for the layers that suffer most, as mlx-lm's mixed recipes choose them.
    #[arg(long, value_name = "BITS")]
    pub(crate) high_bits: Option<u8>,
    /// Write floats of this type instead of quantized weights.
    #[arg(
        long,
        value_parser = ["float16", "bfloat16", "float32"],
        conflicts_with_all = ["bits", "group", "high_bits"],
        value_name = "TYPE"
    )]
    pub(crate) dtype: Option<String>,
}

/// Where a `--chat-template` comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TemplateChoice {
    Model,
    File(PathBuf),
    None,
}

/// What `--tool-call-parser` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ToolParser {
    /// The format that the chat template shows.
    Auto,
    Named(ToolFormat),
}

impl ToolParser {
    /// Takes `auto` and the names of all formats.
    fn names() -> impl TypedValueParser<Value = Self> {
        let names = iter::once("auto").chain(ToolFormat::names());
        PossibleValuesParser::new(names).try_map(|name| match name.as_str() {
            "auto" => Ok(Self::Auto),
            name => name.parse().map(Self::Named),
        })
    }

    /// The format, for a model with this chat template.
    pub(crate) fn format(self, template: &str) -> ToolFormat {
        match self {
            Self::Auto => ToolFormat::detect(template),
            Self::Named(format) => format,
        }
    }
}

impl EngineArgs {
    /// The GPU that was asked for.
    pub(crate) fn gpu(&self) -> anyhow::Result<Option<Gpu>> {
        if self.device == "cpu" {
            anyhow::ensure!(self.metallib.is_none(), "--metallib needs --device metal");
            return Ok(None);
        }
        Ok(Some(gpu::open_with(&self.device, self.metallib.as_deref())?))
    }

    /// How products are computed where at most so many sequences run together.
    pub(crate) fn activations(&self, sequences: u32) -> Activations {
        Activations::of_dtype(&self.dtype, sequences as usize).unwrap_or_default()
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

    pub(crate) fn template(&self) -> TemplateChoice {
        match self.chat_template.as_deref() {
            None => TemplateChoice::Model,
            Some("none") => TemplateChoice::None,
            Some(file) => TemplateChoice::File(file.into()),
        }
    }
}

#[cfg(test)]
mod tests;
