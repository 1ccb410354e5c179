//! Time of one choice over a vocabulary of 151,936 tokens.

fn main() {}
