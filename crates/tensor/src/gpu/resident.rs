//! Small vectors that the host has and a GPU may need.

use super::{Buffer, Gpu};
use crate::Result;
use std::sync::{Arc, OnceLock};

/// Floats on the host, copied to a GPU when a kernel first reads them there.
#[derive(Debug, Clone, Default)]
pub(crate) struct Resident {
    host: Vec<f32>,
    there: OnceLock<Arc<Buffer>>,
}

impl Resident {
    pub(crate) fn new(host: Vec<f32>) -> Self {
        Self { host, there: OnceLock::new() }
    }

    pub(crate) fn host(&self) -> &[f32] {
        &self.host
    }

    /// The copy on `gpu`.
    pub(crate) fn on(&self, gpu: &Gpu) -> Result<Arc<Buffer>> {
        if let Some(buffer) = self.there.get()
            && buffer.gpu().is(gpu)
        {
            return Ok(Arc::clone(buffer));
        }
        let buffer = Arc::new(gpu.upload(&self.host)?);
        // A process has one GPU; the copy for another one would not be kept.
        let _ = self.there.set(Arc::clone(&buffer));
        Ok(buffer)
    }
}

impl PartialEq for Resident {
    fn eq(&self, other: &Self) -> bool {
        self.host == other.host
    }
}
