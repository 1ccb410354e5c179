//! The names of the compressed codecs.

use crate::{
    KvCodecError, KvGeometry, TrellisCode,
    affine::AffineSide,
    qjl::QjlSide,
    rows::HalfSide,
    side::Side,
    taper::{self, TaperSide},
    turbo::{self, TurboSide},
};
use taper_tensor::cpu::codes::Order;

/// How one side of the cache is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SideFormat {
    /// Halves.
    F16,
    /// Codes of 4 or 8 bits, with a scale and a bias for each group of 32, 64 or 128.
    Affine {
        /// 4 or 8.
        bits: usize,
        /// Elements that share a scale.
        group: usize,
    },
    /// PolarQuant codes of 1 to 5 bits.
    Turbo {
        /// Bits an element.
        bits: usize,
    },
    /// PolarQuant codes and a QJL sketch, 2 to 5 bits together.
    TurboQjl {
        /// Bits an element, the sketch's included.
        bits: usize,
    },
    /// Trellis codes of 2 to 4 bits.
    Taper {
        /// Bits an element.
        bits: usize,
        /// Relative to the block's mean.
        centred: bool,
        /// With nine bits of state; of 3 bits only.
        wide: bool,
    },
}

impl SideFormat {
    /// Bytes of one head's rows in a block.
    #[must_use]
    pub fn head_bytes(self, g: KvGeometry) -> usize {
        match self {
            Self::F16 => HalfSide::head_bytes(g),
            Self::Affine { bits, group } => AffineSide::head_bytes(g, bits, group),
            Self::Turbo { bits } => turbo::head_bytes(g, bits),
            Self::TurboQjl { bits } => QjlSide::head_bytes(g, bits),
            Self::Taper { bits, centred, .. } => taper::head_bytes(g, bits, centred),
        }
    }

    /// Bits an element, scales not counted.
    #[must_use]
    pub fn bits(self) -> usize {
        match self {
            Self::F16 => 16,
            Self::Affine { bits, .. }
            | Self::Turbo { bits }
            | Self::TurboQjl { bits }
            | Self::Taper { bits, .. } => bits,
        }
    }

    /// `order` says what the side is for: dot products with keys, or sums of values.
    pub(crate) fn side(self, g: KvGeometry, order: Order) -> Result<Box<dyn Side>, KvCodecError> {
        Ok(match self {
            Self::F16 => Box::new(HalfSide::new(g)),
            Self::Affine { bits, group } => Box::new(AffineSide::new(g, bits, group)),
            Self::Turbo { bits } => Box::new(TurboSide::new(g, bits, order)?),
            Self::TurboQjl { bits } => Box::new(QjlSide::new(g, bits)?),
            Self::Taper { bits, centred, wide } => {
                let code = if wide { TrellisCode::wide() } else { TrellisCode::new(bits) };
                Box::new(TaperSide::new(g, code, centred)?)
            }
        })
    }
}

/// The formats of keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scheme {
    /// Format of the keys.
    pub k: SideFormat,
    /// Format of the values.
    pub v: SideFormat,
}

/// Elements that share a scale when a name does not say.
const GROUP: usize = 64;

impl Scheme {
    /// Grammar of codec names, for messages.
    pub const NAMES: [&str; 6] = [
        "affine<4|8>[g<32|64|128>]",
        "turbo<K>[v<V>]",
        "turbo<K>[v<V>]-qjl",
        "taper<K>[v<V>]",
        "taper3-l9",
        "with K, V bits (0: f16, 8: affine8)",
    ];

