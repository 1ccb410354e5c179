//! Memory that stays wired while nothing runs.
//!
//! Without a residency set macOS unwires a program's buffers a second after its last work, and the next
//! step takes several times as long. Sets came with macOS 15. Newer systems unwire sets too unless they are
//! asked for again and again (llama.cpp does so since its pull request 17766); so does a thread here.

use super::{Object, lock};
use objc2::{
    rc::autoreleasepool,
    runtime::{NSObjectProtocol, ProtocolObject},
    sel,
};
use objc2_metal::{
    MTLBuffer, MTLCommandQueue, MTLDevice, MTLResidencySet, MTLResidencySetDescriptor,
};
use std::{
    sync::{Arc, Mutex},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// Time between two requests for residency.
const BEAT: Duration = Duration::from_millis(500);
/// How long after the last work memory is asked for.
const KEPT: Duration = Duration::from_secs(180);

/// What is kept of a queue's memory, where there are sets.
pub(super) struct Residency(Option<Kept>);

struct Kept {
    set: Arc<Mutex<Set>>,
    heart: Option<JoinHandle<()>>,
}

struct Set {
    set: Object<dyn MTLResidencySet>,
    /// Whether buffers came or went that the set does not know of yet.
    changed: bool,
    used: Instant,
    ends: bool,
}

// SAFETY: a set may be used from any thread, one at a time.
unsafe impl Send for Set {}

impl Residency {
    /// An empty set of a queue. A device without sets, or that refuses one, works without.
    pub(super) fn new(
        device: &ProtocolObject<dyn MTLDevice>,
        queue: &ProtocolObject<dyn MTLCommandQueue>,
    ) -> Self {
        if !device.respondsToSelector(sel!(newResidencySetWithDescriptor:error:)) {
            return Self(None);
        }
        let descriptor = MTLResidencySetDescriptor::new();
        let Ok(set) = device.newResidencySetWithDescriptor_error(&descriptor) else {
            return Self(None);
        };
        queue.addResidencySet(&set);
        let set = Set { set, changed: false, used: Instant::now(), ends: false };
        let set = Arc::new(Mutex::new(set));
        let beating = Arc::clone(&set);
        let thread = thread::Builder::new().name("taper-residency".into());
        // Without a thread memory is asked for when work is.
        let heart = thread.spawn(move || beat(&beating)).ok();
        Self(Some(Kept { set, heart }))
    }

    pub(super) fn exists(&self) -> bool {
        self.0.is_some()
    }

    pub(super) fn add(&self, buffer: &ProtocolObject<dyn MTLBuffer>) {
        self.change(|set| set.addAllocation(ProtocolObject::from_ref(buffer)));
    }

    pub(super) fn remove(&self, buffer: &ProtocolObject<dyn MTLBuffer>) {
        self.change(|set| set.removeAllocation(ProtocolObject::from_ref(buffer)));
    }

    fn change(&self, change: impl FnOnce(&ProtocolObject<dyn MTLResidencySet>)) {
        if let Some(kept) = &self.0 {
            let mut set = lock(&kept.set);
            change(&set.set);
            set.changed = true;
        }
    }

    /// Wires what came, and lets go of what went.
    pub(super) fn settle(&self) {
        let Some(kept) = &self.0 else { return };
        let mut set = lock(&kept.set);
        if std::mem::take(&mut set.changed) {
            set.set.commit();
            set.set.requestResidency();
        }
    }

    /// Work was asked for.
    pub(super) fn used(&self) {
        if let Some(kept) = &self.0 {
            lock(&kept.set).used = Instant::now();
        }
    }
}

/// Asks for residency while work was asked for not long ago.
fn beat(set: &Mutex<Set>) {
    loop {
        thread::park_timeout(BEAT);
        let set = lock(set);
        if set.ends {
            return;
        }
        if set.used.elapsed() < KEPT {
            autoreleasepool(|_| set.set.requestResidency());
        }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        lock(&self.set).ends = true;
        if let Some(heart) = self.heart.take() {
            heart.thread().unpark();
            // It ends whatever became of it.
            let _ = heart.join();
        }
    }
}
