//! The way of launches to the GPU.

use super::{
    overlap,
    replay::{Recorded, Run, Stream},
};
use cudarc::driver::{
    result::{self as cu, DriverError},
    sys,
};
use std::ffi::c_void;

/// How launches reach the GPU.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sender {
    pub(super) stream: sys::CUstream,
    /// Whether a launch may start before the one before it is done.
    pub(super) overlaps: bool,
    pub(super) aside: Aside,
}

/// A second stream, for launches that run beside those of the first one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Aside {
    stream: sys::CUstream,
    /// Where it leaves the first stream, and where it comes back.
    forks: sys::CUevent,
    joins: sys::CUevent,
}

impl Aside {
    pub(super) fn open() -> std::result::Result<Self, DriverError> {
        let event = || cu::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING);
        let stream = cu::stream::create(cu::stream::StreamKind::NonBlocking)?;
        Ok(Self { stream, forks: event()?, joins: event()? })
    }

    /// # Safety
    /// It is used no more.
    pub(super) unsafe fn close(self) {
        // SAFETY: as the caller says.
        let _ = unsafe {
            cu::stream::destroy(self.stream)
                .and(cu::event::destroy(self.forks))
                .and(cu::event::destroy(self.joins))
        };
    }

    /// One stream waits for what the other one has been given.
    fn follow(
        event: sys::CUevent,
        from: sys::CUstream,
        to: sys::CUstream,
    ) -> std::result::Result<(), DriverError> {
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: both streams and the event live as long as the GPU.
        unsafe {
            cu::event::record(event, from)?;
            cu::stream::wait_event(to, event, flags)
        }
    }
}

/// Launches that the driver knows as one.
#[derive(Debug)]
pub(super) struct Graph(sys::CUgraphExec);

/// Launches that go to the second stream together: each parting keeps the first one from beginning its next launch
/// early.
const TOGETHER: usize = 8;

/// What runs beside the first stream's launches, or is about to.
#[derive(Default)]
struct Beside<'a> {
    waiting: Vec<Recorded<'a>>,
    /// Buffers that the first stream may have only after it has waited.
    guarded: Vec<u64>,
}

impl Sender {
    fn send(
        &self,
        launch: &Recorded<'_>,
        stream: sys::CUstream,
        overlaps: bool,
    ) -> std::result::Result<(), DriverError> {
        let mut operands = launch.operands.to_vec();
        let operands = operands.iter_mut().map(|p| std::ptr::from_mut(p).cast());
        let mut arguments: Vec<*mut c_void> = operands.collect();
        arguments.push(launch.params.as_ptr().cast_mut().cast());
        let shape = (launch.grid, launch.threads);
        // SAFETY: the arguments are those of the kernel, which the checks of every kernel show;
        // the driver copies them before it returns.
        unsafe { overlap::launch(launch.function, shape, stream, &mut arguments, overlaps) }
    }

    /// Sends what waits to the second stream, after all that the first one has.
    fn fork(&self, beside: &mut Beside<'_>) -> std::result::Result<(), DriverError> {
        if beside.waiting.is_empty() {
            return Ok(());
        }
        Aside::follow(self.aside.forks, self.stream, self.aside.stream)?;
        beside.waiting.drain(..).try_for_each(|launch| self.send(&launch, self.aside.stream, false))
    }

    /// The first stream waits for all that runs beside it.
    fn join(&self, beside: &mut Beside<'_>) -> std::result::Result<(), DriverError> {
        self.fork(beside)?;
        match std::mem::take(&mut beside.guarded).is_empty() {
            true => Ok(()),
            false => Aside::follow(self.aside.joins, self.aside.stream, self.stream),
        }
    }
}

impl Stream for Sender {
    type Graph = Graph;

    fn run(&self, run: &Run) -> std::result::Result<(), DriverError> {
        let mut beside = Beside::default();
        for launch in run.launches() {
            if launch.operands.iter().any(|at| beside.guarded.contains(at)) {
                self.join(&mut beside)?;
            }
            if launch.guarded.is_empty() {
                self.send(&launch, self.stream, self.overlaps)?;
                continue;
            }
            beside.guarded.extend(launch.guarded);
            beside.waiting.push(launch);
            if beside.waiting.len() == TOGETHER {
                self.fork(&mut beside)?;
            }
        }
        self.join(&mut beside)?;
        Ok(())
    }

    fn capture(&self, run: &Run) -> std::result::Result<Graph, DriverError> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream lives as long as the GPU, a capture that was begun is ended, and the
        // graph is not needed once it is instantiated.
        let graph = unsafe {
            cu::stream::begin_capture(self.stream, mode)?;
            let sent = self.run(run);
            let graph = cu::stream::end_capture(self.stream)?;
            let flags = sys::CUgraphInstantiate_flags(0);
            let made = sent.and_then(|()| cu::graph::instantiate(graph, flags));
            cu::graph::destroy(graph)?;
            made
        };
        graph.map(Graph)
    }

    fn replay(&self, graph: &Graph) -> std::result::Result<(), DriverError> {
        // SAFETY: the graph lives; its memory does too, or this run would be another.
        unsafe { cu::graph::launch(graph.0, self.stream) }
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: it is launched no more; the driver waits for what runs of it.
        let _ = unsafe { cu::graph::exec_destroy(self.0) };
    }
}
