//! Launches that repeat, as CUDA graphs.
//!
//! A launch takes the host some microseconds, often longer than the kernel runs. One step of
//! decoding launches what the step before it launched: the same kernels, over the same memory, with
//! the same parameters (what differs from token to token lies in memory). So launches are collected
//! into runs, and a run that occurs again becomes a graph, which the driver launches as a whole.
//! Work stays in order: whoever copies, waits or frees flushes first.

use crate::gpu::Launch;
use cudarc::driver::{result::DriverError, sys};

/// Launches of the first run after a wait: the GPU is idle, and should begin soon. Each full run is
/// followed by one that may be twice as long.
const FIRST: usize = 16;
/// Most launches of a run.
const LONGEST: usize = 256;
/// Shorter runs are not worth a graph.
const SHORTEST: usize = 8;
/// Runs that are remembered.
const KEPT: usize = 32;

/// A launch of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Call {
    function: sys::CUfunction,
    grid: [u32; 3],
    threads: u32,
    /// Where the addresses, the bytes of its parameters and the guarded addresses end.
    operands: usize,
    params: usize,
    guarded: usize,
}

/// Launches, one after the other.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Run {
    calls: Vec<Call>,
    operands: Vec<u64>,
    params: Vec<u8>,
    guarded: Vec<u64>,
}

/// A launch as it was asked for: addresses of its buffers, and the bytes of its parameters.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Recorded<'a> {
    pub(super) function: sys::CUfunction,
    pub(super) grid: [u32; 3],
    pub(super) threads: u32,
    pub(super) operands: &'a [u64],
    pub(super) params: &'a [u8],
    /// Buffers that no later launch may have while this one runs beside it; none: it does not.
    pub(super) guarded: &'a [u64],
}

impl Run {
    fn push(&mut self, function: sys::CUfunction, launch: &Launch<'_>, guarded: &[u64]) {
        let at = |o: &crate::gpu::Operand<'_>| o.buffer().handle().0 + o.offset() as u64;
        self.operands.extend(launch.operands.iter().map(at));
        self.params.extend_from_slice(launch.params);
        self.guarded.extend_from_slice(guarded);
        self.calls.push(Call {
            function,
            grid: launch.grid,
            threads: launch.threads,
            operands: self.operands.len(),
            params: self.params.len(),
            guarded: self.guarded.len(),
        });
    }

    /// Its launches, in order.
    pub(super) fn launches(&self) -> impl Iterator<Item = Recorded<'_>> {
        let (mut operands, mut params, mut guarded) = (0, 0, 0);
        self.calls.iter().map(move |call| {
            let own = (operands..call.operands, params..call.params, guarded..call.guarded);
            (operands, params, guarded) = (call.operands, call.params, call.guarded);
            Recorded {
                function: call.function,
                grid: call.grid,
                threads: call.threads,
                operands: &self.operands[own.0],
                params: &self.params[own.1],
                guarded: &self.guarded[own.2],
            }
        })
    }
}

/// What runs go to.
pub(super) trait Stream {
    /// Launches of a run as one, until it is dropped.
    type Graph;

    /// Launches a run, one by one.
    fn run(&self, run: &Run) -> Result<(), DriverError>;

    /// Makes a graph of a run without running it.
    fn capture(&self, run: &Run) -> Result<Self::Graph, DriverError>;

    /// Runs a graph.
    fn replay(&self, graph: &Self::Graph) -> Result<(), DriverError>;
}

/// Launches that wait to be sent, and runs that were sent before.
#[derive(Debug)]
pub(super) struct Replay<G> {
    pending: Run,
    /// When `pending` is full.
    limit: usize,
    /// The one used last comes last. A graph is made when a run comes a second time.
    known: Vec<(Run, Option<G>)>,
    /// The driver made no graph of a run, so it is not asked again.
    refused: bool,
}

impl<G> Default for Replay<G> {
    fn default() -> Self {
        Self { pending: Run::default(), limit: FIRST, known: Vec::new(), refused: false }
    }
}

impl<G> Replay<G> {
    /// Adds a launch, which may run beside others if it guards buffers; a full run is sent.
    pub(super) fn push<S: Stream<Graph = G>>(
        &mut self,
        stream: &S,
        function: sys::CUfunction,
        launch: &Launch<'_>,
        guarded: &[u64],
    ) -> Result<(), DriverError> {
        self.pending.push(function, launch, guarded);
        if self.pending.calls.len() < self.limit {
            return Ok(());
        }
        self.limit = LONGEST.min(2 * self.limit);
        self.flush(stream)
    }

    /// Sends the queued launches, for a caller that waits for them.
    pub(super) fn settle<S: Stream<Graph = G>>(&mut self, stream: &S) -> Result<(), DriverError> {
        self.limit = FIRST;
        self.flush(stream)
    }

