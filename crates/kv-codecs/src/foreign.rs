//! Rows of 128 as other programs store them, to be compared with.
//!
//! ```text
//! turbo2, llama.cpp-turboquant     norm f16 | codes 2 bits [128]
//! turbo3                           norm f16 | low 2 bits [128] | high bit [128]
//! turbo4, until June 2026          norm f16 | 0 f16 | codes 4 bits [128]
//! turbo4, since                    norm f16 | codes 4 bits [128]
//! SwiftLM keys                     codes 3 bits [128] | signs [128] | norm f16 | residual norm f16
//! SwiftLM values                   codes 3 bits [128] | norm f16
//! mlx-swift-lm, 2, 3 and 4 bits    codes [128] in u32 words | norm f32
//! ```
//! All are little-endian with the lowest bits first. Each of them rotates with signs of its own, which
//! are not kept here: errors do not depend on them. The norm is that of the row over that of its
//! levels ("matched"), but for SwiftLM's keys and mlx-swift-lm, which have the row's.
//!
//! SwiftLM's keys have the QJL stage, read here as SwiftLM reads it: the sketch is applied where it
//! should be undone, and is scaled for rows of another length, so that it does next to nothing.

use crate::{Codebook, Coded, KvCodecError, Polar, Rotation, Scale, polar::norm, side};
use std::f32::consts::FRAC_PI_2;

/// Elements of a row.
const D: usize = 128;

/// A layout of another program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Foreign {
    /// llama.cpp-turboquant's `turbo2`.
    Fork2,
    /// llama.cpp-turboquant's `turbo3`.
    Fork3,
    /// llama.cpp-turboquant's `turbo4` until June 2026, whose levels are too close.
    Fork4Early,
    /// llama.cpp-turboquant's `turbo4` since June 2026.
    Fork4,
    /// SwiftLM's keys.
    SwiftLmKey,
    /// SwiftLM's values.
    SwiftLmValue,
    /// mlx-swift-lm's rows of 2, 3 or 4 bits.
    Mlx {
        /// Bits an element.
        bits: usize,
    },
}

/// Positive levels, as the programs have them.
const FORK_2: [f32; 2] = [0.039_994, 0.133_462];
const FORK_3: [f32; 4] = [0.021_460, 0.065_717, 0.117_832, 0.190_685];
const FORK_4_EARLY: [f32; 8] =
    [0.006_938, 0.020_989, 0.035_597, 0.051_262, 0.068_756, 0.089_527, 0.117_195, 0.173_926];

/// Where the parts of a row begin.
#[derive(Debug)]
struct Layout {
    bits: usize,
    codes: usize,
    /// The plane of the codes' highest bits, where they do not stand together.
    high: Option<usize>,
    norm: usize,
    wide_norm: bool,
    /// Signs and norm of the residual.
    sketch: Option<(usize, usize)>,
    bytes: usize,
}

impl Foreign {
    fn layout(self) -> Layout {
        let plain = |bits: usize, codes, norm| Layout {
            bits,
            codes,
            high: None,
            norm,
            wide_norm: false,
            sketch: None,
            bytes: D / 8 * bits + 2,
        };
        match self {
            Self::Fork2 => plain(2, 2, 0),
            Self::Fork3 => Layout { high: Some(34), ..plain(3, 2, 0) },
            Self::Fork4Early => Layout { bytes: 68, ..plain(4, 4, 0) },
            Self::Fork4 => plain(4, 2, 0),
            Self::SwiftLmKey => Layout { sketch: Some((48, 66)), bytes: 68, ..plain(3, 0, 64) },
            Self::SwiftLmValue => plain(3, 0, 48),
            Self::Mlx { bits } => {
                let norm = D / 8 * bits;
                Layout { wide_norm: true, bytes: norm + 4, ..plain(bits, 0, norm) }
            }
        }
    }

    /// Bytes of a row of 128.
    #[must_use]
    pub fn row_bytes(self) -> usize {
        self.layout().bytes
    }

    /// The levels of a rotated direction, ascending.
    ///
    /// # Panics
    /// When there are no such bits.
    #[must_use]
    pub fn levels(self) -> Vec<f32> {
        let mirror = |half: &[f32]| -> Vec<f32> {
            half.iter().rev().map(|c| -c).chain(half.iter().copied()).collect()
        };
        match self {
            Self::Fork2 => mirror(&FORK_2),
            Self::Fork3 | Self::SwiftLmKey | Self::SwiftLmValue => mirror(&FORK_3),
            Self::Fork4Early => mirror(&FORK_4_EARLY),
            Self::Fork4 => {
                let normal = Codebook::gaussian(4).levels.into_iter();
                normal.map(|c| (c / (D as f64).sqrt()) as f32).collect()
            }
            Self::Mlx { bits } => {
                Codebook::sphere(D, bits).levels.into_iter().map(|c| c as f32).collect()
            }
        }
    }

