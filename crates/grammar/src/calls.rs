//! Tool calls as a grammar.

use crate::{
    GrammarError, Grammars,
    ebnf::quoted,
    literal::Literal,
    schema::prepare,
    source::{Separators, with_options},
    tagged::Tagged,
};
use serde_json::{Value, json};
use std::fmt::Write;
use taper_base::TokenId;
use taper_chat::{ArgumentSyntax, CallSyntax, OutputFormat, Tool, ToolFormat};

/// The calls that an output may have.
#[derive(Debug, Clone, Copy)]
pub struct CallRules<'a> {
    /// How they are written.
    pub format: ToolFormat,
    /// The tools that may be called.
    pub tools: &'a [Tool],
    /// There must be a call, and no text beside it.
    pub required: bool,
    /// There may be more than one.
    pub many: bool,
}

/// Writes rules of Lark.
pub(crate) struct Writer<'a> {
    grammars: &'a Grammars,
    rules: CallRules<'a>,
    pub(crate) syntax: CallSyntax,
    lark: String,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(grammars: &'a Grammars, rules: CallRules<'a>) -> Result<Self, GrammarError> {
        let format = rules.format.get().map_or("none", OutputFormat::name);
        let syntax = rules.format.syntax(grammars.vocabulary.tokenizer());
        let syntax = syntax.ok_or(GrammarError::Format { format })?;
        Ok(Self { grammars, rules, syntax, lark: String::new() })
    }

    /// All of a message that has calls and nothing else; or `content` instead, a rule of Lark.
    pub(crate) fn whole(mut self, content: Option<&str>) -> Result<String, GrammarError> {
        let or_content = if content.is_some() { " | content" } else { "" };
        let calls = self.several(self.syntax.begin);
        let _ = writeln!(self.lark, "start: calls{or_content}\ncalls: {calls}");
        self.calls("call", self.syntax.before_name)?;
        if let Some(content) = content {
            let _ = writeln!(self.lark, "content: {content}");
        }
        Ok(self.lark)
    }

    /// What follows the opener in free text, up to the end of the calls that it opens.
    pub(crate) fn after_opener(mut self) -> Result<String, GrammarError> {
        let syntax = self.syntax;
        let opener = syntax.opener.text();
        if let Some(begin) = syntax.begin.strip_prefix(opener) {
            let calls = self.several(begin);
            let _ = writeln!(self.lark, "start: {calls}");
            self.calls("call", syntax.before_name)?;
        } else {
            let before = syntax.before_name.strip_prefix(opener).unwrap_or(syntax.before_name);
            self.lark.push_str("start: call\n");
            self.calls("call", before)?;
        }
        Ok(self.lark)
    }

    /// One call or several, from `begin` to the end.
    fn several(&self, begin: &str) -> String {
        let more = match self.syntax.between.filter(|_| self.rules.many) {
            Some(between) => format!("({} call)*", self.text(between)),
            None => String::new(),
        };
        format!("{} call {more} {}", self.text(begin), self.text(self.syntax.end))
    }

    fn calls(&mut self, rule: &str, before_name: &str) -> Result<(), GrammarError> {
        let all: Vec<_> = (0..self.rules.tools.len()).map(|i| format!("{rule}_{i}")).collect();
        let _ = writeln!(self.lark, "{rule}: {}", all.join(" | "));
        for (index, tool) in self.rules.tools.iter().enumerate() {
            let in_tool = |source| GrammarError::Tool { index, source: Box::new(source) };
            // In JSON the name is a string.
            let name = match before_name.ends_with('"') {
                true => quoted(&tool.name).trim_matches('"').to_owned(),
                false => tool.name.clone(),
            };
            let head = self.text(&format!("{before_name}{name}{}", self.syntax.after_name));
            let tail = self.text(self.syntax.after_arguments);
            let _ = writeln!(self.lark, "{rule}_{index}: {head} args_{index} {tail}");
            self.arguments(index, tool).map_err(in_tool)?;
        }
        Ok(())
    }

    fn arguments(&mut self, index: usize, tool: &Tool) -> Result<(), GrammarError> {
        let strict = tool.strict == Some(true);
        let nothing = json!({ "type": "object", "properties": {}, "additionalProperties": false });
        let parameters = tool.parameters.as_ref().unwrap_or(&nothing);
        let mut schema = prepare(parameters, strict)?;
        if let Some(schema) = schema.as_object_mut() {
            schema.entry("type").or_insert_with(|| "object".into());
        }
        match self.syntax.arguments {
            ArgumentSyntax::Json => {
                let mut json = with_options(schema, Separators::Spaced, None, strict);
                if !self.is_usable(&json, strict)? {
                    let any = json!({ "type": "object" });
                    json = with_options(any, Separators::Spaced, None, false);
                }
                let _ = writeln!(self.lark, "args_{index}: %json {json}");
                Ok(())
            }
            ArgumentSyntax::Tagged(tags) => {
                let rules = Tagged::new(self, tags, strict).arguments(index, &schema)?;
                self.lark.push_str(&rules);
                Ok(())
            }
            ArgumentSyntax::Literal(style) => {
                let rules = Literal::new(self, style, strict, &schema).arguments(index)?;
                self.lark.push_str(&rules);
                Ok(())
            }
        }
    }

    /// Whether a schema can be used. One that is not strict need not be.
    pub(crate) fn is_usable(&self, schema: &Value, strict: bool) -> Result<bool, GrammarError> {
        match self.grammars.check(schema) {
            Ok(()) => Ok(true),
            Err(error) if strict => Err(error),
            Err(error) => {
                tracing::debug!(%error, "a tool's schema is not enforced");
                Ok(false)
            }
        }
    }

    /// The first mark in a text that is a special token: where it stands, the mark and the token.
    fn special<'t>(&self, text: &'t str) -> Option<(usize, &'t str, TokenId)> {
        let format = self.rules.format.get();
        let marks = format.iter().flat_map(|f| f.openers().iter().chain(f.marks()));
        let special = |mark: &&'static str| {
            let at = text.find(*mark)?;
            let id = self.grammars.vocabulary.special_token(mark)?;
            Some((at, &text[at..at + mark.len()], id))
        };
        // Of marks at one place the longest is meant.
        marks.filter_map(special).min_by_key(|(at, mark, _)| (*at, usize::MAX - mark.len()))
    }

    /// Rules for a text and the mark that ends it, which it does not hold, and none of `without`.
    pub(crate) fn text_up_to(
        &self,
        rule: &str,
        (end, without): (&str, &[&str]),
        length: (u64, Option<u64>),
    ) -> String {
        let (least, most) = length;
        let any = |least: u64| match (least, most) {
            (0, None) => "(?s:.*)".to_owned(),
            (1, None) => "(?s:.+)".to_owned(),
            (least, None) => format!("(?s:.{{{least},}})"),
            (least, Some(most)) => format!("(?s:.{{{least},{most}}})"),
        };
        let hold = |mark: &&str| format!(" & ~/(?s:.*){}(?s:.*)/", escaped(mark));
        let without: String = without.iter().map(hold).collect();
        let Some((at, ..)) = self.special(end) else {
            let end = escaped(end);
            let once = match length {
                // The first end is the text's.
                (0, None) => String::new(),
                _ => format!(" & ~/(?s:.*){end}(?s:.+)/"),
            };
            return format!("{rule}[lazy]: /{}{end}/{without}{once}\n", any(least));
        };
        // A special token is no part of a text, which goes on up to it.
        let (plain, special) = end.split_at(at);
        let not_end = hold(&end);
        let (token, special) = (rule.to_uppercase(), self.text(special));
        if plain.is_empty() && most == Some(0) {
            return format!("{rule}: {special}\n");
        }
        let empty = if plain.is_empty() && least == 0 { "?" } else { "" };
        let least = if plain.is_empty() { least.max(1) } else { least };
        let plain = escaped(plain);
        format!(
            "{rule}: {token}{empty} {special}\n{token}: /{}{plain}/{not_end}{without}\n",
            any(least)
        )
    }

    /// A text, in which marks may be special tokens.
    pub(crate) fn text(&self, text: &str) -> String {
        let (mut out, mut rest) = (Vec::new(), text);
        while !rest.is_empty() {
            let Some((at, mark, id)) = self.special(rest) else {
                out.push(quoted(rest));
                break;
            };
            if at > 0 {
                out.push(quoted(&rest[..at]));
            }
            out.push(format!("<[{id}]>"));
            rest = &rest[at + mark.len()..];
        }
        if out.is_empty() { "\"\"".to_owned() } else { out.join(" ") }
    }
}

/// A text as a regular expression of Lark.
pub(crate) fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            // Before other characters a backslash may mean something, as `\<` does.
            c if r"\.+*?()|[]{}^$/#&-~".contains(c) => out.extend(['\\', c]),
            c => out.push(c),
        }
    }
    out
}
