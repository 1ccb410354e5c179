//! From wire fields to engine parameters: what both completion routes have in common.

use crate::{
    config::ServerConfig,
    errors::ApiError,
    random::{choice_seed, random_u64},
    wire::SamplingFields,
};
use taper_base::{EngineInfo, GenRequest, InvalidParam, SamplingParams, StopRules, SubmitError};
use taper_chat::TextOptions;

/// OpenAI takes 4 stop strings and vLLM any number; each costs time on every byte of output.
const MAX_STOP_STRINGS: usize = 16;

/// Parameters of a request, checked.
#[derive(Debug)]
pub(crate) struct Params {
    pub(crate) sampling: SamplingParams,
    pub(crate) stop: StopRules,
    pub(crate) text: TextOptions,
    pub(crate) n: u32,
    pub(crate) stream: Option<StreamParams>,
    pub(crate) kv_bits: Option<u32>,
}

/// How a stream reports usage.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StreamParams {
    pub(crate) usage: bool,
    pub(crate) continuous_usage: bool,
}

/// Checks the shared fields. `max_tokens` and `logprobs` differ by route and come as they will be.
pub(crate) fn params(
    fields: &SamplingFields,
    max_tokens: Option<u32>,
    logprobs: Option<u8>,
    config: &ServerConfig,
    info: &EngineInfo,
) -> Result<Params, ApiError> {
    let stop = stop_rules(fields, max_tokens, info)?;
    let n = fields.n.unwrap_or(1);
    if n == 0 || n > config.max_choices {
        let limit = config.max_choices;
        return Err(ApiError::value("n", format!("must be between 1 and {limit}, got {n}")));
    }
    if let Some(format) = &fields.response_format {
        match format.kind.as_str() {
            "text" => {}
            kind @ ("json_object" | "json_schema") => {
                let detail = format!("'{kind}' is not supported yet; only 'text' is");
                return Err(ApiError::unsupported("response_format", detail));
            }
            kind => {
                let detail = format!("there is no format '{kind}'");
                return Err(ApiError::value("response_format.type", detail));
            }
        }
    }
    Ok(Params {
        sampling: sampling(fields, logprobs, &config.default_sampling, info)?,
        text: TextOptions {
            stop: stop_strings(fields)?,
            include_stop_str_in_output: fields.include_stop_str_in_output.unwrap_or(false),
            skip_special_tokens: fields.skip_special_tokens.unwrap_or(true),
            min_tokens: stop.min_tokens,
        },
        stop,
        n,
        stream: stream(fields)?,
        kv_bits: fields.kv_bits,
    })
}

fn stop_rules(
    fields: &SamplingFields,
    max_tokens: Option<u32>,
    info: &EngineInfo,
) -> Result<StopRules, ApiError> {
    let min_tokens = fields.min_tokens.unwrap_or(0);
    if max_tokens.is_some_and(|max| min_tokens > max) {
        return Err(ApiError::value("min_tokens", "must not be above max_tokens"));
    }
    let token_ids = fields.stop_token_ids.clone().unwrap_or_default();
    if let Some(at) = token_ids.iter().position(|id| *id >= info.vocab_size) {
        return Err(outside_vocabulary(format!("stop_token_ids[{at}]"), info));
    }
    let ignore_eos = fields.ignore_eos.unwrap_or(false);
    Ok(StopRules { max_tokens, min_tokens, token_ids, ignore_eos })
}

fn stop_strings(fields: &SamplingFields) -> Result<Vec<String>, ApiError> {
    let stop = fields.stop.as_ref().map_or_else(Vec::new, |s| s.0.clone());
    if stop.len() > MAX_STOP_STRINGS {
        let detail = format!("takes at most {MAX_STOP_STRINGS} strings, got {}", stop.len());
        return Err(ApiError::value("stop", detail));
    }
    if stop.iter().any(String::is_empty) {
        return Err(ApiError::value("stop", "a stop string must not be empty"));
    }
    Ok(stop)
}

