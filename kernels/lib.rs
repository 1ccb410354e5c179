//! Taper's GPU kernels as data: Metal sources, and the PTX that clang makes of them.
#![doc = include_str!("README.md")]

/// A source file of kernels.
#[derive(Debug, Clone, Copy)]
pub struct Source {
    /// The file's name, without its ending.
    pub name: &'static str,
    /// Where it is in this crate.
    pub path: &'static str,
    text: &'static str,
    #[cfg(feature = "ptx")]
    ptx: &'static [u8],
}

/// Makes a static for each file, and the list of all.
macro_rules! sources {
    ($($id:ident = $folder:literal $name:literal;)*) => {
        $(
            #[doc = concat!("`", $folder, "/", $name, ".metal`.")]
            pub static $id: Source = Source {
                name: $name,
                path: concat!($folder, "/", $name, ".metal"),
                text: include_str!(concat!($folder, "/", $name, ".metal")),
                #[cfg(feature = "ptx")]
                ptx: include_bytes!(concat!("ptx/", $name, ".ptx.gz")),
            };
        )*
        /// All source files.
        pub static SOURCES: &[&Source] = &[$(&$id),*];
    };
}

sources! {
    MATVEC = "quant" "matvec";
    MATVEC_ROWS = "quant" "matvec_rows";
    MATVEC_TILE = "quant" "matvec_tile";
    MATMUL = "quant" "matmul";
    MATMUL_TILE = "quant" "matmul_tile";
    MATMUL_WIDE = "quant" "matmul_wide";
    HEAD_MAPS = "quant" "head_maps";
    EMBED = "quant" "embed";
    ROWS = "norm" "rows";
    LAYER = "norm" "layer";
    ELEMENTWISE = "elementwise" "elementwise";
    GATES = "elementwise" "gates";
    SHAPES = "elementwise" "shapes";
    ATTEND = "attention" "attend";
    ATTEND_MORE = "attention" "attend_more";
    ATTEND_PROMPT = "attention" "attend_prompt";
    ATTEND_TILE = "attention" "attend_tile";
    CODED = "attention" "coded";
    CODED_MORE = "attention" "coded_more";
    ENCODE = "attention" "encode";
    EXPAND = "attention" "expand";
    EXPERTS = "moe" "experts";
    EXPERTS_MATMUL = "moe" "experts_matmul";
    EXPERTS_TILE = "moe" "experts_tile";
    EXPERTS_WIDE = "moe" "experts_wide";
    ROUTE = "moe" "route";
    STATES = "recurrent" "states";
    CONV = "recurrent" "conv";
    HEADS = "recurrent" "heads";
    SCAN = "recurrent" "scan";
    SCORE = "eviction" "score";
    COMPACT = "eviction" "compact";
    ARGMAX = "sampling" "argmax";
    EDIT = "sampling" "edit";
    MASK = "sampling" "mask";
    SAMPLE = "sampling" "sample";
}

/// What the files include.
const HEADERS: &[(&str, &str)] = &[
    ("attend.h", include_str!("include/taper/attend.h")),
    ("coded_attend.h", include_str!("include/taper/coded_attend.h")),
    ("coded_keys.h", include_str!("include/taper/coded_keys.h")),
    ("codes.h", include_str!("include/taper/codes.h")),
    ("common.h", include_str!("include/taper/common.h")),
    ("copies.h", include_str!("include/taper/copies.h")),
    ("curve.h", include_str!("include/taper/curve.h")),
    ("encoding.h", include_str!("include/taper/encoding.h")),
    ("experts.h", include_str!("include/taper/experts.h")),
    ("exponential.h", include_str!("include/taper/exponential.h")),
    ("packed.h", include_str!("include/taper/packed.h")),
    ("prepare.h", include_str!("include/taper/prepare.h")),
    ("prepared.h", include_str!("include/taper/prepared.h")),
    ("recurrent.h", include_str!("include/taper/recurrent.h")),
    ("rows.h", include_str!("include/taper/rows.h")),
    ("rotation.h", include_str!("include/taper/rotation.h")),
    ("special.h", include_str!("include/taper/special.h")),
    ("sums.h", include_str!("include/taper/sums.h")),
    ("activation.h", include_str!("include/taper/activation.h")),
    ("tile_product.h", include_str!("include/taper/tile_product.h")),
    ("tile.h", include_str!("include/taper/tile.h")),
    ("trellis_rows.h", include_str!("include/taper/trellis_rows.h")),
    ("walks.h", include_str!("include/taper/walks.h")),
    ("wide_walk.h", include_str!("include/taper/wide_walk.h")),
    ("wide_product.h", include_str!("include/taper/wide_product.h")),
    ("wide.h", include_str!("include/taper/wide.h")),
    ("widened.h", include_str!("include/taper/widened.h")),
    ("weights.h", include_str!("include/taper/weights.h")),
];

impl Source {
    /// A file by its name.
    #[must_use]
    pub fn find(name: &str) -> Option<&'static Self> {
        SOURCES.iter().copied().find(|source| source.name == name)
    }

    /// What clang makes of it for NVIDIA GPUs: `cargo xtask kernels --write`.
    ///
    /// # Errors
    /// What is packed with this crate is damaged.
    #[cfg(feature = "ptx")]
    pub fn ptx(&self) -> std::io::Result<String> {
        let mut text = String::new();
        std::io::Read::read_to_string(&mut flate2::read::GzDecoder::new(self.ptx), &mut text)?;
        Ok(text)
    }

    /// Whether Metal's backend asks for it: it says of no GPU that its matrix units are fast.
    #[must_use]
    pub fn is_for_metal(&self) -> bool {
        let fast = [
            "attend_prompt",
            "attend_tile",
            "experts_tile",
            "experts_wide",
            "matmul_tile",
            "matmul_wide",
            "matvec",
            "matvec_tile",
        ];
        !fast.contains(&self.name)
    }

    /// The file with its headers in place, as Metal compiles it at run time: a text, with no
    /// directories to look in.
    #[must_use]
    pub fn metal(&self) -> String {
        let mut out = String::new();
        inline(self.text, &mut Vec::new(), &mut out);
        out
    }
}

/// Name of the kernel that a metallib of these sources has and one of others has not: a hash of all
/// texts.
#[must_use]
pub fn stamp() -> String {
    let texts: String = SOURCES.iter().map(|source| source.metal()).collect();
    let hash = texts.bytes().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    format!("taper_kernels_{hash:016x}")
}

/// Appends a text, each of our headers once and where it is first included.
fn inline(text: &str, included: &mut Vec<&str>, out: &mut String) {
    for line in text.lines() {
        let quoted = line.strip_prefix("#include \"").and_then(|rest| rest.strip_suffix('"'));
        let name = quoted.map(|path| path.rsplit('/').next().unwrap_or(path));
        if let Some(&(name, header)) = HEADERS.iter().find(|(header, _)| Some(*header) == name) {
            if !included.contains(&name) {
                included.push(name);
                inline(header, included, out);
            }
        } else if line != "#pragma once" {
            out.push_str(line);
            out.push('\n');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_for_metal_stand_alone() {
        for source in SOURCES {
            let text = source.metal();
            assert!(!text.contains("#include \""), "{}", source.name);
            assert_eq!(text.matches("#include <metal_stdlib>").count(), 1, "{}", source.name);
            assert!(text.contains("kernel void"), "{}", source.name);
        }
    }

    #[cfg(feature = "ptx")]
    #[test]
    fn every_source_has_its_ptx() {
        for source in SOURCES {
            let text = source.ptx().unwrap();
            assert!(text.contains(".visible .entry "), "{}", source.name);
        }
    }
}
