//! Model output in chunks.

use taper_chat::{OutputParser, ParsedMessage, ParserOptions};

/// What a parser makes of a text that comes in chunks.
pub(crate) fn streamed(options: ParserOptions, pieces: &[&str]) -> ParsedMessage {
    let mut parser = OutputParser::new(options);
    let mut message = ParsedMessage::default();
    for piece in pieces {
        parser.push(piece).into_iter().for_each(|delta| message.apply(delta));
    }
    parser.finish().into_iter().for_each(|delta| message.apply(delta));
    message
}

/// A text cut at those of `cuts` that lie between characters of it.
pub(crate) fn cut(text: &str, cuts: Vec<usize>) -> Vec<&str> {
    let inside = |&at: &usize| at < text.len() && text.is_char_boundary(at);
    let mut cuts: Vec<usize> = cuts.into_iter().filter(inside).collect();
    cuts.sort_unstable();
    cuts.push(text.len());
    let mut from = 0;
    let piece = |to| &text[std::mem::replace(&mut from, to)..to];
    cuts.into_iter().map(piece).collect()
}
