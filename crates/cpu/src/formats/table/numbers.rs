//! Small floating-point numbers, by their bytes.

/// The sixteen numbers of E2M1, the elements of MXFP4 and NVFP4 (OCP Microscaling Formats 1.0): a sign,
/// two bits of exponent and one of mantissa.
pub const E2M1: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// E4M3 without infinities (OCP 8-bit Floating Point 1.0): a sign, four bits of exponent with bias 7
/// and three of mantissa. The largest number is 448; `0x7f` and `0xff` are no numbers.
#[must_use]
pub fn e4m3(byte: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(byte >> 3 & 15), f32::from(byte & 7));
    let size = match (exponent, byte & 7) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa / 512.0,
        _ => (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7),
    };
    if byte & 0x80 == 0 { size } else { -size }
}

/// E8M0, the scales of the MX formats: `2^(byte - 127)`, where 255 is no number.
#[must_use]
pub fn e8m0(byte: u8) -> f32 {
    match byte {
        255 => f32::NAN,
        // Below the normal numbers, whose exponent would be this byte.
        0 => f32::from_bits(1 << 22),
        _ => f32::from_bits(u32::from(byte) << 23),
    }
}
