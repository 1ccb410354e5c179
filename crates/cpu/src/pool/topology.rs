//! How many threads a machine is good for.

use std::{collections::HashSet, fs, num::NonZero, thread};

/// One a core. Two threads of a core share its vector units and wait for each other at every
/// step's end; but where few processors are granted, all are taken, since they often stand for
/// cores of their own.
pub(super) fn default_threads() -> usize {
    let granted = thread::available_parallelism().map_or(1, NonZero::get);
    match cores() {
        Some(cores) if cores >= 4 => cores.min(granted),
        _ => granted,
    }
}

/// Distinct cores among the processors that this process may use, where the system tells.
fn cores() -> Option<usize> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let allowed = status.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:"))?;
    let siblings = |cpu: usize| {
        let list = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
        fs::read_to_string(list).ok()
    };
    parse(allowed.trim())?
        .into_iter()
        .map(siblings)
        .collect::<Option<HashSet<_>>>()
        .map(|s| s.len())
}

/// `0-3,8` as 0, 1, 2, 3, 8.
fn parse(list: &str) -> Option<Vec<usize>> {
    let mut all = Vec::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        all.extend(first.parse::<usize>().ok()?..=last.parse().ok()?);
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors() {
        assert_eq!(parse("0-3,8"), Some(vec![0, 1, 2, 3, 8]));
        assert_eq!(parse("5"), Some(vec![5]));
        assert_eq!(parse("x"), None);
        assert!(default_threads() >= 1);
    }
}
