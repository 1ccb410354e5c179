//! The incremental parser of a model's output.

use super::{
    Delta, ParsedMessage, ReasoningFormat, ToolCallIds, ToolFormat,
    input::Input,
    recovery::{self, Code, Held, Leak, Outcome, Part},
    span::{CallWriter, KnownTools, Span, SpanParser, push_content, push_reasoning},
    tags::Tags,
};
use crate::ToolCall;

/// What an [`OutputParser`] looks for.
#[derive(Debug, Clone, Default)]
pub struct ParserOptions {
    /// How reasoning is marked.
    pub reasoning: ReasoningFormat,
    /// How tool calls are written.
    pub tools: ToolFormat,
    /// The output begins inside reasoning: see [`ReasoningFormat::starts_in`].
    pub starts_in_reasoning: bool,
    /// The tools of the request; a call of any other stays content.
    pub known_tools: KnownTools,
    /// Recover calls that are written in another format than `tools`.
    pub recovery: bool,
    /// Seed of the ids of tool calls; `None` makes them random.
    pub id_seed: Option<u64>,
    /// Tags that are special tokens, which content never shows: one that opens or closes nothing
    /// is dropped. See [`TextOptions::keep_tags`](crate::TextOptions::keep_tags).
    pub hidden_tags: Vec<&'static str>,
}

impl ParserOptions {
    /// Whether the output begins with reasoning.
    #[must_use]
    pub fn begins_in_reasoning(&self) -> bool {
        self.starts_in_reasoning && !self.reasoning.closers().is_empty()
    }

    /// The tags that the formats look for.
    #[must_use]
    pub fn tags(&self) -> Vec<&'static str> {
        let reasoning = self.reasoning;
        let of_reasoning =
            [reasoning.openers(), reasoning.closers(), reasoning.drops(), reasoning.marks()];
        let mut tags = of_reasoning.concat();
        for format in [self.tools.get(), reasoning.channels()].into_iter().flatten() {
            tags.extend(format.openers());
            tags.extend(format.marks());
        }
        if self.recovers() {
            tags.extend(recovery::openers(self.tools.get()));
            tags.extend(recovery::marks());
        }
        tags.sort_unstable();
        tags.dedup();
        tags
    }

    pub(super) fn recovers(&self) -> bool {
        self.recovery && !self.tools.is_none() && self.known_tools.is_some()
    }
}

/// Splits what a model writes into reasoning, content and tool calls.
///
/// The deltas, put together, are the same however the text is cut. With a format of `NONE` its
/// tags are plain text.
///
/// **Reasoning** stands between two tags, such as `<think>` and `</think>`, wherever that is in the
/// content. Line breaks at its ends, and those that follow it, are dropped. Tool calls inside are
/// reasoning. A further block begins on a new line.
///
/// **Tool calls** are read by the [`OutputFormat`](crate::OutputFormat). One that is malformed, has
/// a name that is empty or unknown, or arguments that are no object, stays in the content as it was
/// written. Where the name comes first and the arguments next, they are streamed as they come, and
/// what was streamed stands even if the arguments turn out broken. A forgotten closing tag does no
/// harm to a complete call.
///
/// **Calls in another format** are recovered, with [`ParserOptions::recovery`], where they are
/// complete, no other call was found, and they make up at least half of the content; neither in
/// reasoning nor in code.
///
/// **Content** is the rest. White space around calls is dropped at the beginning and at the end of
/// the content; between texts it stays.
///
/// Time grows with the length of the text, and so does memory, whatever the text is.
#[derive(Debug)]
pub struct OutputParser {
    options: ParserOptions,
    /// Tags that mean something in content, and in reasoning.
    tags: [Tags; 2],
    ids: ToolCallIds,
    mode: Mode,
    input: Input,
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
    /// The tag that ends reasoning has just been read.
    after_think: bool,
    calls: usize,
    code: Code,
    held: Held,
    out: Vec<Delta>,
}

#[derive(Debug)]
enum Mode {
    Content,
    Reasoning,
    Calls(OpenSpan),
    Leak(Leak),
}

/// Text that holds calls, being read.
#[derive(Debug)]
struct OpenSpan {
    opener: &'static str,
    parser: Box<dyn SpanParser>,
    /// It has emitted something.
    emitted: bool,
}

