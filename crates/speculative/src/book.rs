//! Whether steps with drafts were worth it, after the fact.

/// Steps with drafts that are looked at together.
const STEPS: u32 = 16;
/// Steps without drafts after the first loss; each further loss doubles them.
const PAUSE: u32 = 64;
/// Steps without drafts, at most.
const LONGEST_PAUSE: u32 = 2048;
/// A step counts as so many plain ones, at most: others use the machine too.
const OUTLIER: f64 = 6.0;

/// What steps of so many sequences gave and took. Choosing the best of several guesses is choosing the most
/// optimistic one; this is what came of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Book {
    tokens: f64,
    /// In plain steps.
    time: f64,
    steps: u32,
    closed: u32,
    pause: u32,
}

impl Default for Book {
    fn default() -> Self {
        Self { tokens: 0.0, time: 0.0, steps: 0, closed: 0, pause: PAUSE }
    }
}

impl Book {
    /// Nothing is drafted for a while.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed > 0
    }

    /// Enters a step of so many sequences and drafted and accepted tokens.
    pub(crate) fn enter(
        &mut self,
        sequences: usize,
        (drafted, accepted): (usize, usize),
        seconds: f64,
        plain: Option<f64>,
    ) {
        if drafted == 0 {
            self.closed = self.closed.saturating_sub(1);
            return;
        }
        let Some(plain) = plain else { return };
        self.tokens += (sequences + accepted) as f64 / sequences as f64;
        self.time += (seconds / plain).min(OUTLIER);
        self.steps += 1;
        if self.steps < STEPS {
            return;
        }
        let loses = self.tokens < self.time;
        *self = match loses {
            true => Self {
                closed: self.pause,
                pause: (2 * self.pause).min(LONGEST_PAUSE),
                ..Self::default()
            },
            false => Self::default(),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_close_it_longer_each_time() {
        let mut book = Book::default();
        for pause in [64, 128, 256] {
            (0..STEPS).for_each(|_| book.enter(2, (4, 1), 0.02, Some(0.01)));
            assert!(book.is_closed());
            (0..pause).for_each(|_| book.enter(2, (0, 0), 0.01, Some(0.01)));
            assert!(!book.is_closed());
        }
        (0..STEPS).for_each(|_| book.enter(2, (4, 3), 0.02, Some(0.01)));
        assert!(!book.is_closed() && book.pause == PAUSE);
        (0..STEPS).for_each(|_| book.enter(2, (4, 1), 0.02, None));
        assert!(!book.is_closed(), "there is nothing to compare with");
    }
}
