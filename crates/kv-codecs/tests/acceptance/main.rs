//! What the codecs must show: distortions against theory, unbiasedness, exact sizes, golden codes,
//! and attention against a float reference. Figures are those of the papers, or follow from the
//! stated integrals; tolerances are about five standard errors.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod attention;
mod codebooks;
mod distortion;
mod foreign;
mod golden;
mod paged;
mod rotations;
mod sketch;
mod support;
mod trellis;
