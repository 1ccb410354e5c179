//! Which blocks hold which tokens, so that a prompt that begins like an earlier one finds them.
//!
//! A full block whose rows are computed can be *published*: its name is its tokens and the name of
//! the block before it (the chain of vLLM's prefix caching, with the tokens themselves in place of
//! their hash: two prompts never meet by accident), and the hashes of the images that its tokens stand for. A published block that no sequence holds is
//! *idle*: it is kept until it is evicted, the least recently used first.

use crate::apart::{Apart, BlockImages};
use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};
use taper_base::{BlockId, TokenId};

/// Names a block's contents and all before it; never given twice.
pub(crate) type Node = u64;

/// What stands before a sequence's first block.
pub(crate) const ROOT: Node = 0;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Name {
    before: Node,
    tokens: Box<[TokenId]>,
    /// Who may share a first block. Later blocks need none: the first one's node is in their chain.
    salt: Option<Arc<str>>,
    images: BlockImages,
}

impl Name {
    /// The block of these tokens, of which the first is a sequence's token `start`.
    fn new(before: Node, tokens: &[TokenId], start: usize, apart: &Apart) -> Self {
        let salt = apart.salt.as_ref().filter(|_| before == ROOT).cloned();
        let images = apart.images(start..start + tokens.len());
        Self { before, tokens: tokens.into(), salt, images }
    }
}

#[derive(Debug, Default)]
pub(crate) struct PrefixIndex {
    blocks: HashMap<Name, (Node, BlockId)>,
    names: HashMap<BlockId, Name>,
    last: Node,
    /// Idle blocks by when they were last held.
    idle: BTreeMap<u64, BlockId>,
    since: HashMap<BlockId, u64>,
    clock: u64,
}

impl PrefixIndex {
    /// The blocks of the longest known chain of whole blocks that `tokens` begin with.
    pub(crate) fn find(
        &self,
        tokens: &[TokenId],
        block_tokens: usize,
        apart: &Apart,
    ) -> Vec<(Node, BlockId)> {
        let mut chain = Vec::new();
        self.extend(&mut chain, tokens, block_tokens, apart);
        chain
    }

    /// Goes on with a chain that was found earlier; one whose end is forgotten begins anew.
    pub(crate) fn extend(
        &self,
        chain: &mut Vec<(Node, BlockId)>,
        tokens: &[TokenId],
        block_tokens: usize,
        apart: &Apart,
    ) {
        if chain.last().is_some_and(|&(node, block)| !self.is(block, node)) {
            chain.clear();
        }
        let mut before = chain.last().map_or(ROOT, |last| last.0);
        let known = chain.len();
        for (i, tokens) in tokens.chunks_exact(block_tokens).enumerate().skip(known) {
            let name = Name::new(before, tokens, i * block_tokens, apart);
            let Some(&found) = self.blocks.get(&name) else { break };
            chain.push(found);
            before = found.0;
        }
    }

    /// Whether a block still has the contents of a node.
    pub(crate) fn is(&self, block: BlockId, node: Node) -> bool {
        let name = self.names.get(&block);
        name.and_then(|name| self.blocks.get(name)) == Some(&(node, block))
    }

    /// Makes a block known whose first token is a sequence's token `start`; of two with the same contents the first
    /// stays. Returns the contents' node.
    pub(crate) fn publish(
        &mut self,
        block: BlockId,
        before: Node,
        tokens: &[TokenId],
        (start, apart): (usize, &Apart),
    ) -> Node {
        let name = Name::new(before, tokens, start, apart);
        if let Some(&(node, _)) = self.blocks.get(&name) {
            return node;
        }
        self.last += 1;
        self.blocks.insert(name.clone(), (self.last, block));
        self.names.insert(block, name);
        self.last
    }

    pub(crate) fn is_published(&self, block: BlockId) -> bool {
        self.names.contains_key(&block)
    }

    /// A published block is held by nobody any more.
    pub(crate) fn rest(&mut self, block: BlockId) {
        self.clock += 1;
        self.idle.insert(self.clock, block);
        self.since.insert(block, self.clock);
    }

    /// A block is held again.
    pub(crate) fn wake(&mut self, block: BlockId) {
        if let Some(since) = self.since.remove(&block) {
            self.idle.remove(&since);
        }
    }

    /// Blocks that nobody holds.
    pub(crate) fn idle(&self) -> usize {
        self.idle.len()
    }

    /// Forgets the idle block that was held longest ago, of those that fit.
    pub(crate) fn evict(&mut self, fits: impl Fn(BlockId) -> bool) -> Option<BlockId> {
        let block = self.idle.values().copied().find(|&block| fits(block))?;
        self.forget(block);
        Some(block)
    }

    /// Makes a block unknown.
    pub(crate) fn forget(&mut self, block: BlockId) {
        self.wake(block);
        if let Some(name) = self.names.remove(&block) {
            self.blocks.remove(&name);
        }
    }
}