impl OutputParser {
    /// A parser for one output.
    #[must_use]
    pub fn new(options: ParserOptions) -> Self {
        let open = options.begins_in_reasoning();
        let mut out = Vec::new();
        // What the prompt ended with belongs to the content.
        push_content(&mut out, options.reasoning.appended().unwrap_or_default());
        Self {
            tags: [Tags::of_content(&options), Tags::of_reasoning(&options)],
            ids: options.id_seed.map_or_else(ToolCallIds::random, ToolCallIds::new),
            options,
            mode: if open { Mode::Reasoning } else { Mode::Content },
            input: Input::default(),
            tag: String::new(),
            space: String::new(),
            breaks: String::new(),
            beside_call: false,
            has_content: false,
            has_reasoning: false,
            had_reasoning: false,
            after_think: false,
            calls: 0,
            code: Code::default(),
            held: Held::default(),
            out,
        }
    }

    /// Whether reasoning has begun and not ended; `None` where a format marks it as it marks calls.
    #[must_use]
    pub fn in_reasoning(&self) -> Option<bool> {
        let marked = self.options.reasoning.channels().is_none();
        marked.then_some(matches!(self.mode, Mode::Reasoning))
    }

    /// Whether the end of the text so far may be the beginning of a tag.
    #[must_use]
    pub fn may_be_in_tag(&self) -> bool {
        !self.tag.is_empty()
    }

    /// Takes more text and tells what is certain by now.
    pub fn push(&mut self, text: &str) -> Vec<Delta> {
        self.input.push(text);
        self.run();
        std::mem::take(&mut self.out)
    }

