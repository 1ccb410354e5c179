//! Arguments written as literals of a programming language, to JSON while they are read:
//! `a=1, b='x', c=[True, None]`, or `a:1,b:<|"|>x<|"|>`.

use super::{
    super::{CallWriter, KnownTools},
    arguments::Read,
    types::Types,
    value::escaped,
};
use serde_json::{Number, Value};

/// Most bytes of a key.
const MAX_KEY: usize = 256;

/// How a format writes such arguments.
#[derive(Debug)]
pub(in super::super) struct LiteralStyle {
    /// The arguments' brackets.
    pub(in super::super) open: char,
    pub(in super::super) close: char,
    /// Stands between the name of an argument and its value.
    pub(in super::super) equals: char,
    /// Stands at both ends of a string, which has no escapes. `None` means Python's strings. With
    /// a delimiter values are texts, and the tool's schema says of what type.
    pub(in super::super) delimiter: Option<&'static str>,
}

/// Reads arguments from behind their opening bracket on.
#[derive(Debug)]
pub(super) struct Literal {
    style: &'static LiteralStyle,
    name: String,
    tools: KnownTools,
    told: bool,
    stack: Vec<Frame>,
    token: Token,
    /// The argument that is being read has this type, if its schema says so.
    types: Option<Types>,
}

/// An open bracket.
#[derive(Debug)]
struct Frame {
    close: char,
    json: char,
    /// Stands between keys and values; lists have none.
    colon: Option<char>,
    expects: Expects,
    empty: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expects {
    Key,
    Colon,
    Value,
    Comma,
}

#[derive(Debug)]
enum Token {
    None,
    /// A key without quotes.
    Key(String),
    /// A number, a constant, or text without quotes.
    Word(String),
    /// Python's quotes before a string: one, two or three of them.
    Quotes(char, u8),
    Text(Text),
}

/// A string.
#[derive(Debug)]
struct Text {
    /// Python's quote; unused with a delimiter.
    quote: char,
    triple: bool,
    /// What may be the end of the string, or the beginning of an escape.
    held: String,
    /// A text that is converted at its end.
    kept: Option<String>,
}

impl Literal {
    pub(super) fn new(style: &'static LiteralStyle, name: String, tools: &KnownTools) -> Self {
        let expects = Expects::Key;
        let colon = Some(style.equals);
        let top = Frame { close: style.close, json: '}', colon, expects, empty: true };
        Self {
            style,
            name,
            tools: tools.clone(),
            told: false,
            stack: vec![top],
            token: Token::None,
            types: None,
        }
    }

    pub(super) fn is_told(&self) -> bool {
        self.told
    }

    pub(super) fn push(&mut self, c: char, calls: &mut CallWriter<'_>) -> Read {
        match std::mem::replace(&mut self.token, Token::None) {
            Token::None => self.structure(c, calls),
            Token::Key(mut key) => {
                if self.stack.last().and_then(|f| f.colon) == Some(c) {
                    let key = key.trim().to_owned();
                    self.key(&key, calls);
                    self.expect(Expects::Value);
                    calls.arguments(": ");
                    return Read::More;
                }
                key.push(c);
                let fits = key.len() <= MAX_KEY && !"{}[](),\"'<>\n".contains(c);
                self.token = Token::Key(key);
                if fits { Read::More } else { Read::Rejected }
            }
            Token::Word(mut word) => {
                if self.in_word(c) {
                    word.push(c);
                    self.token = Token::Word(word);
                    return Read::More;
                }
                let json = self.word(&word);
                calls.arguments(&json);
                self.expect(Expects::Comma);
                self.structure(c, calls)
            }
            Token::Quotes(quote, n) => match n {
                _ if c == quote && n < 2 => self.hold(Token::Quotes(quote, n + 1)),
                2 if c == quote => {
                    calls.arguments("\"");
                    self.hold(Token::Text(Text::python(quote, true)))
                }
                2 => {
                    calls.arguments("\"\"");
                    self.after_text();
                    self.structure(c, calls)
                }
                _ => {
                    calls.arguments("\"");
                    self.token = Token::Text(Text::python(quote, false));
                    self.push(c, calls)
                }
            },
            Token::Text(mut text) => {
                let over = match self.style.delimiter {
                    Some(end) => text.delimited(end, c, calls),
                    None => text.quoted(c, calls),
                };
                if !over {
                    return self.hold(Token::Text(text));
                }
                match text.kept {
                    Some(text) => {
                        let types = self.types.unwrap_or_default();
                        calls.arguments(&types.convert(&text));
                    }
                    None => calls.arguments("\""),
                }
                self.after_text();
                Read::More
            }
        }
    }

