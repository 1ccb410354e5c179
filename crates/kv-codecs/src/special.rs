//! The special functions behind code books.

/// `ln Gamma(x)` for `x > 0` (Lanczos, g = 7), to 1e-14.
pub(crate) fn ln_gamma(x: f64) -> f64 {
    const C: [f64; 8] = [
        676.520_368_121_885_1,
        -1_259.139_216_722_402_8,
        771.323_428_777_653_1,
        -176.615_029_162_140_6,
        12.507_343_278_686_905,
        -0.138_571_095_265_720_12,
        9.984_369_578_019_572e-6,
        1.505_632_735_149_311_6e-7,
    ];
    let x = x - 1.0;
    let series = |sum: f64, (i, c): (usize, &f64)| sum + c / (x + i as f64 + 1.0);
    let a = C.iter().enumerate().fold(0.999_999_999_999_809_9, series);
    let t = x + 7.5;
    (2.0 * std::f64::consts::PI).ln() / 2.0 + (x + 0.5) * t.ln() - t + a.ln()
}

/// `(1 - I_{x^2}(1/2, b)) / 2` for `x` in 0..1: half the upper tail of a beta distribution.
pub(crate) fn half_tail_of_beta(x: f64, b: f64) -> f64 {
    let y = x * x;
    if y <= 0.0 {
        return 0.5;
    }
    if y >= 1.0 {
        return 0.0;
    }
    let ln = ln_gamma(0.5 + b) - ln_gamma(0.5) - ln_gamma(b) + 0.5 * y.ln() + b * (-y).ln_1p();
    let front = ln.exp();
    // The continued fraction converges fast on its own side of the mean.
    if y < 1.5 / (b + 2.5) {
        0.5 * (1.0 - front * beta_fraction(y, 0.5, b) / 0.5)
    } else {
        0.5 * front * beta_fraction(1.0 - y, b, 0.5) / b
    }
}

/// The continued fraction of the incomplete beta function (Lentz).
fn beta_fraction(x: f64, a: f64, b: f64) -> f64 {
    let tiny = 1e-300;
    let guard = |v: f64| if v.abs() < tiny { tiny } else { v };
    let mut c = 1.0;
    let mut d = 1.0 / guard(1.0 - (a + b) * x / (a + 1.0));
    let mut h = d;
    for m in 1..500 {
        let m = f64::from(m);
        let even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m));
        d = 1.0 / guard(1.0 + even * d);
        c = guard(1.0 + even / c);
        h *= d * c;
        let odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0));
        d = 1.0 / guard(1.0 + odd * d);
        c = guard(1.0 + odd / c);
        h *= d * c;
        if (d * c - 1.0).abs() < 1e-15 {
            break;
        }
    }
    h
}

/// `P(N(0, 1) > x)` for `x >= 0`.
pub(crate) fn normal_tail(x: f64) -> f64 {
    let density = (-x * x / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
    if x < 3.0 {
        // Marsaglia's series for the part below x.
        let (mut term, mut sum, mut n) = (x, x, 1.0);
        while term > 1e-17 * sum {
            n += 2.0;
            term *= x * x / n;
            sum += term;
        }
        return 0.5 - density * sum;
    }
    let fraction = (1..200).rev().fold(0.0, |f, n| f64::from(n) / (x + f));
    density / (x + fraction)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values() {
        assert!((ln_gamma(5.0) - 24f64.ln()).abs() < 1e-13);
        assert!((ln_gamma(0.5) - std::f64::consts::PI.sqrt().ln()).abs() < 1e-13);
        // d = 3: a coordinate of the sphere is uniform.
        for x in [0.0, 0.1, 0.5, 0.93] {
            assert!((half_tail_of_beta(x, 1.0) - (1.0 - x) / 2.0).abs() < 1e-13, "{x}");
        }
        assert!((normal_tail(1.0) - 0.158_655_253_931_457_05).abs() < 1e-15);
        assert!((normal_tail(4.0) - 3.167_124_183_311_992e-5).abs() < 1e-18);
    }
}
