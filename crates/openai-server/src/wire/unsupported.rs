//! Fields of OpenAI's and vLLM's APIs that would change the output and are not honoured (yet).

use super::Glance::{self, Bool, Empty, Null, Number};

/// A field that gets a 400 unless it is null, or asks for what happens anyway.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Unsupported {
    pub(crate) name: &'static str,
    pub(crate) why: &'static str,
    /// The value that asks for nothing; null where there is none.
    pub(crate) harmless: Glance,
}

pub(super) const fn field(name: &'static str, why: &'static str, harmless: Glance) -> Unsupported {
    Unsupported { name, why, harmless }
}

/// Fields of both completion routes.
pub(crate) const UNSUPPORTED: &[Unsupported] = &[
    field("add_special_tokens", "is not supported on this route", Null),
    field("audio", "is not supported: this server answers in text", Null),
    field("best_of", "is not supported on this route", Number(1.0)),
    field("chat_template", "is not taken from requests; start the server with one", Null),
    field("documents", "is not supported on this route", Empty),
    field("echo", "is not supported on this route", Bool(false)),
    field("function_call", "is not supported on this route", Null),
    field("functions", "is not supported on this route", Empty),
    field("guided_decoding_backend", "is not supported: there is one", Null),
    field("include_reasoning", "is not supported on this route", Bool(true)),
    field("length_penalty", "is not supported: there is no beam search", Number(1.0)),
    field("mm_processor_kwargs", "is not supported: this server takes text", Null),
    field("prompt_embeds", "is not supported", Null),
    field("reasoning_effort", "is not supported on this route", Null),
    field("suffix", "is not supported on this route", Empty),
    field("use_beam_search", "is not supported", Bool(false)),
    field("verbosity", "is not supported", Null),
    field("web_search_options", "is not supported", Null),
];