    /// The scheme of a name:
    ///
    /// ```text
    /// affine<bits>[g<group>]     bits 4, 8; group 32, 64 (when not said), 128
    /// turbo<K>[v<V>][-qjl]       bits of keys and values, 1 to 5; 0 is f16, 8 is affine8
    /// taper<K>[v<V>]             bits of keys and values, 2 to 4; 0 is f16, 8 is affine8
    /// taper3-l9                  the same with nine bits of state: less error, slower
    /// ```
    /// Without `v<V>` values have the keys' bits. `-qjl` gives one of the keys' bits, at least 2,
    /// to the sketch.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        if let Some(rest) = name.strip_prefix("affine") {
            let (bits, group) = rest.split_once('g').unwrap_or((rest, "64"));
            let (bits, group) = (number(bits)?, number(group)?);
            let known = [4, 8].contains(&bits) && [32, 64, 128].contains(&group);
            let side = SideFormat::Affine { bits, group };
            return known.then_some(Self { k: side, v: side });
        }
        if name == "taper3-l9" {
            let side = |centred| SideFormat::Taper { bits: 3, centred, wide: true };
            return Some(Self { k: side(true), v: side(false) });
        }
        let (rest, taper) = match name.strip_prefix("taper") {
            Some(rest) => (rest, true),
            None => (name.strip_prefix("turbo")?, false),
        };
        let (rest, qjl) = rest.strip_suffix("-qjl").map_or((rest, false), |rest| (rest, true));
        let (k, v) = rest.split_once('v').unwrap_or((rest, rest));
        let side = |bits: &str, keys: bool| {
            Some(match number(bits)? {
                0 => SideFormat::F16,
                8 => SideFormat::Affine { bits: 8, group: GROUP },
                bits @ 2..=4 if taper && !qjl => {
                    SideFormat::Taper { bits, centred: keys, wide: false }
                }
                bits @ 2..=5 if !taper && qjl && keys => SideFormat::TurboQjl { bits },
                bits @ 1..=5 if !(taper || qjl && keys) => SideFormat::Turbo { bits },
                _ => return None,
            })
        };
        let scheme = Self { k: side(k, true)?, v: side(v, false)? };
        let sketched = matches!(scheme.k, SideFormat::TurboQjl { .. });
        (qjl == sketched).then_some(scheme)
    }
}

/// Decimal digits without sign or leading zeros.
fn number(text: &str) -> Option<usize> {
    let plain = text == "0" || text.starts_with(|c: char| ('1'..='9').contains(&c));
    (plain && text.len() <= 3).then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grammar_takes_what_it_says_and_nothing_else() {
        let turbo = |bits| SideFormat::Turbo { bits };
        let eight = SideFormat::Affine { bits: 8, group: 64 };
        let is = |name, k, v| assert_eq!(Scheme::parse(name), Some(Scheme { k, v }), "{name}");
        is("turbo4", turbo(4), turbo(4));
        is("turbo4v2", turbo(4), turbo(2));
        is("turbo8v4", eight, turbo(4));
        is("turbo0v3", SideFormat::F16, turbo(3));
        is("turbo3-qjl", SideFormat::TurboQjl { bits: 3 }, turbo(3));
        is("turbo4v2-qjl", SideFormat::TurboQjl { bits: 4 }, turbo(2));
        is("affine8", eight, eight);
        let four = SideFormat::Affine { bits: 4, group: 32 };
        is("affine4g32", four, four);
        let taper = |bits, centred| SideFormat::Taper { bits, centred, wide: false };
        is("taper4", taper(4, true), taper(4, false));
        is("taper4v3", taper(4, true), taper(3, false));
        let wide = |centred| SideFormat::Taper { bits: 3, centred, wide: true };
        is("taper3-l9", wide(true), wide(false));
        for bad in [
            "turbo",
            "turbo6",
            "turbo7v4",
            "turbo4v",
            "turbov4",
            "turbo04",
            "turbo1-qjl",
            "turbo8-qjl",
            "taper5",
            "taper1",
            "taper4-qjl",
            "taper4-l9",
            "taper3v3-l9",
            "taper3-l8",
            "affine5",
            "affine8g48",
            "affine4g",
            "turbo4v2v2",
            "turbo+4",
        ] {
            assert_eq!(Scheme::parse(bad), None, "{bad}");
        }
    }
}