    /// Sends what waits.
    pub(super) fn flush<S: Stream<Graph = G>>(&mut self, stream: &S) -> Result<(), DriverError> {
        if self.pending.calls.is_empty() {
            return Ok(());
        }
        let run = std::mem::take(&mut self.pending);
        if run.calls.len() < SHORTEST || self.refused {
            return stream.run(&run);
        }
        let Some(known) = self.known.iter().position(|(known, _)| *known == run) else {
            if self.known.len() == KEPT {
                self.known.remove(0);
            }
            let sent = stream.run(&run);
            self.known.push((run, None));
            return sent;
        };
        let graph = match self.known.remove(known).1 {
            Some(graph) => Ok(graph),
            None => stream.capture(&run),
        };
        let Ok(graph) = graph else {
            self.refused = true;
            return stream.run(&run);
        };
        let sent = stream.replay(&graph);
        self.known.push((run, Some(graph)));
        sent
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    /// Writes down what it is asked for: letters of functions, and how.
    #[derive(Default)]
    struct Fake {
        said: RefCell<Vec<String>>,
        refuses: bool,
    }

    fn letters(run: &Run) -> String {
        run.launches().map(|l| char::from(l.function as usize as u8)).collect()
    }

    impl Stream for Fake {
        type Graph = String;

        fn run(&self, run: &Run) -> Result<(), DriverError> {
            self.said.borrow_mut().push(letters(run));
            Ok(())
        }

        fn capture(&self, run: &Run) -> Result<String, DriverError> {
            let unsupported = DriverError(sys::cudaError_enum::CUDA_ERROR_NOT_SUPPORTED);
            if self.refuses { Err(unsupported) } else { Ok(letters(run)) }
        }

        fn replay(&self, graph: &String) -> Result<(), DriverError> {
            self.said.borrow_mut().push(format!("[{graph}]"));
            Ok(())
        }
    }

    fn step(replay: &mut Replay<String>, stream: &Fake, launches: &str, params: &[u8]) {
        for letter in launches.bytes() {
            let launch =
                Launch { family: "", kernel: "", grid: [1; 3], threads: 32, operands: &[], params };
            let function = usize::from(letter) as sys::CUfunction;
            replay.push(stream, function, &launch, &[]).unwrap();
        }
        replay.settle(stream).unwrap();
    }

    #[test]
    fn what_comes_again_is_a_graph() {
        let (mut replay, stream) = (Replay::default(), Fake::default());
        for params in [b"1", b"1", b"2", b"1", b"2"] {
            step(&mut replay, &stream, "abcdefgh", params);
        }
        let said = ["abcdefgh", "[abcdefgh]", "abcdefgh", "[abcdefgh]", "[abcdefgh]"];
        assert_eq!(*stream.said.borrow(), said);
    }

    #[test]
    fn runs_grow_and_short_ones_are_sent_as_they_are() {
        let (mut replay, stream) = (Replay::default(), Fake::default());
        let all = "a".repeat(16) + &"b".repeat(32) + "ccc";
        step(&mut replay, &stream, &all, &[]);
        step(&mut replay, &stream, &all, &[]);
        let lengths: Vec<_> = stream.said.borrow().iter().map(String::len).collect();
        assert_eq!(lengths, [16, 32, 3, 18, 34, 3]);
    }

    #[test]
    fn parameters_and_operands_stay_with_their_launch() {
        let (mut run, params) = (Run::default(), [[1u8, 2], [3, 4]]);
        for params in &params {
            let (family, kernel, operands) = ("", "", &[][..]);
            let launch = Launch { family, kernel, grid: [2, 1, 1], threads: 64, operands, params };
            run.push(std::ptr::null_mut(), &launch, &[7]);
        }
        let got: Vec<_> = run.launches().map(|l| l.params.to_vec()).collect();
        assert_eq!(got, params);
        assert!(run.launches().all(|l| l.guarded == [7]));
    }

    #[test]
    fn a_driver_without_graphs_still_runs_everything() {
        let (mut replay, stream) = (Replay::default(), Fake { refuses: true, ..Fake::default() });
        for _ in 0..3 {
            step(&mut replay, &stream, "abcdefgh", &[]);
        }
        assert_eq!(*stream.said.borrow(), ["abcdefgh"; 3]);
    }

    #[test]
    fn old_runs_are_forgotten() {
        let (mut replay, stream) = (Replay::default(), Fake::default());
        for i in 0..=KEPT as u8 {
            step(&mut replay, &stream, "abcdefgh", &[i]);
        }
        assert_eq!(replay.known.len(), KEPT);
        step(&mut replay, &stream, "abcdefgh", &[0]);
        assert_eq!(stream.said.borrow().last().map(String::as_str), Some("abcdefgh"));
    }
}
