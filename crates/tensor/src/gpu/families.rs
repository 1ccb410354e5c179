//! The files of kernels.

use super::{attention, coded, compact, edits, experts, key_scores, matmul, ops, sampling, weight};

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
    msl: &'static str,
    /// The parameter structs, as Rust lays them out: name, and name and type of each field.
    pub params: &'static [(&'static str, &'static [(&'static str, &'static str)])],
}

/// What the files include.
const HEADERS: &[(&str, &str)] = &[
    ("coded_attend.h", include_str!("../../../../kernels/include/taper/coded_attend.h")),
    ("coded_keys.h", include_str!("../../../../kernels/include/taper/coded_keys.h")),
    ("codes.h", include_str!("../../../../kernels/include/taper/codes.h")),
    ("common.h", include_str!("../../../../kernels/include/taper/common.h")),
    ("copies.h", include_str!("../../../../kernels/include/taper/copies.h")),
    ("encoding.h", include_str!("../../../../kernels/include/taper/encoding.h")),
    ("packed.h", include_str!("../../../../kernels/include/taper/packed.h")),
    ("prepared.h", include_str!("../../../../kernels/include/taper/prepared.h")),
    ("rows.h", include_str!("../../../../kernels/include/taper/rows.h")),
    ("rotation.h", include_str!("../../../../kernels/include/taper/rotation.h")),
    ("sums.h", include_str!("../../../../kernels/include/taper/sums.h")),
    ("activation.h", include_str!("../../../../kernels/include/taper/activation.h")),
    ("tile.h", include_str!("../../../../kernels/include/taper/tile.h")),
    ("wide_walk.h", include_str!("../../../../kernels/include/taper/wide_walk.h")),
    ("wide.h", include_str!("../../../../kernels/include/taper/wide.h")),
    ("widened.h", include_str!("../../../../kernels/include/taper/widened.h")),
    ("weights.h", include_str!("../../../../kernels/include/taper/weights.h")),
];

impl Family {
    /// The file with its headers in place, as Metal compiles it at run time: a text, with no
    /// directories to look in.
    #[must_use]
    pub fn metal_source(&self) -> String {
        let mut out = String::new();
        inline(self.msl, &mut Vec::new(), &mut out);
        out
    }
}

/// Name of the kernel that a metallib of these kernels has and one of others has not: a hash of all
/// texts.
#[must_use]
pub fn stamp() -> String {
    let texts: String = FAMILIES.iter().map(Family::metal_source).collect();
    let hash = texts.bytes().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    format!("taper_kernels_{hash:016x}")
}

/// Appends a text, each of our headers once and where it is first included.
fn inline(text: &str, seen: &mut Vec<&str>, out: &mut String) {
    for line in text.lines() {
        let quoted = line.strip_prefix("#include \"").and_then(|rest| rest.strip_suffix('"'));
        let name = quoted.map(|path| path.rsplit('/').next().unwrap_or(path));
        if let Some(&(name, header)) = HEADERS.iter().find(|(header, _)| Some(*header) == name) {
            if !seen.contains(&name) {
                seen.push(name);
                inline(header, seen, out);
            }
        } else if line != "#pragma once" {
            out.push_str(line);
            out.push('\n');
        }
    }
}

/// The fields that come from a file's name and place.
macro_rules! family {
    ($name:literal, $folder:literal, [$($params:ty),*]) => {
        Family {
            name: $name,
            path: concat!($folder, "/", $name, ".metal"),
            #[cfg(feature = "cuda")]
            ptx: include_str!(concat!("../../../../kernels/ptx/", $name, ".ptx")),
            msl: include_str!(concat!("../../../../kernels/", $folder, "/", $name, ".metal")),
            params: &[$(<$params>::LAYOUT),*],
        }
    };
}

/// All of them.
pub const FAMILIES: &[Family] = &[
    family!("matvec", "quant", [weight::MatvecParams]),
    family!("matvec_tile", "quant", [weight::MatvecParams]),
    family!("matmul", "quant", [matmul::MatmulParams, matmul::FinishParams]),
    family!(
        "matmul_tile",
        "quant",
        [matmul::PrepareParams, matmul::NextParams, matmul::MatmulParams]
    ),
    family!("matmul_wide", "quant", [matmul::MatmulParams]),
    family!("embed", "quant", [weight::EmbedParams]),
    family!("rows", "norm", [ops::NormParams, ops::RopeParams]),
    family!("elementwise", "elementwise", [ops::ElementParams, ops::RowsParams, ops::SumParams]),
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
    family!("attend_tile", "attention", [attention::AttendTile, attention::AttendParams]),
    family!("coded", "attention", [coded::CodedTile, coded::CodedParams, coded::CodedMergeParams]),
    family!("coded_more", "attention", [coded::CodedTile, coded::CodedParams]),
    family!("encode", "attention", [coded::EncodeRun, coded::EncodeParams, coded::ExactParams]),
    family!(
        "experts",
        "moe",
        [experts::RouteParams, experts::ExpertParams, experts::AddExpertsParams]
    ),
    family!("score", "eviction", [key_scores::KeyScoreParams, key_scores::CodedKeyScoreParams]),
    family!("compact", "eviction", [compact::GatherParams, compact::GatherExactParams]),
    family!("argmax", "sampling", [sampling::ArgmaxParams]),
    family!("edit", "sampling", [edits::EditRow, edits::Edit, edits::EditParams]),
    family!("sample", "sampling", [sampling::SampleRow, sampling::SampleParams]),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_for_metal_stand_alone() {
        for family in FAMILIES {
            let source = family.metal_source();
            assert!(!source.contains("#include \""), "{}", family.name);
            assert_eq!(source.matches("#include <metal_stdlib>").count(), 1, "{}", family.name);
            assert!(source.contains("kernel void"), "{}", family.name);
        }
    }
}
