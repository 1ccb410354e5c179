//! The incremental parser of a model's output.

use super::{
    Delta, ParsedMessage, ReasoningFormat, ToolCallIds, ToolFormat,
    hermes::{CLOSE, Call, Step},
};

const THINK: &str = "<think>";
const END_THINK: &str = "</think>";
const TOOL_CALL: &str = "<tool_call>";

/// What an [`OutputParser`] looks for.
#[derive(Debug, Clone, Default)]
pub struct ParserOptions {
    /// How reasoning is marked.
    pub reasoning: ReasoningFormat,
    /// How tool calls are written.
    pub tools: ToolFormat,
    /// The prompt left reasoning open: see [`starts_in_reasoning`](crate::starts_in_reasoning).
    pub starts_in_reasoning: bool,
    /// The tools of the request; a call of any other stays content. `None` takes every name.
    pub known_tools: Option<Vec<String>>,
    /// Seed of the ids of tool calls; `None` makes them random.
    pub id_seed: Option<u64>,
    /// Tags are special tokens, which content never shows: one that opens or closes nothing is
    /// dropped. See [`TextOptions::keep_tags`](crate::TextOptions::keep_tags).
    pub hide_tags: bool,
}

impl ParserOptions {
    /// The tags that the formats look for.
    #[must_use]
    pub fn tags(&self) -> Vec<&'static str> {
        let mut tags = Vec::new();
        if self.reasoning != ReasoningFormat::None {
            tags.extend([THINK, END_THINK]);
        }
        if self.tools != ToolFormat::None {
            tags.extend([TOOL_CALL, CLOSE]);
        }
        tags
    }
}

/// Splits what a model writes into reasoning, content and tool calls.
///
/// The deltas, put together, are the same however the text is cut. With a format of `None` its
/// tags are plain text.
///
/// **Reasoning** stands between `<think>` and `</think>`, wherever that is in the content. Line
/// breaks at its ends, and those that follow `</think>`, are dropped. Tool calls inside are
/// reasoning. A further block begins on a new line.
///
/// **Tool calls** stand between `<tool_call>` and `</tool_call>`. One that is not JSON, has a name
/// that is empty or unknown, or arguments that are no object, stays in the content as it was
/// written. Where the name comes first and the arguments next, they are told as they come, and
/// what was told stands even if the arguments turn out broken. A forgotten closing tag does no
/// harm to a complete call.
///
/// **Content** is the rest. White space around calls is dropped at the beginning and at the end of
/// the content; between texts it stays.
#[derive(Debug)]
pub struct OutputParser {
    options: ParserOptions,
    ids: ToolCallIds,
    mode: Mode,
    /// Text still to be read, the topmost first.
    input: Vec<Input>,
    /// The beginning of what may be a tag.
    tag: String,
    /// White space of the content that counts once something follows.
    space: String,
    /// Line breaks of reasoning that count once something follows.
    breaks: String,
    /// A call touches `space`.
    beside_call: bool,
    /// There was content.
    has_content: bool,
    /// There was reasoning in this block.
    has_reasoning: bool,
    /// There was reasoning in an earlier block.
    had_reasoning: bool,
    /// `</think>` has just been read.
    after_think: bool,
    calls: usize,
    out: Vec<Delta>,
}

#[derive(Debug)]
enum Mode {
    Content,
    Reasoning,
    Call(Call),
}

/// A text and how much of it has been read, in bytes.
#[derive(Debug)]
struct Input {
    text: String,
    at: usize,
}

impl OutputParser {
    /// A parser for one output.
    #[must_use]
    pub fn new(options: ParserOptions) -> Self {
        let open = match options.reasoning {
            ReasoningFormat::None => false,
            ReasoningFormat::Think => options.starts_in_reasoning,
            ReasoningFormat::ThinkOpen => true,
        };
        Self {
            ids: options.id_seed.map_or_else(ToolCallIds::random, ToolCallIds::new),
            options,
            mode: if open { Mode::Reasoning } else { Mode::Content },
            input: Vec::new(),
            tag: String::new(),
            space: String::new(),
            breaks: String::new(),
            beside_call: false,
            has_content: false,
            has_reasoning: false,
            had_reasoning: false,
            after_think: false,
            calls: 0,
            out: Vec::new(),
        }
    }

    /// Takes more text and tells what is certain by now.
    pub fn push(&mut self, text: &str) -> Vec<Delta> {
        self.read(text.to_owned());
        std::mem::take(&mut self.out)
    }

    /// The end of the text: tells what was held back.
    pub fn finish(&mut self) -> Vec<Delta> {
        loop {
            let tag = std::mem::take(&mut self.tag);
            tag.chars().for_each(|c| self.text(c));
            match std::mem::replace(&mut self.mode, Mode::Content) {
                Mode::Call(call) if !call.is_told() => self.reject(call),
                Mode::Call(_) => break,
                mode => {
                    self.mode = mode;
                    break;
                }
            }
        }
        let space = std::mem::take(&mut self.space);
        if !self.beside_call {
            self.content(&space);
        }
        std::mem::take(&mut self.out)
    }

    /// Parses a whole output: `push`, then `finish`.
    #[must_use]
    pub fn parse(options: ParserOptions, text: &str) -> ParsedMessage {
        let mut parser = Self::new(options);
        let mut message = ParsedMessage::default();
        for delta in parser.push(text).into_iter().chain(parser.finish()) {
            message.apply(delta);
        }
        message
    }

    fn read(&mut self, text: String) {
        self.input.push(Input { text, at: 0 });
        while let Some(top) = self.input.last_mut() {
            match top.text[top.at..].chars().next() {
                Some(c) => {
                    top.at += c.len_utf8();
                    self.step(c);
                }
                None => {
                    self.input.pop();
                }
            }
        }
    }

