//! From wire fields to engine parameters: what both completion routes have in common.

use crate::{
    config::ServerConfig,
    decode::either,
    errors::ApiError,
    random::{choice_seed, random_u64},
    tokens::{allowed, kept},
    wire::SamplingFields,
};
use std::{collections::BTreeSet, sync::Arc};
use taper_base::{
    EngineInfo, GenRequest, InvalidParam, Medium, SamplingParams, SharedGrammar, StopRules,
    SubmitError, TokenId, TokenMask,
};
use taper_chat::{StopPatterns, TextOptions};

/// OpenAI takes 4 stop strings and vLLM any number; each costs time on every byte of output.
const MAX_STOP_STRINGS: usize = 16;

/// Bytes of all stop strings together; each costs several bytes of memory for each choice.
const MAX_STOP_BYTES: usize = 4096;

/// Bytes of a salt; each shared prefix keeps its own.
const MAX_SALT_BYTES: usize = 256;

/// Parameters of a request, checked.
#[derive(Debug)]
pub(crate) struct Params {
    pub(crate) sampling: SamplingParams,
    pub(crate) stop: StopRules,
    pub(crate) text: TextOptions,
    pub(crate) n: u32,
    pub(crate) stream: Option<StreamParams>,
    pub(crate) kv_bits: Option<u32>,
    pub(crate) kv_recall_pages: Option<u32>,
    pub(crate) cache_salt: Option<Arc<str>>,
    pub(crate) adapter: Option<Arc<str>>,
    /// What the output must match.
    pub(crate) grammar: Option<SharedGrammar>,
    /// The only tokens that may be chosen.
    pub(crate) allowed: Option<TokenMask>,
    /// Sequences of tokens that the output must not contain.
    pub(crate) bad_words: Arc<[Vec<TokenId>]>,
    pub(crate) priority: i32,
    /// Most tokens that are drafted at a time.
    pub(crate) max_draft_tokens: Option<u32>,
    /// What the output is likely to contain.
    pub(crate) prediction: Arc<[TokenId]>,
    /// Images in the prompt.
    pub(crate) media: Arc<[Medium]>,
    /// Tokens at the end of the prompt that are kept, where it may be cut.
    pub(crate) kept: Option<usize>,
    pub(crate) shown: Shown,
}

/// What the response has of tokens beside their text.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Shown {
    /// The ids of the prompt's and the output's tokens.
    pub(crate) token_ids: bool,
    /// Log probabilities name tokens by their ids.
    pub(crate) as_ids: bool,
    /// Log probabilities of the prompt's tokens, with so many of the likeliest.
    pub(crate) prompt_logprobs: Option<u8>,
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
    Ok(Params {
        sampling: sampling(fields, logprobs, &config.default_sampling, info)?,
        text: TextOptions {
            stop: StopPatterns::new(stop_strings(fields)?)?,
            tags: Arc::default(),
            include_stop_str_in_output: fields.include_stop_str_in_output.unwrap_or(false),
            skip_special_tokens: fields.skip_special_tokens.unwrap_or(true),
            min_tokens: stop.min_tokens,
        },
        stop,
        n,
        stream: stream(fields)?,
        kv_bits: fields.kv_bits,
        kv_recall_pages: fields.kv_recall_pages,
        cache_salt: cache_salt(fields)?,
        adapter: None,
        grammar: None,
        allowed: allowed(fields, info)?,
        bad_words: Arc::default(),
        priority: fields.priority.unwrap_or(0),
        max_draft_tokens: fields.max_draft_tokens,
        prediction: Arc::default(),
        media: Arc::default(),
        kept: kept(fields, max_tokens, info)?,
        shown: shown(fields)?,
    })
}

fn shown(fields: &SamplingFields) -> Result<Shown, ApiError> {
    let most = SamplingParams::MAX_LOGPROBS;
    let prompt_logprobs = match fields.prompt_logprobs {
        None => None,
        Some(_) if fields.stream == Some(true) => {
            return Err(ApiError::value("prompt_logprobs", "is not possible with 'stream': true"));
        }
        Some(n) => match u8::try_from(n).ok().filter(|n| *n <= most) {
            None => {
                let detail = format!("must be between 0 and {most}, got {n}");
                return Err(ApiError::value("prompt_logprobs", detail));
            }
            n => n,
        },
    };
    Ok(Shown {
        token_ids: fields.return_token_ids.unwrap_or(false),
        as_ids: fields.return_tokens_as_token_ids.unwrap_or(false),
        prompt_logprobs,
    })
}

