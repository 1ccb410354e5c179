//! Needle prompts: a function of integers and two files, defined in tests/fixtures/README.md.

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use std::{fs, path::Path};

/// SplitMix64 (Steele, Lea, Flood 2014).
struct SplitMix64(u64);

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

#[derive(Deserialize)]
struct Words {
    adjectives: Vec<String>,
    nouns: Vec<String>,
}

/// What prompts are made of.
pub(super) struct Haystack {
    paragraphs: Vec<String>,
    words: Words,
}

/// Needles beside the one that is placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Others {
    /// How many there are.
    pub(super) distractors: usize,
    /// They stand right behind it.
    pub(super) near: bool,
    /// Which of all is asked for.
    pub(super) asked: usize,
}

/// A needle that is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Needle {
    /// What the user says.
    pub(super) message: String,
    pub(super) key: String,
    pub(super) value: usize,
}

impl Needle {
    /// The one right answer.
    pub(super) fn answer(&self) -> String {
        format!("The special magic number for {} is {}.", self.key, self.value)
    }
}

impl Haystack {
    /// Reads haystack.txt, which must have this hash, and niah_words.json.
    pub(super) fn read(fixtures: &Path, sha256: &str) -> Result<Self> {
        let text = fs::read_to_string(fixtures.join("haystack.txt")).context("haystack.txt")?;
        ensure!(super::sha256(&text) == sha256, "haystack.txt is another text");
        let text = text.strip_suffix('\n').unwrap_or(&text);
        let paragraphs = text.split("\n\n").map(str::to_owned).collect();
        let words = fs::read(fixtures.join("niah_words.json")).context("niah_words.json")?;
        Ok(Self { paragraphs, words: serde_json::from_slice(&words)? })
    }

    /// The prompt of a seed; lengths are bytes of UTF-8.
    pub(super) fn needle(
        &self,
        seed: u64,
        haystack_bytes: usize,
        depth_permille: usize,
        distractors: usize,
    ) -> Needle {
        let others = Others { distractors, near: false, asked: 0 };
        self.needle_among(seed, haystack_bytes, depth_permille, others)
    }

    /// As [`Self::needle`], with other needles beside it or asked for.
    pub(super) fn needle_among(
        &self,
        seed: u64,
        haystack_bytes: usize,
        depth_permille: usize,
        others: Others,
    ) -> Needle {
        let Others { distractors, near, asked } = others;
        let mut rng = SplitMix64(seed);
        let Words { adjectives, nouns } = &self.words;
        let mut needles: Vec<(String, usize)> = Vec::new();
        while needles.len() < 1 + distractors {
            let adjective = &adjectives[rng.below(adjectives.len())];
            let key = format!("{adjective}-{}", nouns[rng.below(nouns.len())]);
            let value = 1_000_000 + rng.below(9_000_000);
            if needles.iter().all(|(k, _)| *k != key) {
                needles.push((key, value));
            }
        }
        let (mut at, mut total, mut items) = (rng.below(self.paragraphs.len()), 0, Vec::new());
        while total + self.paragraphs[at].len() + 2 <= haystack_bytes {
            items.push(self.paragraphs[at].clone());
            total += self.paragraphs[at].len() + 2;
            at = (at + 1) % self.paragraphs.len();
        }
        let ends = items.iter().scan(0, |end, item| {
            *end += item.len() + 2;
            Some(*end)
        });
        let position = ends.take_while(|end| end * 1000 <= total * depth_permille).count();
        let line = |(key, value): &(String, usize)| {
            format!("The special magic number for {key} is: {value}.")
        };
        items.insert(position, line(&needles[0]));
        for needle in &needles[1..] {
            let at = if near { position + 1 } else { rng.below(items.len() + 1) };
            items.insert(at, line(needle));
        }
        let (key, value) = needles.swap_remove(asked.min(distractors));
        let message = format!(
            "A special fact is hidden within the following text. Memorize it.\n\n{}\n\n\
             What is the special magic number for {key} mentioned in the text above?",
            items.join("\n\n")
        );
        Needle { message, key, value }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{niah::Fixture, subject::read_json};

    #[test]
    fn draws_are_splitmix64() {
        let mut rng = SplitMix64(1_234_567);
        let three = [rng.next(), rng.next(), rng.next()];
        assert_eq!(
            three,
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]
        );
    }

    #[test]
    fn others_stand_near_and_may_be_asked_for() {
        let fixtures = crate::root().join("tests/fixtures");
        let json = read_json(&fixtures.join("niah.json")).unwrap();
        let fixture: Fixture = serde_json::from_value(json).unwrap();
        let haystack = Haystack::read(&fixtures, &fixture.haystack_sha256).unwrap();
        let asked = |asked, near| {
            haystack.needle_among(7, 1200, 500, Others { distractors: 2, near, asked })
        };
        assert_eq!(asked(0, false), haystack.needle(7, 1200, 500, 2));
        let text = |needle: &Needle| needle.message.rsplit_once("\n\n").unwrap().0.to_owned();
        assert_eq!(text(&asked(0, true)), text(&asked(2, true)), "another question alone");
        assert_ne!(asked(0, true).key, asked(2, true).key);
        let near = asked(0, true).message;
        let lines = near.split("\n\n").enumerate().filter(|(_, l)| l.starts_with("The special"));
        let lines: Vec<_> = lines.map(|(i, _)| i).collect();
        assert!(lines.len() == 3 && lines[2] == lines[0] + 2, "{lines:?}");
    }

    #[test]
    fn prompts_are_the_fixtures_byte_for_byte() {
        let fixtures = crate::root().join("tests/fixtures");
        let json = read_json(&fixtures.join("niah.json")).unwrap();
        let fixture: Fixture = serde_json::from_value(json.clone()).unwrap();
        let haystack = Haystack::read(&fixtures, &fixture.haystack_sha256).unwrap();
        let golden = haystack.needle(7, 1200, 500, 2);
        assert_eq!(Some(golden.message.as_str()), json["golden"]["message"].as_str());
        for run in &fixture.runs {
            for s in &run.samples {
                let bytes = run.haystack_bytes;
                let got = haystack.needle(s.seed, bytes, s.depth_permille, run.distractors);
                assert_eq!((&got.key, got.value), (&s.key, s.value));
                assert_eq!(crate::niah::sha256(&got.message), s.message_sha256);
            }
        }
    }
}
