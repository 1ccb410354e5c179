//! One safetensors file.
#![allow(unsafe_code, reason = "mapping a file")]

use crate::WeightsError;
use memmap2::{Mmap, UncheckedAdvice};
use safetensors::{Dtype, SafeTensors};
use std::{fs::File, ops::Range, path::Path, sync::Arc};
use taper_tensor::{ByteOwner, Bytes};

/// A tensor as the file holds it.
#[derive(Debug, Clone)]
pub(crate) struct RawTensor {
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<usize>,
    pub(crate) bytes: Bytes,
}

/// A mapped file.
struct Mapped(Mmap);

// SAFETY: the map stays where it is until it is dropped, is whole pages of a file and never written; as
// `owner` says, we ask the user to leave the file alone meanwhile. Pages that were dropped come back.
unsafe impl ByteOwner for Mapped {
    fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn is_mapped(&self) -> bool {
        true
    }

    #[cfg(unix)]
    fn want(&self, range: Range<usize>) {
        // A hint that is not taken costs time, nothing else.
        let _ = self.0.advise_range(memmap2::Advice::WillNeed, range.start, range.len());
    }

    #[cfg(unix)]
    fn release(&self, range: Range<usize>) {
        // SAFETY: the map is of a file and never written, so dropped pages come back as they were.
        let dropped = unsafe {
            let advice = UncheckedAdvice::DontNeed;
            self.0.unchecked_advise_range(advice, range.start, range.len())
        };
        // A hint that is not taken costs memory, nothing else.
        let _ = dropped;
    }
}

/// Maps a file and lists its tensors.
pub(crate) fn open(path: &Path) -> Result<Vec<(String, RawTensor)>, WeightsError> {
    list(&owner(path)?, path)
}

/// All bytes of a mapped file.
pub(crate) fn map(path: &Path) -> Result<Bytes, WeightsError> {
    let owner = owner(path)?;
    let all = 0..owner.bytes().len();
    Ok(Bytes::new(owner, all).unwrap_or_else(|| Bytes::from_vec(Vec::new())))
}

fn owner(path: &Path) -> Result<Arc<dyn ByteOwner>, WeightsError> {
    let io = |source| WeightsError::Io { path: path.to_owned(), source };
    let file = File::open(path).map_err(io)?;
    // SAFETY: the map is read-only; as every engine that maps weights, we ask the user not to
    // truncate a checkpoint while it is served.
    let map = unsafe { Mmap::map(&file) }.map_err(io)?;
    Ok(Arc::new(Mapped(map)))
}

/// Lists the tensors of a file that is in memory; `path` is for messages.
pub(crate) fn list(
    owner: &Arc<dyn ByteOwner>,
    path: &Path,
) -> Result<Vec<(String, RawTensor)>, WeightsError> {
    let broken = |source| WeightsError::Shard { path: path.to_owned(), source };
    let all = owner.bytes();
    // Checks that offsets are in order, in range and match the shapes.
    let data = SafeTensors::deserialize(all).map_err(broken)?;
    let mut tensors = Vec::with_capacity(data.len());
    for (name, view) in data.iter() {
        let start = view.data().as_ptr() as usize - all.as_ptr() as usize;
        let range = start..start + view.data().len();
        let bytes = Bytes::new(Arc::clone(owner), range)
            .ok_or_else(|| broken(safetensors::SafeTensorError::MetadataIncompleteBuffer))?;
        let raw = RawTensor { dtype: view.dtype(), shape: view.shape().to_vec(), bytes };
        tensors.push((name.to_owned(), raw));
    }
    Ok(tensors)
}