fn sampling(
    fields: &SamplingFields,
    logprobs: Option<u8>,
    default: &SamplingParams,
    info: &EngineInfo,
) -> Result<SamplingParams, ApiError> {
    let top_k = match fields.top_k {
        None => default.top_k,
        Some(-1) => 0,
        Some(k) => u32::try_from(k)
            .map_err(|_| ApiError::value("top_k", format!("must be -1, 0 or more, got {k}")))?,
    };
    let mut logit_bias = Vec::new();
    for (key, bias) in fields.logit_bias.iter().flatten() {
        let param = format!("logit_bias.{key}");
        let Ok(id) = key.parse::<u32>() else {
            return Err(ApiError::value(param, "the key must be a token id"));
        };
        if id >= info.vocab_size {
            return Err(outside_vocabulary(param, info));
        }
        logit_bias.push((id, *bias));
    }
    let sampling = SamplingParams {
        temperature: fields.temperature.unwrap_or(default.temperature),
        top_k,
        top_p: fields.top_p.unwrap_or(default.top_p),
        min_p: fields.min_p.unwrap_or(default.min_p),
        typical_p: fields.typical_p.unwrap_or(default.typical_p),
        repetition_penalty: fields.repetition_penalty.unwrap_or(default.repetition_penalty),
        presence_penalty: fields.presence_penalty.unwrap_or(default.presence_penalty),
        frequency_penalty: fields.frequency_penalty.unwrap_or(default.frequency_penalty),
        logit_bias: if fields.logit_bias.is_some() {
            logit_bias
        } else {
            default.logit_bias.clone()
        },
        seed: fields.seed.map_or_else(random_u64, i64::cast_unsigned),
        logprobs,
    };
    sampling.validate().map_err(|e: InvalidParam| ApiError::Submit {
        source: SubmitError::InvalidParam(e),
        prompt_param: "",
    })?;
    Ok(sampling)
}

fn outside_vocabulary(param: String, info: &EngineInfo) -> ApiError {
    ApiError::value(param, format!("is outside the vocabulary of {} tokens", info.vocab_size))
}

fn stream(fields: &SamplingFields) -> Result<Option<StreamParams>, ApiError> {
    let streams = fields.stream.unwrap_or(false);
    let Some(options) = &fields.stream_options else {
        let params = StreamParams { usage: false, continuous_usage: false };
        return Ok(streams.then_some(params));
    };
    if !streams {
        return Err(ApiError::value("stream_options", "is only allowed with 'stream': true"));
    }
    if options.include_obfuscation == Some(true) {
        return Err(ApiError::unsupported("stream_options.include_obfuscation", "must be false"));
    }
    let usage = options.include_usage.unwrap_or(false);
    let continuous_usage = options.continuous_usage_stats.unwrap_or(false);
    if continuous_usage && !usage {
        let detail = "needs include_usage";
        return Err(ApiError::value("stream_options.continuous_usage_stats", detail));
    }
    Ok(Some(StreamParams { usage, continuous_usage }))
}

impl Params {
    /// One engine request a choice: `n` of each prompt, side by side.
    pub(crate) fn requests(
        &self,
        prompts: &[Vec<u32>],
        prompt_logprobs: Option<u8>,
    ) -> Vec<GenRequest> {
        let mut requests = Vec::with_capacity(prompts.len() * self.n as usize);
        for prompt in prompts {
            for _ in 0..self.n {
                let seed = choice_seed(self.sampling.seed, requests.len() as u64);
                requests.push(GenRequest {
                    prompt: prompt.clone(),
                    sampling: SamplingParams { seed, ..self.sampling.clone() },
                    stop: self.stop.clone(),
                    prompt_logprobs,
                    kv_bits: self.kv_bits,
                });
            }
        }
        requests
    }
}
