//! GPUs: buffers, launches and the operations of a transformer on them.
//!
//! Every kernel is written once, in Metal Shading Language, under `kernels/`. A [`Backend`] runs it:
//! Metal compiles it as it is, CUDA takes the PTX that `cargo xtask kernels` makes of it, and the host
//! runner (feature `gpu-host`) runs it with one fiber a GPU thread, for tests on any machine. What is
//! in this module is the same for all three.
//!
//! A model runs on a GPU because its [`crate::Embedding`] was placed there: it gives tensors on the
//! GPU, and every operation runs where its input is.
#![cfg_attr(
    not(any(feature = "cuda", feature = "gpu-host", all(feature = "metal", target_os = "macos"))),
    allow(dead_code, unused_imports, reason = "nothing drives a GPU in such a build")
)]

use crate::{Result, TensorError};
use std::path::Path;

pub mod attention;
mod backend;
pub mod coded;
mod coded_format;
mod coded_new;
mod coded_plan;
pub mod compact;
mod counters;
mod edits;
mod expand;
mod experts;
mod families;
mod gates;
#[cfg(any(test, feature = "gpu-host", all(feature = "metal", target_os = "macos")))]
mod hazards;
mod head_maps;
#[cfg(feature = "gpu-host")]
mod host;
pub mod key_scores;
mod launch;
mod layer;
mod masks;
mod matmul;
mod ops;
mod pages;
mod plain;
pub(crate) mod recurrent;
mod resident;
mod sampling;
mod shapes;
#[cfg(any(test, feature = "gpu-host", all(feature = "metal", target_os = "macos")))]
pub(crate) mod unified;
mod weight;

#[cfg_attr(not(feature = "cuda"), expect(unused_imports, reason = "only CUDA has a library"))]
pub(crate) use backend::MatmulOperands;
pub(crate) use backend::{Backend, Handle};
pub use backend::{Buffer, Gpu, Memory};
pub use counters::Counters;
pub use experts::{ExpertKind, ExpertMaps, ExpertsInput, StackedExperts};
pub use families::{FAMILIES, Family};
pub(crate) use gates::{Curve, Gate, activation, gate_parts};
#[cfg(any(test, feature = "gpu-host", all(feature = "metal", target_os = "macos")))]
pub(crate) use hazards::Hazards;
pub(crate) use head_maps::StackedHeads;
#[cfg(feature = "gpu-host")]
pub use host::HostOptions;
pub(crate) use launch::{Launch, Operand, params};
pub(crate) use layer::{layer_norm, match_rows, sparse_gates};
pub(crate) use matmul::{Next, Order, Prepared};
pub use ops::sum_words;
pub(crate) use ops::{Elements, is_fused, latent_norm, norm_rope, put_rows, rms_norm, take_rows};
#[cfg(any(test, feature = "gpu-host", all(feature = "metal", target_os = "macos")))]
pub(crate) use pages::Pages;
pub use recurrent::{GpuStates, StateRuns, StateSlots};
pub(crate) use resident::Resident;
pub(crate) use sampling::{NONE as NO_TOKEN, launch_argmax};
pub use sampling::{Sampled, argmax, edit, sample};
pub(crate) use shapes::{Taking, join_parts, mix_streams, take_parts};
#[cfg(any(test, feature = "gpu-host"))]
pub use unified::fake::{FakeOptions, FakeUse};
use weight::CHUNK;
pub(crate) use weight::{GpuWeight, PARTS, Product};

/// Kinds of GPUs, as `--device` takes them.
pub const KINDS: [&str; 2] = ["cuda", "metal"];

/// The first GPU of a kind.
///
/// # Errors
/// There is none, or this build has no support for it.
pub fn open(kind: &str) -> Result<Gpu> {
    open_with(kind, None)
}

/// Opens a GPU with kernels that were compiled ahead of time: a file of `cargo xtask metallib`, for Metal.
///
/// # Errors
/// As [`open`]; or the file cannot be read, is for other kernels, or not for this kind of GPU.
pub fn open_with(kind: &str, metallib: Option<&Path>) -> Result<Gpu> {
    if let (Some(file), true) = (metallib, kind != "metal") {
        let message = format!("{} is for Metal, and not for {kind}", file.display());
        return Err(TensorError::Gpu { what: "take compiled kernels", message });
    }
    match kind {
        #[cfg(feature = "cuda")]
        "cuda" => Gpu::cuda(0),
        #[cfg(all(feature = "metal", target_os = "macos"))]
        "metal" => Gpu::metal(metallib),
        _ => {
            let message = format!("this program was built without support for {kind}");
            Err(TensorError::Gpu { what: "open the GPU", message })
        }
    }
}

/// Lanes of a simdgroup (a warp).
pub(crate) const LANES: u32 = 32;

/// A length as kernels count.
pub(crate) fn count(op: &'static str, n: usize) -> Result<u32> {
    let limit = u32::MAX as usize;
    u32::try_from(n).map_err(|_| TensorError::Index { op, index: n, limit })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compiled_kernels_are_for_metal_alone() {
        let error = open_with("cuda", Some(Path::new("a.metallib"))).unwrap_err();
        assert!(error.to_string().contains("a.metallib is for Metal, and not for cuda"), "{error}");
        assert!(open_with("none", None).is_err());
    }
}
