//! Apple GPUs: the device under [`Unified`], which decides what is sent and waited for.
//!
//! Compiled and linted for this target on Linux, and not yet run: see docs/metal.md.

mod kernels;
mod residency;

use crate::{
    Result, TensorError,
    gpu::{
        Gpu, Launch, Memory, Pages,
        unified::{Device, Unified},
    },
};
use kernels::{Ahead, Kernels};
use objc2::{
    rc::{Retained, autoreleasepool},
    runtime::ProtocolObject,
};
use objc2_metal::{
    MTLBarrierScope, MTLBlitCommandEncoder, MTLBuffer, MTLCommandBuffer, MTLCommandBufferStatus,
    MTLCommandEncoder, MTLCommandQueue, MTLComputeCommandEncoder, MTLComputePipelineState,
    MTLCopyAllDevices, MTLCreateSystemDefaultDevice, MTLDevice, MTLDispatchType, MTLGPUFamily,
    MTLResourceOptions, MTLSize,
};
use residency::Residency;
use std::{
    ffi::c_void,
    fmt,
    path::Path,
    ptr::NonNull,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

type Object<T> = Retained<ProtocolObject<T>>;

/// Bytes of a page of memory: Apple silicon's, or an older Mac's.
const PAGE: usize = if cfg!(target_arch = "aarch64") { 16 << 10 } else { 4 << 10 };

// Without this framework a program of the command line has no default device.
#[link(name = "CoreGraphics", kind = "framework")]
unsafe extern "C" {}

/// A device and its queue.
struct Metal {
    device: Object<dyn MTLDevice>,
    queue: Object<dyn MTLCommandQueue>,
    kernels: Arc<Kernels>,
    /// Held for its end.
    _ahead: Ahead,
    residency: Residency,
}

// SAFETY: devices, queues, libraries and pipelines may be used from any thread; the residency set is
// behind a lock.
unsafe impl Send for Metal {}
// SAFETY: devices, queues, libraries and pipelines may be used from any thread; the residency set is
// behind a lock.
unsafe impl Sync for Metal {}

/// Memory that both sides see, and whether it is in the residency set.
#[derive(Clone)]
struct Shared(Object<dyn MTLBuffer>, bool);

// SAFETY: buffers may be used from any thread.
unsafe impl Send for Shared {}

/// A command buffer, which holds on to the buffers that it uses, and its open encoder.
struct Commands {
    buffer: Object<dyn MTLCommandBuffer>,
    encoder: Option<Object<dyn MTLComputeCommandEncoder>>,
}

// SAFETY: command buffers and encoders may be used from any thread, one at a time.
unsafe impl Send for Commands {}

impl Drop for Commands {
    /// Metal ends the process when an encoder goes that was not ended.
    fn drop(&mut self) {
        if let Some(encoder) = self.encoder.take() {
            encoder.endEncoding();
        }
    }
}

fn failed(what: &'static str, message: impl fmt::Display) -> TensorError {
    TensorError::Gpu { what, message: message.to_string() }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Gpu {
    /// The Mac's GPU, with its kernels out of a metallib or compiled when they are first used.
    ///
    /// # Errors
    /// There is none; or the metallib cannot be read, or is of other kernels than these.
    pub fn metal(metallib: Option<&Path>) -> Result<Self> {
        // Shows that .ci/metal compiles this file.
        #[cfg(planted_type_error)]
        let _: u32 = MTLCreateSystemDefaultDevice();
        let missing = || failed("find a GPU", "this Mac has no Metal device");
        // Sessions without a screen may have no default.
        let device = MTLCreateSystemDefaultDevice().or_else(|| MTLCopyAllDevices().firstObject());
        let device = device.ok_or_else(missing)?;
        if !device.supportsFamily(MTLGPUFamily::Apple7) {
            let message = format!("{} is no GPU of Apple silicon", device.name());
            return Err(failed("find a GPU", message));
        }
        let queue = device.newCommandQueue().ok_or_else(missing)?;
        let kernels = Kernels::new(&device, metallib)?;
        let residency = Residency::new(&device, &queue);
        let metal = Metal { device, queue, _ahead: kernels.compile_ahead(), kernels, residency };
        Ok(Self::new(Box::new(Unified::new(metal))))
    }
}

impl Metal {
    fn kept(&self, buffer: Object<dyn MTLBuffer>) -> Shared {
        self.residency.add(&buffer);
        Shared(buffer, true)
    }
}

impl Device for Metal {
    type Buffer = Shared;
    type Commands = Commands;
    type Pipeline = Object<dyn MTLComputePipelineState>;

    fn name(&self) -> String {
        self.device.name().to_string()
    }

    fn scope<T>(work: impl FnOnce() -> T) -> T {
        autoreleasepool(|_| work())
    }

    fn memory(&self) -> Result<Memory> {
        let total = self.device.recommendedMaxWorkingSetSize();
        let used = self.device.currentAllocatedSize() as u64;
        Ok(Memory { free: total.saturating_sub(used), total })
    }

    fn allocate(&self, bytes: usize, kept: bool) -> Result<Shared> {
        let options = MTLResourceOptions::StorageModeShared;
        let buffer = self.device.newBufferWithLength_options(bytes.max(1), options);
        let none = || failed("allocate memory", format!("no {bytes} bytes"));
        let buffer = buffer.ok_or_else(none)?;
        Ok(if kept { self.kept(buffer) } else { Shared(buffer, false) })
    }

    unsafe fn adopt(&self, pages: &Pages) -> Result<Option<Shared>> {
        let Some(start) = NonNull::new(pages.start as *mut c_void) else { return Ok(None) };
        if pages.len > self.device.maxBufferLength() {
            return Ok(None);
        }
        let options = MTLResourceOptions::StorageModeShared;
        // SAFETY: whole pages, which the caller keeps.
        let buffer = unsafe {
            self.device.newBufferWithBytesNoCopy_length_options_deallocator(
                start, pages.len, options, None,
            )
        };
        Ok(buffer.map(|buffer| self.kept(buffer)))
    }

    fn contents(&self, buffer: &Shared) -> NonNull<u8> {
        buffer.0.contents().cast()
    }

    fn release(&self, buffer: Shared) {
        if buffer.1 {
            self.residency.remove(&buffer.0);
        }
    }

    fn settle(&self) {
        self.residency.settle();
    }

    fn pipeline(&self, launch: &Launch<'_>) -> Result<Self::Pipeline> {
        self.kernels.pipeline(launch)
    }

    fn page(&self) -> usize {
        PAGE
    }

    /// Two a core. The name of the architecture ends with a letter of its size; MLX reads it too.
    fn threadgroups(&self) -> usize {
        match self.device.architecture().name().to_string().chars().last() {
            Some('p') => 16,
            Some('s') => 80,
            Some('c' | 'd') => 160,
            _ => 40,
        }
    }

    fn commands(&self) -> Result<Commands> {
        let buffer = self.queue.commandBuffer();
        let buffer = buffer.ok_or_else(|| failed("open a command buffer", "none is left"))?;
        Ok(Commands { buffer, encoder: None })
    }

    fn open_encoder(&self, commands: &mut Commands) -> Result<()> {
        let kind = MTLDispatchType::Concurrent;
        let encoder = commands.buffer.computeCommandEncoderWithDispatchType(kind);
        commands.encoder = Some(encoder.ok_or_else(|| failed("open an encoder", "none is left"))?);
        Ok(())
    }

    fn barrier(&self, commands: &mut Commands) {
        if let Some(encoder) = &commands.encoder {
            encoder.memoryBarrierWithScope(MTLBarrierScope::Buffers);
        }
    }

    fn encode(
        &self,
        commands: &mut Commands,
        pipeline: &Self::Pipeline,
        launch: &Launch<'_>,
        operands: &[(&Shared, usize)],
    ) {
        let Some(encoder) = &commands.encoder else { return };
        encoder.setComputePipelineState(pipeline);
        for (i, (buffer, offset)) in operands.iter().enumerate() {
            // SAFETY: the offset is inside the buffer.
            unsafe { encoder.setBuffer_offset_atIndex(Some(&buffer.0), *offset, i) };
        }
        let params = NonNull::from(launch.params).cast::<c_void>();
        // SAFETY: the bytes are copied before this returns.
        unsafe { encoder.setBytes_length_atIndex(params, launch.params.len(), operands.len()) };
        let [x, y, z] = launch.grid.map(|n| n as usize);
        encoder.dispatchThreadgroups_threadsPerThreadgroup(
            MTLSize { width: x, height: y, depth: z },
            MTLSize { width: launch.threads as usize, height: 1, depth: 1 },
        );
    }

    fn end_encoder(&self, commands: &mut Commands) {
        if let Some(encoder) = commands.encoder.take() {
            encoder.endEncoding();
        }
    }

    fn copy(
        &self,
        commands: &mut Commands,
        from: &Shared,
        (to, offset): (&Shared, usize),
        bytes: usize,
    ) -> Result<()> {
        let blit = commands.buffer.blitCommandEncoder();
        let blit = blit.ok_or_else(|| failed("open an encoder", "none is left"))?;
        // SAFETY: both ranges are inside their buffers, as the callers have checked.
        unsafe {
            blit.copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size(
                &from.0, 0, &to.0, offset, bytes,
            );
        }
        blit.endEncoding();
        Ok(())
    }

    fn commit(&self, commands: &mut Commands) {
        self.residency.settle();
        self.residency.used();
        commands.buffer.commit();
    }

    fn is_done(&self, commands: &Commands) -> bool {
        let status = commands.buffer.status();
        status == MTLCommandBufferStatus::Completed || status == MTLCommandBufferStatus::Error
    }

    fn wait(&self, commands: &Commands) {
        commands.buffer.waitUntilCompleted();
    }

    fn error(&self, commands: &Commands) -> Option<String> {
        let error = commands.buffer.error().map(|e| e.localizedDescription().to_string());
        let failed = commands.buffer.status() == MTLCommandBufferStatus::Error;
        error.or_else(|| failed.then(|| "the command buffer failed without a reason".into()))
    }
}

impl fmt::Debug for Metal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metal")
            .field("name", &self.name())
            .field("residency", &self.residency.exists())
            .finish_non_exhaustive()
    }
}
