//! How much memory there is.

use crate::{Error, Result};
use sysinfo::{MemoryRefreshKind, RefreshKind, System};

/// Bytes that can be taken without swapping, limits of a container included.
///
/// # Errors
/// The system does not say.
pub fn available_bytes() -> Result<u64> {
    let system = system()?;
    let limit = system.cgroup_limits().map_or(u64::MAX, |c| c.free_memory);
    Ok(system.available_memory().min(limit))
}

/// Bytes that this machine has.
///
/// # Errors
/// The system does not say.
pub fn total_bytes() -> Result<u64> {
    Ok(system()?.total_memory())
}

fn system() -> Result<System> {
    let what = RefreshKind::nothing().with_memory(MemoryRefreshKind::nothing().with_ram());
    System::new_with_specifics(what).map_err(|_| Error::UnknownMemory)
}
