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
}

/// Launches that the driver knows as one.
#[derive(Debug)]
pub(super) struct Graph(sys::CUgraphExec);

impl Stream for Sender {
    type Graph = Graph;

    fn run(&self, run: &Run) -> std::result::Result<(), DriverError> {
        for launch in run.launches() {
            let mut operands = launch.operands.to_vec();
            let operands = operands.iter_mut().map(|p| std::ptr::from_mut(p).cast());
            let mut arguments: Vec<*mut c_void> = operands.collect();
            arguments.push(launch.params.as_ptr().cast_mut().cast());
            let shape = (launch.grid, launch.threads);
            // SAFETY: the arguments are those of the kernel, which the checks of every kernel show;
            // the driver copies them before it returns.
            unsafe {
                overlap::launch(
                    launch.function,
                    shape,
                    self.stream,
                    &mut arguments,
                    self.overlaps,
                )?;
            }
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
