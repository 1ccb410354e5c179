//! The way of launches to the GPU.

use super::{
    overlap,
    replay::{Run, Stream},
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

impl Stream for Sender {
    type Graph = Graph;

    fn run(&self, run: &Run) -> std::result::Result<(), DriverError> {
        // What launches beside the others guard, until these have waited for them.
        let mut guarded: Vec<u64> = Vec::new();
        let join = || Aside::follow(self.aside.joins, self.aside.stream, self.stream);
        for launch in run.launches() {
            let mut operands = launch.operands.to_vec();
            if operands.iter().any(|at| guarded.contains(at)) {
                join()?;
                guarded.clear();
            }
            let is_aside = !launch.guarded.is_empty();
            if is_aside {
                Aside::follow(self.aside.forks, self.stream, self.aside.stream)?;
                guarded.extend(launch.guarded);
            }
            let operands = operands.iter_mut().map(|p| std::ptr::from_mut(p).cast());
            let mut arguments: Vec<*mut c_void> = operands.collect();
            arguments.push(launch.params.as_ptr().cast_mut().cast());
            let shape = (launch.grid, launch.threads);
            let (stream, overlaps) = match is_aside {
                true => (self.aside.stream, false),
                false => (self.stream, self.overlaps),
            };
            // SAFETY: the arguments are those of the kernel, which the checks of every kernel show;
            // the driver copies them before it returns.
            unsafe {
                overlap::launch(launch.function, shape, stream, &mut arguments, overlaps)?;
            }
        }
        if !guarded.is_empty() {
            join()?;
        }
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
