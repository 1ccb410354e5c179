//! Responses that are kept for later requests: the last ones, and no more than a limit of bytes.

use crate::{config::ServerConfig, errors::ApiError, wire::ResponseOut};
use serde_json::Value;
use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};
use tokio::sync::watch;

/// What stays in memory beside the text of an entry.
const OVERHEAD: usize = 1 << 10;

/// The items that a response came from, and those that it gave.
#[derive(Debug)]
pub(crate) struct Exchange {
    previous: Option<Arc<Exchange>>,
    input: Vec<Value>,
    output: Vec<Value>,
    bytes: usize,
    /// Bytes of all exchanges that are in memory.
    total: Arc<AtomicUsize>,
}

impl Exchange {
    /// The items of the conversation so far, the oldest first; without the output of this one unless
    /// `whole`.
    pub(crate) fn items(&self, whole: bool) -> Vec<&Value> {
        let mut chain = vec![];
        let mut next = self.previous.as_deref();
        while let Some(exchange) = next {
            chain.push(exchange);
            next = exchange.previous.as_deref();
        }
        let before = chain.into_iter().rev();
        let before = before.flat_map(|exchange| exchange.input.iter().chain(&exchange.output));
        let output = if whole { self.output.as_slice() } else { &[] };
        before.chain(&self.input).chain(output).collect()
    }
}

impl Drop for Exchange {
    /// One after the other: a conversation may be longer than the stack is deep.
    fn drop(&mut self) {
        self.total.fetch_sub(self.bytes, Relaxed);
        let mut next = self.previous.take();
        while let Some(mut exchange) = next.and_then(Arc::into_inner) {
            next = exchange.previous.take();
        }
    }
}

/// A response that is kept.
#[derive(Debug, Clone)]
pub(crate) struct Stored {
    pub(crate) response: Arc<ResponseOut>,
    pub(crate) exchange: Arc<Exchange>,
    /// Ends one that is still written.
    cancel: Option<watch::Sender<bool>>,
}

impl Stored {
    /// Ends it, if it is still written.
    pub(crate) fn cancel(&self) -> bool {
        self.cancel.as_ref().is_some_and(|cancel| cancel.send(true).is_ok())
    }
}

/// The responses that are kept.
#[derive(Debug)]
pub(crate) struct Responses {
    most: usize,
    most_bytes: usize,
    total: Arc<AtomicUsize>,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    entries: HashMap<String, (u64, Stored)>,
    /// Ids by their last use.
    uses: BTreeMap<u64, String>,
    clock: u64,
}

impl Responses {
    pub(crate) fn new(config: &ServerConfig) -> Self {
        Self {
            most: config.max_stored_responses,
            most_bytes: config.max_stored_bytes,
            total: Arc::default(),
            kept: Mutex::default(),
        }
    }

    /// Keeps a response, or what it has become. What was used last stays longest.
    pub(crate) fn keep(
        &self,
        response: &ResponseOut,
        (previous, input): (Option<Arc<Exchange>>, Vec<Value>),
        cancel: Option<watch::Sender<bool>>,
    ) {
        let output: Vec<Value> =
            response.output.iter().filter_map(|item| serde_json::to_value(item).ok()).collect();
        // The items are held twice: in the response and in the exchange.
        let asked = serde_json::to_string(response).map_or(0, |text| text.len());
        let items = input.iter().chain(&output).map(|item| item.to_string().len());
        let bytes = OVERHEAD + asked + 2 * items.sum::<usize>();
        self.total.fetch_add(bytes, Relaxed);
        let total = Arc::clone(&self.total);
        let exchange = Arc::new(Exchange { previous, input, output, bytes, total });
        let stored = Stored { response: Arc::new(response.clone()), exchange, cancel };
        let mut kept = self.lock();
        kept.put(response.id.clone(), stored);
        while kept.entries.len() > self.most || self.total.load(Relaxed) > self.most_bytes {
            if !kept.forget_oldest() {
                break;
            }
        }
    }

    /// A response, which counts as used. `param` is the field that names it, if one does.
    pub(crate) fn get(&self, id: &str, param: Option<&'static str>) -> Result<Stored, ApiError> {
        let mut kept = self.lock();
        match kept.remove(id) {
            Some(stored) => {
                kept.put(id.to_owned(), stored.clone());
                Ok(stored)
            }
            None => Err(self.missing(id, param)),
        }
    }

    pub(crate) fn delete(&self, id: &str) -> Result<(), ApiError> {
        match self.lock().remove(id) {
            Some(stored) => {
                stored.cancel();
                Ok(())
            }
            None => Err(self.missing(id, None)),
        }
    }

    /// Whether a response is still kept.
    pub(crate) fn holds(&self, id: &str) -> bool {
        self.lock().entries.contains_key(id)
    }

    /// An item of any response, by its id.
    pub(crate) fn item(&self, id: &str) -> Option<Value> {
        let kept = self.lock();
        let own = |item: &&Value| item.get("id").and_then(Value::as_str) == Some(id);
        let mut exchanges = kept.entries.values().map(|(_, stored)| &stored.exchange);
        exchanges.find_map(|e| e.input.iter().chain(&e.output).find(own).cloned())
    }

    fn missing(&self, id: &str, param: Option<&'static str>) -> ApiError {
        ApiError::ResponseNotFound { id: id.to_owned(), most: self.most, param }
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    fn put(&mut self, id: String, stored: Stored) {
        self.remove(&id);
        self.clock += 1;
        self.uses.insert(self.clock, id.clone());
        self.entries.insert(id, (self.clock, stored));
    }

    fn remove(&mut self, id: &str) -> Option<Stored> {
        let (used, stored) = self.entries.remove(id)?;
        self.uses.remove(&used);
        Some(stored)
    }

    fn forget_oldest(&mut self) -> bool {
        let Some((_, id)) = self.uses.pop_first() else { return false };
        if let Some((_, stored)) = self.entries.remove(&id) {
            stored.cancel();
        }
        true
    }
}
