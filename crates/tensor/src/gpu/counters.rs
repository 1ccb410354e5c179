//! What a backend counts.

/// What a backend has done since it was opened. Only backends over shared memory count.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Kernels launched.
    pub launches: u64,
    /// Barriers between launches.
    pub barriers: u64,
    /// Encoders of launches.
    pub encoders: u64,
    /// Copies on the GPU.
    pub blits: u64,
    /// Command buffers sent off.
    pub commits: u64,
    /// Times that the host waited.
    pub waits: u64,
    /// Bytes that the host wrote where they belong.
    pub written: u64,
    /// Bytes that went through a staging buffer.
    pub staged: u64,
    /// Bytes of files that are read where they are mapped.
    pub adopted: u64,
}

impl Counters {
    /// What was done after `before` was read.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self {
            launches: self.launches - before.launches,
            barriers: self.barriers - before.barriers,
            encoders: self.encoders - before.encoders,
            blits: self.blits - before.blits,
            commits: self.commits - before.commits,
            waits: self.waits - before.waits,
            written: self.written - before.written,
            staged: self.staged - before.staged,
            adopted: self.adopted - before.adopted,
        }
    }

    /// All of them, with their names.
    #[must_use]
    pub fn named(self) -> [(&'static str, u64); 9] {
        [
            ("launches", self.launches),
            ("barriers", self.barriers),
            ("encoders", self.encoders),
            ("blits", self.blits),
            ("commits", self.commits),
            ("waits", self.waits),
            ("written", self.written),
            ("staged", self.staged),
            ("adopted", self.adopted),
        ]
    }
}
