//! Keys that open the API: what each opens, and how much.

use crate::{config::ConfigError, errors::ApiError};
use axum::http::Method;
use sha2::{Digest, Sha256};
use std::{
    fmt,
    hint::black_box,
    str::FromStr,
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Instant,
};

const DAY: u64 = 24 * 60 * 60;

/// What a key opens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Everything but what the other scopes open.
    Inference,
    /// `/metrics`, which is open to everybody unless a named key has this scope.
    Metrics,
    /// Loading, unloading, downloading and deleting of adapters and models.
    Admin,
}

impl Scope {
    const ALL: [Self; 3] = [Self::Inference, Self::Metrics, Self::Admin];

    /// Its name in files and messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Inference => "inference",
            Self::Metrics => "metrics",
            Self::Admin => "admin",
        }
    }

    /// What a route of the API needs.
    pub(crate) fn of(method: &Method, path: &str) -> Self {
        match path {
            "/v1/load_lora_adapter"
            | "/v1/unload_lora_adapter"
            | "/models/load"
            | "/models/unload"
            | "/api/pull"
            | "/api/delete" => Self::Admin,
            _ if method == Method::DELETE && path.starts_with("/v1/models/") => Self::Admin,
            "/metrics" => Self::Metrics,
            _ => Self::Inference,
        }
    }
}

impl FromStr for Scope {
    type Err = ConfigError;

    fn from_str(name: &str) -> Result<Self, ConfigError> {
        let known = Self::ALL.into_iter().find(|scope| scope.name() == name);
        known.ok_or_else(|| ConfigError::Scope { name: name.to_owned() })
    }
}

/// A key, by its hash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiKey {
    /// Stands for the key in the metrics; empty where it has no name.
    pub name: String,
    /// SHA-256 of the key.
    pub sha256: [u8; 32],
    /// What it opens.
    pub scopes: Vec<Scope>,
    /// Requests that it may send in a minute, at once or one after the other; `None` sets no limit.
    pub requests_per_minute: Option<u32>,
    /// Tokens of prompts and outputs that it may use on a day of UTC; `None` sets no limit. A request that begins
    /// below it goes on to its end.
    pub tokens_per_day: Option<u64>,
}

impl ApiKey {
    /// A key without a name or a limit, which opens everything.
    #[must_use]
    pub fn of(key: &str) -> Self {
        Self {
            name: String::new(),
            sha256: Sha256::digest(key).into(),
            scopes: Scope::ALL.to_vec(),
            requests_per_minute: None,
            tokens_per_day: None,
        }
    }
}

/// Keys that open the API. Clones are the same keys: what one of them replaces, all have.
#[derive(Clone, Default)]
pub struct ApiKeys(Arc<RwLock<Vec<Arc<Caller>>>>);

impl ApiKeys {
    /// These keys, which open everything. Without any, nobody needs a key.
    ///
    /// # Errors
    /// A key is empty, or has a blank or another character that a header does not carry. An empty
    /// key is nearly always a variable that was not set, and must not open the server.
    pub fn new<S: Into<String>>(keys: impl IntoIterator<Item = S>) -> Result<Self, ConfigError> {
        let check = |(i, key): (usize, S)| {
            let (key, number): (String, _) = (key.into(), i + 1);
            if key.trim().is_empty() {
                return Err(ConfigError::EmptyApiKey { number });
            }
            match key.bytes().all(|b| b.is_ascii_graphic()) {
                true => Ok(ApiKey::of(&key)),
                false => Err(ConfigError::ApiKeyCharacters { number }),
            }
        };
        let keys = keys.into_iter().enumerate().map(check).collect::<Result<Vec<_>, _>>()?;
        Ok(Self::of(keys))
    }

    /// These keys.
    #[must_use]
    pub fn of(keys: impl IntoIterator<Item = ApiKey>) -> Self {
        let all = Self::default();
        all.replace(keys);
        all
    }

    /// Has these keys from now on. What was used of a key that was there before counts.
    pub fn replace(&self, keys: impl IntoIterator<Item = ApiKey>) {
        let before = self.all();
        let caller = |key: ApiKey| {
            let known = before.iter().find(|caller| caller.key.sha256 == key.sha256);
            let used = known.map(|caller| Arc::clone(&caller.used)).unwrap_or_default();
            Arc::new(Caller { key, used })
        };
        let keys = keys.into_iter().map(caller).collect();
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = keys;
    }

