//! Flags of mixtures of experts.

use crate::sizes;
use anyhow::{Result, ensure};
use clap::Args;
use std::path::PathBuf;
use taper::{Builder, Experts};

/// How a mixture of experts is run.
#[derive(Debug, Clone, Args)]
pub(crate) struct ExpertArgs {
    /// Keep experts on disk, and in memory only while they are used: for models larger than memory.
    ///
    /// They are read from the pack that `taper convert MODEL --pack-experts DIR` writes: this one, or
    /// the directory "experts" in the model's. Without a pack they are read from the model's files
    /// and repacked each time, which is slower. Answers are the same in all cases.
    #[arg(long, value_name = "PACK", num_args = 0..=1, require_equals = true)]
    pub(crate) stream_experts: Option<Option<PathBuf>>,
    /// Memory for streamed experts, such as 6GiB [default: auto, which leaves a quarter of what the
    /// other weights leave to the KV cache].
    #[arg(long, value_name = "BYTES", requires = "stream_experts", value_parser = memory)]
    pub(crate) expert_memory: Option<Memory>,
    /// Experts of the next layer that are read ahead while the disk is idle; 0 reads none.
    #[arg(long, value_name = "N", default_value_t = 4, requires = "stream_experts")]
    pub(crate) expert_prefetch: usize,
    /// Experts that each token goes through, fewer than the model was trained with. Faster, and worse.
    #[arg(long, value_name = "N")]
    pub(crate) moe_top_k: Option<usize>,
}

/// What `--expert-memory` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Memory {
    Auto,
    Bytes(u64),
}

fn memory(text: &str) -> Result<Memory, String> {
    match text {
        "auto" => Ok(Memory::Auto),
        text => sizes::bytes(text).map(Memory::Bytes),
    }
}

impl ExpertArgs {
    /// How experts are streamed, if they are.
    pub(crate) fn experts(&self) -> Option<Experts> {
        let pack = self.stream_experts.as_ref()?;
        let mut experts = Experts::default().prefetch(self.expert_prefetch);
        if let Some(pack) = pack {
            experts = experts.pack(pack);
        }
        if let Some(Memory::Bytes(bytes)) = self.expert_memory {
            experts = experts.memory(bytes);
        }
        Some(experts)
    }

    /// The settings with what the flags say, on a device.
    pub(crate) fn set(&self, mut builder: Builder, device: &str) -> Result<Builder> {
        if let Some(experts) = self.experts() {
            ensure!(device == "cpu", "--stream-experts works on the CPU only, not with --device");
            builder = builder.stream_experts(experts);
        }
        if let Some(experts) = self.moe_top_k {
            builder = builder.moe_top_k(experts);
        }
        Ok(builder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Only {
        #[command(flatten)]
        own: ExpertArgs,
        model: Option<String>,
    }

    fn parse(flags: &[&str]) -> Result<ExpertArgs, clap::Error> {
        let only = Only::try_parse_from(["x"].iter().chain(flags))?;
        assert!(only.model.is_none_or(|model| model == "model"));
        Ok(only.own)
    }

    #[test]
    fn a_pack_is_named_or_looked_for() {
        assert_eq!(parse(&[]).unwrap().experts(), None);
        let found = parse(&["--stream-experts", "model"]).unwrap();
        assert_eq!(found.experts(), Some(Experts::default().prefetch(4)));
        let flags = ["--stream-experts=p", "--expert-memory", "1GiB", "--expert-prefetch", "0"];
        let own = Experts::default().prefetch(0).pack("p").memory(1 << 30);
        assert_eq!(parse(&flags).unwrap().experts(), Some(own));
        let auto = parse(&["--stream-experts", "--expert-memory", "auto"]).unwrap();
        assert_eq!(auto.expert_memory, Some(Memory::Auto));
        assert!(parse(&["--expert-memory", "1GiB"]).is_err(), "of what?");
        assert!(parse(&["--stream-experts", "--expert-memory", "much"]).is_err());
    }
}
