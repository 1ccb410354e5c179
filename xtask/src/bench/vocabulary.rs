//! A byte-level BPE tokenizer as large as Qwen3's, with random merges, so that loading it costs as
//! much as loading theirs.

use super::shape::{Random, VOCAB};
use anyhow::Result;
use serde_json::{Value, json};
use std::{collections::HashSet, fs, path::Path};

/// The first special token, as in Qwen3.
pub(crate) const FIRST_SPECIAL: usize = 151_643;
pub(crate) const SPECIAL: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];
pub(crate) const END_OF_TEXT: usize = FIRST_SPECIAL;
pub(crate) const END_OF_TURN: usize = FIRST_SPECIAL + 2;

/// Words are split as Qwen's tokenizers split them.
const SPLIT: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

pub(crate) const CHATML: &str = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

/// Longest word, in bytes of the text.
const LONGEST: usize = 12;

#[derive(Debug)]
pub(crate) struct Vocabulary {
    /// Words by id, in byte-level letters; up to the first special token.
    pub(crate) words: Vec<String>,
    /// Which two words are joined, in the order of the ids that they make.
    pub(crate) merges: Vec<(usize, usize)>,
}

impl Vocabulary {
    /// The 256 bytes, and random pairs of earlier words.
    pub(crate) fn random() -> Self {
        let mut words = alphabet();
        let mut lengths = vec![1; words.len()];
        let mut taken: HashSet<String> = words.iter().cloned().collect();
        let mut merges = Vec::with_capacity(FIRST_SPECIAL - words.len());
        let mut random = Random::new(0);
        while words.len() < FIRST_SPECIAL {
            let (a, b) = (random.below(words.len()), random.below(words.len()));
            let word = format!("{}{}", words[a], words[b]);
            if lengths[a] + lengths[b] <= LONGEST && taken.insert(word.clone()) {
                lengths.push(lengths[a] + lengths[b]);
                words.push(word);
                merges.push((a, b));
            }
        }
        Self { words, merges }
    }

    /// Writes `tokenizer.json` and `tokenizer_config.json`.
    pub(crate) fn write(&self, dir: &Path) -> Result<()> {
        let vocab = self.words.iter().enumerate().map(|(id, word)| (word.clone(), json!(id)));
        let merges = self.merges.iter().map(|&(a, b)| json!([self.words[a], self.words[b]]));
        let added: Vec<_> = specials()
            .map(|(id, content)| {
                json!({"id": id, "content": content, "single_word": false, "lstrip": false,
                       "rstrip": false, "normalized": false, "special": true})
            })
            .collect();
        let level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false,
                           "use_regex": false});
        let tokenizer = json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": added,
            "normalizer": {"type": "NFC"},
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": SPLIT}, "behavior": "Isolated",
                 "invert": false},
                level]},
            "post_processor": level, "decoder": level,
            "model": {"type": "BPE", "dropout": null, "unk_token": null,
                      "continuing_subword_prefix": "", "end_of_word_suffix": "",
                      "fuse_unk": false, "byte_fallback": false,
                      "vocab": Value::Object(vocab.collect()),
                      "merges": Value::Array(merges.collect())},
        });
        let config = json!({
            "tokenizer_class": "Qwen2Tokenizer", "add_prefix_space": false, "bos_token": null,
            "eos_token": SPECIAL[2], "pad_token": SPECIAL[0], "unk_token": null,
            "additional_special_tokens": SPECIAL[1..], "errors": "replace",
            "clean_up_tokenization_spaces": false, "chat_template": CHATML,
        });
        fs::write(dir.join("tokenizer.json"), serde_json::to_vec(&tokenizer)?)?;
        fs::write(dir.join("tokenizer_config.json"), serde_json::to_vec_pretty(&config)?)?;
        Ok(())
    }

    /// Every id of the embedding, as GGUF files list them: the word and the token's type there.
    pub(crate) fn gguf_tokens(&self) -> impl Iterator<Item = (String, i32)> + '_ {
        const NORMAL: i32 = 1;
        const CONTROL: i32 = 3;
        const UNUSED: i32 = 5;
        let words = self.words.iter().map(|word| (word.clone(), NORMAL));
        let special = SPECIAL.iter().map(|word| ((*word).to_owned(), CONTROL));
        let rest = FIRST_SPECIAL + SPECIAL.len()..VOCAB;
        words.chain(special).chain(rest.map(|id| (format!("[PAD{id}]"), UNUSED)))
    }
}

fn specials() -> impl Iterator<Item = (usize, &'static str)> {
    SPECIAL.iter().enumerate().map(|(i, word)| (FIRST_SPECIAL + i, *word))
}

/// The letters that stand for bytes in byte-level tokenizers: printable Latin-1 for itself, the
/// others from U+0100 on.
fn alphabet() -> Vec<String> {
    let printable = |b: &u32| matches!(b, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
    let rest = (0..256).filter(|b| !printable(b)).count() as u32;
    let codes = (0..256).filter(printable).chain(0x100..0x100 + rest);
    codes.filter_map(char::from_u32).map(String::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_as_large_as_qwens_and_every_merge_makes_its_word() {
        let vocabulary = Vocabulary::random();
        assert_eq!(vocabulary.words.len(), 151_643);
        assert_eq!(vocabulary.merges.len(), 151_387);
        for (&(a, b), word) in vocabulary.merges.iter().zip(&vocabulary.words[256..]) {
            assert_eq!(&format!("{}{}", vocabulary.words[a], vocabulary.words[b]), word);
        }
        assert_eq!(vocabulary.gguf_tokens().count(), VOCAB);
    }

    #[test]
    fn bytes_have_the_usual_letters() {
        let letters = alphabet();
        assert_eq!((letters.len(), letters[0].as_str()), (256, "!"));
        assert!(letters.contains(&"\u{120}".to_owned()), "a space");
    }
}