/// vLLM refuses an empty one, which would be no salt at all.
fn cache_salt(fields: &SamplingFields) -> Result<Option<Arc<str>>, ApiError> {
    let Some(salt) = &fields.cache_salt else { return Ok(None) };
    if salt.is_empty() || salt.len() > MAX_SALT_BYTES {
        let detail = format!("must have between 1 and {MAX_SALT_BYTES} bytes");
        return Err(ApiError::value("cache_salt", detail));
    }
    Ok(Some(salt.as_str().into()))
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
    let ids = fields.stop_token_ids.as_deref().unwrap_or_default();
    if let Some(at) = ids.iter().position(|id| *id >= info.vocab_size) {
        return Err(outside_vocabulary(format!("stop_token_ids[{at}]"), info));
    }
    let token_ids: BTreeSet<u32> = ids.iter().copied().collect();
    let ignore_eos = fields.ignore_eos.unwrap_or(false);
    // Until there are `min_tokens`, neither these nor the model's own can be chosen.
    let own = if ignore_eos { &[] } else { info.eos_token_ids.as_slice() };
    let banned = token_ids.len() + own.iter().filter(|id| !token_ids.contains(id)).count();
    if min_tokens > 0 && banned >= info.vocab_size as usize {
        let detail = "with 'min_tokens' no token is left to choose from";
        return Err(ApiError::value("stop_token_ids", detail));
    }
    let token_ids = token_ids.into_iter().collect();
    Ok(StopRules { max_tokens, min_tokens, token_ids, ignore_eos })
}

fn stop_strings(fields: &SamplingFields) -> Result<Vec<String>, ApiError> {
    let stop = fields.stop.as_ref().map_or(&[][..], |s| &s.0);
    if stop.len() > MAX_STOP_STRINGS {
        let detail = format!("takes at most {MAX_STOP_STRINGS} strings, got {}", stop.len());
        return Err(ApiError::value("stop", detail));
    }
    let bytes: usize = stop.iter().map(String::len).sum();
    if bytes > MAX_STOP_BYTES {
        let detail = format!("takes at most {MAX_STOP_BYTES} bytes in all, got {bytes}");
        return Err(ApiError::value("stop", detail));
    }
    if stop.iter().any(String::is_empty) {
        return Err(ApiError::value("stop", "a stop string must not be empty"));
    }
    Ok(stop.to_vec())
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
    let repetition_penalty = either(
        ("repetition_penalty", fields.repetition_penalty),
        ("repeat_penalty", fields.repeat_penalty),
    )?;
    let mut logit_bias = Vec::new();
    for (key, bias) in fields.logit_bias.iter().flatten() {
        let param = format!("logit_bias.{key}");
        // "07" and "+7" would be further entries for token 7.
        let Some(id) = key.parse::<u32>().ok().filter(|id| id.to_string() == *key) else {
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
        repetition_penalty: repetition_penalty.unwrap_or(default.repetition_penalty),
        presence_penalty: fields.presence_penalty.unwrap_or(default.presence_penalty),
        frequency_penalty: fields.frequency_penalty.unwrap_or(default.frequency_penalty),
        logit_bias: if fields.logit_bias.is_some() {
            logit_bias
        } else {
            default.logit_bias.clone()
        },
        // -1 is the word of vLLM and llama.cpp for none.
        seed: fields.seed.filter(|s| *s != -1).map_or_else(random_u64, i64::cast_unsigned),
        logprobs,
    };
    sampling.validate().map_err(|e: InvalidParam| ApiError::Submit {
        source: SubmitError::InvalidParam(e),
        prompt_param: "",
    })?;
    Ok(sampling)
}

pub(crate) fn outside_vocabulary(param: String, info: &EngineInfo) -> ApiError {
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
    /// One engine request a choice: `n` of each prompt, side by side. Each is made when it is
    /// taken: most that are refused are so at the first.
    pub(crate) fn requests(
        &self,
        prompts: &[&[u32]],
        prompt_logprobs: Option<u8>,
    ) -> impl Iterator<Item = GenRequest> {
        // Its choices are one client's.
        let (n, client) = (self.n as usize, random_u64());
        (0..prompts.len() * n).filter_map(move |choice| {
            Some(GenRequest {
                prompt: prompts.get(choice / n)?.to_vec(),
                media: Arc::clone(&self.media),
                sampling: SamplingParams {
                    seed: choice_seed(self.sampling.seed, choice as u64),
                    ..self.sampling.clone()
                },
                stop: self.stop.clone(),
                prompt_logprobs,
                kv_bits: self.kv_bits,
                kv_recall_pages: self.kv_recall_pages,
                client: Some(client),
                cache_salt: self.cache_salt.clone(),
                adapter: self.adapter.clone(),
                grammar: self.grammar.clone(),
                allowed: self.allowed.clone(),
                bad_words: Arc::clone(&self.bad_words),
                priority: self.priority,
                max_draft_tokens: self.max_draft_tokens,
                prediction: Arc::clone(&self.prediction),
            })
        })
    }
}
