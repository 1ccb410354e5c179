//! Which chunks answer a question: BM25F (Robertson, Zaragoza and Taylor 2004), with what the corpus
//! itself teaches about words.

use super::{Index, postings::FIELD_COUNT};
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
    /// What learned words add.
    pub(crate) expansion: f32,
    /// A definition whose name is in the question.
    pub(crate) definition: f32,
    /// Tests and code of others.
    pub(crate) minor: f32,
}

/// Found on the corpora of `cargo xtask bench longctx`.
pub(crate) const PARAMS: Params = Params {
    k1: 1.2,
    weights: [2.0, 0.6, 0.8, 1.0, 1.0],
    lengths: [0.3, 0.3, 0.5, 0.5, 0.75],
    file: 0.15,
    expansion: 0.3,
    definition: 0.25,
    minor: 0.95,
};

/// The weight of a count in each field of a chunk with these lengths.
pub(crate) fn norm(lengths: [u16; FIELD_COUNT], mean: &[f32; FIELD_COUNT]) -> [f32; FIELD_COUNT] {
    let Params { weights, lengths: b, .. } = &PARAMS;
    std::array::from_fn(|f| weights[f] / (1.0 - b[f] + b[f] * f32::from(lengths[f]) / mean[f]))
}

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
    pub(crate) score: f32,
    /// From 0 to 1: the score in parts of what a chunk with every word would have.
    pub(crate) relevance: f32,
}

struct Weighed {
    list: u32,
    weight: f32,
    idf: f32,
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
        let mut scores = vec![0_f32; self.docs.len()];
        let mut of_files = vec![0_f32; self.files.len()];
        let mut possible = 0.0;
        for (term, said) in &question.terms {
            let idf = self.weigh(*term).map_or_else(|| self.idf(0), |w| w.idf);
            possible += said * idf;
            self.add_term(*term, *said, idf, &mut scores, &mut of_files);
        }
        for (list, weight) in self.expansion.of(self, &question.terms) {
            let idf = self.idf(self.live_count(list));
            let weighed = Weighed { list, weight: weight * params.expansion, idf };
            self.add_list(&weighed, &mut scores, &mut of_files);
        }
        let possible = (possible * (1.0 + params.file)).max(f32::MIN_POSITIVE);
        let mut hits: Vec<Hit> = Vec::new();
        for (id, score) in (0_u32..).zip(&scores) {
            if *score <= 0.0 {
                continue;
            }
            let doc = &self.docs[id as usize];
            let file = &self.files[doc.file as usize];
            if !file.is_live {
                continue;
            }
            let mut score = score + params.file * of_files[doc.file as usize];
            let relevance = (score / possible).min(1.0);
            if doc.name_term != 0 && question.names.contains(&doc.name_term) {
                score *= 1.0 + params.definition;
            }
            if file.is_minor {
                score *= params.minor;
            }
            hits.push(Hit { doc: id, score, relevance });
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

    fn place(&self, doc: u32) -> (&str, u32) {
        let doc = &self.docs[doc as usize];
        (&self.files[doc.file as usize].path, doc.start)
    }

    fn weigh(&self, term: Term) -> Option<Weighed> {
        let list = *self.terms.get(&term)?;
        Some(Weighed { list, weight: 1.0, idf: self.idf(self.live_count(list)) })
    }

    fn add_term(&self, term: Term, said: f32, idf: f32, scores: &mut [f32], files: &mut [f32]) {
        if let Some(list) = self.terms.get(&term) {
            self.add_list(&Weighed { list: *list, weight: said, idf }, scores, files);
        }
    }

    fn add_list(&self, term: &Weighed, scores: &mut [f32], of_files: &mut [f32]) {
        let most = term.weight * term.idf;
        // Chunks of a file follow one another.
        let (mut file, mut best) = (u32::MAX, 0_f32);
        for (doc, counts) in self.lists[term.list as usize].iter() {
            let Some(norm) = self.norms.get(doc as usize) else { break };
            let count: f32 = counts.iter().zip(norm).map(|(n, w)| f32::from(*n) * w).sum();
            let score = most * count / (PARAMS.k1 + count);
            scores[doc as usize] += score;
            let of = self.docs[doc as usize].file;
            if of != file {
                if file != u32::MAX {
                    of_files[file as usize] += best;
                }
                (file, best) = (of, 0.0);
            }
            best = best.max(score);
        }
        if file != u32::MAX {
            of_files[file as usize] += best;
        }
    }

    /// Live chunks that have a term.
    pub(super) fn live_count(&self, list: u32) -> usize {
        let list = self.lists[list as usize].iter();
        if self.dead == 0 {
            list.count()
        } else {
            list.filter(|(doc, _)| self.is_live(*doc)).count()
        }
    }

    fn idf(&self, chunks_with: usize) -> f32 {
        let (all, with) = (self.live_docs() as f32, chunks_with as f32);
        (1.0 + (all - with + 0.5) / (with + 0.5)).ln()
    }
}
