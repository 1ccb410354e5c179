//! How many tokens of which drafts a step verifies.

use crate::{
    Costs,
    book::Book,
    costs::STALE,
    track::{Acceptance, Track},
};
use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};
use taper_base::{MAX_DRAFT_TOKENS, SeqId};

/// Drafts must promise to be so much faster, as a share: what is promised is never quite true.
const MARGIN: f64 = 0.05;

/// Proposing a token is free below this share of a step.
const CHEAP: f64 = 0.01;

/// A draft that could be verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Proposal {
    /// Whose it is.
    pub id: SeqId,
    /// Its tokens.
    pub len: usize,
    /// How sure its drafter is.
    pub class: usize,
}

/// What became of a sequence in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verified {
    /// Which sequence.
    pub id: SeqId,
    /// Whether a draft was proposed at all, and its class.
    pub class: Option<usize>,
    /// Drafted tokens whose logits were computed.
    pub drafted: usize,
    /// How many of the drafted tokens were accepted.
    pub accepted: usize,
}

/// Chooses how many tokens of each draft are worth verifying, from how many of earlier ones were
/// accepted and from what steps cost. All that it knows of time it is told: its choices change how long
/// an output takes, and never what it is.
#[derive(Debug, Default)]
pub struct Controller {
    costs: Costs,
    tracks: HashMap<SeqId, Track>,
    /// What drafts of all sequences were like.
    usual: Option<Acceptance>,
    /// Steps since the last one with drafts.
    plain: u32,
    /// By the number of sequences.
    books: BTreeMap<usize, Book>,
}

impl Controller {
    /// Most tokens that are worth proposing for a sequence, of `sequences` that decode: none while its
    /// drafts are paused, and no more than pay where proposing takes long.
    #[must_use]
    pub fn most(&self, id: SeqId, sequences: usize) -> usize {
        let each = self.costs.proposal(sequences);
        match self.tracks.get(&id) {
            _ if !Costs::measures(sequences) => 0,
            _ if self.is_closed(sequences) => 0,
            Some(track) if track.sleeps() => 0,
            Some(track) if each > CHEAP => self.worth(track, sequences, each),
            _ => MAX_DRAFT_TOKENS,
        }
    }

    /// Whether drafts for so many sequences have lost time, and are left out for a while.
    fn is_closed(&self, sequences: usize) -> bool {
        self.books.get(&sequences).is_some_and(Book::is_closed)
    }

    /// The number of tokens that promises the most a second, if all sequences get as many.
    fn worth(&self, track: &Track, sequences: usize, each: f64) -> usize {
        let (mut tokens, mut best, mut most) = (1.0, 1.0 + MARGIN, 0);
        for (i, reach) in track.reach_of_any().enumerate() {
            tokens += reach;
            let drafted = sequences * (i + 1);
            let Some(ratio) = self.costs.ratio(sequences, drafted) else { break };
            let speed = tokens / (ratio + each * drafted as f64);
            if speed > best {
                (best, most) = (speed, i + 1);
            }
        }
        most
    }

    /// How many tokens of each proposal a step of `sequences` verifies, of at most `room` in all: the
    /// number that promises the most tokens a second, 0 where that is a step without drafts.
    ///
    /// `expected` is what the drafter expects of a class.
    pub fn choose(
        &mut self,
        sequences: usize,
        room: usize,
        proposals: &[Proposal],
        expected: &dyn Fn(usize) -> f32,
    ) -> Vec<usize> {
        let mut depths = vec![0; proposals.len()];
        if self.is_closed(sequences) {
            return depths;
        }
        let mut candidates = Vec::new();
        for (at, proposal) in proposals.iter().enumerate() {
            let usual = self.usual.get_or_insert_with(|| Acceptance::new(expected));
            let track = self.tracks.entry(proposal.id).or_insert_with(|| Track::new(usual));
            if !track.sleeps() {
                let len = proposal.len.min(MAX_DRAFT_TOKENS);
                candidates.extend(track.reach(proposal.class, len).map(|reach| (at, reach)));
            }
        }
        // Within a draft they descend already, and the sort is stable: a token never comes before
        // the one that it follows.
        candidates.sort_by(|a, b| b.1.total_cmp(&a.1));
        candidates.truncate(room);
        let plain = sequences as f64;
        let (mut tokens, mut best, mut taken) = (plain, plain * (1.0 + MARGIN), 0);
        for (i, (_, reach)) in candidates.iter().enumerate() {
            tokens += reach;
            let Some(ratio) = self.costs.ratio(sequences, i + 1) else { break };
            if tokens / ratio > best {
                (best, taken) = (tokens / ratio, i + 1);
            }
        }
        candidates[..taken].iter().for_each(|&(at, _)| depths[at] += 1);
        depths
    }

