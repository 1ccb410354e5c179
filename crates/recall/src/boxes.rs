//! Bounds of a page's keys.

/// Least and largest elements of a page's keys, for each KV head of a layer, as bytes.
///
/// ```text
/// codes   [kv_heads][largest: head_dim, least: head_dim]
/// scales  [kv_heads][largest, least]
/// ```
/// A bound is its code times its scale. It is rounded outwards: no key lies outside.
#[derive(Debug, Clone, PartialEq)]
pub struct KeyBoxes {
    head_dim: usize,
    codes: Vec<i8>,
    scales: Vec<[f32; 2]>,
}

/// The largest code.
const MOST: f32 = 127.0;
/// Keeps the code of the largest element within [`MOST`] when it is rounded up.
const ABOVE: f32 = 1.0 + 1e-6;

impl KeyBoxes {
    /// Of a page's keys.
    ///
    /// # Shapes
    /// `keys [tokens, kv_heads, head_dim]`, at least one token.
    #[must_use]
    pub fn of(keys: &[f32], kv_heads: usize, head_dim: usize) -> Self {
        let width = kv_heads * head_dim;
        let mut largest = vec![f32::NEG_INFINITY; width];
        let mut least = vec![f32::INFINITY; width];
        for row in keys.chunks_exact(width.max(1)) {
            for ((largest, least), &x) in largest.iter_mut().zip(&mut least).zip(row) {
                *largest = largest.max(x);
                *least = least.min(x);
            }
        }
        let (mut codes, mut scales) = (Vec::with_capacity(2 * width), Vec::new());
        let sides = largest.chunks_exact(head_dim.max(1)).zip(least.chunks_exact(head_dim.max(1)));
        for (largest, least) in sides {
            let above = scale(largest);
            codes.extend(largest.iter().map(|&x| round_up(x, above)));
            let below = scale(least);
            codes.extend(least.iter().map(|&x| -round_up(-x, below)));
            scales.push([above, below]);
        }
        Self { head_dim, codes, scales }
    }

    /// KV heads.
    #[must_use]
    pub fn kv_heads(&self) -> usize {
        self.scales.len()
    }

    /// Elements of a head.
    #[must_use]
    pub fn head_dim(&self) -> usize {
        self.head_dim
    }

    /// Codes of a head, `[largest: head_dim, least: head_dim]`, and the scales of both.
    #[must_use]
    pub fn head(&self, head: usize) -> (&[i8], [f32; 2]) {
        let width = 2 * self.head_dim;
        (&self.codes[head * width..(head + 1) * width], self.scales[head])
    }

    /// Bytes of it.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.codes.len() + size_of_val(self.scales.as_slice())
    }
}

fn scale(x: &[f32]) -> f32 {
    x.iter().fold(0.0f32, |most, x| most.max(x.abs())) / MOST * ABOVE
}

/// The least code whose bound is not below `x`.
fn round_up(x: f32, scale: f32) -> i8 {
    if scale == 0.0 {
        return 0;
    }
    let mut code = (x / scale).ceil();
    // The quotient was rounded.
    if code * scale < x {
        code += 1.0;
    }
    // Codes lie within the bounds but for keys that are not finite.
    code.clamp(-MOST, MOST) as i8
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_key_lies_outside(
            keys in prop::collection::vec(prop_oneof![-1e3f32..1e3, -1e-6f32..1e-6, Just(0.0)], 5 * 2 * 8),
        ) {
            let boxes = KeyBoxes::of(&keys, 2, 8);
            for row in keys.chunks_exact(16) {
                for head in 0..2 {
                    let (codes, [above, below]) = boxes.head(head);
                    for (i, &x) in row[head * 8..][..8].iter().enumerate() {
                        prop_assert!(x <= f32::from(codes[i]) * above);
                        prop_assert!(x >= f32::from(codes[8 + i]) * below);
                    }
                }
            }
        }
    }

    #[test]
    fn a_box_is_near_its_keys() {
        let keys: Vec<f32> = (0..4 * 16).map(|i| (i as f32 * 0.7).sin()).collect();
        let boxes = KeyBoxes::of(&keys, 1, 16);
        let (codes, [above, below]) = boxes.head(0);
        for i in 0..16 {
            let column = || keys.iter().skip(i).step_by(16).copied();
            let (most, least) = (column().fold(-9.0, f32::max), column().fold(9.0, f32::min));
            assert!(f32::from(codes[i]) * above - most < 0.01);
            assert!(least - f32::from(codes[16 + i]) * below < 0.01);
        }
    }
}
