//! Which launches of a concurrent encoder must wait for earlier ones.

use std::collections::HashSet;

/// Buffers used since the last barrier.
#[derive(Debug, Default)]
pub(crate) struct Hazards {
    read: HashSet<u64>,
    written: HashSet<u64>,
}

impl Hazards {
    /// Notes a launch by its buffers and whether it writes them; `true` if a barrier must stand
    /// before it.
    pub(crate) fn before(&mut self, uses: impl Iterator<Item = (u64, bool)> + Clone) -> bool {
        let clash = uses.clone().any(|(buffer, writes)| {
            self.written.contains(&buffer) || (writes && self.read.contains(&buffer))
        });
        if clash {
            self.clear();
        }
        for (buffer, writes) in uses {
            if writes {
                self.written.insert(buffer)
            } else {
                self.read.insert(buffer)
            };
        }
        clash
    }

    /// Everything before is done.
    pub(crate) fn clear(&mut self) {
        self.read.clear();
        self.written.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn barriers_stand_where_buffers_clash_and_nowhere_else() {
        let mut hazards = Hazards::default();
        let mut before = |uses: &[(u64, bool)]| hazards.before(uses.iter().copied());
        assert!(!before(&[(1, false), (2, true)]));
        assert!(!before(&[(1, false), (3, true)]), "both only read 1");
        assert!(before(&[(2, false), (4, true)]), "reads what was written");
        assert!(!before(&[(1, true)]), "the barrier has settled the reads of 1");
        assert!(before(&[(1, true)]), "writes what was written");
        assert!(!before(&[(5, false)]));
        assert!(before(&[(5, true)]), "writes what is read");
        assert!(!before(&[(6, false), (6, true)]), "within a launch there is nothing to wait for");
    }
}
