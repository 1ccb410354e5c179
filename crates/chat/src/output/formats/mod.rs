//! The formats of tool calls. To add one, describe it in a file and list it in [`FORMATS`].

mod cohere;
mod deepseek_v3;
mod deepseek_v31;
mod deepseek_v32;
mod ernie45;
mod functiongemma;
mod gemma4;
mod gigachat3;
mod glm45;
mod granite;
mod granite4;
mod granite_20b_fc;
mod hermes;
mod hunyuan_a13b;
mod internlm;
mod jamba;
mod kimi_k2;
mod lfm2;
mod llama3_json;
mod llama4_pythonic;
mod longcat;
mod minimax;
mod minimax_m2;
mod mistral;
mod olmo3;
mod openai;
mod phi4_mini_json;
mod pythonic;
mod qwen3_coder;
mod seed_oss;
mod step3;
mod xlam;

use super::{
    scan::Ends,
    span::{KnownTools, OutputFormat, SpanParser},
};
use std::fmt;

pub(super) use openai::OPENAI;

/// Every format that has a name, in the order of detection: where two formats have the same marks,
/// the one that asks for more of them stands first, and the one that only its models write last.
pub(super) static FORMATS: &[&dyn OutputFormat] = &[
    &openai::OPENAI,
    &deepseek_v32::FORMAT,
    &step3::FORMAT,
    &deepseek_v3::FORMAT,
    &deepseek_v31::FORMAT,
    &kimi_k2::FORMAT,
    &minimax_m2::FORMAT,
    &seed_oss::FORMAT,
    &longcat::FORMAT,
    &gemma4::FORMAT,
    &functiongemma::FORMAT,
    &cohere::COMMAND3,
    &cohere::COMMAND4,
    &cohere::COHERE,
    &gigachat3::FORMAT,
    &internlm::FORMAT,
    &phi4_mini_json::FORMAT,
    &lfm2::FORMAT,
    &olmo3::FORMAT,
    &glm45::GLM45,
    &glm45::GLM47,
    &qwen3_coder::QWEN3_CODER,
    &qwen3_coder::QWEN3_XML,
    &qwen3_coder::STEP3P5,
    &qwen3_coder::MIMO,
    &granite4::FORMAT,
    &granite::FORMAT,
    &granite_20b_fc::FORMAT,
    &minimax::FORMAT,
    &jamba::FORMAT,
    &hunyuan_a13b::FORMAT,
    &hermes::HERMES,
    &hermes::QWEN3_JSON,
    &ernie45::FORMAT,
    &mistral::FORMAT,
    &llama4_pythonic::FORMAT,
    &llama3_json::LLAMA4_JSON,
    &llama3_json::LLAMA3_JSON,
    &pythonic::FORMAT,
    &xlam::FORMAT,
];

/// A format that is described by its marks and how a span is read.
pub(super) struct Format {
    name: &'static str,
    architectures: &'static [&'static str],
    detect: fn(&str) -> bool,
    openers: &'static [&'static str],
    marks: &'static [&'static str],
    leaks: &'static [&'static str],
    open: fn(&str, &KnownTools) -> Box<dyn SpanParser>,
}

impl OutputFormat for Format {
    fn name(&self) -> &'static str {
        self.name
    }

    fn detect(&self, template: &str) -> bool {
        (self.detect)(template)
    }

    fn architectures(&self) -> &'static [&'static str] {
        self.architectures
    }

    fn openers(&self) -> &'static [&'static str] {
        self.openers
    }

    fn marks(&self) -> &'static [&'static str] {
        self.marks
    }

    fn leaks(&self) -> &'static [&'static str] {
        self.leaks
    }

    fn open(&self, opener: &str, tools: &KnownTools) -> Box<dyn SpanParser> {
        (self.open)(opener, tools)
    }
}

impl fmt::Debug for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Format({})", self.name)
    }
}

/// Broken JSON goes on to the end.
const NO_ENDS: Ends = Ends { outside: "", in_string: "" };

fn all(template: &str, texts: &[&str]) -> bool {
    texts.iter().all(|text| template.contains(text))
}

fn any(template: &str, texts: &[&str]) -> bool {
    texts.iter().any(|text| template.contains(text))
}
