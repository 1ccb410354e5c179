//! What can be wrong with a GGUF file.

/// What is wrong with a file, without its name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GgufError {
    /// The file is cut off, or contradicts itself.
    #[error("{what}")]
    Damaged {
        /// What shows it.
        what: String,
    },
    /// The metadata lacks a value that is needed, or has it in another type.
    #[error("its metadata has no usable {key}")]
    Metadata {
        /// Name of the value.
        key: String,
    },
    /// A part of a split file whose name does not say which.
    #[error("it is split, and its name does not end in -00001-of-0000N.gguf")]
    PartName,
    /// The file is of a kind that is not read.
    #[error("{what}")]
    Unsupported {
        /// What is not read.
        what: String,
    },
}

impl GgufError {
    pub(super) fn damaged(what: impl Into<String>) -> Self {
        Self::Damaged { what: what.into() }
    }

    pub(super) fn metadata(key: impl Into<String>) -> Self {
        Self::Metadata { key: key.into() }
    }

    pub(super) fn unsupported(what: impl Into<String>) -> Self {
        Self::Unsupported { what: what.into() }
    }

    /// A tensor whose bytes are not all in the file.
    pub(super) fn outside(tensor: &str) -> Self {
        let what = format!("tensor {tensor:?} lies outside the file; copy or download it again");
        Self::Damaged { what }
    }
}