    fn step(&mut self, c: char) {
        if let Mode::Call(call) = &mut self.mode {
            let known_tools = self.options.known_tools.as_deref();
            let step = call.step(c, &|name: &str| {
                known_tools.is_none_or(|known| known.iter().any(|k| k == name))
            });
            self.call_step(step);
            return;
        }
        self.tag.push(c);
        let hidden = |tag| self.options.hide_tags.then_some(tag);
        let tags: [Option<&'static str>; 4] = match self.mode {
            Mode::Reasoning => [
                Some(END_THINK),
                (!self.has_reasoning).then_some(THINK).or(hidden(THINK)),
                hidden(TOOL_CALL),
                hidden(CLOSE),
            ],
            _ => [
                (self.options.reasoning != ReasoningFormat::None).then_some(THINK),
                (self.options.tools != ToolFormat::None).then_some(TOOL_CALL),
                hidden(END_THINK),
                hidden(CLOSE),
            ],
        };
        let begun = tags.into_iter().flatten().find(|tag| tag.starts_with(&self.tag));
        match begun {
            Some(tag) if tag.len() == self.tag.len() => {
                self.tag.clear();
                self.enter(tag);
            }
            Some(_) => {}
            None => {
                // Tags hold `<` at their beginning only.
                self.tag.pop();
                let text = std::mem::take(&mut self.tag);
                text.chars().for_each(|c| self.text(c));
                if c == '<' && !text.is_empty() {
                    self.tag.push(c);
                } else {
                    self.text(c);
                }
            }
        }
    }

    fn enter(&mut self, tag: &str) {
        let reasoning = matches!(self.mode, Mode::Reasoning);
        match tag {
            // These open or close nothing here, and come only where tags are hidden.
            CLOSE => {}
            TOOL_CALL if reasoning => {}
            END_THINK if !reasoning => {}
            TOOL_CALL => self.mode = Mode::Call(Call::new()),
            END_THINK => {
                self.breaks.clear();
                self.had_reasoning |= self.has_reasoning;
                self.has_reasoning = false;
                self.after_think = true;
                self.mode = Mode::Content;
            }
            // The model may repeat the tag that the prompt ended with.
            _ if reasoning => {}
            _ => {
                if !self.has_content {
                    self.space.clear();
                }
                self.mode = Mode::Reasoning;
            }
        }
    }

    /// A character that belongs to no tag.
    fn text(&mut self, c: char) {
        if matches!(self.mode, Mode::Reasoning) {
            match c {
                '\n' if !self.has_reasoning => {}
                '\n' => self.breaks.push(c),
                c => {
                    if !self.has_reasoning && self.had_reasoning {
                        self.breaks.push('\n');
                    }
                    self.has_reasoning = true;
                    let mut text = std::mem::take(&mut self.breaks);
                    text.push(c);
                    self.reasoning(&text);
                }
            }
            return;
        }
        if self.after_think && matches!(c, '\n' | '\r') {
            return;
        }
        self.after_think = false;
        self.space.push(c);
        let plain = (self.options.reasoning, self.options.tools)
            == (ReasoningFormat::None, ToolFormat::None);
        if c.is_whitespace() && !plain {
            return;
        }
        let text = std::mem::take(&mut self.space);
        let drop_space = self.beside_call && !self.has_content;
        self.content(if drop_space { text.trim_start() } else { &text });
        self.beside_call = false;
    }

    fn call_step(&mut self, step: Step) {
        match step {
            Step::More => {}
            Step::Reject => {
                if let Mode::Call(call) = std::mem::replace(&mut self.mode, Mode::Content) {
                    self.reject(call);
                }
            }
            Step::Start { name, arguments } | Step::Whole { name, arguments } => {
                self.start(name, arguments);
            }
            Step::Arguments(text) => self.arguments(&text),
            Step::End => self.mode = Mode::Content,
            Step::Beyond(text) => {
                self.mode = Mode::Content;
                self.input.push(Input { text, at: 0 });
            }
        }
    }

    /// It was no call: the opening tag is text unless it is hidden, and what follows is read again.
    fn reject(&mut self, call: Call) {
        if !self.options.hide_tags {
            TOOL_CALL.chars().for_each(|c| self.text(c));
        }
        let text = call.into_held();
        // From `finish` there is no reading under way.
        if self.input.is_empty() {
            self.read(text);
        } else {
            self.input.push(Input { text, at: 0 });
        }
    }

    fn start(&mut self, name: String, arguments: String) {
        self.beside_call = true;
        let (index, id) = (self.calls, self.ids.next_id());
        self.calls += 1;
        self.out.push(Delta::ToolCallStart { index, id, name });
        self.out.push(Delta::ToolCallArguments { index, fragment: arguments });
    }

    fn arguments(&mut self, text: &str) {
        if let Some(Delta::ToolCallArguments { fragment, .. }) = self.out.last_mut() {
            fragment.push_str(text);
        } else {
            let (index, fragment) = (self.calls.saturating_sub(1), text.to_owned());
            self.out.push(Delta::ToolCallArguments { index, fragment });
        }
    }

    fn content(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        self.has_content = true;
        match self.out.last_mut() {
            Some(Delta::Content(content)) => content.push_str(text),
            _ => self.out.push(Delta::Content(text.to_owned())),
        }
    }

    fn reasoning(&mut self, text: &str) {
        match self.out.last_mut() {
            Some(Delta::Reasoning(reasoning)) => reasoning.push_str(text),
            _ => self.out.push(Delta::Reasoning(text.to_owned())),
        }
    }
}
