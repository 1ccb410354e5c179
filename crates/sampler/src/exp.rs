//! Probability masses as integers.

pub(crate) use taper_base::exp;

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
