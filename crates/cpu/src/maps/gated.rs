//! Feed-forwards: a gated pair of maps, and the one that follows.

use super::{Input, Map, Matrix};
use crate::{
    Activation,
    dense::{Bf16Rows, DenseLevel, widened},
    int8::{self, Int8Rows},
    shared::Unwritten,
};

/// What is between the maps, as the last one reads it.
enum Inner {
    /// For weights that are widened.
    Halved(Bf16Rows),
    Rounded(Int8Rows),
}

/// `down(activation(gate(x)) * up(x))` with the biases and the last map's residual, as a whole, so that what is
/// between the maps need not be stored. `None` where the three are not repacked alike.
///
/// # Shapes
/// `x [t, in]` -> `[t, out]`.
///
/// # Panics
/// When maps do not fit each other or `x`, or a slice has another length.
pub fn gated_down(
    [gate, up]: [Map<'_>; 2],
    down: Map<'_>,
    activation: Activation,
    mut x: Input<'_>,
) -> Option<Vec<f32>> {
    let plain = |map| Map { residual: None, ..map };
    let (gate, up) = (plain(gate), plain(up));
    let (Matrix::Packed(g, r), Matrix::Packed(u, s), Matrix::Packed(d, q)) =
        (gate.matrix, up.matrix, down.matrix)
    else {
        return None;
    };
    if [s, q] != [r; 2] || g.group() != u.group() {
        return None;
    }
    let tokens = x.rows(g.cols());
    let inner = if x.widens(*r) {
        let maps = [(&**g, gate.bias), (&**u, up.bias)];
        Inner::Halved(widened::gated(DenseLevel::detect(), x.halved(g.cols()), activation, maps))
    } else {
        let mut between = Unwritten::new(tokens * g.rows());
        let shared = between.shared();
        let both = [gate.product(g, shared), up.product(u, shared)];
        let rounding = x.rounding(*r);
        Inner::Rounded(int8::gated(x.rounded(g, *r), activation, both, d.group(), rounding))
    };
    let mut out = Unwritten::new(tokens * d.rows());
    let to = out.shared();
    match inner {
        Inner::Halved(x) => widened::products(DenseLevel::detect(), &x, &[(&**d, down.sums(to))]),
        Inner::Rounded(x) => int8::products(&x, &[down.product(d, to)]),
    }
    // SAFETY: the product covers it.
    Some(unsafe { out.written() })
}
