//! Exponentials that give the same bits on every machine, and probability masses as integers.

/// e^x for x <= 0, within 2 units in the last place; below -87 it stays at e^-87.
///
/// The platform's `exp` differs between systems and does not vectorise; here each step is one
/// IEEE operation, so that a seed gives the same tokens everywhere.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    // x = n ln 2 + r with |r| <= ln 2 / 2; adding 1.5 * 2^23 rounds to an integer.
    const ROUND: f32 = 12_582_912.0;
    let x = if x > -87.0 { x } else { -87.0 };
    let shifted = x.mul_add(std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    // ln 2 in two parts, the first with so few bits that n * LN2_HI is exact (Cody and Waite).
    let r = n.mul_add(2.121_944_4e-4, n.mul_add(-0.693_359_4, x));
    // Cephes expf: minimax polynomial of (e^r - 1 - r) / r^2.
    let mut p = 1.987_569_1e-4f32;
    p = p.mul_add(r, 1.398_2e-3);
    p = p.mul_add(r, 8.333_452e-3);
    p = p.mul_add(r, 4.166_579_6e-2);
    p = p.mul_add(r, 1.666_666_5e-1);
    p = p.mul_add(r, 5e-1);
    let y = p.mul_add(r * r, r) + 1.0;
    // The low bits of `shifted` hold n.
    let scale = f32::from_bits(shifted.to_bits().wrapping_add(127) << 23);
    y * scale
}

/// Mass of the likeliest token; a row of 2^20 of them still adds up in 64 bits.
pub(crate) const UNIT: u64 = 1 << 40;

/// A number from 0 to 1 in units of 2^-40, rounded to the nearest.
#[inline(always)]
pub(crate) fn units(x: f32) -> u64 {
    // In [2^52, 2^53) the low bits of a double are the integer.
    const TWO_52: f64 = 4_503_599_627_370_496.0;
    let scaled = f64::from(x).mul_add(UNIT as f64, TWO_52);
    scaled.to_bits() - TWO_52.to_bits()
}

/// Mass of a token whose scaled logit is `d` below the best, in units of 2^-40 of the likeliest
/// token's.
///
/// Masses are integers because their sums then do not depend on the order of addition: whichever
/// way the candidates are found, the same set and the same token come out. A token less likely
/// than the best by 2^-41 has no mass and is never drawn.
#[cfg(test)]
pub(crate) fn mass(d: f32) -> u64 {
    units(exp(d))
}

/// What a token of that mass adds to the mean of the distances `-d`, in the units of [`mass`].
#[cfg(test)]
pub(crate) fn moment(d: f32) -> u64 {
    units(exp(d) * -d)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_close_and_bounded() {
        let mut worst = 0f64;
        for i in 0..=870_000u32 {
            let x = -(i as f32) * 1e-4;
            let want = f64::from(x).exp();
            worst = worst.max(((f64::from(exp(x)) - want) / want).abs());
        }
        assert!(worst < 2.4e-7, "relative error {worst:e}");
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(f32::NEG_INFINITY), exp(-87.0));
        assert_eq!(exp(f32::MIN), exp(-87.0));
    }

    #[test]
    fn masses() {
        assert_eq!(mass(0.0), UNIT);
        assert_eq!(mass(f32::NEG_INFINITY), 0);
        assert_eq!(mass(-29.0), 0);
        assert_eq!(mass(-28.0), 1);
        let half = mass(-std::f32::consts::LN_2) as f64 / UNIT as f64;
        assert!((half - 0.5).abs() < 1e-7);
        assert_eq!((moment(0.0), moment(-1e-30)), (0, 0));
        // x e^-x is largest at 1.
        let most = moment(-1.0) as f64 / UNIT as f64;
        assert!((most - (-1.0f64).exp()).abs() < 1e-7);
    }
}
