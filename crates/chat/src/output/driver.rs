//! The incremental parser of a model's output.

use super::{
    Delta, ParsedMessage, ReasoningFormat, ToolCallIds, ToolFormat,
    formats::{CallWriter, KnownTools, Span, SpanParser},
};

const THINK: &str = "<think>";
const END_THINK: &str = "</think>";

/// What an [`OutputParser`] looks for.
#[derive(Debug, Clone, Default)]
pub struct ParserOptions {
    /// How reasoning is marked.
    pub reasoning: ReasoningFormat,
    /// How tool calls are written.
    pub tools: ToolFormat,
    /// The prompt left reasoning open: see [`starts_in_reasoning`](crate::starts_in_reasoning).
    pub starts_in_reasoning: bool,
    /// The tools of the request; a call of any other stays content.
    pub known_tools: KnownTools,
    /// Seed of the ids of tool calls; `None` makes them random.
    pub id_seed: Option<u64>,
    /// Tags that are special tokens, which content never shows: one that opens or closes nothing
    /// is dropped. See [`TextOptions::keep_tags`](crate::TextOptions::keep_tags).
    pub hidden_tags: Vec<&'static str>,
}

impl ParserOptions {
    /// The tags that the formats look for.
    #[must_use]
    pub fn tags(&self) -> Vec<&'static str> {
        let mut tags = Vec::new();
        if self.reasoning != ReasoningFormat::None {
            tags.extend([THINK, END_THINK]);
        }
        if let Some(format) = self.tools.get() {
            tags.extend(format.openers());
            tags.extend(format.marks());
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
/// **Tool calls** are read by the [`OutputFormat`](crate::OutputFormat). One that is malformed, has
/// a name that is empty or unknown, or arguments that are no object, stays in the content as it was
/// written. Where the name comes first and the arguments next, they are streamed as they come, and
/// what was streamed stands even if the arguments turn out broken. A forgotten closing tag does no
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
    Calls(OpenSpan),
}

/// Text that holds calls, being read.
#[derive(Debug)]
struct OpenSpan {
    opener: &'static str,
    parser: Box<dyn SpanParser>,
    /// Calls of the message before it.
    calls_before: usize,
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
                Mode::Calls(mut span) => {
                    let rest = span.parser.finish(&mut self.writer());
                    let rest = self.leave(&span, rest);
                    self.read(rest);
                }
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
        match std::mem::replace(&mut self.mode, Mode::Content) {
            Mode::Calls(mut span) => match span.parser.push(c, &mut self.writer()) {
                Span::Open => self.mode = Mode::Calls(span),
                Span::Over { rest } => {
                    let text = self.leave(&span, rest);
                    self.input.push(Input { text, at: 0 });
                }
            },
            mode => {
                self.mode = mode;
                self.tag.push(c);
                self.find_tag();
            }
        }
    }

    /// Takes from the front of `tag` what is a tag, or cannot become one.
    fn find_tag(&mut self) {
        while !self.tag.is_empty() {
            let whole = self.tags().find(|tag| *tag == self.tag);
            if let Some(tag) = whole {
                self.tag.clear();
                self.enter(tag);
            } else if self.tags().any(|tag| tag.starts_with(&self.tag)) {
                return;
            } else {
                let first = self.tag.remove(0);
                self.text(first);
            }
        }
    }

    /// The tags that mean something here, or that must not be shown.
    fn tags(&self) -> impl Iterator<Item = &'static str> {
        let reads = matches!(self.mode, Mode::Content);
        let (opens, closes) = match self.mode {
            Mode::Reasoning => (!self.has_reasoning, true),
            _ => (self.options.reasoning != ReasoningFormat::None, false),
        };
        let calls = self.options.tools.get().filter(|_| reads).map_or(&[][..], |f| f.openers());
        let think = [opens.then_some(THINK), closes.then_some(END_THINK)];
        let hidden = self.options.hidden_tags.iter().copied();
        think.into_iter().flatten().chain(calls.iter().copied()).chain(hidden)
    }

    fn enter(&mut self, tag: &'static str) {
        if matches!(self.mode, Mode::Reasoning) {
            // The model may repeat the tag that the prompt ended with.
            if tag == END_THINK {
                self.breaks.clear();
                self.had_reasoning |= self.has_reasoning;
                self.has_reasoning = false;
                self.after_think = true;
                self.mode = Mode::Content;
            }
            return;
        }
        if tag == THINK {
            if !self.has_content {
                self.space.clear();
            }
            self.mode = Mode::Reasoning;
        } else if let Some(format) = self.options.tools.get().filter(|f| f.openers().contains(&tag))
        {
            let parser = format.open(tag, &self.options.known_tools);
            self.mode = Mode::Calls(OpenSpan { opener: tag, parser, calls_before: self.calls });
        }
        // Any other tag is hidden, and opens and closes nothing here.
    }

    fn writer(&mut self) -> CallWriter<'_> {
        CallWriter { out: &mut self.out, ids: &mut self.ids, calls: &mut self.calls }
    }

    /// A span is over. If it emitted nothing, its opener is content, unless it is hidden. Returns
    /// the text that is to be read again.
    fn leave(&mut self, span: &OpenSpan, rest: String) -> String {
        if self.calls > span.calls_before {
            self.beside_call = true;
        } else if !self.options.hidden_tags.contains(&span.opener) {
            span.opener.chars().for_each(|c| self.text(c));
        }
        rest
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
        let plain = self.options.reasoning == ReasoningFormat::None && self.options.tools.is_none();
        if c.is_whitespace() && !plain {
            return;
        }
        let text = std::mem::take(&mut self.space);
        let drop_space = self.beside_call && !self.has_content;
        self.content(if drop_space { text.trim_start() } else { &text });
        self.beside_call = false;
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
