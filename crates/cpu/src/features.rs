//! What a processor must have for the kernels of a level, said once: [`tokens`] lists the features that are
//! detected, and a test reads the sources and finds every `#[target_feature]` to be one of these lists.
//!
//! A level has a token in each of its variants but the portable one. Only detection makes a token, so
//! whoever holds a level has a processor with it, and safe functions may run its kernels.

#[cfg(test)]
mod tests;

use crate::TensorError;
use std::fmt;

/// Makes types of which a value proves that the processor has all these features, and that `also` holds.
macro_rules! tokens {
    ($($(#[$doc:meta])* $name:ident: $arch:literal $detected:ident [$($feature:tt),+] $(also $also:path)?;)+) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Clone, Copy, PartialEq, Eq)]
            pub struct $name(());

            impl $name {
                /// A token, where this processor has the features.
                #[must_use]
                pub fn detect() -> Option<Self> {
                    #[cfg(target_arch = $arch)]
                    if $(std::arch::$detected!($feature))&&+ $(&& $also())? {
                        return Some(Self(()));
                    }
                    None
                }
            }
        )+

        /// Every list, as an attribute has it.
        #[cfg(test)]
        const LISTS: &[(&str, &[&str])] = &[$((stringify!($name), &[$($feature),+])),+];
    };
}

tokens! {
    /// AVX2, with what every processor with AVX2 has had.
    Avx2: "x86_64" is_x86_feature_detected ["avx2", "fma", "f16c"];
    /// AVX2 with VNNI.
    AvxVnni: "x86_64" is_x86_feature_detected ["avxvnni", "avx2", "fma", "f16c"];
    /// AVX-512 as of Skylake.
    Avx512: "x86_64" is_x86_feature_detected
        ["avx512f", "avx512bw", "avx512dq", "avx512vl", "avx2", "fma", "f16c"];
    /// AVX-512 with VNNI.
    Avx512Vnni: "x86_64" is_x86_feature_detected
        ["avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512vnni", "avx2", "fma", "f16c"];
    /// AVX-512 with VNNI and VBMI.
    Avx512Vbmi: "x86_64" is_x86_feature_detected
        ["avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512vnni", "avx512vbmi", "avx2", "fma", "f16c"];
    /// AVX-512 with BF16.
    Avx512Bf16: "x86_64" is_x86_feature_detected
        ["avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512bf16", "avx2", "fma", "f16c"];
    /// AMX with products of 8-bit integers, where the system lets this process use it.
    AmxInt8: "x86_64" is_x86_feature_detected
        ["avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512vnni", "avx2", "fma", "f16c"]
        also super::tiles::int8;
    /// AMX with products of `bf16`, where the system lets this process use it.
    AmxBf16: "x86_64" is_x86_feature_detected
        ["avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512bf16", "avx2", "fma", "f16c"]
        also super::tiles::bf16;
    /// Advanced SIMD.
    Neon: "aarch64" is_aarch64_feature_detected ["neon"];
    /// Advanced SIMD with dot products.
    DotProd: "aarch64" is_aarch64_feature_detected ["neon", "dotprod"];
    /// Advanced SIMD with 8-bit matrix products.
    I8mm: "aarch64" is_aarch64_feature_detected ["neon", "i8mm"];
}

/// Makes an enum of levels, best first, each with the token that proves it, and the portable one after them.
macro_rules! levels {
    ($(#[$doc:meta])* $vis:vis enum $name:ident {
        $($(#[$about:meta])* $level:ident($token:ident),)+
    }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq)]
        $vis enum $name {
            $($(#[$about])* $level($crate::features::$token),)+
            /// Any machine.
            Portable,
        }

        impl $name {
            /// Every level of this machine, best first.
            #[must_use]
            pub fn available() -> Vec<Self> {
                let mut levels = Vec::new();
                $(levels.extend($crate::features::$token::detect().map(Self::$level));)+
                levels.push(Self::Portable);
                levels
            }

            /// The best level of this machine.
            #[must_use]
            pub fn detect() -> Self {
                static LEVEL: std::sync::OnceLock<$name> = std::sync::OnceLock::new();
                *LEVEL.get_or_init(|| Self::available().first().copied().unwrap_or(Self::Portable))
            }
        }

        /// The name alone: names are part of what kept prefixes are found by.
        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(match self {
                    $(Self::$level(_) => stringify!($level),)+
                    Self::Portable => "Portable",
                })
            }
        }

        /// By the name that `Debug` writes; a level that this machine lacks is an error.
        impl std::str::FromStr for $name {
            type Err = $crate::TensorError;

            fn from_str(name: &str) -> $crate::Result<Self> {
                $crate::features::named(&Self::available(), name)
            }
        }
    };
}
pub(super) use levels;

/// The level of that name, among those that a machine has.
pub(super) fn named<L: fmt::Debug + Copy>(available: &[L], name: &str) -> crate::Result<L> {
    let found = available.iter().find(|level| format!("{level:?}") == name);
    found.copied().ok_or_else(|| TensorError::Level {
        name: name.to_owned(),
        available: format!("{available:?}"),
    })
}
