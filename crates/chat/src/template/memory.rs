//! A bound on the memory that a rendering holds, and on the text that it writes.
//!
//! Fuel bounds the steps of a template. A step may double a string, so that strings, lists and maps
//! are counted as well. Strings are known by weak references, which are swept when the count
//! reaches the limit; lists and maps count themselves down when they are dropped.

use indexmap::IndexMap;
use minijinja::{
    Error, ErrorKind, State, Value,
    value::{Enumerator, Object, ObjectRepr, ValueKind},
};
use std::{
    collections::HashSet,
    fmt,
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

/// Bytes of strings, lists and maps. At the limit what is no longer used is swept, which must free
/// half.
pub(super) const LIMIT: usize = 256 << 20;

/// Bytes of one string.
const STRING_LIMIT: usize = 128 << 20;

/// How deeply lists and maps may lie in each other: their functions recurse.
const DEPTH: usize = 100;

/// Elements that a value may have, each counted wherever it appears: comparisons go through all of them.
const ELEMENTS: usize = 1 << 24;

/// How long a rendering may take. Fuel counts a step, whatever it goes through.
const TIME: Duration = Duration::from_secs(10);

/// How often a namespace or a macro may be stored in another value. Chains of these recurse too,
/// and show no depth.
const HANDLES: usize = 256;

/// What a string or a list costs beside its bytes.
const OVERHEAD: usize = 64;

/// Marks errors of the limits.
#[derive(Debug)]
struct TooLarge;

impl fmt::Display for TooLarge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("memory limit")
    }
}

impl std::error::Error for TooLarge {}

fn too_large(what: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, what).with_source(TooLarge)
}

/// Whether a limit of this module caused the error.
pub(super) fn caused(error: &Error) -> bool {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if error.is::<TooLarge>() {
            return true;
        }
        cause = error.source();
    }
    false
}

/// A string that grows up to the limit.
#[derive(Debug, Default)]
pub(super) struct Text(String);

impl Text {
    pub(super) fn push(&mut self, text: &str) -> Result<(), Error> {
        if self.0.len().saturating_add(text.len()) > STRING_LIMIT {
            return Err(too_large("a string grows too large"));
        }
        self.0.push_str(text);
        Ok(())
    }

    pub(super) fn push_char(&mut self, c: char) -> Result<(), Error> {
        self.push(c.encode_utf8(&mut [0; 4]))
    }

    pub(super) fn repeat(&mut self, text: &str, times: usize) -> Result<(), Error> {
        let bytes = text.len().saturating_mul(times);
        if self.0.len().saturating_add(bytes) > STRING_LIMIT {
            return Err(too_large("a string grows too large"));
        }
        self.0.push_str(&text.repeat(times));
        Ok(())
    }

    pub(super) fn take(self) -> String {
        self.0
    }
}

/// Refuses what would make a string of so many bytes.
pub(super) fn check_length(bytes: usize) -> Result<(), Error> {
    if bytes > STRING_LIMIT { Err(too_large("a string grows too large")) } else { Ok(()) }
}

/// What a rendering holds.
#[derive(Debug)]
struct Budget {
    since: Instant,
    containers: Arc<AtomicUsize>,
    strings: Vec<Weak<str>>,
    string_bytes: usize,
    written: usize,
    handles: usize,
}

impl Budget {
    fn new() -> Self {
        let containers = Arc::default();
        let since = Instant::now();
        Self { since, containers, strings: Vec::new(), string_bytes: 0, written: 0, handles: 0 }
    }

    fn tick(&self) -> Result<(), Error> {
        if self.since.elapsed() > TIME {
            return Err(Error::from(ErrorKind::OutOfFuel));
        }
        Ok(())
    }

    fn reserve(&mut self, bytes: usize) -> Result<(), Error> {
        self.tick()?;
        if self.held().saturating_add(bytes) <= LIMIT {
            return Ok(());
        }
        let mut seen = HashSet::new();
        self.strings.retain(|s| s.strong_count() > 0 && seen.insert(s.as_ptr().cast::<u8>()));
        let lengths = self.strings.iter().filter_map(Weak::upgrade).map(|s| s.len() + OVERHEAD);
        self.string_bytes = lengths.sum();
        if self.held().saturating_add(bytes) > LIMIT / 2 {
            return Err(too_large("the template's values grow too large"));
        }
        Ok(())
    }

