//! Words of code that stand for words of documentation, learned from definitions that have both.
//!
//! Each documented definition is a pair of texts, of which one is about the other. Words of the one
//! are translated by those words of the other that go with them more often than with others, as in
//! the lexical models of statistical translation (Brown et al. 1993; Berger and Lafferty 1999).

use super::{
    Index,
    postings::{Counts, Field},
};
use crate::terms::Term;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// Pairs of texts that are learned from; of more, every n-th.
const MOST_PAIRS: usize = 20_000;

/// Words of each text of a pair, the rarest first.
const DOC_WORDS: usize = 24;
const CODE_WORDS: usize = 32;

/// Pairs of words that are seen less often say nothing.
const MIN_SEEN: u32 = 3;

/// Translations of a word.
const MOST_WORDS: usize = 4;

/// Translations of a whole question: each costs as much as a word of it.
const MOST_ADDED: usize = 12;

/// How much more often than with any word a translation must go with its word.
const MIN_LIFT: f32 = 4.0;

/// What a corpus teaches of words.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Expansion {
    /// For a term of documentation (its list), terms of code and how sure they are.
    words: HashMap<u32, Vec<(u32, f32)>>,
}

impl Expansion {
    /// Lists of terms that stand for those of a question, with weights.
    pub(super) fn of(&self, index: &Index, terms: &[(Term, f32)]) -> Vec<(u32, f32)> {
        let lists: Vec<(u32, f32)> = terms
            .iter()
            .filter_map(|(term, said)| Some((*index.terms.get(term)?, *said)))
            .collect();
        let mut found: HashMap<u32, f32> = HashMap::new();
        for (list, said) in &lists {
            for (other, sure) in self.words.get(list).into_iter().flatten() {
                if lists.iter().all(|(own, _)| own != other) {
                    let weight = found.entry(*other).or_default();
                    *weight = (*weight + said * sure).min(1.0);
                }
            }
        }
        let mut found: Vec<_> = found.into_iter().collect();
        found.sort_unstable_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        found.truncate(MOST_ADDED);
        // Additions of floats in one order give one result.
        found.sort_unstable_by_key(|(list, _)| *list);
        found
    }

    /// Whether it names only lists below a number.
    pub(super) fn is_within(&self, lists: usize) -> bool {
        let below = |list: &u32| (*list as usize) < lists;
        self.words.iter().all(|(word, codes)| below(word) && codes.iter().all(|(c, _)| below(c)))
    }

    pub(crate) fn len(&self) -> usize {
        self.words.len()
    }
}

/// The terms of one documented definition: list, and chunks that have it.
#[derive(Debug, Default)]
struct Pair {
    doc: Vec<(u32, u32)>,
    code: Vec<(u32, u32)>,
}

pub(super) fn learn(index: &Index) -> Expansion {
    let pairs = pairs(index);
    let mut doc_seen: HashMap<u32, u32> = HashMap::new();
    let mut code_seen: HashMap<u32, u32> = HashMap::new();
    let mut together = Vec::new();
    for pair in &pairs {
        pair.doc.iter().for_each(|(list, _)| *doc_seen.entry(*list).or_default() += 1);
        pair.code.iter().for_each(|(list, _)| *code_seen.entry(*list).or_default() += 1);
        for (doc, _) in &pair.doc {
            let codes = pair.code.iter().filter(|(code, _)| code != doc);
            together.extend(codes.map(|(code, _)| u64::from(*doc) << 32 | u64::from(*code)));
        }
    }
    let all = pairs.len() as f32;
    drop(pairs);
    together.sort_unstable();
    let mut words: HashMap<u32, Vec<(u32, f32)>> = HashMap::new();
    for same in together.chunk_by(|a, b| a == b) {
        let seen = u32::try_from(same.len()).unwrap_or(u32::MAX);
        if seen < MIN_SEEN {
            continue;
        }
        let (doc, code) = ((same[0] >> 32) as u32, same[0] as u32);
        let of = |seen: &HashMap<u32, u32>, list| seen.get(list).map_or(1.0, |n| *n as f32);
        let given = seen as f32 / (of(&doc_seen, &doc) + 2.0);
        let lift = given * all / of(&code_seen, &code);
        if lift >= MIN_LIFT {
            words.entry(doc).or_default().push((code, given));
        }
    }
    for codes in words.values_mut() {
        codes.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        codes.truncate(MOST_WORDS);
        codes.shrink_to_fit();
    }
    Expansion { words }
}

/// The words of documented definitions.
fn pairs(index: &Index) -> Vec<Pair> {
    let documented: Vec<u32> = (0_u32..)
        .zip(&index.docs)
        .filter(|(id, doc)| doc.lengths[Field::Doc as usize] > 0 && index.is_live(*id))
        .map(|(id, _)| id)
        .collect();
    let step = documented.len().div_ceil(MOST_PAIRS).max(1);
    let mut pair_of = vec![u32::MAX; index.docs.len()];
    let mut pairs = Vec::new();
    for doc in documented.iter().step_by(step) {
        pair_of[*doc as usize] = super::number(pairs.len());
        pairs.push(Pair::default());
    }
    let common = index.live_docs() / 8;
    for (list, postings) in (0_u32..).zip(&index.lists) {
        let with = index.live_count(list);
        // What is everywhere stands for nothing, and what is in one place for nothing else.
        if with < MIN_SEEN as usize || with > common {
            continue;
        }
        for (doc, counts) in postings.iter() {
            let Some(pair) = pair_of.get(doc as usize).and_then(|at| pairs.get_mut(*at as usize))
            else {
                continue;
            };
            let term = (list, super::number(with));
            match role(&counts) {
                Role::Doc => pair.doc.push(term),
                Role::Code => pair.code.push(term),
                Role::Both => {
                    pair.doc.push(term);
                    pair.code.push(term);
                }
            }
        }
    }
    for pair in &mut pairs {
        for (terms, most) in [(&mut pair.doc, DOC_WORDS), (&mut pair.code, CODE_WORDS)] {
            terms.sort_unstable_by_key(|(list, with)| (*with, *list));
            terms.truncate(most);
        }
    }
    pairs
}

enum Role {
    Doc,
    Code,
    Both,
}

/// A documentation is in the text of its definition too, so its words count twice there.
fn role(counts: &Counts) -> Role {
    let of = |field: Field| counts[field as usize];
    let doc = of(Field::Doc);
    let code = of(Field::Name) > 0 || of(Field::Signature) > 0 || of(Field::Body) > doc;
    match (doc > 0, code) {
        (true, true) => Role::Both,
        (true, false) => Role::Doc,
        _ => Role::Code,
    }
}