    /// The end of the text: tells what was held back.
    pub fn finish(&mut self) -> Vec<Delta> {
        loop {
            self.find_tag(true);
            self.run();
            match std::mem::replace(&mut self.mode, Mode::Content) {
                Mode::Calls(mut span) => {
                    let rest = self.write(&mut span, |parser, calls| parser.finish(calls));
                    self.leave(&span, &rest);
                }
                Mode::Leak(mut leak) => {
                    let outcome = leak.finish();
                    self.settle(&leak, outcome);
                }
                mode => {
                    self.mode = mode;
                    if self.tag.is_empty() {
                        break;
                    }
                }
            }
            self.run();
        }
        self.decide();
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

    fn run(&mut self) {
        while let Some(c) = self.input.next() {
            match std::mem::replace(&mut self.mode, Mode::Content) {
                Mode::Calls(mut span) => {
                    match self.write(&mut span, |parser, calls| parser.push(c, calls)) {
                        Span::Open => self.mode = Mode::Calls(span),
                        Span::Over { rest } => self.leave(&span, &rest),
                    }
                }
                Mode::Leak(mut leak) => match leak.push(c) {
                    Outcome::Open => self.mode = Mode::Leak(leak),
                    outcome => self.settle(&leak, outcome),
                },
                mode => {
                    self.mode = mode;
                    self.tag.push(c);
                    self.find_tag(false);
                }
            }
        }
    }

    /// Takes from the front of `tag` what is a tag, or cannot become one; at the end of the text
    /// nothing more will.
    fn find_tag(&mut self, end: bool) {
        while !self.tag.is_empty() {
            let reasoning = matches!(self.mode, Mode::Reasoning);
            let Some(tags) = self.tags.get(usize::from(reasoning)) else { return };
            if !end && tags.may_grow(&self.tag) {
                return;
            }
            if let Some(tag) = tags.longest(&self.tag) {
                let rest = self.tag.split_off(tag.len());
                self.tag.clear();
                self.enter(tag);
                self.input.unread(&rest);
                return;
            }
            let first = self.tag.remove(0);
            self.text(first);
        }
    }

    fn enter(&mut self, tag: &'static str) {
        let reasoning = self.options.reasoning;
        if matches!(self.mode, Mode::Reasoning) {
            if reasoning.closers().contains(&tag) {
                self.breaks.clear();
                self.had_reasoning |= self.has_reasoning;
                self.has_reasoning = false;
                self.after_think = true;
                self.mode = Mode::Content;
            } else if self.has_reasoning && !self.options.hidden_tags.contains(&tag) {
                tag.chars().for_each(|c| self.text(c));
            }
            // Otherwise the model repeats the tag that the prompt ended with.
            return;
        }
        let formats = [self.options.tools.get(), reasoning.channels()];
        let native = formats.into_iter().flatten().find(|f| f.openers().contains(&tag));
        if reasoning.openers().contains(&tag) {
            self.decide();
            if !self.has_content {
                self.space.clear();
            }
            self.mode = Mode::Reasoning;
        } else if let Some(format) = native {
            let parser = format.open(tag, &self.options.known_tools);
            self.mode = Mode::Calls(OpenSpan { opener: tag, parser, emitted: false });
        } else if reasoning.drops().contains(&tag) {
            self.space.clear();
            self.after_think = true;
        } else if let Some(leak) = self.leak(tag) {
            self.mode = Mode::Leak(leak);
        } else {
            self.no_tag(tag);
        }
    }

    /// A tag that opens and closes nothing is content, unless it is hidden.
    fn no_tag(&mut self, tag: &str) {
        if !self.options.hidden_tags.contains(&tag) {
            tag.chars().for_each(|c| self.text(c));
        }
    }

    /// Lets a span write. Calls of the expected format make content of those that leaked.
    fn write<T>(
        &mut self,
        span: &mut OpenSpan,
        write: impl FnOnce(&mut dyn SpanParser, &mut CallWriter<'_>) -> T,
    ) -> T {
        let mut apart = Vec::new();
        let out = if self.held.is_empty() { &mut self.out } else { &mut apart };
        let (ids, calls) = (&mut self.ids, &mut self.calls);
        let mut writer = CallWriter { out, ids, calls, emitted: span.emitted };
        let written = write(&mut *span.parser, &mut writer);
        span.emitted = writer.emitted;
        if span.emitted {
            self.forget();
        }
        self.out.append(&mut apart);
        written
    }

    /// A span is over, and `rest` is to be read again. If it emitted nothing, its opener is content,
    /// unless another format makes calls of it.
    fn leave(&mut self, span: &OpenSpan, rest: &str) {
        if span.emitted {
            self.beside_call |= self.calls > 0;
            return self.again(rest);
        }
        match self.leak(span.opener).filter(|_| !self.input.is_exhausted()) {
            Some(leak) => {
                self.mode = Mode::Leak(leak);
                self.input.unread(rest);
            }
            None => {
                self.no_tag(span.opener);
                self.again(rest);
            }
        }
    }

    /// Reads text again, or takes it as content if too much has been.
    fn again(&mut self, text: &str) {
        if self.input.is_exhausted() {
            text.chars().for_each(|c| self.text(c));
        } else {
            self.input.unread(text);
        }
    }

    fn leak(&self, opener: &'static str) -> Option<Leak> {
        let wanted = self.options.recovers() && self.calls == 0 && !self.code.is_code();
        let leak = || Leak::open(opener, self.options.tools.get(), &self.options.known_tools);
        wanted.then(leak).flatten()
    }

    fn settle(&mut self, leak: &Leak, outcome: Outcome) {
        match outcome {
            Outcome::Calls(calls, rest) => {
                self.held.add(leak.text(&rest), calls);
                if !self.held.prevails() {
                    self.forget();
                }
                self.again(&rest);
            }
            Outcome::Open | Outcome::None => {
                self.no_tag(leak.opener);
                self.again(&leak.read);
            }
        }
    }

    /// What is held back is content after all.
    fn forget(&mut self) {
        for part in self.held.take() {
            let mut text = match part {
                Part::Text(text) | Part::Calls { text, .. } => text,
            };
            for tag in &self.options.hidden_tags {
                text = text.replace(tag, "");
            }
            text.chars().for_each(|c| self.plain(c));
        }
    }

    /// The content ends here: the calls in what is held back are calls if they are half of it.
    fn decide(&mut self) {
        if !self.held.prevails() {
            return self.forget();
        }
        for part in self.held.take() {
            match part {
                Part::Text(text) => text.chars().for_each(|c| self.plain(c)),
                Part::Calls { calls, .. } => {
                    calls.iter().for_each(|call| self.recovered(call));
                    self.beside_call = true;
                }
            }
        }
    }

    fn recovered(&mut self, call: &ToolCall) {
        let (out, ids, calls) = (&mut self.out, &mut self.ids, &mut self.calls);
        let mut writer = CallWriter { out, ids, calls, emitted: false };
        writer.start(&call.name);
        writer.arguments(&call.arguments);
    }

    /// A character that belongs to no tag.
    fn text(&mut self, c: char) {
        if matches!(self.mode, Mode::Reasoning) {
            return self.thought(c);
        }
        self.code.push(c);
        if !self.held.text(c) {
            return self.plain(c);
        }
        if !self.held.prevails() {
            self.forget();
        }
    }

    fn thought(&mut self, c: char) {
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
                push_reasoning(&mut self.out, &text);
            }
        }
    }

    /// A character of content that is held back no more.
    fn plain(&mut self, c: char) {
        if self.after_think && matches!(c, '\n' | '\r') {
            return;
        }
        self.after_think = false;
        self.space.push(c);
        let bare = self.options.reasoning.is_none() && self.options.tools.is_none();
        if c.is_whitespace() && !bare {
            return;
        }
        let text = std::mem::take(&mut self.space);
        let drop_space = self.beside_call && !self.has_content;
        self.content(if drop_space { text.trim_start() } else { &text });
        self.beside_call = false;
    }

    fn content(&mut self, text: &str) {
        self.has_content |= !text.is_empty();
        push_content(&mut self.out, text);
    }
}
