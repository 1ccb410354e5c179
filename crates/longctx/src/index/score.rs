//! Which chunks answer a question: BM25F (Robertson, Zaragoza and Taylor 2004), with what the corpus
//! itself teaches about words.

use super::{
    Index,
    postings::{FIELD_COUNT, Field},
};
use crate::terms::{Term, terms, whole};
use std::collections::HashMap;

/// How scores are made.
#[derive(Debug, Clone)]
pub(crate) struct Params {
    /// Where counts saturate.
    pub(crate) k1: f32,
    pub(crate) weights: [f32; FIELD_COUNT],
    /// How much the length of each field counts.
    pub(crate) lengths: [f32; FIELD_COUNT],
    /// What the best of its file adds to a chunk.
    pub(crate) file: f32,
    /// What a documentation that says the whole question adds; one that says half of it adds a
    /// sixteenth of that.
    pub(crate) said: f32,
    /// What learned words add.
    pub(crate) expansion: f32,
    /// A definition whose name is in the question.
    pub(crate) definition: f32,
    /// Tests and code of others.
    pub(crate) minor: f32,
}

/// Found on the corpora of `cargo xtask bench longctx`.
const PARAMS: Params = Params {
    k1: 3.0,
    weights: [5.0, 2.0, 2.0, 0.4, 1.0],
    lengths: [0.3, 0.3, 0.5, 0.1, 0.85],
    file: 0.1,
    said: 0.3,
    expansion: 0.1,
    definition: 0.25,
    minor: 0.95,
};

/// The weight of a count in each field of a chunk with these lengths.
pub(crate) fn norm(lengths: [u16; FIELD_COUNT], mean: &[f32; FIELD_COUNT]) -> [f32; FIELD_COUNT] {
    let Params { weights, lengths: b, .. } = &PARAMS;
    std::array::from_fn(|f| weights[f] / (1.0 - b[f] + b[f] * f32::from(lengths[f]) / mean[f]))
}

/// A term is common if more than one in so many chunks has it.
const COMMON: usize = 4;

/// With so many rarer terms, a question needs no common one.
const ENOUGH: usize = 3;

/// The terms of a question.
#[derive(Debug, Clone, Default)]
pub(crate) struct Question {
    /// Each term once, with how often it was said.
    terms: Vec<(Term, f32)>,
    /// Identifiers as they were written.
    names: Vec<Term>,
}

impl Question {
    pub(crate) fn new(text: &str) -> Self {
        let mut counts: HashMap<Term, f32> = HashMap::new();
        let mut order = Vec::new();
        terms(text, |term| {
            let count = counts.entry(term).or_insert_with(|| {
                order.push(term);
                0.0
            });
            *count += 1.0;
        });
        // What is said thrice counts little more than what is said twice.
        let terms = order.into_iter().map(|t| (t, f32::sqrt(counts[&t]))).collect();
        let words = text.split(|c: char| !(c == '_' || c.is_alphanumeric()));
        let is_name = |w: &&str| w.len() > 2;
        Self { terms, names: words.filter(is_name).map(whole).collect() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }
}

/// A chunk that was found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Hit {
    pub(crate) doc: u32,
    /// In parts of what the question's words can give, so that those of two indexes compare.
    pub(crate) score: f32,
    /// From 0 to 1: the question's words that it has, weighed by how rare they are.
    pub(crate) relevance: f32,
}

/// What chunks and files have of a question so far.
struct Sums {
    chunks: Vec<f32>,
    /// Rarity of the question's words that each chunk has, and that its documentation has.
    matched: Vec<f32>,
    said: Vec<f32>,
    files: Vec<f32>,
    /// Postings of one term: chunk, its weighed count, and whether its documentation has it.
    postings: Vec<(u32, f32, bool)>,
}

impl Index {
    /// The terms of a question that tell most about it: seldom in other chunks, often in this text.
    pub(crate) fn telling(&self, question: &Question) -> Question {
        const MOST: usize = 24;
        let known = question.terms.iter().filter_map(|(term, said)| {
            let with = self.live_count(*self.terms.get(term)?);
            // What is nowhere else leads nowhere.
            (with > 1).then(|| (said * self.idf(with), *term, *said))
        });
        let mut known: Vec<_> = known.collect();
        known.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        known.truncate(MOST);
        let terms = known.into_iter().map(|(_, term, said)| (term, said)).collect();
        Question { terms, names: Vec::new() }
    }

