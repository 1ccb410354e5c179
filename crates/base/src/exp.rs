//! An exponential that gives the same bits on every machine.

/// e^x for x <= 0, within 2 units in the last place; below -87 it stays at e^-87.
///
/// The platform's `exp` differs between systems and does not vectorise; here each step is one
/// IEEE operation, so that a seed gives the same tokens everywhere, and a router the same experts.
#[inline(always)]
#[must_use]
pub fn exp(x: f32) -> f32 {
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

/// The Gaussian error linear unit, `x (1 + erf(x / sqrt 2)) / 2`, within 1.5e-7 of its factor (Abramowitz and Stegun,
/// 7.1.26).
#[inline(always)]
#[must_use]
pub fn gelu(x: f32) -> f32 {
    let z = x.abs() * std::f32::consts::FRAC_1_SQRT_2;
    let t = 1.0 / 0.327_591_1f32.mul_add(z, 1.0);
    let mut p = 1.061_405_4f32;
    p = p.mul_add(t, -1.453_152_1);
    p = p.mul_add(t, 1.421_413_8);
    p = p.mul_add(t, -0.284_496_74);
    p = p.mul_add(t, 0.254_829_6);
    // Half of 1 - erf z.
    let rest = 0.5 * p * t * exp(-z * z);
    x * if x < 0.0 { rest } else { 1.0 - rest }
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
}
