//! The files of kernels.

use super::{attention, ops, weight};

/// Kernels that are compiled together.
#[derive(Debug, Clone, Copy)]
pub struct Family {
    /// Name of the file, without its ending.
    pub name: &'static str,
    /// The file, under `kernels/`.
    pub path: &'static str,
    /// What clang makes of it for NVIDIA GPUs.
    #[cfg(feature = "cuda")]
    pub(crate) ptx: &'static str,
    /// The file's text.
    #[cfg(feature = "metal")]
    pub(crate) msl: &'static str,
    /// The parameter structs, as Rust lays them out: name, and name and type of each field.
    pub params: &'static [(&'static str, &'static [(&'static str, &'static str)])],
}

/// The fields that come from a file's name and place.
macro_rules! family {
    ($name:literal, $folder:literal, [$($params:ty),*]) => {
        Family {
            name: $name,
            path: concat!($folder, "/", $name, ".metal"),
            #[cfg(feature = "cuda")]
            ptx: include_str!(concat!("../../../../kernels/ptx/", $name, ".ptx")),
            #[cfg(feature = "metal")]
            msl: include_str!(concat!("../../../../kernels/", $folder, "/", $name, ".metal")),
            params: &[$(<$params>::LAYOUT),*],
        }
    };
}

/// All of them.
pub const FAMILIES: &[Family] = &[
    family!("matvec", "quant", [weight::MatvecParams]),
    family!("embed", "quant", [weight::EmbedParams]),
    family!("rows", "norm", [ops::NormParams, ops::RopeParams]),
    family!("elementwise", "elementwise", [ops::ElementParams, ops::RowsParams]),
    family!(
        "attend",
        "attention",
        [
            attention::WriteParams,
            attention::AttendTile,
            attention::AttendParams,
            attention::MergeParams
        ]
    ),
    family!("argmax", "sampling", [ops::ArgmaxParams]),
];
