//! One run of a kernel.

use super::{Buffer, Gpu};
use crate::Result;

/// A buffer of a launch, from a byte on, and what the kernel does with it. Metal orders launches by
/// these marks: an output that is not marked would be a race.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Operand<'a> {
    /// Only read.
    In(&'a Buffer, usize),
    /// Only written.
    Out(&'a Buffer, usize),
}

impl Operand<'_> {
    pub(crate) fn buffer(&self) -> &Buffer {
        match self {
            Self::In(buffer, _) | Self::Out(buffer, _) => buffer,
        }
    }

    pub(crate) fn offset(&self) -> usize {
        match self {
            Self::In(_, offset) | Self::Out(_, offset) => *offset,
        }
    }

    #[allow(dead_code, reason = "what a backend needs of it depends on the backend")]
    pub(crate) fn is_written(&self) -> bool {
        matches!(self, Self::Out(..))
    }
}

impl<'a> Operand<'a> {
    /// The operand, so many bytes later.
    fn after(self, bytes: usize) -> Self {
        match self {
            Self::In(buffer, at) => Self::In(buffer, at + bytes),
            Self::Out(buffer, at) => Self::Out(buffer, at + bytes),
        }
    }
}

/// One run of a kernel. Its buffers come in the order of the kernel's arguments; the parameters are
/// the argument after the last buffer.
#[derive(Debug)]
pub(crate) struct Launch<'a> {
    /// The file under `kernels/` that has it.
    #[allow(dead_code, reason = "the host runner has all files in one library")]
    pub(crate) family: &'static str,
    pub(crate) kernel: &'a str,
    /// Threadgroups.
    pub(crate) grid: [u32; 3],
    /// Threads of one, a multiple of 32.
    pub(crate) threads: u32,
    pub(crate) operands: &'a [Operand<'a>],
    pub(crate) params: &'a [u8],
}

impl Launch<'_> {
    /// Runs a kernel of about so many multiply-adds whose threadgroups go over tiles, in as many launches as
    /// the GPU wants. The tiles are an operand's, of so many bytes each.
    pub(crate) fn over_tiles(
        &self,
        gpu: &Gpu,
        (operand, bytes): (usize, usize),
        work: usize,
    ) -> Result<()> {
        let [tiles, y, z] = self.grid;
        let parts = (work as u64).div_ceil(gpu.most_work()).clamp(1, u64::from(tiles.max(1)));
        if parts == 1 {
            return gpu.launch_work(self, work);
        }
        let step = tiles.div_ceil(parts as u32);
        for first in (0..tiles).step_by(step as usize) {
            let mut operands = self.operands.to_vec();
            operands[operand] = operands[operand].after(first as usize * bytes);
            let grid = [step.min(tiles - first), y, z];
            gpu.launch_work(&Launch { grid, operands: &operands, ..*self }, work / parts as usize)?;
        }
        Ok(())
    }
}

/// A kernel's parameters as it reads them: `u32` and `f32` fields in the kernel's order. `cargo xtask
/// kernels` compares names and types with the struct of the same name in the MSL source.
macro_rules! params {
    ($(#[$meta:meta])* $name:ident { $($field:ident: $type:ident),* $(,)? }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, Default, bytemuck::Pod, bytemuck::Zeroable)]
        #[repr(C)]
        pub(crate) struct $name {
            $(pub(crate) $field: $type,)*
        }

        impl $name {
            /// Name of the struct, and name and type of each field.
            pub(crate) const LAYOUT: (&'static str, &'static [(&'static str, &'static str)]) =
                (stringify!($name), &[$((stringify!($field), stringify!($type))),*]);
        }
    };
}
pub(crate) use params;
