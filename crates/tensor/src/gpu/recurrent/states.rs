//! Slots of recurrent states in a GPU's memory, and what a step does with them.

use crate::{
    RecurrentCut, RecurrentRun, Result, TensorError,
    gpu::{Buffer, Gpu, Launch, Operand, count, params},
};
use std::ops::Range;

params!(
    /// A run as kernels read it.
    StateRun { row: u32, rows: u32, from: u32, cut: u32, cuts: u32 }
);
params!(
    /// A cut of a run as kernels read it.
    StateCut { rows: u32, slot: u32 }
);
params!(
    /// Parameters of `copy_state`.
    CopyStateParams { from: u32, to: u32, n: u32 }
);
params!(
    /// Parameters of `watch_state`.
    WatchStateParams { slot: u32, n: u32, threads: u32 }
);

/// The slot of a state that is zero.
const NO_SLOT: u32 = u32::MAX;
const THREADS: u32 = 256;
/// Threadgroups that look at a state.
const WATCHERS: u32 = 64;
const OP: &str = "recurrent states";

/// Slots of equal length, one after the other. What is in one that nothing wrote is undefined.
#[derive(Debug)]
pub struct StateSlots {
    buffer: Buffer,
    slots: usize,
    len: usize,
}

impl StateSlots {
    /// Room for `slots` states of `len` elements over all layers.
    ///
    /// # Errors
    /// There is not so much memory.
    pub fn new(gpu: &Gpu, slots: usize, len: usize) -> Result<Self> {
        count(OP, len)?;
        let buffer = gpu.allocate(slots.saturating_mul(len).saturating_mul(4))?;
        Ok(Self { buffer, slots, len })
    }

    /// Copies one slot's state into another.
    ///
    /// # Errors
    /// There are not so many slots, or the GPU's.
    pub fn copy(&self, from: usize, to: usize) -> Result<()> {
        let params =
            CopyStateParams { from: self.slot(from)?, to: self.slot(to)?, n: self.len as u32 };
        self.buffer.gpu().launch(&Launch {
            family: "states",
            kernel: "copy_state",
            grid: [params.n.div_ceil(THREADS), 1, 1],
            threads: THREADS,
            operands: &[Operand::Out(&self.buffer, 0)],
            params: bytemuck::bytes_of(&params),
        })
    }

    /// Whether all elements of a slot are finite; waits for it.
    ///
    /// # Errors
    /// There is no such slot, or the GPU's.
    pub fn is_finite(&self, slot: usize) -> Result<bool> {
        let gpu = self.buffer.gpu();
        let out = gpu.temporary(4 * WATCHERS as usize)?;
        let threads = THREADS * WATCHERS;
        let params = WatchStateParams { slot: self.slot(slot)?, n: self.len as u32, threads };
        gpu.launch(&Launch {
            family: "states",
            kernel: "watch_state",
            grid: [WATCHERS, 1, 1],
            threads: THREADS,
            operands: &[Operand::In(&self.buffer, 0), Operand::Out(&out, 0)],
            params: bytemuck::bytes_of(&params),
        })?;
        Ok(out.read::<f32>(0, WATCHERS as usize)?.iter().all(|x| x.is_finite()))
    }

    fn slot(&self, slot: usize) -> Result<u32> {
        match slot < self.slots {
            true => count(OP, slot),
            false => Err(TensorError::Index { op: OP, index: slot, limit: self.slots }),
        }
    }
}

/// The runs of a step, in memory: launches that repeat have the same parameters.
#[derive(Debug)]
pub struct StateRuns {
    buffer: Buffer,
    runs: u32,
    /// Bytes before the cuts.
    cuts: usize,
    /// Rows of the longest run.
    longest: usize,
    /// Where the last row ends.
    end: usize,
}

impl StateRuns {
    /// Brings runs over these slots to their GPU.
    ///
    /// # Errors
    /// A slot that is not there, a run without rows, or cuts that do not lead to its end.
    pub fn new(slots: &StateSlots, runs: &[RecurrentRun]) -> Result<Self> {
        let (mut table, mut cuts) = (Vec::with_capacity(runs.len()), Vec::new());
        for run in runs {
            run.check(OP)?;
            table.push(StateRun {
                row: count(OP, run.rows.start)?,
                rows: count(OP, run.rows.len())?,
                from: run.from.map_or(Ok(NO_SLOT), |slot| slots.slot(slot))?,
                cut: count(OP, cuts.len())?,
                cuts: count(OP, run.cuts.len())?,
            });
            for &RecurrentCut { rows, slot } in &run.cuts {
                cuts.push(StateCut { rows: count(OP, rows)?, slot: slots.slot(slot)? });
            }
        }
        let bytes: Vec<u8> = [bytemuck::cast_slice(&table), bytemuck::cast_slice(&cuts)].concat();
        let rows = || runs.iter().map(|run| run.rows.clone());
        Ok(Self {
            buffer: slots.buffer.gpu().upload(&bytes)?,
            runs: count(OP, runs.len())?,
            cuts: size_of_val(table.as_slice()),
            longest: rows().map(|rows| rows.len()).max().unwrap_or(0),
            end: rows().map(|rows| rows.end).max().unwrap_or(0),
        })
    }
}

/// A layer's states on a GPU, and the runs of a step over them.
#[derive(Debug, Clone, Copy)]
pub struct GpuStates<'a> {
    slots: &'a StateSlots,
    runs: &'a StateRuns,
    first: usize,
    len: usize,
}

impl<'a> GpuStates<'a> {
    /// The states of a layer that has these elements of each slot.
    ///
    /// # Errors
    /// The elements are not all there.
    pub fn new(slots: &'a StateSlots, runs: &'a StateRuns, layer: Range<usize>) -> Result<Self> {
        match layer.end <= slots.len {
            true => Ok(Self { slots, runs, first: layer.start, len: layer.len() }),
            false => Err(TensorError::Index { op: OP, index: layer.end, limit: slots.len }),
        }
    }

    /// Checks that runs are rows of a step of `t`, and a layer's state `len` long.
    pub(crate) fn check(&self, op: &'static str, t: usize, len: usize) -> Result<()> {
        match self.len == len && self.runs.end <= t {
            true => Ok(()),
            false => {
                let expected = format!("rows of {t} and a state of {len}");
                Err(TensorError::shape(op, expected, &[self.runs.end, self.len]))
            }
        }
    }

    /// Runs there are.
    pub(crate) fn count(&self) -> u32 {
        self.runs.runs
    }

    /// Rows of the longest run.
    pub(crate) fn longest(&self) -> usize {
        self.runs.longest
    }

    /// Rows of a run, a power of two of at most `most`, that threads take at a time.
    pub(crate) fn rows_at_a_time(&self, most: usize) -> u32 {
        self.runs.longest.next_power_of_two().min(most) as u32
    }

    /// Elements from one slot to the next.
    pub(crate) fn stride(&self) -> u32 {
        self.slots.len as u32
    }

    /// The runs, their cuts, and the layer's states after so many elements.
    pub(crate) fn operands(&self, skipped: usize) -> [Operand<'a>; 3] {
        [
            Operand::In(&self.runs.buffer, 0),
            Operand::In(&self.runs.buffer, self.runs.cuts),
            Operand::Out(&self.slots.buffer, 4 * (self.first + skipped)),
        ]
    }
}
