//! The JSON object of a call's arguments, passed on while it is read.

use super::{super::CallWriter, value::escaped};

/// Follows brackets and strings of JSON without checking more.
#[derive(Debug, Default)]
pub(super) struct Brackets {
    pub(super) depth: u32,
    pub(super) in_string: bool,
    pub(super) escaped: bool,
}

impl Brackets {
    pub(super) fn step(&mut self, c: char) {
        if self.in_string {
            match c {
                _ if self.escaped => self.escaped = false,
                '\\' => self.escaped = true,
                '"' => self.in_string = false,
                _ => {}
            }
            return;
        }
        match c {
            '"' => self.in_string = true,
            '{' | '[' => self.depth = self.depth.saturating_add(1),
            '}' | ']' => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
    }

    /// Takes a character and writes it. Models write line feeds and tabs into strings as they are;
    /// JSON wants them escaped.
    pub(super) fn copy(&mut self, c: char, out: &mut String) {
        if self.in_string && c < ' ' {
            let text = escaped(c);
            out.push_str(if self.escaped { text.trim_start_matches('\\') } else { &text });
        } else {
            out.push(c);
        }
        self.step(c);
    }
}

/// Texts that end a call whose JSON is broken. They are empty where a format has none.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Ends {
    /// Ends it outside strings.
    pub(in super::super) outside: &'static str,
    /// Ends it inside a string. Valid JSON never holds this text.
    pub(in super::super) in_string: &'static str,
}

/// What a character made of a JSON text.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Scanned {
    /// It may begin an end.
    Held,
    /// The end has been read.
    End,
    /// This text is no end.
    Text(String),
}

/// Reads JSON up to its end, and finds the texts that end it too early.
#[derive(Debug)]
pub(super) struct Scanner {
    pub(super) brackets: Brackets,
    ends: Ends,
    held: String,
}

impl Scanner {
    /// Begins behind the bracket that opens an object.
    pub(super) fn in_object(ends: Ends) -> Self {
        Self { brackets: Brackets { depth: 1, ..Brackets::default() }, ends, held: String::new() }
    }

    pub(super) fn push(&mut self, c: char) -> Scanned {
        let end = if self.brackets.in_string { self.ends.in_string } else { self.ends.outside };
        self.held.push(c);
        if self.held == end {
            self.held.clear();
            return Scanned::End;
        }
        if end.starts_with(&self.held) {
            return Scanned::Held;
        }
        self.held.pop();
        let mut text = std::mem::take(&mut self.held);
        if end.starts_with(c) { &mut self.held } else { &mut text }.push(c);
        Scanned::Text(self.copied(&text))
    }

    /// What was held back, at the end of the output.
    pub(super) fn take_held(&mut self) -> String {
        let held = std::mem::take(&mut self.held);
        self.copied(&held)
    }

    fn copied(&mut self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        text.chars().for_each(|c| self.brackets.copy(c, &mut out));
        out
    }
}

/// What a character made of the arguments.
#[derive(Debug, PartialEq, Eq)]
pub(in super::super) enum Read {
    /// The arguments go on.
    More,
    /// This is not how arguments are written. What has been emitted stands; the character is none
    /// of it.
    Rejected,
    /// The arguments' closing bracket has been read.
    Done,
    /// A text that ends broken JSON has been read.
    End,
}

/// The arguments of a call, from behind their opening bracket on.
///
/// The call is emitted once the first key, or the closing bracket, shows that they are JSON.
#[derive(Debug)]
pub(in super::super) struct Arguments {
    name: String,
    scanner: Scanner,
    /// The bracket and the white space behind it, as long as nothing is emitted.
    untold: Option<String>,
    /// The brackets are written twice, as in a template.
    doubled: bool,
}

impl Arguments {
    pub(in super::super) fn new(name: String, ends: Ends) -> Self {
        let untold = Some("{".to_owned());
        Self { name, scanner: Scanner::in_object(ends), untold, doubled: false }
    }

    pub(in super::super) fn is_told(&self) -> bool {
        self.untold.is_none()
    }

    pub(in super::super) fn push(&mut self, c: char, calls: &mut CallWriter<'_>) -> Read {
        if let Some(begin) = &mut self.untold {
            match c {
                '{' if !self.doubled && begin == "{" => {
                    self.doubled = true;
                    return Read::More;
                }
                '"' | '}' => {
                    calls.start(&self.name);
                    calls.arguments(begin);
                    self.untold = None;
                }
                c if c.is_ascii_whitespace() => {
                    begin.push(c);
                    return Read::More;
                }
                _ => return Read::Rejected,
            }
        }
        if self.scanner.brackets.depth == 0 {
            // The second of two closing brackets.
            return if c.is_ascii_whitespace() { Read::More } else { Read::Done };
        }
        match self.scanner.push(c) {
            Scanned::Held => Read::More,
            Scanned::End => Read::End,
            Scanned::Text(text) => {
                calls.arguments(&text);
                let over = self.scanner.brackets.depth == 0 && !self.doubled;
                if over { Read::Done } else { Read::More }
            }
        }
    }

    /// The output ends here: what was held back was part of the arguments.
    pub(in super::super) fn finish(&mut self, calls: &mut CallWriter<'_>) {
        calls.arguments(&self.scanner.take_held());
    }
}
