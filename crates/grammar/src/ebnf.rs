//! Grammars in the notation of llama.cpp's GBNF and XGrammar's EBNF, as Lark.

use crate::GrammarError;
use std::fmt::Write;

/// Whether a grammar is in this notation. Lark writes rules with a colon.
pub(crate) fn is_ebnf(text: &str) -> bool {
    text.contains("::=")
}

/// Translates a grammar whose first rule is `root`.
pub(crate) fn to_lark(text: &str) -> Result<String, GrammarError> {
    let mut reader = Reader { text, at: 0, out: String::new() };
    reader.skip(true);
    while reader.at < text.len() {
        reader.rule()?;
    }
    if !reader.out.contains("start:") {
        return Err(GrammarError::Syntax("the grammar has no rule 'root'".to_owned()));
    }
    Ok(reader.out)
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
    out: String,
}

/// Nothing nests deeper.
const MAX_DEPTH: usize = 64;

impl Reader<'_> {
    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += c.len_utf8();
        Some(c)
    }

    fn wrong<T>(&self, what: &str) -> Result<T, GrammarError> {
        let line = self.text[..self.at].matches('\n').count() + 1;
        Err(GrammarError::Syntax(format!("line {line} of the grammar: {what}")))
    }

    /// Skips blanks and comments; line breaks too, if they end nothing.
    fn skip(&mut self, lines: bool) {
        while let Some(c) = self.peek() {
            if c == '#' {
                while self.peek().is_some_and(|c| c != '\n') {
                    self.next();
                }
            } else if c.is_whitespace() && (lines || c != '\n') {
                self.next();
            } else {
                return;
            }
        }
    }

    fn name(&mut self) -> Option<String> {
        let is_in_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        let rest = self.rest();
        let length = rest.find(|c| !is_in_name(c)).unwrap_or(rest.len());
        let name = rest[..length].to_owned();
        self.at += length;
        (!name.is_empty()).then_some(name)
    }

    /// What a rule is called in Lark, whose rules are in lower case.
    fn rule_name(name: &str) -> String {
        if name == "root" {
            return "start".to_owned();
        }
        let mut out = "r".to_owned();
        for c in name.chars() {
            match c {
                'a'..='z' | '0'..='9' => out.push(c),
                // Other names must not become equal to it.
                c => {
                    let _ = write!(out, "_{:x}_", u32::from(c));
                }
            }
        }
        out
    }

    fn rule(&mut self) -> Result<(), GrammarError> {
        let Some(name) = self.name() else { return self.wrong("expected the name of a rule") };
        self.skip(true);
        if !self.rest().starts_with("::=") {
            return self.wrong("expected '::='");
        }
        self.at += 3;
        let _ = write!(self.out, "{}: ", Self::rule_name(&name));
        self.options(0)?;
        self.out.push('\n');
        self.skip(true);
        Ok(())
    }

    /// Whether another rule begins here.
    fn at_rule(&mut self) -> bool {
        let at = self.at;
        let named = self.name().is_some();
        self.skip(true);
        let is = named && self.rest().starts_with("::=");
        self.at = at;
        is
    }

    fn options(&mut self, depth: usize) -> Result<(), GrammarError> {
        if depth > MAX_DEPTH {
            return self.wrong("too many brackets inside one another");
        }
        let mut empty = true;
        loop {
            self.skip(true);
            match self.peek() {
                None => break,
                Some(')') if depth > 0 => break,
                Some('|') => {
                    self.next();
                    if std::mem::replace(&mut empty, true) {
                        self.out.push_str("\"\"");
                    }
                    self.out.push_str(" | ");
                }
                Some(_) if depth == 0 && self.at_rule() => break,
                Some(_) => {
                    self.item(depth)?;
                    self.out.push(' ');
                    empty = false;
                }
            }
        }
        if empty {
            self.out.push_str("\"\"");
        }
        Ok(())
    }

    fn item(&mut self, depth: usize) -> Result<(), GrammarError> {
        match self.peek() {
            Some('"') => self.literal()?,
            Some('[') => self.class()?,
            Some('.') => {
                self.next();
                self.out.push_str("/(?s:.)/");
            }
            Some('(') => {
                self.next();
                self.out.push('(');
                self.options(depth + 1)?;
                if self.next() != Some(')') {
                    return self.wrong("expected ')'");
                }
                self.out.push(')');
            }
            _ => match self.name() {
                Some(name) => self.out.push_str(&Self::rule_name(&name)),
                None => return self.wrong("expected a rule, a text, a class or a bracket"),
            },
        }
        match self.peek() {
            Some(c @ ('*' | '+' | '?')) => {
                self.next();
                self.out.push(c);
            }
            Some('{') => {
                let Some(end) = self.rest().find('}') else { return self.wrong("expected '}'") };
                let range = self.rest()[..=end].replace(' ', "");
                let valid = range[1..end.min(range.len() - 1)]
                    .chars()
                    .all(|c| c.is_ascii_digit() || c == ',');
                if !valid {
                    return self.wrong("expected numbers between '{' and '}'");
                }
                self.at += end + 1;
                self.out.push_str(&range);
            }
            _ => {}
        }
        Ok(())
    }

    /// A character of a text or a class, without its escape.
    fn escaped(&mut self) -> Result<char, GrammarError> {
        let digits = match self.next() {
            Some('n') => return Ok('\n'),
            Some('r') => return Ok('\r'),
            Some('t') => return Ok('\t'),
            Some('x') => 2,
            Some('u') => 4,
            Some('U') => 8,
            Some(c) if !c.is_alphanumeric() => return Ok(c),
            _ => return self.wrong("unknown escape"),
        };
        let code = self.rest().get(..digits).and_then(|hex| u32::from_str_radix(hex, 16).ok());
        let Some(c) = code.and_then(char::from_u32) else { return self.wrong("unknown escape") };
        self.at += digits;
        Ok(c)
    }

    fn literal(&mut self) -> Result<(), GrammarError> {
        self.next();
        let mut text = String::new();
        loop {
            match self.next() {
                Some('"') => break,
                Some('\\') => text.push(self.escaped()?),
                Some(c) => text.push(c),
                None => return self.wrong("expected '\"'"),
            }
        }
        self.out.push_str(&quoted(&text));
        Ok(())
    }

    fn class(&mut self) -> Result<(), GrammarError> {
        self.next();
        self.out.push_str("/[");
        if self.peek() == Some('^') {
            self.next();
            self.out.push('^');
        }
        loop {
            let c = match self.next() {
                Some(']') => break,
                Some('\\') => self.escaped()?,
                Some('-') => {
                    self.out.push('-');
                    continue;
                }
                Some(c) => c,
                None => return self.wrong("expected ']'"),
            };
            let _ = write!(self.out, "\\u{{{:X}}}", u32::from(c));
        }
        self.out.push_str("]/");
        Ok(())
    }
}