    pub(crate) fn all(&self) -> Vec<Arc<Caller>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether there are no keys, so that nobody needs one.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.read().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Whether this is one of the keys.
    #[must_use]
    pub fn accept(&self, key: &str) -> bool {
        self.find(key).is_some()
    }

    /// Compares hashes, with each key's in the same time, so that responses cannot be timed to guess a key.
    pub(crate) fn find(&self, key: &str) -> Option<Arc<Caller>> {
        let hash = Sha256::digest(key).into();
        let keys = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let same =
            |found: Option<Arc<Caller>>, own: &Arc<Caller>| match same(&own.key.sha256, &hash) {
                true => Some(Arc::clone(own)),
                false => found,
            };
        keys.iter().fold(None, same)
    }

    /// Whether `/metrics` needs a key.
    pub(crate) fn guard_metrics(&self) -> bool {
        let named = |caller: &Arc<Caller>| {
            !caller.key.name.is_empty() && caller.key.scopes.contains(&Scope::Metrics)
        };
        self.all().iter().any(named)
    }
}

fn same(own: &[u8; 32], given: &[u8; 32]) -> bool {
    let pairs = own.iter().zip(given);
    black_box(pairs.fold(0, |different, (a, b)| black_box(different | (a ^ b)))) == 0
}

impl fmt::Debug for ApiKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} keys", self.all().len())
    }
}

/// Whoever has a key.
#[derive(Debug)]
pub(crate) struct Caller {
    pub(crate) key: ApiKey,
    pub(crate) used: Arc<Used>,
}

/// What was used of a key.
#[derive(Debug, Default)]
pub(crate) struct Used {
    pub(crate) requests: AtomicU64,
    pub(crate) tokens: AtomicU64,
    pub(crate) refused: AtomicU64,
    /// Requests that may be sent at once, and when that was so.
    bucket: Mutex<Option<(f64, Instant)>>,
    /// A day since 1970, and the tokens of it.
    today: Mutex<(u64, u64)>,
}

impl Caller {
    /// The number by which the queue is shared.
    pub(crate) fn client(&self) -> u64 {
        let first = self.key.sha256.first_chunk().copied().unwrap_or_default();
        u64::from_le_bytes(first)
    }

    pub(crate) fn check_scope(&self, scope: Scope) -> Result<(), ApiError> {
        match self.key.scopes.contains(&scope) {
            true => Ok(()),
            false => Err(ApiError::MissingScope { scope: scope.name() }),
        }
    }

    /// Takes a request, at `now` and `unix` seconds since 1970.
    pub(crate) fn enter(&self, now: Instant, unix: u64) -> Result<(), ApiError> {
        let entered = self.check_day(unix).and_then(|()| self.check_minute(now));
        let counter = if entered.is_ok() { &self.used.requests } else { &self.used.refused };
        counter.fetch_add(1, Relaxed);
        entered
    }

    fn check_minute(&self, now: Instant) -> Result<(), ApiError> {
        let Some(limit) = self.key.requests_per_minute else { return Ok(()) };
        let (most, rate) = (f64::from(limit), f64::from(limit) / 60.0);
        let mut bucket = self.used.bucket.lock().unwrap_or_else(PoisonError::into_inner);
        let (left, at) = bucket.unwrap_or((most, now));
        let left = (left + now.saturating_duration_since(at).as_secs_f64() * rate).min(most);
        // Sums of times are not exact.
        if left + 1e-6 < 1.0 {
            *bucket = Some((left, now));
            let retry_after = ((1.0 - left) / rate - 1e-6).ceil().max(1.0) as u64;
            return Err(ApiError::TooManyRequests { limit, retry_after });
        }
        *bucket = Some((left - 1.0, now));
        Ok(())
    }

    fn check_day(&self, unix: u64) -> Result<(), ApiError> {
        let Some(limit) = self.key.tokens_per_day else { return Ok(()) };
        let today = self.used.today.lock().unwrap_or_else(PoisonError::into_inner);
        match *today {
            (day, tokens) if day == unix / DAY && tokens >= limit => {
                Err(ApiError::TokensSpent { limit, retry_after: DAY - unix % DAY })
            }
            _ => Ok(()),
        }
    }