    /// The best `most` chunks, by falling score; equal ones by path and line.
    pub(crate) fn search(&self, question: &Question, most: usize) -> Vec<Hit> {
        let params = &PARAMS;
        let mut sums = Sums {
            chunks: vec![0.0; self.docs.len()],
            matched: vec![0.0; self.docs.len()],
            said: vec![0.0; self.docs.len()],
            files: vec![0.0; self.files.len()],
            postings: Vec::new(),
        };
        let possible = self.add_terms(question, &mut sums);
        for (list, weight) in self.expansion.of(self, &question.terms) {
            self.add_list(list, weight * params.expansion, false, &mut sums);
        }
        let words = possible.max(f32::MIN_POSITIVE);
        let mut hits: Vec<Hit> = Vec::new();
        for (id, score) in (0_u32..).zip(&sums.chunks) {
            if *score <= 0.0 {
                continue;
            }
            let doc = &self.docs[id as usize];
            let part = (sums.said[id as usize] / words).min(1.0);
            let mut score = score + params.file * sums.files[doc.file as usize];
            score += params.said * words * part.powi(4);
            let relevance = (sums.matched[id as usize] / words).min(1.0);
            if doc.name_term != 0 && question.names.contains(&doc.name_term) {
                score *= 1.0 + params.definition;
            }
            if self.files[doc.file as usize].is_minor {
                score *= params.minor;
            }
            hits.push(Hit { doc: id, score: score / words, relevance });
        }
        let order = |a: &Hit, b: &Hit| {
            b.score.total_cmp(&a.score).then_with(|| self.place(a.doc).cmp(&self.place(b.doc)))
        };
        if hits.len() > most {
            hits.select_nth_unstable_by(most, order);
            hits.truncate(most);
        }
        hits.sort_by(order);
        hits
    }

    /// Adds the terms of a question, and says what a chunk with all of them would have.
    fn add_terms(&self, question: &Question, sums: &mut Sums) -> f32 {
        let is_common = |list: &u32| self.live_count(*list) * COMMON > self.live_docs();
        let lists = question.terms.iter().map(|(term, said)| (self.terms.get(term), *said));
        let lists: Vec<(Option<&u32>, f32)> = lists.collect();
        let known = lists.iter().filter_map(|(list, _)| *list);
        let rare = known.filter(|list| !is_common(list)).count();
        let mut possible = 0.0;
        for (list, said) in lists {
            possible += match list {
                None => said * self.idf(0),
                // What is everywhere tells nothing that the others do not.
                Some(list) if rare >= ENOUGH && is_common(list) => 0.0,
                Some(list) => said * self.add_list(*list, said, true, sums),
            };
        }
        possible
    }

    /// Adds a term with a weight, and says how rare it is. Others than those of the question match
    /// nothing.
    fn add_list(&self, list: u32, weight: f32, is_asked: bool, sums: &mut Sums) -> f32 {
        let Params { k1, .. } = &PARAMS;
        let Sums { chunks, matched, said, files, postings } = sums;
        postings.clear();
        for (doc, counts) in self.lists[list as usize].iter() {
            let Some(norm) = self.norms.get(doc as usize) else { break };
            // A documentation stands in the body too.
            let doc_count = counts[Field::Doc as usize];
            let body = counts[Field::Body as usize].saturating_sub(doc_count);
            let fields = [counts[0], counts[1], counts[2], doc_count, body];
            let count: f32 = fields.iter().zip(norm).map(|(n, w)| f32::from(*n) * w).sum();
            if self.dead == 0 || self.is_live(doc) {
                postings.push((doc, count, doc_count > 0));
            }
        }
        let idf = self.idf(postings.len());
        let most = weight * idf;
        // Chunks of a file follow one another.
        let (mut file, mut best) = (None, 0_f32);
        for (doc, count, is_said) in postings {
            let score = most * *count / (k1 + *count);
            chunks[*doc as usize] += score;
            if is_asked {
                matched[*doc as usize] += most;
                said[*doc as usize] += if *is_said { most } else { 0.0 };
            }
            let of = self.docs[*doc as usize].file as usize;
            if file.is_some_and(|file| file != of) {
                file.iter().for_each(|file| files[*file] += best);
                best = 0.0;
            }
            (file, best) = (Some(of), best.max(score));
        }
        file.iter().for_each(|file| files[*file] += best);
        idf
    }

    fn place(&self, doc: u32) -> (&str, u32) {
        let doc = &self.docs[doc as usize];
        (&self.files[doc.file as usize].path, doc.start)
    }

    /// Live chunks that have a term.
    pub(super) fn live_count(&self, list: u32) -> usize {
        let list = &self.lists[list as usize];
        match self.dead {
            0 => list.len(),
            _ => list.iter().filter(|(doc, _)| self.is_live(*doc)).count(),
        }
    }

    fn idf(&self, chunks_with: usize) -> f32 {
        let (all, with) = (self.live_docs() as f32, chunks_with as f32);
        (1.0 + (all - with + 0.5) / (with + 0.5)).ln()
    }
}
