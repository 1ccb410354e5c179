//! The shortest prefix of an order that has a mass.
//!
//! To draw from it, it need not be known. A token drawn from more is one of it if less than that mass comes before
//! the token; if not, what comes before it is drawn from next, which is a part of what was left. One pass tells, and
//! its masses are those to draw from. (FlashInfer's kernels reject in the same way.)

use crate::{
    candidates::Candidates,
    kept::{Cut, Order},
    rng::redraw,
    scan::by_rank,
};
use taper_base::{Threads, TokenId};

/// Tokens that have one part in so many of the mass are put in order.
const NARROW: u64 = 128;

/// The shortest prefix of an order whose mass reaches `target`, which is at least 1.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Prefix {
    pub(crate) order: Order,
    pub(crate) target: u64,
}

impl<T: Threads> Candidates<'_, T> {
    /// Draws from a prefix.
    pub(crate) fn draw_prefix(mut self, prefix: Prefix, mut bits: u64) -> TokenId {
        loop {
            let token = self.draw(bits);
            self.keep_before(prefix.order, token);
            if self.total() < prefix.target {
                return token;
            }
            bits = redraw(bits);
        }
    }

    /// Keeps what comes before a token.
    pub(crate) fn keep_before(&mut self, order: Order, token: TokenId) {
        self.kept.drop_from(order, self.row.logits[token as usize], token);
        self.weigh();
    }

    /// Keeps the likeliest tokens whose mass reaches `target`, which is at least 1: a filter after this one has to
    /// know them, and weighs them. Halves the range of logits in which they end, by a pass each, until few are left to
    /// be put in order.
    pub(crate) fn keep_nucleus(&mut self, target: u64) {
        // What is kept down to `high`, that excluded, has less than `target`; all of this has enough.
        let (mut high, mut above) = (f32::INFINITY, 0);
        let mut top = self.row.max;
        while self.total() - above > self.total() / NARROW {
            let low = self.kept.cut.logit;
            let middle = low.midpoint(top);
            if middle <= low || middle >= top {
                break;
            }
            let part = self.part(Cut::all(middle));
            match part.total() >= target {
                true => *self = part,
                false => (high, top, above) = (middle, middle, part.total()),
            }
        }
        let mut rest = Vec::new();
        self.row.for_each_at_least(self.kept.cut.logit, |id, x| {
            if x < high && self.kept.cut.keeps(x, id) {
                rest.push((x, id));
            }
        });
        rest.sort_unstable_by(|a, b| by_rank(*a, *b));
        let reaches = |(x, _): &&(f32, TokenId)| {
            above += self.kept.scale.mass(*x);
            above >= target
        };
        if let Some(&(logit, id)) = rest.iter().find(reaches) {
            self.kept.cut = Cut { logit, end: id + 1 };
        }
    }
}
