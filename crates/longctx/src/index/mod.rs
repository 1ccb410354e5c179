//! An inverted index of chunks. What is added is found by the next search.

mod expand;
mod postings;
mod score;
mod store;

pub(crate) use score::{Hit, Question};
pub(crate) use store::{load, save, write_whole};

use crate::{
    chunk::{self, Chunk, ChunkKind},
    read::{Source, Stamp},
    terms::{Term, terms, whole},
};
use expand::Expansion;
use postings::{Counts, FIELD_COUNT, Field, List};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, HashMap},
    hash::{BuildHasherDefault, Hasher},
    ops::Range,
    path::Path,
};
use xxhash_rust::xxh3::xxh3_64;

/// Removed chunks are forgotten once they are more than these and a quarter of the rest.
const MIN_DEAD: usize = 1_000;

/// A chunk in the index. Its text stays in its file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Doc {
    pub(crate) file: u32,
    pub(crate) start: u32,
    pub(crate) end: u32,
    pub(crate) kind: ChunkKind,
    pub(crate) name: Box<str>,
    pub(crate) parent: Box<str>,
    /// The term of its name as one whole identifier; 0 without a name.
    name_term: Term,
    /// Hash of its text, so that copies of a chunk are found.
    pub(crate) hash: u64,
    /// Terms in each field.
    lengths: [u16; FIELD_COUNT],
}

/// A file in the index.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct FileEntry {
    /// From the root, with slashes.
    pub(crate) path: Box<str>,
    pub(crate) modified: i64,
    pub(crate) bytes: u64,
    pub(crate) hash: u128,
    pub(crate) redacted: u32,
    pub(crate) docs: Range<u32>,
    /// Of tests, or of other people's code.
    is_minor: bool,
    is_live: bool,
}

impl FileEntry {
    pub(crate) fn stamp(&self) -> Stamp {
        Stamp { modified: self.modified, bytes: self.bytes }
    }
}

/// A file that is read and cut, to be added.
#[derive(Debug)]
pub(crate) struct Prepared {
    path: Box<str>,
    stamp: Stamp,
    hash: u128,
    redacted: usize,
    chunks: Vec<PreparedChunk>,
}

#[derive(Debug)]
struct PreparedChunk {
    chunk: Chunk,
    hash: u64,
    counts: Vec<(Term, Counts)>,
    lengths: [u16; FIELD_COUNT],
}

/// Cuts a file and counts its terms. This is the costly part, and needs no index.
pub(crate) fn prepare(path: &str, source: &Source) -> Prepared {
    let lines: Vec<&str> = source.text.lines().collect();
    let cut = chunk::chunks(Path::new(path), &source.text);
    let chunks = cut.into_iter().map(|chunk| prepare_chunk(path, chunk, &lines)).collect();
    let (stamp, hash, redacted) = (source.stamp, source.hash, source.redacted);
    Prepared { path: path.into(), stamp, hash, redacted, chunks }
}

fn prepare_chunk(path: &str, chunk: Chunk, lines: &[&str]) -> PreparedChunk {
    let text = chunk::line_range(lines, chunk.start, chunk.end);
    let mut counts: HashMap<Term, Counts, BuildHasherDefault<TermHasher>> = HashMap::default();
    let mut lengths = [0_u16; FIELD_COUNT];
    let mut add = |field: Field, text: &str| {
        let field = field as usize;
        terms(text, |term| {
            lengths[field] = lengths[field].saturating_add(1);
            let count = &mut counts.entry(term).or_default()[field];
            *count = count.saturating_add(1);
        });
    };
    add(Field::Name, &chunk.name);
    add(Field::Place, path);
    add(Field::Place, &chunk.parent);
    add(Field::Signature, &chunk.signature);
    add(Field::Doc, &chunk.doc);
    text.iter().for_each(|line| add(Field::Body, line));
    let hash = xxh3_64(text.join("\n").as_bytes());
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_unstable_by_key(|(term, _)| *term);
    PreparedChunk { chunk, hash, counts, lengths }
}

/// Terms are hashes already.
#[derive(Default, Clone, Copy)]
struct TermHasher(u64);

impl Hasher for TermHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|b| self.0 = self.0.rotate_left(8) ^ u64::from(*b));
    }

    fn write_u64(&mut self, term: u64) {
        self.0 = term;
    }
}

type TermMap<V> = HashMap<Term, V, BuildHasherDefault<TermHasher>>;

/// All chunks of one root.
#[derive(Debug, Default)]
pub(crate) struct Index {
    files: Vec<FileEntry>,
    by_path: BTreeMap<Box<str>, u32>,
    docs: Vec<Doc>,
    /// Where in `lists` the postings of a term are.
    terms: TermMap<u32>,
    lists: Vec<List>,
    /// Chunks of removed files.
    dead: usize,
    /// Terms of all live chunks, in each field.
    total: [u64; FIELD_COUNT],
    /// Weight of a count in each field of each chunk; made by [`Index::finish`].
    norms: Vec<[f32; FIELD_COUNT]>,
    expansion: Expansion,
}