/// A text as Lark writes it.
pub(crate) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_become_rules() {
        let ebnf = "# a list\nroot ::= item (\",\" ws item)* # end\nitem ::= [a-z\\x41-\\x46_-]+ |\n  \"\\\"q\\n\" | Other\nws ::= | \" \"{1,3}\nOther ::= .";
        let lark = to_lark(ebnf).unwrap();
        let want = [
            r#"start: ritem ("," rws ritem )* "#,
            r#"ritem: /[\u{61}-\u{7A}\u{41}-\u{46}\u{5F}-]/+  | "\"q\n"  | r_4f_ther "#,
            r#"rws: "" | " "{1,3} "#,
            r"r_4f_ther: /(?s:.)/ ",
        ];
        assert_eq!(lark.lines().collect::<Vec<_>>(), want);
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        for (text, what) in [
            ("item ::= \"a\"", "no rule 'root'"),
            ("root ::= \"a", "line 1 of the grammar: expected '\"'"),
            ("root ::= \"a\"\nx ::= (\"b\"", "line 2 of the grammar: expected ')'"),
            ("root ::= [a", "expected ']'"),
            ("root = \"a\" ::=", "expected '::='"),
            ("root ::= \"\\q\"", "unknown escape"),
            ("root ::= \"a\"{b}", "expected numbers"),
        ] {
            let error = to_lark(text).unwrap_err().to_string();
            assert!(error.contains(what), "{text}: {error}");
        }
        let deep = format!("root ::= {}", "(".repeat(10_000));
        assert!(to_lark(&deep).unwrap_err().to_string().contains("brackets"));
    }
}
