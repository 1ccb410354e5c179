//! The cells of the comparison, their names, and the ratios to reach.

use super::{
    peer::Peer,
    shape::{MOE, SMALL, Shape, WIDE},
};
use anyhow::{Context, Error, Result, bail};
use std::{fmt, str::FromStr};

/// What is timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    /// A prompt into an empty cache.
    Prefill(usize),
    /// Token by token, with `depth` tokens in the cache of each of `batch` sequences.
    Decode { depth: usize, batch: usize },
    /// From the start of the process to the first token, files in the page cache.
    FirstToken,
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Prefill(tokens) => write!(f, "prefill-{tokens}"),
            Self::Decode { depth, batch: 1 } => write!(f, "decode-{depth}"),
            Self::Decode { depth, batch } => write!(f, "decode-{depth}x{batch}"),
            Self::FirstToken => write!(f, "first-token"),
        }
    }
}

impl FromStr for Work {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let work = match name.split_once('-') {
            Some(("first", "token")) => Self::FirstToken,
            Some(("prefill", tokens)) => Self::Prefill(number(tokens)?),
            Some(("decode", rest)) => {
                let (depth, batch) = rest.split_once('x').unwrap_or((rest, "1"));
                Self::Decode { depth: number(depth)?, batch: number(batch)? }
            }
            _ => {
                bail!("no cell {name:?}; say prefill-512, decode-4096, decode-128x8 or first-token")
            }
        };
        match work {
            Self::Prefill(0) | Self::Decode { batch: 0, .. } => bail!("{name:?} has nothing to do"),
            _ => Ok(work),
        }
    }
}

fn number(text: &str) -> Result<usize> {
    text.parse().with_context(|| format!("{text:?} is no number"))
}

/// How weights are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    /// 4 bits in groups of 64 with scale and bias here, `Q4_0` in llama.cpp: 4.5 bits a weight.
    Bits4,
    /// 8 bits in groups of 64 here, `Q8_0` in llama.cpp: 8.5 bits a weight.
    Bits8,
    Bf16,
}

/// A line of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cell {
    pub(crate) shape: Shape,
    pub(crate) format: Format,
    pub(crate) work: Work,
}

/// Name prefixes of cells that are not of Qwen3-0.6B: the 2-layer slice of Qwen3-8B, and the small
/// Qwen3 with experts.
const PREFIXES: [(&str, Shape); 2] = [("wide-", WIDE), ("moe-", MOE)];

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let prefix = PREFIXES.iter().find(|p| p.1 == self.shape).map_or("", |p| p.0);
        let suffix = match self.format {
            Format::Bits4 => "",
            Format::Bits8 => "-8bit",
            Format::Bf16 => "-bf16",
        };
        write!(f, "{prefix}{}{suffix}", self.work)
    }
}

impl FromStr for Cell {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let found = PREFIXES.iter().find_map(|&(p, shape)| Some((shape, name.strip_prefix(p)?)));
        let (shape, rest) = found.unwrap_or((SMALL, name));
        let suffixes = [("-8bit", Format::Bits8), ("-bf16", Format::Bf16)];
        let found = suffixes.iter().find_map(|&(s, f)| Some((rest.strip_suffix(s)?, f)));
        let (rest, format) = found.unwrap_or((rest, Format::Bits4));
        Ok(Self { shape, format, work: rest.parse()? })
    }
}

impl Cell {
    /// Whether less is better.
    pub(crate) fn is_time(&self) -> bool {
        self.work == Work::FirstToken
    }

    /// The ratio to reach.
    pub(crate) fn goal(&self, peer: Peer) -> Option<f64> {
        let name = self.to_string();
        GOALS.iter().find(|g| (g.0, g.1) == (peer, name.as_str())).map(|g| g.2)
    }

    /// The cells that are run when none are named.
    pub(crate) fn usual(peer: Peer) -> Result<Vec<Self>> {
        let names = USUAL.iter().filter(|(_, peers)| peers.contains(&peer));
        names.map(|(name, _)| name.parse()).collect()
    }
}

use Peer::{LlamaCpp, MlxLm, Transformers};

/// mlx-lm has no kernels for processors: a prompt of 512 tokens takes it half an hour.
const USUAL: &[(&str, &[Peer])] = &[
    ("prefill-512", &[LlamaCpp, Transformers]),
    ("prefill-4096", &[LlamaCpp, Transformers]),
    ("decode-0", &[LlamaCpp, Transformers, MlxLm]),
    ("decode-4096", &[LlamaCpp, Transformers]),
    ("decode-16384", &[LlamaCpp]),
    ("decode-128x8", &[LlamaCpp, Transformers]),
    ("decode-128x16", &[LlamaCpp, Transformers]),
    ("decode-0-8bit", &[LlamaCpp]),
    ("decode-0-bf16", &[LlamaCpp, Transformers]),
    ("prefill-512-bf16", &[LlamaCpp, Transformers]),
    ("wide-prefill-512", &[LlamaCpp]),
    ("wide-decode-0", &[LlamaCpp]),
    ("moe-prefill-512", &[LlamaCpp]),
    ("moe-decode-0", &[LlamaCpp]),
    ("moe-decode-128x8", &[LlamaCpp]),
    ("first-token", &[LlamaCpp]),
];

/// Our speed over the peer's: median of alternating runs in one session with two threads. Prefill:
/// on a machine with AMX.
const GOALS: &[(Peer, &str, f64)] = &[
    (LlamaCpp, "prefill-512", 6.0),
    (LlamaCpp, "prefill-4096", 6.0),
    (LlamaCpp, "decode-0", 1.6),
    (LlamaCpp, "decode-4096", 4.0),
    (LlamaCpp, "decode-16384", 5.0),
    (LlamaCpp, "decode-128x8", 3.0),
    (LlamaCpp, "decode-128x16", 3.5),
    (LlamaCpp, "decode-0-8bit", 1.15),
    (LlamaCpp, "decode-0-bf16", 1.3),
    (LlamaCpp, "prefill-512-bf16", 4.0),
    (LlamaCpp, "first-token", 0.5),
    (Transformers, "prefill-512", 3.0),
    (Transformers, "prefill-4096", 3.0),
];

/// Peak resident memory, ours / the peer's, in every cell of 4 bits.
pub(crate) const MEMORY_GOAL: f64 = 0.6;
/// Bytes of weights a second in decode / bytes a second that this machine reads.
pub(crate) const BANDWIDTH_GOAL: f64 = 0.85;
/// The cell whose bytes are compared with the memory's.
pub(crate) const BANDWIDTH_CELL: &str = "decode-0";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for peer in [LlamaCpp, Transformers, MlxLm] {
            let names: Vec<_> = USUAL.iter().filter(|u| u.1.contains(&peer)).map(|u| u.0).collect();
            let cells = Cell::usual(peer).unwrap();
            assert_eq!(cells.iter().map(Cell::to_string).collect::<Vec<_>>(), names);
        }
        for bad in ["", "prefill", "prefill-0", "decode-1x0", "decode-x", "prefill-512-2bit"] {
            assert!(bad.parse::<Cell>().is_err(), "{bad}");
        }
    }

    #[test]
    fn every_goal_is_of_a_cell_that_is_run() {
        for (peer, name, _) in GOALS {
            let cell: Cell = name.parse().unwrap();
            assert!(cell.goal(*peer).is_some());
            assert!(Cell::usual(*peer).unwrap().contains(&cell), "{name}");
        }
    }
}
