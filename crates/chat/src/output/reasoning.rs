//! How models mark their reasoning.

use super::{formats::OPENAI, span::OutputFormat};
use crate::ChatError;
use std::{fmt, str::FromStr};

/// How a model marks its reasoning: one of the named formats, or not at all.
#[derive(Clone, Copy)]
pub struct ReasoningFormat(&'static Reasoning);

struct Reasoning {
    name: &'static str,
    /// Beginnings of the `model_type`s whose models reason so.
    architectures: &'static [&'static str],
    /// A template that holds one of these speaks of it.
    shown_by: &'static [&'static str],
    opens: &'static [&'static str],
    closes: &'static [&'static str],
    /// Tags around the answer, which mean nothing.
    drops: &'static [&'static str],
    /// Special tokens of which the tags are made.
    marks: &'static [&'static str],
    /// The output begins with reasoning even if the prompt does not open it.
    always: bool,
    /// Reasoning stays in the content, with its tags.
    appends: bool,
    /// The format that marks reasoning, content and calls alike.
    channels: Option<&'static dyn OutputFormat>,
}

const NONE: Reasoning = Reasoning {
    name: "none",
    architectures: &[],
    shown_by: &[],
    opens: &[],
    closes: &[],
    drops: &[],
    marks: &[],
    always: false,
    appends: false,
    channels: None,
};

/// `<think>..</think>`.
const THINK: Reasoning =
    Reasoning { shown_by: &["</think>"], opens: &["<think>"], closes: &["</think>"], ..NONE };

