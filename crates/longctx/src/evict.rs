//! Texts that left a KV cache, by session, and what of them answers a question.

use crate::{
    error::Error,
    terms::{Term, terms},
};
use serde::{Deserialize, Serialize};
use std::{
    collections::HashMap,
    fs, io,
    path::PathBuf,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{SystemTime, UNIX_EPOCH},
};
use xxhash_rust::xxh3::xxh3_128;

/// Bytes of one session in memory.
const MOST_OF_SESSION: usize = 32 << 20;

/// Sessions in memory; the one that is longest unused goes to disk, or is dropped without one.
const MOST_SESSIONS: usize = 256;

/// Bytes of an id.
const MOST_ID: usize = 256;

/// Where counts saturate, and how much lengths count, in BM25.
const K1: f32 = 1.2;
const B: f32 = 0.75;

/// A span of tokens as text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EvictedChunk {
    /// What the tokens say.
    pub text: String,
    /// The first token, and the one after the last.
    pub token_range: [u64; 2],
    /// The layer that evicted it; -1 for all.
    pub layer: i64,
    /// How the writer scored it, or how well it answers.
    pub score: f64,
}

/// What became of a session that was asked to leave memory, or to come back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Moved {
    /// It did.
    pub done: bool,
    /// Its chunks.
    pub chunks: usize,
}

/// Where a session is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Whereabouts {
    /// In memory.
    pub in_ram: bool,
    /// On disk.
    pub on_disk: bool,
    /// Chunks in memory.
    pub n_chunks_in_ram: usize,
    /// Chunks on disk.
    pub n_chunks_on_disk: usize,
    /// When it went to disk, in seconds since 1970.
    pub hibernated_at: Option<u64>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Session {
    id: String,
    chunks: Vec<EvictedChunk>,
    hibernated_at: Option<u64>,
    #[serde(skip)]
    used: u64,
}

impl Session {
    fn bytes(&self) -> usize {
        bytes(&self.chunks)
    }
}

/// Bytes in memory. Chunks without text take some too.
fn bytes(chunks: &[EvictedChunk]) -> usize {
    chunks.iter().map(|c| size_of::<EvictedChunk>() + c.text.len()).sum()
}

#[derive(Debug, Default)]
struct Sessions {
    by_id: HashMap<String, Session>,
    uses: u64,
}

/// All sessions.
#[derive(Debug)]
pub struct Evicted {
    sessions: Mutex<Sessions>,
    dir: Option<PathBuf>,
}

impl Evicted {
    /// Keeps sessions that hibernate in `dir`; without one they stay in memory.
    #[must_use]
    pub fn new(dir: Option<PathBuf>) -> Self {
        Self { sessions: Mutex::default(), dir }
    }

    fn lock(&self) -> MutexGuard<'_, Sessions> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds chunks to a session. Says how many it has then.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an id or a session that is too long.
    pub fn write(&self, id: &str, chunks: Vec<EvictedChunk>) -> Result<usize, Error> {
        check_id(id)?;
        let mut sessions = self.lock();
        if chunks.is_empty() && !sessions.by_id.contains_key(id) {
            return Ok(self.stored(id).map_or(0, |s| s.chunks.len()));
        }
        let session = self.session(&mut sessions, id);
        let bytes = session.bytes() + bytes(&chunks);
        if bytes > MOST_OF_SESSION {
            let why = format!("a session may have {MOST_OF_SESSION} bytes");
            return Err(Error::Invalid { field: "chunks", why });
        }
        session.chunks.extend(chunks);
        let total = session.chunks.len();
        self.make_room(&mut sessions, id);
        Ok(total)
    }

