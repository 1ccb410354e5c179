//! What is in the slots, on the host or on a GPU.

use std::ops::Range;
use taper_tensor::{
    RecurrentCut, RecurrentRun, RecurrentSegment, Result, RunSegments, Segments, TensorError,
    gpu::{Gpu, GpuStates, StateRuns, StateSlots},
};

/// Index of a slot.
pub(super) type Slot = usize;

/// Slots with the states of all layers.
#[derive(Debug)]
pub(super) enum Contents {
    /// Empty while a slot was never used.
    Host(Vec<Vec<f32>>),
    Gpu(OnGpu),
}

/// Slots in a GPU's memory, which is taken as a whole when the first is used.
#[derive(Debug)]
pub(super) struct OnGpu {
    gpu: Gpu,
    slots: usize,
    len: usize,
    there: Option<StateSlots>,
    /// The runs of the step that is open.
    runs: Option<StateRuns>,
}

impl Contents {
    /// `slots` of `len` elements each.
    pub(super) fn new(slots: usize, len: usize, gpu: Option<&Gpu>) -> Self {
        match gpu {
            Some(gpu) => {
                let (gpu, there, runs) = (gpu.clone(), None, None);
                Self::Gpu(OnGpu { gpu, slots, len, there, runs })
            }
            None => Self::Host(vec![Vec::new(); slots]),
        }
    }

    /// Copies a slot's state into another.
    pub(super) fn copy(&mut self, from: Slot, to: Slot) -> Result<()> {
        match self {
            Self::Host(slots) => {
                slots[to] = slots[from].clone();
                Ok(())
            }
            Self::Gpu(own) => own.there()?.copy(from, to),
        }
    }

    /// Opens a step of these runs.
    pub(super) fn begin(&mut self, runs: &[RecurrentRun], len: usize) -> Result<()> {
        match self {
            Self::Host(slots) => {
                for RecurrentCut { slot, .. } in runs.iter().flat_map(|run| &run.cuts) {
                    slots[*slot].resize(len, 0.0);
                }
                Ok(())
            }
            Self::Gpu(own) => {
                let runs = StateRuns::new(own.there()?, runs)?;
                own.runs = Some(runs);
                Ok(())
            }
        }
    }

    /// Runs a layer, which has these elements of each slot, over the step's runs.
    pub(super) fn run(
        &mut self,
        layer: &Range<usize>,
        runs: &[RecurrentRun],
        f: &mut RunSegments<'_>,
    ) -> Result<()> {
        match self {
            Self::Host(slots) => run_on_host(slots, layer, runs, f),
            Self::Gpu(OnGpu { there: Some(there), runs: Some(runs), .. }) => {
                f(Segments::Gpu(GpuStates::new(there, runs, layer.clone())?))
            }
            Self::Gpu(_) => {
                let message = "no step is open".to_owned();
                Err(TensorError::Gpu { what: "run a recurrent layer", message })
            }
        }
    }

    /// Whether a slot's state is finite. What a GPU tells nothing of counts as not finite.
    pub(super) fn is_finite(&self, slot: Slot) -> bool {
        match self {
            Self::Host(slots) => slots[slot].iter().all(|x| x.is_finite()),
            Self::Gpu(own) => {
                own.there.as_ref().is_some_and(|there| there.is_finite(slot).unwrap_or(false))
            }
        }
    }

    /// Gives the memory of a slot without contents back to the system; a GPU keeps its own.
    pub(super) fn discard(&mut self, slot: Slot) {
        if let Self::Host(slots) = self {
            slots[slot] = Vec::new();
        }
    }
}

impl OnGpu {
    fn there(&mut self) -> Result<&StateSlots> {
        Ok(match &mut self.there {
            Some(there) => there,
            none => none.insert(StateSlots::new(&self.gpu, self.slots, self.len)?),
        })
    }
}

/// Runs a layer from cut to cut: a run's parts come one after the other, those of different runs together. A state
/// stays in the slot of its run's end.
fn run_on_host(
    slots: &mut [Vec<f32>],
    layer: &Range<usize>,
    runs: &[RecurrentRun],
    f: &mut RunSegments<'_>,
) -> Result<()> {
    let mut open: Vec<_> = runs.iter().filter_map(|run| Open::new(slots, layer, run)).collect();
    let most = runs.iter().map(|run| run.cuts.len()).max().unwrap_or(0);
    let result = (0..most).try_for_each(|cut| {
        let parts = open.iter_mut().filter_map(|open| open.part(layer, cut));
        let mut segments: Vec<_> = parts.filter(|part| !part.rows.is_empty()).collect();
        if !segments.is_empty() {
            f(Segments::Host(&mut segments))?;
        }
        for Open { run, own, state } in &open {
            let to = run.cuts.get(cut).map(|cut| cut.slot).filter(|slot| slot != own);
            if let Some(to) = to {
                slots[to][layer.clone()].copy_from_slice(&state[layer.clone()]);
            }
        }
        Ok(())
    });
    open.into_iter().for_each(|Open { own, state, .. }| slots[own] = state);
    result
}

/// A run that a layer goes over.
#[derive(Debug)]
struct Open<'a> {
    run: &'a RecurrentRun,
    own: Slot,
    /// The slot's contents while the layer runs.
    state: Vec<f32>,
}

impl<'a> Open<'a> {
    fn new(slots: &mut [Vec<f32>], layer: &Range<usize>, run: &'a RecurrentRun) -> Option<Self> {
        let own = run.cuts.last()?.slot;
        let mut state = std::mem::take(&mut slots[own]);
        if run.from.is_none() {
            state[layer.clone()].fill(0.0);
        }
        Some(Self { run, own, state })
    }

    /// The rows up to a cut.
    fn part(&mut self, layer: &Range<usize>, cut: usize) -> Option<RecurrentSegment<'_>> {
        let end = self.run.cuts.get(cut)?.rows;
        let start = cut.checked_sub(1).map_or(0, |before| self.run.cuts[before].rows);
        let first = self.run.rows.start;
        let rows = first + start..first + end;
        Some(RecurrentSegment { rows, state: &mut self.state[layer.clone()] })
    }
}