    /// Counts what a generation took.
    pub(crate) fn spend(&self, tokens: u64, unix: u64) {
        self.used.tokens.fetch_add(tokens, Relaxed);
        let mut today = self.used.today.lock().unwrap_or_else(PoisonError::into_inner);
        let before = if today.0 == unix / DAY { today.1 } else { 0 };
        *today = (unix / DAY, before + tokens);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn keys_match_whole_and_do_not_print() {
        let keys = ApiKeys::new(["secret", "other"]).unwrap();
        assert!(keys.accept("secret") && keys.accept("other"));
        for wrong in ["", "s", "secre", "secret ", "secretsecret", "Secret"] {
            assert!(!keys.accept(wrong), "{wrong:?}");
        }
        assert_eq!(format!("{keys:?}"), "2 keys");
        assert!(ApiKeys::new([""; 0]).unwrap().is_empty());
    }

    #[test]
    fn no_key_is_dropped_in_silence() {
        for blank in ["", " ", "\t", "\n"] {
            let error = ApiKeys::new(["good", blank]).unwrap_err();
            assert!(matches!(error, ConfigError::EmptyApiKey { number: 2 }), "{blank:?}");
        }
        for odd in ["two words", " led", "käse", "line\n"] {
            let error = ApiKeys::new([odd]).unwrap_err();
            assert!(matches!(error, ConfigError::ApiKeyCharacters { number: 1 }), "{odd:?}");
            assert!(!error.to_string().contains(odd), "keys are not printed");
        }
    }

    fn limited() -> ApiKey {
        ApiKey { requests_per_minute: Some(2), tokens_per_day: Some(100), ..ApiKey::of("k") }
    }

    #[test]
    fn requests_come_back_with_time() {
        let keys = ApiKeys::of([limited()]);
        let caller = keys.find("k").unwrap();
        let start = Instant::now();
        let at = |seconds| caller.enter(start + Duration::from_secs(seconds), 0);
        assert!(at(0).is_ok() && at(0).is_ok());
        assert!(matches!(at(0), Err(ApiError::TooManyRequests { limit: 2, retry_after: 30 })));
        assert!(matches!(at(20), Err(ApiError::TooManyRequests { retry_after: 10, .. })));
        assert!(at(30).is_ok() && at(31).is_err());
        assert!(
            at(1000).is_ok() && at(1000).is_ok() && at(1000).is_err(),
            "no more than a minute's"
        );
        assert_eq!(caller.used.requests.load(Relaxed), 5);
        assert_eq!(caller.used.refused.load(Relaxed), 4);
    }

    #[test]
    fn tokens_come_back_with_the_day_and_outlive_a_change_of_keys() {
        let key = ApiKey { requests_per_minute: None, ..limited() };
        let keys = ApiKeys::of([key.clone()]);
        let (now, noon) = (Instant::now(), 10 * DAY + DAY / 2);
        let caller = keys.find("k").unwrap();
        caller.spend(99, noon);
        assert!(caller.enter(now, noon).is_ok());
        caller.spend(1, noon);
        keys.replace([ApiKey { tokens_per_day: Some(50), ..key }, ApiKey::of("new")]);
        let caller = keys.find("k").unwrap();
        let spent = caller.enter(now, noon);
        assert!(
            matches!(spent, Err(ApiError::TokensSpent { limit: 50, retry_after }) if retry_after == DAY / 2)
        );
        assert!(caller.enter(now, noon + DAY / 2).is_ok());
        assert!(keys.accept("new"));
        keys.replace([ApiKey::of("new")]);
        assert!(!keys.accept("k"));
    }

    #[test]
    fn scopes_have_names_and_routes() {
        assert!(Scope::ALL.iter().all(|scope| scope.name().parse() == Ok(*scope)));
        assert!("all".parse::<Scope>().is_err());
        assert_eq!(Scope::of(&Method::POST, "/v1/load_lora_adapter"), Scope::Admin);
        assert_eq!(Scope::of(&Method::DELETE, "/v1/models/a/b"), Scope::Admin);
        assert_eq!(Scope::of(&Method::GET, "/v1/models/a/b"), Scope::Inference);
        let key =
            ApiKey { scopes: vec![Scope::Metrics], name: "prometheus".into(), ..ApiKey::of("k") };
        let keys = ApiKeys::of([key]);
        assert!(keys.guard_metrics() && !ApiKeys::new(["k"]).unwrap().guard_metrics());
        let caller = keys.find("k").unwrap();
        assert!(caller.check_scope(Scope::Metrics).is_ok());
        let error = caller.check_scope(Scope::Inference).unwrap_err();
        assert!(matches!(error, ApiError::MissingScope { scope: "inference" }));
    }
}
