//! A check of constant expressions, which the engine computes when it compiles a template.

use super::memory;
use minijinja::{
    Error, Value,
    machinery::{Token, tokenize},
    syntax::SyntaxConfig,
};

/// Refuses a template whose constants would multiply to something too large: a `*` may multiply
/// the texts and lists of its tag by the numbers in it.
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
            Token::Int(n) => tag.number(usize::try_from(n).unwrap_or(usize::MAX)),
            Token::Int128(_) => tag.number(usize::MAX),
            // A whole one repeats as well; too large ones saturate.
            Token::Float(x) => tag.number(x.ceil() as usize),
            // An element of a list or a tuple.
            Token::Comma => tag.length = tag.length.saturating_add(size_of::<Value>()),
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
    /// Sum of the numbers.
    numbers: usize,
}

impl Tag {
    fn number(&mut self, n: usize) {
        self.numbers = self.numbers.saturating_add(n);
    }

    /// Bytes that the tag's texts and lists could become.
    fn largest(self) -> usize {
        if self.times == 0 || self.length == 0 {
            return self.length;
        }
        if self.power {
            return usize::MAX;
        }
        // Numbers may be added before they multiply. Of so many factors with a given sum, the product is
        // largest where all are the same; more factors than 64 are no better, or beyond all bounds.
        let product = |k: usize| {
            let exponent = u32::try_from(k).unwrap_or(u32::MAX);
            self.numbers.div_ceil(k).max(1).saturating_pow(exponent)
        };
        let factor = (1..=self.times.min(64)).map(product).max().unwrap_or(1);
        self.length.saturating_mul(factor)
    }
}
