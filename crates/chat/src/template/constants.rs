//! A check of constant expressions, which the engine computes when it compiles a template.

use super::memory;
use minijinja::{
    Error,
    machinery::{Token, tokenize},
    syntax::SyntaxConfig,
};

/// Refuses a template whose constants would multiply to something too large: a `*` may multiply
/// the texts of its tag by any number in it.
pub(super) fn check(source: &str, syntax: &SyntaxConfig) -> Result<(), Error> {
    let mut total = 0_usize;
    let mut tag = Tag::default();
    for token in tokenize(source, false, syntax.clone()) {
        match token?.0 {
            Token::BlockEnd | Token::VariableEnd => {
                total = total.saturating_add(std::mem::take(&mut tag).largest());
                memory::check_length(total)?;
            }
            Token::Mul => tag.times += 1,
            Token::Pow => tag.power = true,
            Token::Int(n) => tag.numbers.push(usize::try_from(n).unwrap_or(usize::MAX)),
            Token::Int128(_) => tag.numbers.push(usize::MAX),
            Token::Str(text) => tag.length = tag.length.saturating_add(text.len()),
            Token::String(text) => tag.length = tag.length.saturating_add(text.len()),
            _ => {}
        }
    }
    Ok(())
}

#[derive(Default)]
struct Tag {
    length: usize,
    times: usize,
    power: bool,
    numbers: Vec<usize>,
}

impl Tag {
    /// Bytes that the tag's texts could become.
    fn largest(mut self) -> usize {
        if self.times == 0 || self.length == 0 {
            return self.length;
        }
        if self.power {
            return usize::MAX;
        }
        self.numbers.sort_unstable_by(|a, b| b.cmp(a));
        let factors = self.numbers.iter().take(self.times);
        factors.fold(self.length, |length, n| length.saturating_mul((*n).max(1)))
    }
}
