//! Memory that stays wired while nothing runs.
//!
//! Without a residency set macOS unwires a program's buffers a second after its last work, and the next
//! step takes several times as long. Sets came with macOS 15.

use super::{Object, lock};
use objc2::{
    rc::Retained,
    runtime::{NSObjectProtocol, ProtocolObject},
    sel,
};
use objc2_metal::{
    MTLBuffer, MTLCommandQueue, MTLDevice, MTLResidencySet, MTLResidencySetDescriptor,
};
use std::sync::Mutex;

/// All buffers of a queue, where there are sets.
pub(super) struct Residency(Option<Mutex<Set>>);

struct Set {
    set: Object<dyn MTLResidencySet>,
    /// Whether buffers came or went that the set does not know of yet.
    changed: bool,
}

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
        let set = device.newResidencySetWithDescriptor_error(&descriptor).ok();
        Self(set.map(|set| {
            queue.addResidencySet(&set);
            Mutex::new(Set { set, changed: false })
        }))
    }

    pub(super) fn exists(&self) -> bool {
        self.0.is_some()
    }

    pub(super) fn add(&self, buffer: &Retained<ProtocolObject<dyn MTLBuffer>>) {
        self.change(|set| set.addAllocation(ProtocolObject::from_ref(&**buffer)));
    }

    pub(super) fn remove(&self, buffer: &Retained<ProtocolObject<dyn MTLBuffer>>) {
        self.change(|set| set.removeAllocation(ProtocolObject::from_ref(&**buffer)));
    }

    fn change(&self, change: impl FnOnce(&ProtocolObject<dyn MTLResidencySet>)) {
        if let Some(set) = &self.0 {
            let mut set = lock(set);
            change(&set.set);
            set.changed = true;
        }
    }

    /// Wires what came, and lets go of what went.
    pub(super) fn settle(&self) {
        let Some(mut set) = self.0.as_ref().map(lock) else { return };
        if std::mem::take(&mut set.changed) {
            set.set.commit();
            set.set.requestResidency();
        }
    }
}
