//! Pairs of tokens and experts, ordered by expert.

/// Pairs of tokens and experts, ordered by expert.
pub(super) struct Groups {
    /// The token of each.
    pub(super) tokens: Vec<u32>,
    /// The number of each among pairs ordered by token.
    pub(super) pairs: Vec<u32>,
    /// Where each pair went.
    pub(super) places: Vec<u32>,
    /// Where each expert's end.
    pub(super) ends: Vec<usize>,
}

/// `ids` are below `experts`, `chosen` a token.
pub(super) fn group(ids: &[u32], chosen: usize, experts: usize) -> Groups {
    let mut next = vec![0; experts];
    ids.iter().for_each(|&id| next[id as usize] += 1);
    let mut first = 0;
    for n in &mut next {
        first += std::mem::replace(n, first);
    }
    let mut groups = Groups {
        tokens: vec![0; ids.len()],
        pairs: vec![0; ids.len()],
        places: Vec::with_capacity(ids.len()),
        ends: Vec::new(),
    };
    for (pair, &id) in ids.iter().enumerate() {
        let place = &mut next[id as usize];
        groups.tokens[*place] = (pair / chosen) as u32;
        groups.pairs[*place] = pair as u32;
        groups.places.push(*place as u32);
        *place += 1;
    }
    groups.ends = next;
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_grouped_by_expert_and_found_again() {
        // Two experts a token, of four; nobody wants expert 2.
        let ids = [1, 3, 0, 1, 1, 3];
        let groups = group(&ids, 2, 4);
        assert_eq!(groups.ends, [1, 4, 4, 6]);
        assert_eq!(groups.tokens, [1, 0, 1, 2, 0, 2]);
        assert_eq!(groups.pairs, [2, 0, 3, 4, 1, 5]);
        assert_eq!(groups.places, [1, 4, 0, 2, 3, 5]);
    }
}
