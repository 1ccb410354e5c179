//! A disk in memory, for tests: it can be slow, and it can fail.

use crate::{ExpertDisk, ExpertError, ExpertKey, HEADER_BYTES, PAGE, padded, record, seal};
use std::{
    collections::HashMap,
    io,
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

/// What befalls reads of an expert.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// So many reads fail, as a broken disk's.
    Fails(u32),
    /// So many reads end early.
    EndsEarly(u32),
    /// So many reads give a flipped bit.
    FlipsBit(u32),
    /// So many reads panic.
    Panics(u32),
    /// Every read takes so long.
    Slow(Duration),
}

/// A disk whose payloads a function makes.
#[derive(Debug)]
pub struct FakeDisk {
    experts: Vec<usize>,
    payload: usize,
    fill: fn(ExpertKey, &mut [u8]),
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    troubles: HashMap<ExpertKey, Trouble>,
    reads: HashMap<ExpertKey, u32>,
    order: Vec<ExpertKey>,
}

impl FakeDisk {
    /// Layers of so many experts each, whose payloads have so many bytes.
    #[must_use]
    pub fn new(experts: Vec<usize>, payload: usize, fill: fn(ExpertKey, &mut [u8])) -> Self {
        Self { experts, payload, fill, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says what befalls reads of an expert from now on.
    pub fn trouble(&self, key: ExpertKey, trouble: Trouble) {
        self.state().troubles.insert(key, trouble);
    }

    /// How often each expert was read since the last call, and in which order.
    pub fn take_reads(&self) -> (HashMap<ExpertKey, u32>, Vec<ExpertKey>) {
        let mut state = self.state();
        (std::mem::take(&mut state.reads), std::mem::take(&mut state.order))
    }

    /// Counts a read; what befalls it.
    fn begin(&self, key: ExpertKey) -> Option<Trouble> {
        let mut state = self.state();
        *state.reads.entry(key).or_default() += 1;
        state.order.push(key);
        let trouble = state.troubles.get_mut(&key)?;
        let now = *trouble;
        match trouble {
            Trouble::Fails(n)
            | Trouble::EndsEarly(n)
            | Trouble::FlipsBit(n)
            | Trouble::Panics(n)
                if *n == 0 =>
            {
                None
            }
            Trouble::Fails(n)
            | Trouble::EndsEarly(n)
            | Trouble::FlipsBit(n)
            | Trouble::Panics(n) => {
                *n -= 1;
                Some(now)
            }
            Trouble::Slow(_) => Some(now),
        }
    }
}

impl ExpertDisk for FakeDisk {
    fn experts(&self) -> Vec<usize> {
        self.experts.clone()
    }

    fn record_bytes(&self, _: u32) -> usize {
        padded(self.payload, PAGE)
    }

    fn read(&self, key: ExpertKey, to: &mut [u8]) -> Result<(), ExpertError> {
        let trouble = self.begin(key);
        match trouble {
            Some(Trouble::Fails(_)) => {
                let source = io::Error::from_raw_os_error(5);
                return Err(ExpertError::Read { key, source });
            }
            Some(Trouble::EndsEarly(_)) => {
                return Err(ExpertError::Short { key, expected: to.len(), got: 1 });
            }
            Some(Trouble::Panics(_)) => panic!("a fault that a test has planted"),
            Some(Trouble::Slow(time)) => thread::sleep(time),
            _ => {}
        }
        (self.fill)(key, &mut to[HEADER_BYTES..][..self.payload]);
        seal(key, 0, self.payload, to);
        if matches!(trouble, Some(Trouble::FlipsBit(_))) {
            to[HEADER_BYTES] ^= 1;
        }
        record::verify(key, 0, self.payload, to, true)
    }
}