    /// The output ends here.
    pub(super) fn finish(&mut self, calls: &mut CallWriter<'_>) {
        match std::mem::replace(&mut self.token, Token::None) {
            Token::Word(word) => calls.arguments(&word),
            Token::Text(text) => {
                calls.arguments(text.kept.as_deref().unwrap_or_default());
                text.held.chars().for_each(|c| calls.arguments(&escaped(c)));
            }
            _ => {}
        }
    }

    fn hold(&mut self, token: Token) -> Read {
        self.token = token;
        Read::More
    }

    fn expect(&mut self, expects: Expects) {
        if let Some(frame) = self.stack.last_mut() {
            frame.expects = expects;
        }
    }

    fn after_text(&mut self) {
        let was_key = self.stack.last().is_some_and(|f| f.expects == Expects::Key);
        self.expect(if was_key { Expects::Colon } else { Expects::Comma });
    }

    /// The call is told by its first key, or by its end.
    fn tell(&mut self, calls: &mut CallWriter<'_>) {
        if !std::mem::replace(&mut self.told, true) {
            calls.start(&self.name);
            calls.arguments("{");
        }
    }

    /// Before a key, or a value of a list.
    fn comma(&mut self, calls: &mut CallWriter<'_>) {
        if let Some(frame) = self.stack.last_mut()
            && !std::mem::replace(&mut frame.empty, false)
        {
            calls.arguments(", ");
        }
    }

    fn key(&mut self, key: &str, calls: &mut CallWriter<'_>) {
        self.tell(calls);
        self.comma(calls);
        calls.arguments(&Value::from(key).to_string());
        if self.stack.len() == 1 {
            self.types = Types::of_argument(&self.tools, &self.name, key);
        }
    }

    fn structure(&mut self, c: char, calls: &mut CallWriter<'_>) -> Read {
        let Some(frame) = self.stack.last() else { return Read::Rejected };
        let (expects, colon, close) = (frame.expects, frame.colon, frame.close);
        let may_close = match expects {
            Expects::Key | Expects::Comma => true,
            Expects::Value => colon.is_none(),
            Expects::Colon => false,
        };
        match expects {
            _ if c.is_whitespace() => Read::More,
            _ if c == close && may_close => self.close(calls),
            Expects::Key => self.begin_key(c, calls),
            Expects::Colon if Some(c) == colon => {
                calls.arguments(": ");
                self.expect(Expects::Value);
                Read::More
            }
            Expects::Comma if c == ',' => {
                self.expect(if colon.is_some() { Expects::Key } else { Expects::Value });
                Read::More
            }
            Expects::Value => self.begin_value(c, calls),
            Expects::Colon | Expects::Comma => Read::Rejected,
        }
    }

    fn close(&mut self, calls: &mut CallWriter<'_>) -> Read {
        self.tell(calls);
        if let Some(frame) = self.stack.pop() {
            calls.arguments(frame.json.encode_utf8(&mut [0; 4]));
        }
        self.expect(Expects::Comma);
        if self.stack.is_empty() { Read::Done } else { Read::More }
    }

    fn begin_key(&mut self, c: char, calls: &mut CallWriter<'_>) -> Read {
        // The names of arguments are not quoted in Python, those of a mapping's entries are.
        let quoted = self.style.delimiter.is_none() && matches!(c, '"' | '\'');
        if quoted && self.stack.len() > 1 {
            self.comma(calls);
            return self.hold(Token::Quotes(c, 1));
        }
        self.push_key(c)
    }

    fn push_key(&mut self, c: char) -> Read {
        if "{}[](),\"'<>\n:=".contains(c) {
            return Read::Rejected;
        }
        self.hold(Token::Key(c.to_string()))
    }

    fn begin_value(&mut self, c: char, calls: &mut CallWriter<'_>) -> Read {
        if self.stack.last().is_some_and(|f| f.colon.is_none()) {
            self.comma(calls);
        }
        let (colon, expects) = match c {
            '{' => (Some(':'), Expects::Key),
            _ => (None, Expects::Value),
        };
        let open = |close, json| Frame { close, json, colon, expects, empty: true };
        let frame = match (c, self.style.delimiter) {
            ('[', _) => open(']', ']'),
            ('{', _) => open('}', '}'),
            ('(', None) => open(')', ']'),
            ('"' | '\'', None) => return self.hold(Token::Quotes(c, 1)),
            (_, Some(delimiter)) if delimiter.starts_with(c) => return self.text(c, calls),
            _ if self.in_word(c) => return self.hold(Token::Word(c.to_string())),
            _ => return Read::Rejected,
        };
        calls.arguments(c.to_string().replace('(', "[").as_str());
        self.stack.push(frame);
        Read::More
    }

