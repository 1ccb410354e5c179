//! Arms of the experiment: what an answer may attend to.

use anyhow::{Context, Result, bail};
use std::{fmt, str::FromStr};

/// An arm, as `--arm` names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arm {
    /// All pages.
    Dense,
    /// The first page and the recent ones, and so many more.
    Recall(usize),
}

impl FromStr for Arm {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        Ok(match text.split_once('=') {
            None if text == "dense" => Self::Dense,
            Some(("recall", pages)) => {
                Self::Recall(pages.parse().with_context(|| format!("{pages:?} is no number"))?)
            }
            _ => bail!("there is no arm {text:?}; use dense or recall=PAGES"),
        })
    }
}

impl fmt::Display for Arm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dense => f.write_str("dense"),
            Self::Recall(pages) => write!(f, "recall={pages}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arms_are_read_as_they_are_shown() {
        for text in ["dense", "recall=0", "recall=32"] {
            assert_eq!(text.parse::<Arm>().unwrap().to_string(), text);
        }
        for bad in ["", "denser", "recall", "recall=", "recall=-1", "dense=1"] {
            assert!(bad.parse::<Arm>().is_err(), "{bad}");
        }
    }
}
