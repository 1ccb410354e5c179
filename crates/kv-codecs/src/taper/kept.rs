//! Blocks of the rows that an eviction keeps.
//!
//! Values are moved as they are. So are keys whose blocks have one centre. A block whose keys come
//! from several blocks takes that of their centres which leaves the least to encode anew, or the
//! mean of them all; a key of another centre keeps its codes if the centres are nearer than what
//! coding it again would cost, and is coded again else: from its exact row, if there is one. Then
//! its error is that of the codec once more, so whoever moves keys many times should fill the gaps
//! that eviction leaves rather than shift all that follows. A block of few keys keeps them as
//! halves again, and adds no error.

use super::{TaperSide, shrunk_mean};
use crate::side::{Side, Stays, half_at, put_half};

fn square(x: impl Iterator<Item = f32>) -> f32 {
    x.map(|x| x * x).sum()
}

impl TaperSide {
    pub(super) fn gather_rows(&self, rows: &[Stays<'_>], out: &mut [u8]) {
        let copied = |row: &Stays<'_>| !self.centred || self.shares_centre(row, rows[0].region);
        if rows.iter().all(copied) {
            if let Some(first) = rows.first() {
                self.copy_centre(first.region, out);
            }
            for (offset, row) in rows.iter().enumerate() {
                self.copy_codes(row, out, offset);
            }
            return;
        }
        let exact: Vec<_> = rows.iter().map(|row| self.best_known(row)).collect();
        if rows.len() <= self.young {
            for (i, &x) in exact.iter().flatten().enumerate() {
                put_half(out, 2 * i, x);
            }
            return;
        }
        let centre = self.choose_centre(rows, &exact, out);
        for (offset, (row, exact)) in rows.iter().zip(&exact).enumerate() {
            if self.shares_centre(row, out) {
                self.copy_codes(row, out, offset);
            } else {
                self.bring(row, exact, &centre, out, offset);
            }
        }
    }

    /// A key as it was, if that is known; else as its codes have it.
    fn best_known(&self, row: &Stays<'_>) -> Vec<f32> {
        let mut x = vec![0.0; self.d];
        match row.exact {
            Some(exact) => x.iter_mut().enumerate().for_each(|(i, x)| *x = half_at(exact, 2 * i)),
            None => self.read_rotated(row.region, row.offset, &mut x),
        }
        x
    }

    /// Whether a row is coded about the centre of a region.
    fn shares_centre(&self, row: &Stays<'_>, region: &[u8]) -> bool {
        let at = self.centre_at();
        !self.is_young(row.region) && row.region[at..] == region[at..]
    }

    fn copy_centre(&self, from: &[u8], to: &mut [u8]) {
        let at = self.centre_at();
        to[at..].copy_from_slice(&from[at..]);
    }

    fn copy_codes(&self, row: &Stays<'_>, out: &mut [u8], offset: usize) {
        self.math.layout.copy((row.region, row.offset), (out, offset));
        self.put_position(out, offset, self.position(row.region, row.offset));
    }

    /// Stores the centre that leaves the least to encode anew.
    fn choose_centre(&self, rows: &[Stays<'_>], exact: &[Vec<f32>], out: &mut [u8]) -> Vec<f32> {
        let mut mean = vec![0; out.len()];
        self.set_centre(&mut mean, &shrunk_mean(&exact.concat(), self.d));
        let mut candidates = vec![&mean[..]];
        for row in rows.iter().filter(|row| !self.is_young(row.region)) {
            if !candidates.iter().any(|centre| self.shares_centre(row, centre)) {
                candidates.push(row.region);
            }
        }
        let (mut best, mut least) = (Vec::new(), f32::INFINITY);
        for candidate in candidates {
            let mut centre = Vec::new();
            self.centre(candidate, &mut centre);
            let anew =
                rows.iter().zip(exact).filter(|(row, _)| !self.shares_centre(row, candidate));
            let off = |x: &[f32]| square(x.iter().zip(&centre).map(|(x, c)| x - c));
            let cost = anew.map(|(_, x)| off(x)).sum::<f32>();
            if cost < least {
                self.copy_centre(candidate, out);
                (best, least) = (centre, cost);
            }
        }
        best
    }

    /// Brings a key to another centre, in the way that costs less.
    fn bring(&self, row: &Stays<'_>, exact: &[f32], centre: &[f32], out: &mut [u8], offset: usize) {
        let centred: Vec<_> = exact.iter().zip(centre).map(|(x, c)| x - c).collect();
        let walk = self.code.encode_rotated(&centred);
        if !self.is_young(row.region) {
            let (mut own, mut decoded) = (Vec::new(), vec![0.0; self.d]);
            self.centre(row.region, &mut own);
            self.read_rotated(row.region, row.offset, &mut decoded);
            let off = decoded.iter().zip(&own).zip(&centred).map(|((y, own), x)| x - (y - own));
            if square(off) <= walk.error * square(centred.iter().copied()) {
                return self.copy_codes(row, out, offset);
            }
        }
        self.put_walk(out, offset, &walk);
    }
}
