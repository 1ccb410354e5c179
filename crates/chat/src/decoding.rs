//! How token texts become text: the decoders of `tokenizer.json`, as a chain that works token by
//! token.
//!
//! Whole decoding and incremental decoding give the same because every stage keeps exactly what
//! it needs of the tokens before: the bytes of an unfinished character, a run of byte tokens, or
//! one token.

use std::sync::{Arc, LazyLock};
use tokenizers::{Decoder, DecoderWrapper, decoders::strip::Strip};

/// A decoder that can be streamed, and what it remembers.
#[derive(Debug, Clone)]
pub(crate) struct Chain {
    stages: Vec<Stage>,
}

#[derive(Debug, Clone)]
enum Stage {
    /// No decoder: tokens are joined by spaces.
    Spaced { first: bool },
    /// Each token by itself, whatever its position.
    Each(Arc<DecoderWrapper>),
    /// The first token is treated unlike the others.
    FirstDiffers { decoder: Arc<DecoderWrapper>, first: bool },
    /// The last token is treated unlike the others.
    /// `owed` is what the last token of a prompt gains when another follows.
    LastDiffers { decoder: Arc<DecoderWrapper>, held: Option<String>, owed: String },
    /// Byte-level BPE: all tokens become one text, by way of bytes.
    ByteLevel { pending: Vec<u8> },
    /// Runs of tokens `<0xNN>` become text when they are UTF-8, else one U+FFFD each.
    ByteFallback { run: Vec<u8> },
    /// From here on all tokens are parts of one.
    Fuse,
    /// Drops some of one character at the ends of the fused text.
    StripFused { character: char, start: usize, stop: usize, tail: usize },
}

