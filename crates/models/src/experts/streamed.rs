//! Experts that come from a disk, as they come.

use super::{Chosen, Experts, Rows};
use crate::{
    ModelError,
    streaming::{StreamedLayer, Wanted},
};
use taper_tensor::{Phase, ops, ops::WeightedRows};

/// More rows than these are a prompt's, for which the next layer needs most of its experts anyway.
const FEW_ROWS: usize = 8;

impl Experts {
    /// What the experts of a streamed layer make of the rows that chose them, in the order of experts, and what the
    /// shared one makes. All that is missing is read at once; the shared one and those that are in memory are
    /// computed meanwhile, and the others as they arrive. No bit depends on who arrives when.
    pub(super) fn streamed(
        &self,
        layer: &StreamedLayer,
        mut chosen: Vec<Chosen>,
        rows: &Rows<'_>,
    ) -> Result<(Vec<WeightedRows>, Option<WeightedRows>), ModelError> {
        let used = (0u32..).zip(&chosen).filter(|(_, (own, _))| !own.is_empty());
        let wanted = used.map(|(expert, (own, _))| Wanted { expert, rows: own.len() as u32 });
        let wanted: Vec<_> = wanted.collect();
        let tokens = rows.normed.dims()[0];
        let mut fetch = layer.fetch(&wanted, tokens as u32)?;
        let shared = self.shared(rows)?;
        let mut parts = Vec::with_capacity(wanted.len());
        let mut ahead = tokens <= FEW_ROWS;
        while let Some((expert, maps)) = fetch.next()? {
            if ahead && fetch.is_complete() {
                fetch.prefetch(layer.number() + 1, self.next_experts(layer, rows)?);
                ahead = false;
            }
            let own = chosen.get_mut(expert as usize).map(std::mem::take).unwrap_or_default();
            parts.push((expert, self.routed(&maps, own, rows)?));
        }
        drop(fetch);
        parts.sort_by_key(|(expert, _)| *expert);
        Ok((parts.into_iter().map(|(_, part)| part).collect(), shared))
    }

    /// Experts that the next layer may need, those that are most likely first: what its router makes of what this
    /// layer reads.
    fn next_experts(&self, layer: &StreamedLayer, rows: &Rows<'_>) -> Result<Vec<u32>, ModelError> {
        let Some((router, most)) = layer.next_router() else { return Ok(Vec::new()) };
        let logits = router.forward(rows.normed, Phase::Decode)?;
        let experts = router.out_features().min(self.spec.experts);
        let best = ops::with_host_f32(&logits, |logits| {
            let mut best = vec![f32::NEG_INFINITY; experts];
            for row in logits.chunks_exact(router.out_features().max(1)) {
                best.iter_mut().zip(row).for_each(|(best, x)| *best = best.max(*x));
            }
            best
        })?;
        let mut order: Vec<u32> = (0..experts as u32).collect();
        order.sort_by(|&a, &b| best[b as usize].total_cmp(&best[a as usize]));
        order.truncate(most);
        Ok(order)
    }
}
