//! Where a task runs its model.

use anyhow::Result;
use std::path::Path;
use taper_tensor::gpu::{self, FakeOptions, Gpu, HostOptions};

/// The GPU of a name: `cpu` is none, `cuda` and `metal` are the first one, and anything else is a
/// library of kernels for the host runner, as `cargo xtask kernels` builds it. After `fake:` that library is
/// for a fake of an Apple GPU.
pub(crate) fn open(name: &str) -> Result<Option<Gpu>> {
    Ok(match name {
        "cpu" => None,
        kind if gpu::KINDS.contains(&kind) => Some(gpu::open(kind)?),
        fake if fake.starts_with("fake:") => {
            let library = Path::new(fake.trim_start_matches("fake:"));
            Some(Gpu::fake(Some(library), FakeOptions::default())?.0)
        }
        library => Some(Gpu::host(Path::new(library), HostOptions::default())?),
    })
}