    /// Learns from a step without prompts of the sequences `seqs`, and how long it took: first with all that
    /// belongs to it but proposing, then proposing.
    pub fn learn(
        &mut self,
        seqs: &[Verified],
        (took, proposing): (Duration, Duration),
        expected: &dyn Fn(usize) -> f32,
    ) {
        let drafted: usize = seqs.iter().map(|seq| seq.drafted).sum();
        self.costs.learn(seqs.len(), drafted, took);
        self.plain = if drafted > 0 { 0 } else { self.plain + 1 };
        if self.plain >= STALE {
            self.plain = 0;
            self.usual.iter_mut().for_each(|usual| usual.forget(expected));
        }
        let accepted: usize = seqs.iter().map(|seq| seq.accepted).sum();
        let plain = self.costs.plain(seqs.len());
        let book = self.books.entry(seqs.len()).or_default();
        let all = (took + proposing).as_secs_f64();
        book.enter(seqs.len(), (drafted, accepted), all, plain);
        let ratio = self.costs.ratio(seqs.len(), drafted).unwrap_or(1.0);
        let each = self.costs.proposal(seqs.len());
        // What the longer step and the proposals cost in tokens, shared out by drafted tokens.
        let lost = ((ratio - 1.0) / drafted.max(1) as f64 + each) * seqs.len() as f64;
        for seq in seqs {
            // A sequence that this step has ended is forgotten already.
            let track = self.tracks.get_mut(&seq.id);
            match seq.class.filter(|_| seq.drafted > 0) {
                Some(class) => {
                    let lost = lost * seq.drafted as f64;
                    let usual = self.usual.get_or_insert_with(|| Acceptance::new(expected));
                    usual.learn(class, seq.drafted, seq.accepted);
                    let Some(track) = track else { continue };
                    track.verified(class, seq.drafted, seq.accepted, lost);
                }
                None => {
                    let proposed = seq.class.is_some() || each > CHEAP;
                    track.into_iter().for_each(|track| track.plain(1, proposed, expected));
                }
            }
        }
    }

    /// Proposing so many tokens took so long.
    pub fn learn_proposals(&mut self, tokens: usize, took: Duration) {
        self.costs.learn_proposals(tokens, took);
    }

    /// A sequence has ended.
    pub fn forget(&mut self, id: SeqId) {
        self.tracks.remove(&id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_kept_of_a_sequence_that_has_ended() {
        let expected = |_| 0.5;
        let (mut controller, id) = (Controller::default(), SeqId(7));
        let plain = Verified { id, class: None, drafted: 0, accepted: 0 };
        for _ in 0..3 {
            controller.learn(&[plain], (Duration::from_millis(10), Duration::ZERO), &expected);
        }
        controller.choose(1, 64, &[Proposal { id, len: 4, class: 0 }], &expected);
        assert_eq!(controller.tracks.len(), 1);
        // A step reports its sequences after those that it ended were forgotten.
        controller.forget(id);
        let last = Verified { class: Some(0), drafted: 2, accepted: 1, ..plain };
        controller.learn(&[plain, last], (Duration::from_millis(12), Duration::ZERO), &expected);
        assert!(controller.tracks.is_empty());
    }
}
