//! C5 and C6 of the sketched code.

use crate::{distortion::inner_products, support::near};
use taper_kv_codecs::{Polar, Prod, Rotation, Sketch};

fn prod(bits: usize, gaussian: bool) -> Prod {
    let polar = Polar::new(Rotation::new(128, 1123).unwrap(), bits - 1);
    let sketch = if gaussian {
        Sketch::gaussian(128, 99)
    } else {
        Sketch::Orthonormal(Rotation::new(128, 99).unwrap())
    };
    Prod::new(polar, sketch)
}

#[test]
fn c05_the_sketch_has_the_error_of_theory_and_more_than_no_sketch() {
    for (bits, gaussian, orthogonal) in
        [(2, 0.570, 0.2056), (3, 0.1845, 0.0658), (4, 0.0543, 0.0193)]
    {
        for (is_gaussian, n, want) in [(true, 10_000, gaussian), (false, 40_000, orthogonal)] {
            let prod = prod(bits, is_gaussian);
            let (_, got) = inner_products(n, 128, false, |x| prod.decode(&prod.encode(x)));
            near(got, want, 0.06 * want);
        }
    }
}

#[test]
fn c06_the_sketch_is_scaled_right() {
    for gaussian in [true, false] {
        let prod = prod(4, gaussian);
        let n = if gaussian { 10_000 } else { 40_000 };
        let (slope, _) = inner_products(n, 128, true, |x| prod.decode(&prod.encode(x)));
        near(slope, 1.0, 0.004);
    }
}