    fn held(&self) -> usize {
        self.string_bytes.saturating_add(self.containers.load(Relaxed))
    }

    fn string(&mut self, text: &Arc<str>) -> Result<(), Error> {
        self.reserve(text.len() + OVERHEAD)?;
        self.string_bytes += text.len() + OVERHEAD;
        self.strings.push(Arc::downgrade(text));
        Ok(())
    }

    fn container(&mut self, items: usize) -> Result<Share, Error> {
        let bytes = items.saturating_mul(size_of::<Value>()).saturating_add(OVERHEAD);
        self.reserve(bytes)?;
        self.containers.fetch_add(bytes, Relaxed);
        Ok(Share { bytes, of: Arc::clone(&self.containers) })
    }

    /// How deeply a value with these in it reaches.
    fn depth<'a>(&mut self, items: impl Iterator<Item = &'a Value>) -> Result<Nesting, Error> {
        let all = items.fold(Nesting::NONE, |all, item| all.and(nesting(item)));
        if all.elements > ELEMENTS {
            return Err(too_large("lists and maps hold too many elements"));
        }
        if all.depth >= DEPTH {
            return Err(too_large("lists and maps are nested too deeply"));
        }
        if all.handle {
            self.handles += 1;
            if self.handles > HANDLES {
                return Err(too_large("too many namespaces or macros are stored in values"));
            }
        }
        Ok(Nesting { depth: all.depth + 1, ..all })
    }
}

fn budget<'a>(state: &'a mut State<'_, '_>) -> &'a mut Budget {
    state.get_or_insert_extension_with(Budget::new)
}

/// The part of a list or map in the count.
#[derive(Debug)]
struct Share {
    bytes: usize,
    of: Arc<AtomicUsize>,
}

impl Drop for Share {
    fn drop(&mut self) {
        self.of.fetch_sub(self.bytes, Relaxed);
    }
}

#[derive(Debug, Clone, Copy)]
struct Nesting {
    depth: usize,
    /// Itself, and what is in it.
    elements: usize,
    /// Holds something other than text, numbers, lists and maps.
    handle: bool,
}

impl Nesting {
    const NONE: Self = Self { depth: 0, elements: 1, handle: false };

    fn and(self, other: Self) -> Self {
        Self {
            depth: self.depth.max(other.depth),
            elements: self.elements.saturating_add(other.elements),
            handle: self.handle || other.handle,
        }
    }
}

/// How many fresh lists a filter's result may have inside each other: `batch` makes two. What lies deeper
/// was counted when it was made, or came with the conversation.
const FRESH: usize = 2;

fn nesting(value: &Value) -> Nesting {
    reach(value, FRESH)
}

fn reach(value: &Value, fresh: usize) -> Nesting {
    if let Some(list) = value.downcast_object_ref::<List>() {
        return list.nesting;
    }
    if let Some(map) = value.downcast_object_ref::<Dict>() {
        return map.nesting;
    }
    let is_list = matches!(value.kind(), ValueKind::Seq);
    if !is_list && !is_plain_map(value) {
        return Nesting { handle: value.as_object().is_some(), ..Nesting::NONE };
    }
    let mut all = Nesting::NONE;
    if fresh > 0
        && let Ok(items) = value.try_iter()
    {
        for item in items {
            let item = if is_list { item } else { value.get_item(&item).unwrap_or_default() };
            all = all.and(reach(&item, fresh - 1));
        }
    }
    Nesting { depth: all.depth + 1, ..all }
}

fn is_plain_map(value: &Value) -> bool {
    value.downcast_object_ref::<IndexMap<Value, Value>>().is_some()
}

/// A list or a tuple that a template made.
#[derive(Debug)]
struct List {
    items: Vec<Value>,
    is_tuple: bool,
    nesting: Nesting,
    _share: Share,
}

impl Object for List {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.items.get(key.as_usize()?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.items.len())
    }
}

pub(super) fn is_tuple(value: &Value) -> bool {
    value.is_tuple() || value.downcast_object_ref::<List>().is_some_and(|list| list.is_tuple)
}