/// The type of decoder that cannot be streamed.
#[derive(Debug)]
pub(crate) struct Unsupported(pub(crate) &'static str);

impl Chain {
    pub(crate) fn new(decoder: Option<&DecoderWrapper>) -> Result<Self, Unsupported> {
        let mut stages = Vec::new();
        match decoder {
            None => stages.push(Stage::Spaced { first: true }),
            Some(decoder) => {
                let mut fused = false;
                add(decoder, &mut stages, &mut fused)?;
            }
        }
        Ok(Self { stages })
    }

    /// Takes a token's text and gives back text that is certain.
    pub(crate) fn push(&mut self, token: String) -> tokenizers::Result<String> {
        self.run(vec![token], false)
    }

    /// Takes the end of a prompt, whose text is known: what was decoded of it stays inside. Bytes
    /// of an unfinished character wait for the rest.
    pub(crate) fn follow(&mut self, mut tokens: Vec<String>) -> tokenizers::Result<()> {
        for stage in &mut self.stages {
            let mut out = Vec::new();
            for token in tokens {
                stage.push(token, &mut out)?;
            }
            stage.leave_prompt(&mut out)?;
            tokens = out;
        }
        Ok(())
    }

    /// The end: what was held back.
    pub(crate) fn finish(&mut self) -> tokenizers::Result<String> {
        self.run(Vec::new(), true)
    }

    fn run(&mut self, mut tokens: Vec<String>, end: bool) -> tokenizers::Result<String> {
        for stage in &mut self.stages {
            let mut out = Vec::new();
            for token in tokens {
                stage.push(token, &mut out)?;
            }
            if end {
                stage.finish(&mut out)?;
            }
            tokens = out;
        }
        Ok(tokens.concat())
    }

    /// Whether there is a space between two tokens that have none themselves.
    pub(crate) fn joins_with_spaces(&self) -> bool {
        let mut chain = self.clone();
        let tokens = vec!["a".to_owned(), "b".to_owned()];
        chain.run(tokens, true).is_ok_and(|text| text.contains(' '))
    }

    /// The bytes that a token stands for in the middle of a text.
    pub(crate) fn bytes(&self, token: &str) -> tokenizers::Result<Vec<u8>> {
        let mut text = token.to_owned();
        for stage in &self.stages {
            match stage {
                Stage::ByteLevel { .. } => return Ok(byte_level(&text)),
                Stage::ByteFallback { .. } => {
                    if let Some(byte) = byte_token(&text) {
                        return Ok(vec![byte]);
                    }
                }
                Stage::Each(decoder) => text = decoder.decode_chain(vec![text])?.concat(),
                Stage::FirstDiffers { decoder, .. } => text = after_another(decoder, text)?,
                Stage::LastDiffers { decoder, .. } => text = before_another(decoder, text)?,
                Stage::Spaced { .. } | Stage::Fuse | Stage::StripFused { .. } => {}
            }
        }
        Ok(text.into_bytes())
    }
}

fn add(
    decoder: &DecoderWrapper,
    stages: &mut Vec<Stage>,
    fused: &mut bool,
) -> Result<(), Unsupported> {
    // Behind a fuse there is one token, in parts: only its ends can be changed.
    if *fused {
        return match decoder {
            DecoderWrapper::Fuse(_) => Ok(()),
            DecoderWrapper::Strip(Strip { content, start, stop, .. }) => {
                stages.push(Stage::StripFused {
                    character: *content,
                    start: *start,
                    stop: *stop,
                    tail: 0,
                });
                Ok(())
            }
            DecoderWrapper::Sequence(sequence) => {
                sequence.get_decoders().iter().try_for_each(|d| add(d, stages, fused))
            }
            other => Err(Unsupported(name(other))),
        };
    }
    match decoder {
        DecoderWrapper::Sequence(sequence) => {
            return sequence.get_decoders().iter().try_for_each(|d| add(d, stages, fused));
        }
        DecoderWrapper::ByteLevel(_) => {
            *fused = true;
            stages.push(Stage::ByteLevel { pending: Vec::new() });
        }
        DecoderWrapper::Fuse(_) => {
            *fused = true;
            stages.push(Stage::Fuse);
        }
        DecoderWrapper::ByteFallback(_) => stages.push(Stage::ByteFallback { run: Vec::new() }),
        DecoderWrapper::Replace(_) | DecoderWrapper::Strip(_) => {
            stages.push(Stage::Each(Arc::new(decoder.clone())));
        }
        DecoderWrapper::Metaspace(_) | DecoderWrapper::WordPiece(_) => {
            stages.push(Stage::FirstDiffers { decoder: Arc::new(decoder.clone()), first: true });
        }
        DecoderWrapper::BPE(_) => {
            stages.push(Stage::LastDiffers {
                decoder: Arc::new(decoder.clone()),
                held: None,
                owed: String::new(),
            });
        }
        // It drops repetitions, which speech recognizers make.
        DecoderWrapper::CTC(_) => return Err(Unsupported(name(decoder))),
    }
    Ok(())
}

fn name(decoder: &DecoderWrapper) -> &'static str {
    match decoder {
        DecoderWrapper::BPE(_) => "BPEDecoder",
        DecoderWrapper::ByteLevel(_) => "ByteLevel",
        DecoderWrapper::WordPiece(_) => "WordPiece",
        DecoderWrapper::Metaspace(_) => "Metaspace",
        DecoderWrapper::CTC(_) => "CTC",
        DecoderWrapper::Sequence(_) => "Sequence",
        DecoderWrapper::Replace(_) => "Replace",
        DecoderWrapper::Fuse(_) => "Fuse",
        DecoderWrapper::Strip(_) => "Strip",
        DecoderWrapper::ByteFallback(_) => "ByteFallback",
    }
}

impl Stage {
    fn push(&mut self, token: String, out: &mut Vec<String>) -> tokenizers::Result<()> {
        match self {
            Self::Spaced { first } => {
                out.push(if std::mem::take(first) { token } else { format!(" {token}") });
            }
            Self::Each(decoder) => out.extend(decoder.decode_chain(vec![token])?),
            Self::FirstDiffers { decoder, first } => {
                if std::mem::take(first) {
                    out.extend(decoder.decode_chain(vec![token])?);
                } else {
                    out.push(after_another(decoder, token)?);
                }
            }
            Self::LastDiffers { decoder, held, owed } => {
                if !owed.is_empty() {
                    out.push(std::mem::take(owed));
                }
                if let Some(before) = held.replace(token) {
                    out.push(before_another(decoder, before)?);
                }
            }
            Self::ByteLevel { pending } => {
                pending.extend(byte_level(&token));
                out.push(certain_utf8(pending));
            }
            Self::ByteFallback { run } => match byte_token(&token) {
                Some(byte) => run.push(byte),
                None => {
                    end_run(run, out);
                    out.push(token);
                }
            },
            Self::Fuse => out.push(token),
            Self::StripFused { character, start, stop, tail } => {
                let mut kept = String::with_capacity(token.len());
                for c in token.chars() {
                    if c == *character && *start > 0 {
                        *start -= 1;
                    } else if c == *character && *tail < *stop {
                        *start = 0;
                        *tail += 1;
                    } else if c == *character {
                        *start = 0;
                        kept.push(c);
                    } else {
                        *start = 0;
                        kept.extend(std::iter::repeat_n(*character, std::mem::take(tail)));
                        kept.push(c);
                    }
                }
                out.push(kept);
            }
        }
        Ok(())
    }

