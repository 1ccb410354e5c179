//! Grammars, prepared: in time, within limits, and once for many requests.

use crate::{GrammarError, vocabulary::Vocabulary};
use llguidance::{
    Matcher,
    api::{GrammarWithLexer, StopReason, TopLevelGrammar},
};
use std::{
    collections::VecDeque,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

/// How long a grammar may take to prepare.
const PATIENCE: Duration = Duration::from_secs(2);
/// Grammars that are prepared at a time, those that nobody waits for any more included.
const AT_ONCE: usize = 4;
/// Stack of such a thread: a schema's parts are intersected recursively.
const STACK: usize = 16 << 20;
/// Grammars that are kept.
const KEPT: usize = 128;
/// Most tokens in a row that a grammar may force at its beginning.
const MOST_FORCED: usize = 500;
/// Bytes of their sources together.
const KEPT_BYTES: usize = 4 << 20;

/// Longest source of a grammar.
pub(crate) const MAX_BYTES: usize = 256 << 10;

/// A grammar that is ready to start.
pub(crate) struct Compiled {
    matcher: Matcher,
    /// Its lexer, which all outputs share, has no room for more states.
    worn_out: AtomicBool,
}

impl fmt::Debug for Compiled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Compiled").finish_non_exhaustive()
    }
}

impl Compiled {
    /// At the beginning of a text. What is learnt about the grammar is shared by all.
    pub(crate) fn start(&self) -> Matcher {
        self.matcher.clone()
    }

    /// The next request prepares the grammar anew.
    pub(crate) fn wear_out(&self) {
        self.worn_out.store(true, Ordering::Relaxed);
    }
}

/// The grammars that were used last.
#[derive(Debug, Default)]
pub(crate) struct Cache {
    /// By source, the one used last in front.
    kept: Mutex<VecDeque<(String, Arc<Compiled>)>>,
    running: Arc<AtomicUsize>,
    hits: AtomicUsize,
}

impl Cache {
    /// Prepares a grammar, or finds it. `key` names its source.
    pub(crate) fn get(
        &self,
        key: &str,
        vocabulary: &Arc<Vocabulary>,
        source: impl FnOnce() -> TopLevelGrammar,
    ) -> Result<Arc<Compiled>, GrammarError> {
        if let Some(found) = self.find(key) {
            self.hits.fetch_add(1, Ordering::Relaxed);
            return Ok(found);
        }
        let compiled = Arc::new(self.compile(vocabulary, source())?);
        let mut kept = self.lock();
        kept.push_front((key.to_owned(), Arc::clone(&compiled)));
        let mut bytes = 0;
        let fit = kept.iter().take(KEPT).take_while(|(key, _)| {
            bytes += key.len();
            bytes <= KEPT_BYTES
        });
        let fit = fit.count().max(1);
        kept.truncate(fit);
        Ok(compiled)
    }

    /// How often a grammar did not have to be prepared.
    pub(crate) fn hits(&self) -> usize {
        self.hits.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<(String, Arc<Compiled>)>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, key: &str) -> Option<Arc<Compiled>> {
        let mut kept = self.lock();
        let at = kept.iter().position(|(other, _)| other == key)?;
        let found = kept.remove(at)?;
        if found.1.worn_out.load(Ordering::Relaxed) {
            return None;
        }
        let compiled = Arc::clone(&found.1);
        kept.push_front(found);
        Some(compiled)
    }

    /// Prepares a grammar on a thread of its own, which is left behind when it takes too long.
    fn compile(
        &self,
        vocabulary: &Arc<Vocabulary>,
        grammar: TopLevelGrammar,
    ) -> Result<Compiled, GrammarError> {
        let slot = Slot::take(&self.running).ok_or(GrammarError::Busy)?;
        let (done, result) = mpsc::channel();
        let vocabulary = Arc::clone(vocabulary);
        let work = move || {
            let mut matcher = Matcher::new(vocabulary.factory.create_parser(grammar.clone()));
            if matcher.clone().compute_ff_tokens().len() > MOST_FORCED {
                let calm = unforced(&grammar).unwrap_or(grammar);
                matcher = Matcher::new(vocabulary.factory.create_parser(calm));
            }
            let begun = begin(&mut matcher);
            let compiled = begun.map(|()| Compiled { matcher, worn_out: AtomicBool::new(false) });
            // Before whoever waits goes on, who may have the next grammar to prepare.
            drop(slot);
            // Nobody may be waiting.
            let _ = done.send(compiled);
        };
        let thread = thread::Builder::new().name("taper-grammar".into()).stack_size(STACK);
        thread.spawn(work).map_err(|_| GrammarError::Busy)?;
        match result.recv_timeout(PATIENCE) {
            Ok(Ok(compiled)) => Ok(compiled),
            Ok(Err(error)) => Err(GrammarError::Syntax(first_line(&error))),
            Err(mpsc::RecvTimeoutError::Timeout) => {
                Err(GrammarError::TooSlow { seconds: PATIENCE.as_secs() })
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                Err(GrammarError::Syntax("the grammar cannot be prepared".to_owned()))
            }
        }
    }
}

/// A grammar in which tokens that must come are not looked for: there may be no end of them.
fn unforced(grammar: &TopLevelGrammar) -> Option<TopLevelGrammar> {
    let only = grammar.grammars.first()?;
    let rules = match (&only.json_schema, &only.lark_grammar) {
        (Some(schema), _) => format!("start: %json {schema}"),
        (None, Some(rules)) if !rules.contains("%llguidance") => rules.clone(),
        _ => return None,
    };
    let lark = format!("%llguidance {{\"no_forcing\": true}}\n{rules}");
    Some(TopLevelGrammar::from_grammar(GrammarWithLexer::from_lark(lark)))
}

/// The first mask shows what the limits of a step do not allow, and what nothing matches.
fn begin(matcher: &mut Matcher) -> Result<(), String> {
    if let Some(error) = matcher.get_error() {
        return Err(error);
    }
    let mask = matcher.compute_mask().map_err(|error| match matcher.stop_reason() {
        StopReason::NoExtensionBias => "nothing matches this grammar".to_owned(),
        _ => error.to_string(),
    });
    mask.map(drop)
}

/// Backtraces and states follow.
fn first_line(error: &str) -> String {
    error.lines().next().unwrap_or_default().to_owned()
}

/// One of [`AT_ONCE`].
struct Slot(Arc<AtomicUsize>);

impl Slot {
    fn take(running: &Arc<AtomicUsize>) -> Option<Self> {
        let slot = Self(Arc::clone(running));
        (running.fetch_add(1, Ordering::SeqCst) < AT_ONCE).then_some(slot)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}
