//! The KV cache behind the scheduler's seam.

use taper_base::{SeqId, TokenId};
use taper_kv_cache::KvCache;
use taper_scheduler::{BlockPool, NoRoom};

/// The cache as the scheduler sees it.
pub(crate) struct Pool<'a>(pub(crate) &'a mut KvCache);

impl BlockPool for Pool<'_> {
    fn total(&self) -> u32 {
        blocks(self.0.usage().total_blocks)
    }

    fn free(&self) -> u32 {
        let usage = self.0.usage();
        blocks(usage.total_blocks - usage.used_blocks)
    }

    fn block_tokens(&self) -> u32 {
        blocks(self.0.config().geometry.block_tokens)
    }

    fn grow(&mut self, id: SeqId, rows: u32) -> Result<(), NoRoom> {
        self.0.grow(id, rows as usize).map_err(|_| NoRoom)
    }

    fn release(&mut self, id: SeqId) {
        self.0.release(id);
    }

    fn prefix_tokens(&self) -> u32 {
        blocks(self.0.prefix_tokens())
    }

    fn may_share(&self, a: SeqId, b: SeqId) -> bool {
        self.0.may_share(a, b)
    }

    fn adopt_prefix(&mut self, id: SeqId, tokens: &[TokenId]) -> u32 {
        blocks(self.0.adopt(id, tokens))
    }
}

/// A number of blocks or tokens as the scheduler counts them.
pub(crate) fn blocks(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