    /// The session in memory: it comes back from disk, or is new.
    fn session<'a>(&self, sessions: &'a mut Sessions, id: &str) -> &'a mut Session {
        sessions.uses += 1;
        let uses = sessions.uses;
        let new = || Session { id: id.to_owned(), ..Session::default() };
        let session = sessions.by_id.entry(id.to_owned());
        let session = session.or_insert_with(|| self.stored(id).unwrap_or_else(new));
        session.used = uses;
        session
    }

    fn make_room(&self, sessions: &mut Sessions, keep: &str) {
        while sessions.by_id.len() > MOST_SESSIONS {
            let others = sessions.by_id.values().filter(|s| s.id != keep);
            let Some(oldest) = others.min_by_key(|s| s.used).map(|s| s.id.clone()) else { return };
            if let Some(session) = sessions.by_id.remove(&oldest)
                && let Err(error) = self.store(&session)
            {
                tracing::warn!(%error, "an idle session was dropped");
            }
        }
    }

    /// The chunks of a session that answer a question best, and how many it has.
    ///
    /// A score is the part of the question's words that a chunk has, weighed by how rare they are.
    ///
    /// # Errors
    /// [`Error::Invalid`].
    pub fn retrieve(
        &self,
        id: &str,
        query: &str,
        most: usize,
        floor: f64,
    ) -> Result<(Vec<EvictedChunk>, usize), Error> {
        check_id(id)?;
        let mut sessions = self.lock();
        let known = sessions.by_id.contains_key(id) || self.stored(id).is_some();
        if !known {
            return Ok((Vec::new(), 0));
        }
        let session = self.session(&mut sessions, id);
        let mut scored = scores(&session.chunks, query);
        scored.retain(|(score, _)| *score > 0.0 && *score >= floor);
        scored.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let best = scored.into_iter().take(most);
        let best = best.map(|(score, at)| EvictedChunk { score, ..session.chunks[at].clone() });
        let answer = (best.collect(), session.chunks.len());
        self.make_room(&mut sessions, id);
        Ok(answer)
    }

    /// All chunks of a session.
    #[must_use]
    pub fn dump(&self, id: &str) -> Vec<EvictedChunk> {
        let sessions = self.lock();
        let own = sessions.by_id.get(id).map(|s| s.chunks.clone());
        own.or_else(|| Some(self.stored(id)?.chunks)).unwrap_or_default()
    }

    /// Moves a session to disk.
    ///
    /// # Errors
    /// The disk refuses; the session stays in memory.
    pub fn hibernate(&self, id: &str) -> Result<Moved, Error> {
        let mut sessions = self.lock();
        let Some(session) = sessions.by_id.get_mut(id) else { return Ok(Moved::default()) };
        session.hibernated_at = Some(now());
        let chunks = session.chunks.len();
        self.store(session)?;
        sessions.by_id.remove(id);
        Ok(Moved { done: true, chunks })
    }

    /// Brings a session back from disk.
    #[must_use]
    pub fn resume(&self, id: &str) -> Moved {
        let mut sessions = self.lock();
        if check_id(id).is_err() || (!sessions.by_id.contains_key(id) && self.stored(id).is_none())
        {
            return Moved::default();
        }
        let chunks = self.session(&mut sessions, id).chunks.len();
        self.make_room(&mut sessions, id);
        Moved { done: true, chunks }
    }

    /// Where a session is.
    #[must_use]
    pub fn whereabouts(&self, id: &str) -> Whereabouts {
        let sessions = self.lock();
        let (own, stored) = (sessions.by_id.get(id), self.stored(id));
        Whereabouts {
            in_ram: own.is_some(),
            on_disk: stored.is_some(),
            n_chunks_in_ram: own.map_or(0, |s| s.chunks.len()),
            n_chunks_on_disk: stored.as_ref().map_or(0, |s| s.chunks.len()),
            hibernated_at: stored.and_then(|s| s.hibernated_at),
        }
    }

    /// Ids become names of files by their hashes, so that none leads elsewhere.
    fn path(&self, id: &str) -> Option<PathBuf> {
        let name = format!("{:032x}.json", xxh3_128(id.as_bytes()));
        self.dir.as_ref().map(|dir| dir.join("sessions").join(name))
    }

    fn stored(&self, id: &str) -> Option<Session> {
        let text = fs::read(self.path(id)?).ok()?;
        let session: Session = serde_json::from_slice(&text).ok()?;
        (session.id == id).then_some(session)
    }

    fn store(&self, session: &Session) -> Result<(), Error> {
        let Some(path) = self.path(&session.id) else {
            let source = io::Error::new(io::ErrorKind::NotFound, "there is no --index-dir");
            return Err(Error::Save { path: "sessions".into(), source });
        };
        let text = serde_json::to_vec(session).map_err(io::Error::other);
        let written = text.and_then(|text| crate::index::write_whole(&path, &[&text]));
        written.map_err(|source| Error::Save { path: path.clone(), source })
    }
}

/// BM25 of each chunk that has a word of the query, in parts of what all words would give.
fn scores(chunks: &[EvictedChunk], query: &str) -> Vec<(f64, usize)> {
    let mut wanted: HashMap<Term, usize> = HashMap::new();
    terms(query, |term| {
        wanted.insert(term, 0);
    });
    let mut counts: Vec<HashMap<Term, f32>> = Vec::with_capacity(chunks.len());
    let mut lengths = Vec::with_capacity(chunks.len());
    for chunk in chunks {
        let (mut own, mut length) = (HashMap::new(), 0_f32);
        terms(&chunk.text, |term| {
            length += 1.0;
            if wanted.contains_key(&term) {
                *own.entry(term).or_insert(0.0) += 1.0;
            }
        });
        own.keys().for_each(|term| *wanted.entry(*term).or_default() += 1);
        counts.push(own);
        lengths.push(length);
    }
    let all = chunks.len() as f32;
    let idf = |with: usize| (1.0 + (all - with as f32 + 0.5) / (with as f32 + 0.5)).ln();
    let possible: f32 = wanted.values().map(|with| idf(*with)).sum();
    let mean = lengths.iter().sum::<f32>() / all.max(1.0);
    let score = |(own, length): (&HashMap<Term, f32>, &f32)| -> f64 {
        let norm = K1 * (1.0 - B + B * length / mean.max(1.0));
        let mut parts: Vec<f32> =
            own.iter().map(|(t, n)| idf(wanted[t]) * n * (1.0 + norm) / (n + norm)).collect();
        // Additions of floats in one order give one result.
        parts.sort_by(f32::total_cmp);
        (parts.iter().sum::<f32>() / possible.max(f32::MIN_POSITIVE)).min(1.0).into()
    };
    counts.iter().zip(&lengths).map(score).zip(0..).collect()
}

fn check_id(id: &str) -> Result<(), Error> {
    if (1..=MOST_ID).contains(&id.len()) {
        return Ok(());
    }
    Err(Error::Invalid { field: "session_id", why: format!("must have 1 to {MOST_ID} bytes") })
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}