const fn think(name: &'static str, architectures: &'static [&'static str]) -> Reasoning {
    Reasoning { name, architectures, ..THINK }
}

/// In the order of detection: of formats with equal marks, the model's architecture chooses, and
/// the first where it chooses none.
static FORMATS: &[Reasoning] = &[
    Reasoning {
        name: "openai_gptoss",
        architectures: &["gpt_oss"],
        shown_by: &["<|channel|>analysis"],
        channels: Some(&OPENAI),
        ..NONE
    },
    Reasoning {
        name: "gemma4",
        architectures: &["gemma4"],
        shown_by: &["<|channel>"],
        opens: &["<|channel>thought"],
        closes: &["<channel|>"],
        marks: &["<|channel>"],
        ..NONE
    },
    Reasoning {
        name: "seed_oss",
        architectures: &["seed_oss"],
        shown_by: &["</seed:think>"],
        opens: &["<seed:think>"],
        closes: &["</seed:think>"],
        ..NONE
    },
    Reasoning {
        name: "mistral",
        architectures: &["mistral", "ministral"],
        shown_by: &["[/THINK]"],
        opens: &["[THINK]", "<think>"],
        closes: &["[/THINK]", "</think>"],
        ..NONE
    },
    Reasoning {
        name: "cohere_command3",
        architectures: &["cohere"],
        shown_by: &["<|END_THINKING|>"],
        opens: &["<|START_THINKING|>"],
        closes: &["<|END_THINKING|>"],
        drops: &["<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"],
        ..NONE
    },
    think("qwen3", &["qwen"]),
    Reasoning { always: true, shown_by: &[], ..think("deepseek_r1", &[]) },
    think("deepseek_v3", &["deepseek"]),
    think("glm45", &["glm"]),
    think("holo2", &["holo2"]),
    think("kimi_k2", &["kimi"]),
    think("mimo", &["mimo"]),
    Reasoning { always: true, ..think("minimax_m2", &["minimax"]) },
    Reasoning { appends: true, shown_by: &[], ..think("minimax_m2_append_think", &[]) },
    think("nemotron_v3", &["nemotron"]),
    think("olmo3", &["olmo3"]),
    Reasoning { always: true, ..think("step3", &["step3"]) },
    think("step3p5", &["step3p5"]),
    Reasoning {
        name: "granite",
        architectures: &["granite"],
        shown_by: &["Here is my thought process:", "</think>"],
        opens: &["<think>", "Here is my thought process:", "Here's my thought process:"],
        closes: &["</think>", "Here is my response:", "Here's my response:"],
        drops: &["<response>", "</response>"],
        ..NONE
    },
    Reasoning { drops: &["<answer>", "</answer>"], ..think("hunyuan_a13b", &["hunyuan"]) },
    Reasoning { drops: &["<response>", "</response>"], ..think("ernie45", &["ernie4_5"]) },
    NONE,
];

impl ReasoningFormat {
    /// The model does not mark reasoning: everything is content.
    pub const NONE: Self = Self(&NONE);

    /// Every name that [`FromStr`] takes; those of vLLM's `--reasoning-parser`.
    #[must_use]
    pub fn names() -> Vec<&'static str> {
        let mut names: Vec<_> = FORMATS.iter().map(|f| f.name).filter(|n| *n != "none").collect();
        names.sort_unstable();
        [&["none"], &names[..]].concat()
    }

    /// The format that a chat template speaks of, for a model of this `model_type`.
    #[must_use]
    pub fn detect(template_source: &str, model_type: &str) -> Self {
        let shown = |f: &&Reasoning| f.shown_by.iter().any(|text| template_source.contains(text));
        let rank = |f: &Reasoning| prefix_of(f.architectures, model_type);
        let best = FORMATS.iter().filter(shown).rev().max_by_key(|f| rank(f));
        Self(best.unwrap_or(&NONE))
    }

    /// Whether a rendered prompt leaves reasoning open, so that the output begins inside it.
    ///
    /// Only the very end counts: a user may write `<think>` too.
    #[must_use]
    pub fn starts_in(self, prompt: &str) -> bool {
        let end = prompt.trim_end();
        let ends_with = |tags: &[&str]| tags.iter().any(|tag| end.ends_with(tag));
        ends_with(self.0.opens) || (self.0.always && !ends_with(self.0.closes))
    }

    /// Whether everything is content.
    #[must_use]
    pub fn is_none(self) -> bool {
        self.0.name == "none"
    }

    /// Tags that begin reasoning.
    #[must_use]
    pub fn openers(self) -> &'static [&'static str] {
        if self.0.appends { &[] } else { self.0.opens }
    }

    /// Tags that end reasoning.
    #[must_use]
    pub fn closers(self) -> &'static [&'static str] {
        if self.0.appends { &[] } else { self.0.closes }
    }

    pub(super) fn drops(self) -> &'static [&'static str] {
        self.0.drops
    }

    pub(super) fn marks(self) -> &'static [&'static str] {
        self.0.marks
    }

    pub(super) fn channels(self) -> Option<&'static dyn OutputFormat> {
        self.0.channels
    }

    /// The tag that the prompt ended with, where it is part of the content.
    pub(super) fn appended(self) -> Option<&'static str> {
        self.0.opens.first().copied().filter(|_| self.0.appends)
    }
}

/// Length of the longest prefix of a name in a list; 0 if none is one.
pub(super) fn prefix_of(prefixes: &[&str], name: &str) -> usize {
    prefixes.iter().filter(|p| name.starts_with(*p)).map(|p| p.len()).max().unwrap_or(0)
}

impl Default for ReasoningFormat {
    fn default() -> Self {
        Self::NONE
    }
}

impl FromStr for ReasoningFormat {
    type Err = ChatError;

    fn from_str(name: &str) -> Result<Self, ChatError> {
        let wanted = if name.is_empty() { "none" } else { name };
        FORMATS.iter().find(|f| f.name == wanted).map(Self).ok_or_else(|| {
            ChatError::UnknownFormat {
                kind: "reasoning parser",
                name: name.to_owned(),
                choices: Self::names(),
            }
        })
    }
}

impl fmt::Display for ReasoningFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.name)
    }
}

impl fmt::Debug for ReasoningFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReasoningFormat({self})")
    }
}

/// Formats are equal if their names are.
impl PartialEq for ReasoningFormat {
    fn eq(&self, other: &Self) -> bool {
        self.0.name == other.0.name
    }
}

impl Eq for ReasoningFormat {}
