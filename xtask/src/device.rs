//! Where a task runs its model.

#[cfg(not(all(feature = "cuda", feature = "metal")))]
use anyhow::bail;
use anyhow::Result;
use std::path::Path;
use taper_tensor::gpu::{Gpu, HostOptions};

/// The GPU of a name: `cpu` is none, `cuda` and `metal` are the first one, and anything else is a
/// library of kernels for the host runner, as `cargo xtask kernels` builds it.
pub(crate) fn open(name: &str) -> Result<Option<Gpu>> {
    Ok(match name {
        "cpu" => None,
        #[cfg(feature = "cuda")]
        "cuda" => Some(Gpu::cuda(0)?),
        #[cfg(feature = "metal")]
        "metal" => Some(Gpu::metal()?),
        #[cfg(not(feature = "cuda"))]
        "cuda" => bail!("this program was built without the feature \"cuda\""),
        #[cfg(not(feature = "metal"))]
        "metal" => bail!("this program was built without the feature \"metal\""),
        library => Some(Gpu::host(Path::new(library), HostOptions::default())?),
    })
}
