//! What limits this process's memory, and how much of it is taken.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// A limit and what counts towards it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryState {
    /// Bytes that may be taken.
    pub limit: u64,
    /// Bytes that are taken, without files' pages that the system can drop.
    pub used: u64,
}

impl MemoryState {
    /// Bytes that are taken beyond a share of the limit.
    #[must_use]
    pub fn excess(&self, share: f64) -> u64 {
        self.used.saturating_sub((self.limit as f64 * share) as u64)
    }

    /// Bytes that can be taken up to a share of the limit.
    #[must_use]
    pub fn spare(&self, share: f64) -> u64 {
        ((self.limit as f64 * share) as u64).saturating_sub(self.used)
    }
}

/// The control groups (versions 1 and 2) that this process is in, from the inside out.
#[derive(Debug, Clone, Default)]
pub struct Limits {
    groups: Vec<Group>,
}

#[derive(Debug, Clone)]
struct Group {
    dir: PathBuf,
    second: bool,
}

/// What version 1 says without a limit is near this.
const UNLIMITED: u64 = 1 << 60;

impl Limits {
    /// The groups of this process.
    #[must_use]
    pub fn of_process() -> Self {
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        Self::at(Path::new("/sys/fs/cgroup"), &own)
    }

    /// Those below `root` that a text like `/proc/self/cgroup` names.
    #[must_use]
    pub fn at(root: &Path, text: &str) -> Self {
        let mut groups = Vec::new();
        for line in text.lines() {
            let mut fields = line.splitn(3, ':').skip(1);
            let (Some(kinds), Some(path)) = (fields.next(), fields.next()) else { continue };
            let base = match kinds.split(',').any(|kind| kind == "memory") {
                true => root.join("memory"),
                false if kinds.is_empty() => root.to_owned(),
                false => continue,
            };
            let mut dir = Some(Path::new(path.trim_start_matches('/')));
            while let Some(below) = dir {
                groups.push(Group { dir: base.join(below), second: kinds.is_empty() });
                dir = below.parent();
            }
        }
        Self { groups }
    }

    /// The group that is nearest to its limit; `None` without limits.
    #[must_use]
    pub fn state(&self) -> Option<MemoryState> {
        let states = self.groups.iter().filter_map(Group::state);
        states.min_by_key(|state| state.limit.saturating_sub(state.used))
    }
}

impl Group {
    fn state(&self) -> Option<MemoryState> {
        let number = |file: &str| {
            let text = fs::read_to_string(self.dir.join(file)).ok()?;
            text.trim().parse::<u64>().ok()
        };
        let (limit, used, files) = match self.second {
            true => {
                let limits = ["memory.max", "memory.high"].into_iter().filter_map(number);
                (limits.min()?, number("memory.current")?, ["inactive_file", "active_file"])
            }
            false => {
                let limits = ["memory.limit_in_bytes", "memory.soft_limit_in_bytes"];
                let limit = limits.into_iter().filter_map(number).min()?;
                let files = ["total_inactive_file", "total_active_file"];
                (limit, number("memory.usage_in_bytes")?, files)
            }
        };
        let text = fs::read_to_string(self.dir.join("memory.stat")).unwrap_or_default();
        let stat = |name: &str| {
            let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            value.and_then(|value| value.trim().parse::<u64>().ok()).unwrap_or(0)
        };
        let droppable: u64 = files.into_iter().map(stat).sum();
        (limit < UNLIMITED).then(|| MemoryState { limit, used: used.saturating_sub(droppable) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(dir: &Path, files: &[(&str, &str)]) {
        fs::create_dir_all(dir).unwrap();
        files.iter().for_each(|(name, text)| fs::write(dir.join(name), text).unwrap());
    }

    #[test]
    fn the_tightest_group_counts_in_both_versions() {
        let root = tempfile::tempdir().unwrap();
        let limits = |text: &str| Limits::at(root.path(), text);
        assert_eq!(limits("").state(), None);
        let second = root.path().join("a");
        write(
            &second,
            &[
                ("memory.max", "max\n"),
                ("memory.high", "1000\n"),
                ("memory.current", "700\n"),
                ("memory.stat", "anon 500\ninactive_file 100\nactive_file 50\n"),
            ],
        );
        let state = limits("0::/a/b\n").state().unwrap();
        assert_eq!(state, MemoryState { limit: 1000, used: 550 });
        assert_eq!((state.excess(0.5), state.excess(0.9)), (50, 0));
        let first = root.path().join("memory/x");
        let unlimited = "9223372036854771712\n";
        write(
            &first,
            &[
                ("memory.limit_in_bytes", "600\n"),
                ("memory.soft_limit_in_bytes", unlimited),
                ("memory.usage_in_bytes", "500"),
                ("memory.stat", "total_inactive_file 20\n"),
            ],
        );
        let text = "3:cpu,cpuacct:/x\n2:memory:/x\n0::/a/b\n";
        assert_eq!(limits(text).state(), Some(MemoryState { limit: 600, used: 480 }));
        write(&first, &[("memory.limit_in_bytes", unlimited)]);
        assert_eq!(limits(text).state().map(|s| s.limit), Some(1000));
    }
}