    /// The prompt ends here: gives its last text on, and keeps what the next token can change.
    fn leave_prompt(&mut self, out: &mut Vec<String>) -> tokenizers::Result<()> {
        match self {
            Self::LastDiffers { decoder, held, owed } => {
                if let Some(last) = held.take() {
                    let alone = decoder.decode_chain(vec![last.clone()])?.concat();
                    let followed = before_another(decoder, last)?;
                    followed.strip_prefix(&alone).unwrap_or_default().clone_into(owed);
                    out.push(alone);
                }
            }
            Self::ByteFallback { run } => out.push(certain_utf8(run)),
            _ => {}
        }
        Ok(())
    }

    fn finish(&mut self, out: &mut Vec<String>) -> tokenizers::Result<()> {
        match self {
            Self::LastDiffers { decoder, held, .. } => {
                if let Some(last) = held.take() {
                    out.extend(decoder.decode_chain(vec![last])?);
                }
            }
            Self::ByteLevel { pending } => {
                out.push(String::from_utf8_lossy(&std::mem::take(pending)).into_owned());
            }
            Self::ByteFallback { run } => end_run(run, out),
            _ => {}
        }
        Ok(())
    }
}

fn after_another(decoder: &DecoderWrapper, token: String) -> tokenizers::Result<String> {
    let mut two = decoder.decode_chain(vec![String::new(), token])?;
    Ok(two.pop().unwrap_or_default())
}

fn before_another(decoder: &DecoderWrapper, token: String) -> tokenizers::Result<String> {
    let two = decoder.decode_chain(vec![token, String::new()])?;
    Ok(two.into_iter().next().unwrap_or_default())
}

/// `<0xNN>`.
fn byte_token(token: &str) -> Option<u8> {
    let hex = token.strip_prefix("<0x")?.strip_suffix('>').filter(|_| token.len() == 6)?;
    u8::from_str_radix(hex, 16).ok()
}

fn end_run(run: &mut Vec<u8>, out: &mut Vec<String>) {
    if run.is_empty() {
        return;
    }
    match String::from_utf8(std::mem::take(run)) {
        Ok(text) => out.push(text),
        Err(error) => out.push("\u{FFFD}".repeat(error.as_bytes().len())),
    }
}

/// The text at the beginning of `pending` that later bytes cannot change; the rest stays.
fn certain_utf8(pending: &mut Vec<u8>) -> String {
    let mut unfinished = 0;
    let mut checked = 0;
    while let Err(error) = std::str::from_utf8(&pending[checked..]) {
        match error.error_len() {
            Some(bad) => checked += error.valid_up_to() + bad,
            None => {
                unfinished = pending.len() - checked - error.valid_up_to();
                break;
            }
        }
    }
    let rest = pending.split_off(pending.len() - unfinished);
    let bytes = std::mem::replace(pending, rest);
    match String::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
    }
}

/// GPT-2's characters for bytes, by code point: printable ones stand for themselves, the others
/// follow from U+0100 on.
static BYTES: LazyLock<Vec<Option<u8>>> = LazyLock::new(|| {
    let mut table = vec![None; 0x144];
    let mut next = 0x100;
    for byte in 0..=255u8 {
        let printable = matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
        let at = if printable { usize::from(byte) } else { next };
        next += usize::from(!printable);
        table[at] = Some(byte);
    }
    table
});

/// A token's bytes. One with other characters, such as an added token, stands for its own text.
fn byte_level(token: &str) -> Vec<u8> {
    token
        .chars()
        .map(|c| BYTES.get(c as usize).copied().flatten())
        .collect::<Option<Vec<u8>>>()
        .unwrap_or_else(|| token.as_bytes().to_vec())
}
