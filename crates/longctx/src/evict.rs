//! Texts that left a KV cache, by session, and what of them answers a question.

use crate::{
    error::Error,
    terms::{Term, terms},
};
use serde::{Deserialize, Serialize};
use std::{
    borrow::Cow,
    collections::HashMap,
    fs::{self, Metadata},
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{SystemTime, UNIX_EPOCH},
};
use xxhash_rust::xxh3::xxh3_128;

/// Bytes of one session in memory.
const MOST_OF_SESSION: usize = 32 << 20;

/// Sessions in memory; the one that is longest unused goes to disk, or is dropped without one.
const MOST_SESSIONS: usize = 256;

/// Bytes of all of them.
const MOST_IN_MEMORY: usize = 256 << 20;

/// Bytes of files of sessions; the oldest are deleted.
const MOST_ON_DISK: u64 = 4 << 30;

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

#[derive(Debug, Default)]
struct Session {
    id: String,
    /// Shared with who searches in them.
    chunks: Arc<Vec<EvictedChunk>>,
    bytes: usize,
    hibernated_at: Option<u64>,
    used: u64,
}

/// A session's file.
#[derive(Serialize, Deserialize)]
struct Stored<'a> {
    id: Cow<'a, str>,
    chunks: Cow<'a, [EvictedChunk]>,
    hibernated_at: Option<u64>,
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
        let bytes = session.bytes + bytes(&chunks);
        if bytes > MOST_OF_SESSION {
            let why = format!("a session may have {MOST_OF_SESSION} bytes");
            return Err(Error::Invalid { field: "chunks", why });
        }
        Arc::make_mut(&mut session.chunks).extend(chunks);
        session.bytes = bytes;
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
        let full = |sessions: &Sessions| {
            let bytes: usize = sessions.by_id.values().map(|s| s.bytes).sum();
            sessions.by_id.len() > MOST_SESSIONS || bytes > MOST_IN_MEMORY
        };
        while full(sessions) {
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
        let chunks = Arc::clone(&self.session(&mut sessions, id).chunks);
        self.make_room(&mut sessions, id);
        // A long session is no reason for others to wait.
        drop(sessions);
        let mut scored = scores(&chunks, query);
        scored.retain(|(score, _)| *score > 0.0 && *score >= floor);
        scored.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let best = scored.into_iter().take(most);
        let best = best.map(|(score, at)| EvictedChunk { score, ..chunks[at].clone() });
        Ok((best.collect(), chunks.len()))
    }

    /// All chunks of a session.
    #[must_use]
    pub fn dump(&self, id: &str) -> Vec<EvictedChunk> {
        let sessions = self.lock();
        let own = sessions.by_id.get(id).map(|s| Arc::clone(&s.chunks));
        drop(sessions);
        let chunks = own.or_else(|| Some(self.stored(id)?.chunks));
        chunks.map(Arc::unwrap_or_clone).unwrap_or_default()
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
        let Stored { id: own, chunks, hibernated_at } = serde_json::from_slice(&text).ok()?;
        let (id, chunks) = (Some(own.into_owned()).filter(|own| own == id)?, chunks.into_owned());
        let bytes = bytes(&chunks);
        Some(Session { id, bytes, chunks: Arc::new(chunks), hibernated_at, used: 0 })
    }

    fn store(&self, session: &Session) -> Result<(), Error> {
        let Some(path) = self.path(&session.id) else {
            let source = io::Error::new(io::ErrorKind::NotFound, "there is no --index-dir");
            return Err(Error::Save { path: "sessions".into(), source });
        };
        let stored = Stored {
            id: session.id.as_str().into(),
            chunks: session.chunks.as_slice().into(),
            hibernated_at: session.hibernated_at,
        };
        let text = serde_json::to_vec(&stored).map_err(io::Error::other);
        let written = text.and_then(|text| crate::index::write_whole(&path, &[&text]));
        written.map_err(|source| Error::Save { path: path.clone(), source })?;
        path.parent().into_iter().for_each(|dir| forget_oldest(dir, MOST_ON_DISK));
        Ok(())
    }
}

/// Deletes the files of a directory that were written longest ago until the others have at most so many bytes.
fn forget_oldest(dir: &Path, most: u64) {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let aged = entries.filter_map(|entry| {
        let about = entry.metadata().ok().filter(Metadata::is_file)?;
        Some((about.modified().ok()?, about.len(), entry.path()))
    });
    let mut files: Vec<_> = aged.collect();
    files.sort();
    let mut bytes: u64 = files.iter().map(|(_, len, _)| len).sum();
    for (_, len, path) in files {
        if bytes <= most {
            return;
        }
        match fs::remove_file(&path) {
            Ok(()) => bytes -= len,
            Err(error) => tracing::warn!(%error, path = %path.display(), "an old session stays"),
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_files_make_room() -> io::Result<()> {
        let dir = tempfile::tempdir()?;
        for (age, name) in [(30, "b"), (20, "a"), (10, "c")] {
            let file = fs::File::create(dir.path().join(name))?;
            file.set_len(100)?;
            file.set_modified(SystemTime::now() - std::time::Duration::from_secs(age))?;
        }
        forget_oldest(dir.path(), 300);
        assert_eq!(fs::read_dir(dir.path())?.count(), 3);
        forget_oldest(dir.path(), 199);
        let left = fs::read_dir(dir.path())?.map(|entry| Ok(entry?.file_name()));
        assert_eq!(left.collect::<io::Result<Vec<_>>>()?, ["c"]);
        Ok(())
    }

    #[test]
    fn sessions_share_a_bound() {
        let evicted = Evicted::new(None);
        let text = "word ".repeat((20 << 20) / 5);
        let chunk =
            || EvictedChunk { text: text.clone(), token_range: [0, 1], layer: -1, score: 0.0 };
        for i in 0..20 {
            evicted.write(&format!("s{i}"), vec![chunk()]).unwrap();
        }
        let held = |i| evicted.whereabouts(&format!("s{i}")).in_ram;
        assert_eq!((held(0), held(19)), (false, true));
        assert_eq!((0..20).filter(|&i| held(i)).count(), MOST_IN_MEMORY / (20 << 20));
    }
}