    /// A string between delimiters. One that its schema gives another type is converted.
    fn text(&mut self, c: char, calls: &mut CallWriter<'_>) -> Read {
        let converted = self.stack.len() == 1 && self.types.is_some_and(|t| !t.takes_string());
        if !converted {
            calls.arguments("\"");
        }
        let (held, kept) = (c.to_string(), converted.then(String::new));
        // The delimiter is still to be read: what is held is its beginning.
        self.hold(Token::Text(Text { quote: '\0', triple: false, held, kept }))
    }

    fn in_word(&self, c: char) -> bool {
        match self.style.delimiter {
            Some(_) => !",{}[]\n".contains(c),
            None => c.is_alphanumeric() || "_+-.".contains(c),
        }
    }

    fn word(&self, word: &str) -> String {
        let word = word.trim();
        match self.types.filter(|_| self.stack.len() == 1 && self.style.delimiter.is_some()) {
            Some(types) => types.convert(word),
            None => constant(word),
        }
    }
}

impl Text {
    fn python(quote: char, triple: bool) -> Self {
        Self { quote, triple, held: String::new(), kept: None }
    }

    fn put(&mut self, c: char, calls: &mut CallWriter<'_>) {
        match &mut self.kept {
            Some(kept) => kept.push(c),
            None => calls.arguments(&escaped(c)),
        }
    }

    /// Whether the string ends here. `quote` is set once the first delimiter has been read.
    fn delimited(&mut self, end: &str, c: char, calls: &mut CallWriter<'_>) -> bool {
        self.held.push(c);
        while !self.held.is_empty() {
            if self.held == end {
                self.held.clear();
                let closes = self.quote != '\0';
                self.quote = '"';
                return closes;
            }
            if end.starts_with(&self.held) {
                return false;
            }
            let first = self.held.remove(0);
            self.quote = '"';
            self.put(first, calls);
        }
        false
    }

    /// Whether the string ends here.
    fn quoted(&mut self, c: char, calls: &mut CallWriter<'_>) -> bool {
        if self.held.starts_with('\\') {
            self.held.push(c);
            self.escape(calls);
            return false;
        }
        if c == self.quote {
            self.held.push(c);
            let whole = !self.triple || self.held.len() == 3;
            if whole {
                self.held.clear();
            }
            return whole;
        }
        for quote in std::mem::take(&mut self.held).chars() {
            self.put(quote, calls);
        }
        if c == '\\' {
            self.held.push(c);
        } else {
            self.put(c, calls);
        }
        false
    }

    /// Python's escapes. What is none stays as it is.
    fn escape(&mut self, calls: &mut CallWriter<'_>) {
        let mut chars = self.held.chars();
        let Some(kind) = chars.nth(1) else { return };
        let digits = chars.as_str();
        let wanted = match kind {
            'x' => 2,
            'u' => 4,
            'U' => 8,
            _ => 0,
        };
        let plain = match kind {
            '\n' => Some(""),
            'n' => Some("\\n"),
            't' => Some("\\t"),
            'r' => Some("\\r"),
            'b' => Some("\\b"),
            'f' => Some("\\f"),
            '0' => Some("\\u0000"),
            'a' => Some("\\u0007"),
            'v' => Some("\\u000b"),
            '\'' => Some("'"),
            '"' => Some("\\\""),
            '\\' => Some("\\\\"),
            _ => None,
        };
        if let Some(text) = plain {
            calls.arguments(text);
            self.held.clear();
            return;
        }
        let hex = digits.bytes().all(|b| b.is_ascii_hexdigit());
        if hex && digits.len() < wanted {
            return;
        }
        if hex && wanted == 4 {
            // Half of a surrogate pair is an escape of JSON, too.
            calls.arguments(&format!("\\u{digits}"));
        } else if let Some(c) = Some(digits).filter(|_| hex && wanted > 0).and_then(character) {
            self.held.clear();
            self.put(c, calls);
        } else {
            self.held.chars().for_each(|c| calls.arguments(&escaped(c)));
        }
        self.held.clear();
    }
}

fn character(hex: &str) -> Option<char> {
    u32::from_str_radix(hex, 16).ok().and_then(char::from_u32)
}

/// A word without quotes as JSON.
fn constant(word: &str) -> String {
    match word {
        "True" | "true" => return "true".to_owned(),
        "False" | "false" => return "false".to_owned(),
        "None" | "null" => return "null".to_owned(),
        _ => {}
    }
    if word.parse::<Number>().is_ok() {
        return word.to_owned();
    }
    let plain = word.trim_start_matches('+').replace('_', "");
    let numeric = plain.starts_with(|c: char| c.is_ascii_digit() || "-.".contains(c));
    match plain.parse::<Number>() {
        Ok(_) if numeric => plain,
        _ => match plain.parse::<f64>() {
            Ok(number) if numeric && number.is_finite() => Value::from(number).to_string(),
            _ => Value::from(word).to_string(),
        },
    }
}