/// A map that a template made.
#[derive(Debug)]
struct Dict {
    items: IndexMap<Value, Value>,
    nesting: Nesting,
    _share: Share,
}

impl Object for Dict {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.items.get(key).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.items.keys().cloned().collect())
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        Some(self.items.len())
    }
}

/// A string that a template made.
pub(super) fn string(state: &mut State<'_, '_>, text: String) -> Result<Value, Error> {
    charge(state, Value::from(text))
}

/// A list or a tuple that a template made. The engine's own tuples could not tell how deeply they reach.
pub(super) fn sequence(
    state: &mut State<'_, '_>,
    items: Vec<Value>,
    is_tuple: bool,
) -> Result<Value, Error> {
    let budget = budget(state);
    let nesting = budget.depth(items.iter())?;
    let share = budget.container(items.len())?;
    Ok(Value::from_object(List { items, is_tuple, nesting, _share: share }))
}

/// The elements of something that can be gone through, as long as they fit.
pub(super) fn items(state: &mut State<'_, '_>, value: &Value) -> Result<Vec<Value>, Error> {
    let most = LIMIT / size_of::<Value>();
    budget(state).reserve(value.len().unwrap_or(0).saturating_mul(size_of::<Value>()))?;
    let mut items = Vec::new();
    for item in value.try_iter()?.checked() {
        items.push(item?);
        if items.len() > most {
            return Err(too_large("a list grows too large"));
        }
    }
    Ok(items)
}

/// Counts a list that the engine made, and lists in it.
fn adopt(state: &mut State<'_, '_>, value: &Value, fresh: usize) -> Result<Value, Error> {
    let mut items = items(state, value)?;
    if fresh > 0 {
        let uncounted = |item: &&mut Value| {
            item.is_tuple() || item.downcast_object_ref::<Vec<Value>>().is_some()
        };
        for item in items.iter_mut().filter(uncounted) {
            *item = adopt(state, item, fresh - 1)?;
        }
    }
    sequence(state, items, value.is_tuple())
}

/// Counts what a step of a template made.
pub(super) fn charge(state: &mut State<'_, '_>, value: Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::String => {
            if let Some(text) = value.to_str() {
                budget(state).string(&text)?;
            }
            Ok(value)
        }
        ValueKind::Seq | ValueKind::Iterable => {
            if value.downcast_object_ref::<List>().is_some() {
                return Ok(value);
            }
            adopt(state, &value, FRESH)
        }
        ValueKind::Map if is_plain_map(&value) => {
            let items: IndexMap<Value, Value> = value
                .try_iter()?
                .map(|key| Ok::<_, Error>((key.clone(), value.get_item(&key)?)))
                .collect::<Result<_, _>>()?;
            let budget = budget(state);
            let nesting = budget.depth(items.values())?;
            let share = budget.container(items.len().saturating_mul(4))?;
            Ok(Value::from_object(Dict { items, nesting, _share: share }))
        }
        _ => Ok(value),
    }
}

/// Lets a value into a namespace, unless the namespace could be in it: nothing would end that goes through
/// one.
pub(super) fn store(state: &mut State<'_, '_>, value: Value) -> Result<Value, Error> {
    if budget(state).depth(std::iter::once(&value))?.handle {
        let detail = "a namespace cannot hold namespaces, macros and other objects";
        return Err(Error::new(ErrorKind::InvalidOperation, detail));
    }
    Ok(value)
}

/// Fails when a rendering has taken too long.
pub(super) fn tick(state: &mut State<'_, '_>) -> Result<Value, Error> {
    budget(state).tick()?;
    Ok(Value::from(()))
}

/// Makes sure of room for a list of so many small texts.
pub(super) fn pieces(state: &mut State<'_, '_>, count: usize) -> Result<(), Error> {
    budget(state).reserve(count.saturating_mul(size_of::<Value>() + OVERHEAD))
}

/// Counts text that is written to the prompt, or to a block that is captured.
pub(super) fn write(state: &mut State<'_, '_>, bytes: usize) -> Result<(), Error> {
    let budget = budget(state);
    budget.written = budget.written.saturating_add(bytes);
    if budget.written > LIMIT { Err(too_large("the prompt grows too large")) } else { Ok(()) }
}