impl Index {
    /// Adds a file, in place of what had its path.
    pub(crate) fn add(&mut self, file: Prepared) {
        self.remove(&file.path);
        let id = number(self.files.len());
        let first = number(self.docs.len());
        let is_minor = is_minor(&file.path);
        for prepared in file.chunks {
            let doc = number(self.docs.len());
            for (term, counts) in &prepared.counts {
                let at = *self.terms.entry(*term).or_insert_with(|| {
                    self.lists.push(List::default());
                    number(self.lists.len() - 1)
                });
                self.lists[at as usize].push(doc, counts);
            }
            let PreparedChunk { chunk, hash, lengths, .. } = prepared;
            for (total, length) in self.total.iter_mut().zip(lengths) {
                *total += u64::from(length);
            }
            self.docs.push(Doc {
                file: id,
                start: chunk.start,
                end: chunk.end,
                kind: chunk.kind,
                name_term: if chunk.name.is_empty() { 0 } else { whole(&chunk.name) },
                name: chunk.name.into(),
                parent: chunk.parent.into(),
                hash,
                lengths,
            });
        }
        self.by_path.insert(file.path.clone(), id);
        self.files.push(FileEntry {
            path: file.path,
            modified: file.stamp.modified,
            bytes: file.stamp.bytes,
            hash: file.hash,
            redacted: u32::try_from(file.redacted).unwrap_or(u32::MAX),
            docs: first..number(self.docs.len()),
            is_minor,
            is_live: true,
        });
    }

    /// Removes a file; false if there is none.
    pub(crate) fn remove(&mut self, path: &str) -> bool {
        let Some(id) = self.by_path.remove(path) else { return false };
        let file = &mut self.files[id as usize];
        file.is_live = false;
        let docs = file.docs.start as usize..file.docs.end as usize;
        self.dead += docs.len();
        for doc in &self.docs[docs] {
            for (total, length) in self.total.iter_mut().zip(doc.lengths) {
                *total -= u64::from(length);
            }
        }
        true
    }

    /// Notes a new time of a file whose bytes are as they were.
    pub(crate) fn touch(&mut self, path: &str, stamp: Stamp) {
        if let Some(id) = self.by_path.get(path) {
            let file = &mut self.files[*id as usize];
            (file.modified, file.bytes) = (stamp.modified, stamp.bytes);
        }
    }

    /// Makes what was added and removed ready for searches.
    pub(crate) fn finish(&mut self) {
        if self.dead > MIN_DEAD && self.dead * 4 > self.live_docs() {
            self.compact();
        }
        let live = self.live_docs().max(1) as f32;
        let mean = self.total.map(|all| (all as f32 / live).max(0.1));
        self.norms.clear();
        self.norms.extend(self.docs.iter().map(|doc| score::norm(doc.lengths, &mean)));
    }

    /// Learns which words of code stand for words of documentation.
    pub(crate) fn learn(&mut self) {
        self.expansion = expand::learn(self);
    }

    /// Forgets removed chunks.
    fn compact(&mut self) {
        let mut of_doc = vec![None; self.docs.len()];
        let (mut files, mut docs) = (Vec::new(), Vec::new());
        for mut file in self.files.drain(..).filter(|f| f.is_live) {
            let first = number(docs.len());
            for doc in file.docs.clone() {
                of_doc[doc as usize] = Some(number(docs.len()));
                let mut doc = self.docs[doc as usize].clone();
                doc.file = number(files.len());
                docs.push(doc);
            }
            file.docs = first..number(docs.len());
            files.push(file);
        }
        for list in &mut self.lists {
            let mut new = List::default();
            for (doc, counts) in list.iter() {
                if let Some(Some(doc)) = of_doc.get(doc as usize) {
                    new.push(*doc, &counts);
                }
            }
            *list = new;
        }
        // Numbers of terms stay, as the expansion has them; empty lists are rare and small.
        self.by_path =
            (0..).zip(&files).map(|(id, f): (u32, &FileEntry)| (f.path.clone(), id)).collect();
        (self.files, self.docs, self.dead) = (files, docs, 0);
    }

    /// Forgets removed chunks, whatever they are.
    pub(crate) fn tidy(&mut self) {
        if self.dead > 0 || self.files.len() > self.by_path.len() {
            self.compact();
            self.finish();
        }
    }

    /// Gives back memory after many files were added.
    pub(crate) fn shrink(&mut self) {
        self.lists.iter_mut().for_each(List::shrink);
        self.docs.shrink_to_fit();
        self.lists.shrink_to_fit();
    }

    pub(crate) fn file(&self, path: &str) -> Option<&FileEntry> {
        self.by_path.get(path).map(|id| &self.files[*id as usize])
    }

    pub(crate) fn file_of(&self, doc: &Doc) -> &FileEntry {
        &self.files[doc.file as usize]
    }

    /// Live files by path.
    pub(crate) fn files(&self) -> impl Iterator<Item = &FileEntry> {
        self.by_path.values().map(|id| &self.files[*id as usize])
    }

    pub(crate) fn doc(&self, id: u32) -> &Doc {
        &self.docs[id as usize]
    }

    fn is_live(&self, doc: u32) -> bool {
        let doc = self.docs.get(doc as usize);
        doc.is_some_and(|doc| self.files[doc.file as usize].is_live)
    }

    pub(crate) fn live_docs(&self) -> usize {
        self.docs.len() - self.dead
    }

    pub(crate) fn live_files(&self) -> usize {
        self.by_path.len()
    }

    /// Words with learned translations.
    pub(crate) fn learned_words(&self) -> usize {
        self.expansion.len()
    }

    pub(crate) fn term_count(&self) -> usize {
        self.lists.iter().filter(|l| !l.is_empty()).count()
    }
}

/// Numbers of files, chunks and terms fit: four billion chunks are more than a terabyte.
fn number(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// Files that are seldom what is looked for.
fn is_minor(path: &str) -> bool {
    const DIRS: [&str; 9] = [
        "test",
        "tests",
        "testing",
        "vendor",
        "_vendor",
        "third_party",
        "node_modules",
        "fixtures",
        "testdata",
    ];
    let mut parts = path.split('/').rev();
    let name = parts.next().unwrap_or("");
    parts.any(|dir| DIRS.contains(&dir))
        || name.starts_with("test_")
        || name.contains("_test.")
        || name.contains(".test.")
}
