//! Arms of the experiment: what becomes of the cache between a prompt and its answer.

use crate::runner::Runner;
use anyhow::{Context, Result, bail, ensure};
use std::{fmt, str::FromStr, sync::Arc};
use taper_base::TokenId;
use taper_engine::{Evict, eviction_policy, observe_queries};
use taper_kv_cache::EvictionPolicy;

/// First and latest rows that always stay: the exact sinks, and a question.
const PROTECTED: (usize, usize) = (32, 64);

/// Tokens of text that TriAttention's statistics are made of.
const CALIBRATION_TOKENS: usize = 4096;

/// An arm, as `--arm` names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arm {
    /// All rows stay.
    Dense,
    /// The first rows and the latest ones.
    Window(Rows),
    /// Rows by TriAttention's score.
    TriAttention(Rows),
    /// All rows stay, and answers attend to the first page, the recent ones and so many more. Where rows are named, so
    /// many that no step reads are in memory, and the others on disk.
    Recall(usize, Option<Rows>),
}

/// Rows that stay once the prompt is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rows {
    Count(usize),
    /// A share of the prompt's rows.
    Percent(usize),
}

impl Rows {
    fn of(self, prompt: usize) -> usize {
        match self {
            Self::Count(n) => n,
            Self::Percent(percent) => prompt * percent / 100,
        }
    }
}

impl FromStr for Rows {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        match text.strip_suffix('%') {
            Some(percent) => {
                let percent = percent.parse().ok().filter(|p| (1..=100).contains(p));
                Ok(Self::Percent(percent.with_context(|| format!("{text:?} is no share"))?))
            }
            None => super::parse_tokens(text).map(Self::Count),
        }
    }
}

impl fmt::Display for Rows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(n) => write!(f, "{n}"),
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

impl FromStr for Arm {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        Ok(match text.split_once('=') {
            None if text == "dense" => Self::Dense,
            Some(("window", rows)) => Self::Window(rows.parse()?),
            Some(("triattention", rows)) => Self::TriAttention(rows.parse()?),
            Some(("recall", pages)) => {
                let (pages, hot) = match pages.split_once('@') {
                    Some((pages, hot)) => (pages, Some(hot.parse()?)),
                    None => (pages, None),
                };
                Self::Recall(pages.parse().with_context(|| format!("{pages:?} is no number"))?, hot)
            }
            _ => bail!(
                "there is no arm {text:?}; use dense, window=ROWS, triattention=ROWS, recall=PAGES or \
                 recall=PAGES@ROWS"
            ),
        })
    }
}

impl fmt::Display for Arm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dense => f.write_str("dense"),
            Self::Window(rows) => write!(f, "window={rows}"),
            Self::TriAttention(rows) => write!(f, "triattention={rows}"),
            Self::Recall(pages, None) => write!(f, "recall={pages}"),
            Self::Recall(pages, Some(hot)) => write!(f, "recall={pages}@{hot}"),
        }
    }
}

/// An arm with what it needs of the text.
#[derive(Debug)]
pub(super) struct Prepared<'a> {
    pub(super) arm: Arm,
    /// Tokens for statistics of queries.
    pub(super) calibration: &'a [TokenId],
}

/// An arm on a model.
#[derive(Debug)]
pub(super) struct Running {
    eviction: Option<(Rows, EvictionPolicy)>,
    pages: Option<usize>,
    /// Rows that went, of each prompt.
    evicted: Vec<usize>,
}

impl Prepared<'_> {
    /// Makes what the arm needs of the model, for prompts of at most `longest` tokens.
    pub(super) fn begin(&self, runner: &mut Runner, longest: usize) -> Result<Running> {
        if let Arm::Recall(_, Some(hot)) = self.arm {
            runner.keep_hot(hot.of(longest))?;
        }
        let (model, gpu) = (&*runner.model, runner.gpu());
        let policy = |evict| eviction_policy(&evict, model, gpu);
        let eviction = match self.arm {
            Arm::Dense | Arm::Recall(..) => None,
            Arm::Window(rows) => Some((rows, policy(Evict::Window)?)),
            Arm::TriAttention(rows) => {
                let text = &self.calibration[..self.calibration.len().min(CALIBRATION_TOKENS)];
                let statistics = observe_queries(model, text, gpu, |_| true)?;
                Some((rows, policy(Evict::TriAttention(Arc::new(statistics)))?))
            }
        };
        let pages = match self.arm {
            Arm::Recall(pages, _) => Some(pages),
            _ => None,
        };
        Ok(Running { eviction, pages, evicted: Vec::new() })
    }
}

impl Running {
    /// What the arm does before a prompt of so many tokens.
    pub(super) fn prompt_begins(&self, runner: &mut Runner, seq: u64, tokens: usize) -> Result<()> {
        self.pages.map_or(Ok(()), |pages| runner.recall(seq, pages, tokens))
    }

    /// What the arm does with the rows of a prompt, once all of them are there.
    pub(super) fn prompt_done(
        &mut self,
        runner: &mut Runner,
        seq: u64,
        tokens: usize,
        room: usize,
    ) -> Result<()> {
        let Some((rows, policy)) = &self.eviction else { return Ok(()) };
        let (keep, (prefix, window)) = (rows.of(tokens), PROTECTED);
        ensure!(keep >= prefix + window + 32, "{keep} rows are too few");
        let protected = (keep, prefix, window);
        self.evicted.push(runner.evict((seq, tokens), protected, room, policy)?);
        Ok(())
    }

    /// Rows that went, of each prompt that was run.
    pub(super) fn evicted(self) -> Vec<usize> {
        self.evicted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arms_are_read_as_they_are_shown() {
        for text in
            ["dense", "window=1024", "triattention=10%", "recall=0", "recall=32", "recall=32@1%"]
        {
            assert_eq!(text.parse::<Arm>().unwrap().to_string(), text);
        }
        let shares = [Rows::Percent(10).of(8_128), Rows::Count(7).of(9)];
        assert_eq!(
            ("window=2k".parse::<Arm>().unwrap(), shares),
            (Arm::Window(Rows::Count(2048)), [812, 7])
        );
        for bad in [
            "",
            "denser",
            "window",
            "window=",
            "triattention=0%",
            "recall=-1",
            "recall=3@",
            "dense=1",
        ] {
            assert!(bad.parse::<Arm>().is_err(), "{bad}");
        }
    }
}