    /// Reader and writer of such rows, if the program's rotations were these; only SwiftLM's keys
    /// use the sketch's.
    #[must_use]
    pub fn codec(self, rotation: Rotation, sketch: Rotation) -> ForeignCodec {
        let polar = Polar::with_levels(rotation, self.levels());
        ForeignCodec { layout: self.layout(), polar, sketch }
    }
}

/// Reads and writes rows of 128 as another program does.
#[derive(Debug)]
pub struct ForeignCodec {
    layout: Layout,
    polar: Polar,
    sketch: Rotation,
}

impl ForeignCodec {
    /// A row of 128 as the program reads it.
    ///
    /// # Errors
    /// Other bytes than a row's.
    pub fn read(&self, row: &[u8]) -> Result<Vec<f32>, KvCodecError> {
        let Self { layout, polar, sketch } = self;
        if row.len() != layout.bytes {
            let expected = "the bytes of a row of 128 elements";
            return Err(KvCodecError::Shape { expected, got: vec![row.len()] });
        }
        let code = |i: usize| match layout.high {
            Some(at) => bits(&row[layout.codes..], 2 * i, 2) | bits(&row[at..], i, 1) << 2,
            None => bits(&row[layout.codes..], layout.bits * i, layout.bits),
        };
        let mut x: Vec<f32> = (0..D).map(|i| polar.levels()[code(i)]).collect();
        polar.rotation().undo(&mut x);
        if let Some((signs, residual)) = layout.sketch {
            let sign = |i| if bits(&row[signs..], i, 1) == 1 { 1.0 } else { -1.0 };
            let mut sigma: Vec<f32> = (0..D).map(sign).collect();
            sketch.apply(&mut sigma);
            let kappa = FRAC_PI_2.sqrt() / D as f32 * side::half_at(row, residual);
            x.iter_mut().zip(&sigma).for_each(|(x, s)| *x += kappa * s);
        }
        let norm = match <[u8; 4]>::try_from(&row[layout.norm..]) {
            Ok(wide) if layout.wide_norm => f32::from_le_bytes(wide),
            _ => side::half_at(row, layout.norm),
        };
        x.iter_mut().for_each(|x| *x *= norm);
        Ok(x)
    }

    /// A row as the program writes it.
    ///
    /// # Errors
    /// Another length than 128.
    pub fn write(&self, x: &[f32]) -> Result<Vec<u8>, KvCodecError> {
        if x.len() != D {
            return Err(KvCodecError::Shape { expected: "128 elements", got: vec![x.len()] });
        }
        let Self { layout, polar, sketch } = self;
        let coded = polar.encode(x, &[1.0]);
        let mut row = vec![0; layout.bytes];
        for (i, &code) in coded.codes.iter().enumerate() {
            match layout.high {
                Some(high) => {
                    put_bits(&mut row[layout.codes..], 2 * i, code & 3);
                    put_bits(&mut row[high..], i, code >> 2);
                }
                None => put_bits(&mut row[layout.codes..], layout.bits * i, code),
            }
        }
        let raw = layout.wide_norm || layout.sketch.is_some();
        let gamma = coded.gamma(if raw { Scale::Raw } else { Scale::Matched });
        if layout.wide_norm {
            row[layout.norm..].copy_from_slice(&gamma.to_le_bytes());
        } else {
            side::put_half(&mut row, layout.norm, gamma);
        }
        if let Some((signs, residual)) = layout.sketch {
            let mut rest = rest(x, polar, coded);
            side::put_half(&mut row, residual, norm(&rest));
            sketch.apply(&mut rest);
            for (i, &r) in rest.iter().enumerate() {
                put_bits(&mut row[signs..], i, u8::from(r >= 0.0));
            }
        }
        Ok(row)
    }
}

/// What the codes leave of a row's direction.
fn rest(x: &[f32], polar: &Polar, coded: Coded) -> Vec<f32> {
    let inverse = if coded.norm > 0.0 { 1.0 / coded.norm } else { 0.0 };
    let direction = polar.decode(&Coded { norm: 1.0, ..coded }, Scale::Raw);
    x.iter().zip(direction).map(|(x, d)| x * inverse - d).collect()
}

/// `n` bits from bit `at` on.
fn bits(bytes: &[u8], at: usize, n: usize) -> usize {
    (0..n).map(|b| usize::from(bytes[(at + b) / 8] >> ((at + b) % 8) & 1) << b).sum()
}

/// Sets bits from bit `at` on, where none are set.
fn put_bits(bytes: &mut [u8], at: usize, code: u8) {
    for b in (0..8).filter(|b| code >> b & 1 == 1) {
        bytes[(at + b) / 8] |= 1 << ((at + b) % 8);
    }
}
