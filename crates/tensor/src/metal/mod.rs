//! Apple GPUs.
//!
//! The kernels' MSL is compiled when a family is first used, into a library and pipelines of our own,
//! or comes compiled from a metallib.
//! Launches of a step go into one command buffer, to a concurrent encoder: a barrier stands before a
//! launch that reads what an earlier one writes, or writes what an earlier one uses, as the launches'
//! operands say. The host waits when it reads a result, once a step.
//!
//! Compiled and linted for this target on Linux, and not yet run: see docs/metal.md.

use crate::{
    Bytes, Result, TensorError,
    gpu::{Backend, Gpu, Handle, Hazards, Launch, Memory, Pages},
};
use objc2::{
    rc::{Retained, autoreleasepool},
    runtime::ProtocolObject,
};
use objc2_foundation::{NSString, NSURL};
use objc2_metal::{
    MTLBarrierScope, MTLBlitCommandEncoder, MTLBuffer, MTLCommandBuffer, MTLCommandEncoder,
    MTLCommandQueue, MTLCompileOptions, MTLComputeCommandEncoder, MTLComputePipelineDescriptor,
    MTLComputePipelineState, MTLCopyAllDevices, MTLCreateSystemDefaultDevice, MTLDevice,
    MTLDispatchType, MTLGPUFamily, MTLLanguageVersion, MTLLibrary, MTLPipelineOption,
    MTLResourceOptions, MTLSize,
};
use std::{
    collections::HashMap,
    ffi::c_void,
    fmt,
    path::Path,
    ptr::NonNull,
    sync::{Mutex, MutexGuard, PoisonError},
};

type Object<T> = Retained<ProtocolObject<T>>;

/// Launches after which a command buffer is sent off, so that the GPU starts while the host goes on: the
/// first since the host waited, and later ones.
const LAUNCHES: [usize; 2] = [16, 48];
/// Bytes of a page of memory: Apple silicon's, or an older Mac's.
const PAGE: usize = if cfg!(target_arch = "aarch64") { 16 << 10 } else { 4 << 10 };
/// Bytes of copies to the GPU that may be under way: from then on they are waited for, so that their
/// staging memory goes.
const STAGED: usize = 64 << 20;

// Without this framework a program of the command line has no default device.
#[link(name = "CoreGraphics", kind = "framework")]
unsafe extern "C" {}

struct Metal {
    device: Object<dyn MTLDevice>,
    queue: Object<dyn MTLCommandQueue>,
    /// All kernels, where they were compiled ahead of time.
    compiled: Option<Object<dyn MTLLibrary>>,
    libraries: Mutex<HashMap<&'static str, Object<dyn MTLLibrary>>>,
    pipelines: Mutex<HashMap<String, Object<dyn MTLComputePipelineState>>>,
    open: Mutex<Open>,
}

/// What has been asked for and not been sent off.
#[derive(Default)]
struct Open {
    commands: Option<Object<dyn MTLCommandBuffer>>,
    encoder: Option<Object<dyn MTLComputeCommandEncoder>>,
    hazards: Hazards,
    launches: usize,
    /// Bytes of the copies since the host last waited.
    staged: usize,
    /// What was sent off since then, in order.
    sent: Vec<Object<dyn MTLCommandBuffer>>,
}

// SAFETY: devices, queues, libraries and pipelines may be used from any thread; command buffers and
// encoders only under the lock of `open`.
unsafe impl Send for Metal {}
// SAFETY: devices, queues, libraries and pipelines may be used from any thread; command buffers and
// encoders only under the lock of `open`.
unsafe impl Sync for Metal {}

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
        let compiled = metallib.map(|file| compiled(&device, file)).transpose()?;
        Ok(Self::new(Box::new(Metal {
            device,
            queue,
            compiled,
            libraries: Mutex::default(),
            pipelines: Mutex::default(),
            open: Mutex::default(),
        })))
    }
}

/// The kernels of a metallib.
fn compiled(device: &ProtocolObject<dyn MTLDevice>, file: &Path) -> Result<Object<dyn MTLLibrary>> {
    let what = "read compiled kernels";
    let path = file.to_str().ok_or_else(|| failed(what, "a path that is not UTF-8"))?;
    let url = NSURL::fileURLWithPath(&NSString::from_str(path));
    let library = device.newLibraryWithURL_error(&url);
    let library = library.map_err(|e| failed(what, e.localizedDescription()))?;
    if library.newFunctionWithName(&NSString::from_str(&taper_kernels::stamp())).is_none() {
        let message = "is of another version; make it anew with `cargo xtask metallib`";
        return Err(failed(what, format!("{path} {message}")));
    }
    Ok(library)
}

impl Open {
    fn commands(
        &mut self,
        queue: &ProtocolObject<dyn MTLCommandQueue>,
    ) -> Result<Object<dyn MTLCommandBuffer>> {
        if let Some(commands) = &self.commands {
            return Ok(commands.clone());
        }
        let commands = queue.commandBuffer();
        let commands = commands.ok_or_else(|| failed("open a command buffer", "none is left"))?;
        self.commands = Some(commands.clone());
        Ok(commands)
    }

    fn encoder(
        &mut self,
        queue: &ProtocolObject<dyn MTLCommandQueue>,
    ) -> Result<Object<dyn MTLComputeCommandEncoder>> {
        if let Some(encoder) = &self.encoder {
            return Ok(encoder.clone());
        }
        let commands = self.commands(queue)?;
        let encoder = commands.computeCommandEncoderWithDispatchType(MTLDispatchType::Concurrent);
        let encoder = encoder.ok_or_else(|| failed("open an encoder", "none is left"))?;
        self.encoder = Some(encoder.clone());
        Ok(encoder)
    }

    /// Metal itself orders what comes after an encoder.
    fn end_encoder(&mut self) {
        if let Some(encoder) = self.encoder.take() {
            encoder.endEncoding();
        }
        self.hazards.clear();
    }

    fn send(&mut self) {
        self.end_encoder();
        if let Some(commands) = self.commands.take() {
            commands.commit();
            self.sent.push(commands);
        }
        self.launches = 0;
    }

    /// Sends off, once enough has come together.
    fn send_if_full(&mut self) {
        self.launches += 1;
        if self.launches >= LAUNCHES[usize::from(!self.sent.is_empty())] {
            self.send();
        }
    }

    /// The first error of all that was sent off: what came after it may have read its results.
    fn wait(&mut self) -> Result<()> {
        self.send();
        self.staged = 0;
        let sent = std::mem::take(&mut self.sent);
        // A queue runs its command buffers in order.
        if let Some(last) = sent.last() {
            last.waitUntilCompleted();
        }
        match sent.iter().find_map(|commands| commands.error()) {
            Some(error) => Err(failed("run kernels", error.localizedDescription())),
            None => Ok(()),
        }
    }
}

impl Drop for Open {
    /// Metal ends the process when an encoder goes that was not ended.
    fn drop(&mut self) {
        self.send();
    }
}

impl Metal {
    /// A buffer that `allocate` or `adopt` made.
    fn buffer(&self, handle: Handle) -> &ProtocolObject<dyn MTLBuffer> {
        // SAFETY: the handle is a pointer that `Retained::into_raw` gave, and `free` has not run.
        unsafe { &*(handle.0 as *const ProtocolObject<dyn MTLBuffer>) }
    }

    /// Memory that both sides see.
    fn shared(&self, bytes: usize) -> Result<Object<dyn MTLBuffer>> {
        let buffer = self
            .device
            .newBufferWithLength_options(bytes.max(1), MTLResourceOptions::StorageModeShared);
        buffer.ok_or_else(|| failed("allocate memory", format!("no {bytes} bytes")))
    }

    fn copy(
        &self,
        open: &mut Open,
        (from, from_at): (&ProtocolObject<dyn MTLBuffer>, usize),
        (to, to_at): (&ProtocolObject<dyn MTLBuffer>, usize),
        bytes: usize,
    ) -> Result<()> {
        open.end_encoder();
        let commands = open.commands(&self.queue)?;
        let blit = commands.blitCommandEncoder();
        let blit = blit.ok_or_else(|| failed("open an encoder", "none is left"))?;
        // SAFETY: both ranges are inside their buffers, as the callers have checked.
        unsafe {
            blit.copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size(
                from, from_at, to, to_at, bytes,
            );
        }
        blit.endEncoding();
        Ok(())
    }

    fn library(&self, family: &'static str) -> Result<Object<dyn MTLLibrary>> {
        if let Some(compiled) = &self.compiled {
            return Ok(compiled.clone());
        }
        let mut libraries = lock(&self.libraries);
        if let Some(library) = libraries.get(family) {
            return Ok(library.clone());
        }
        let found = taper_kernels::Source::find(family);
        let source = found.ok_or_else(|| failed("find kernels", family))?.metal();
        let options = MTLCompileOptions::new();
        options.setLanguageVersion(MTLLanguageVersion::Version3_1);
        // Kernels compare with infinities and rely on the order of additions.
        #[expect(deprecated, reason = "the newer setting needs macOS 15")]
        options.setFastMathEnabled(false);
        let source = NSString::from_str(&source);
        let library = self.device.newLibraryWithSource_options_error(&source, Some(&options));
        let library = library.map_err(|e| failed("compile kernels", e.localizedDescription()))?;
        libraries.insert(family, library.clone());
        Ok(library)
    }

    fn pipeline(&self, launch: &Launch<'_>) -> Result<Object<dyn MTLComputePipelineState>> {
        let mut pipelines = lock(&self.pipelines);
        if let Some(pipeline) = pipelines.get(launch.kernel) {
            return Ok(pipeline.clone());
        }
        let library = self.library(launch.family)?;
        let function = library.newFunctionWithName(&NSString::from_str(launch.kernel));
        let function = function.ok_or_else(|| failed("find kernel", launch.kernel))?;
        let descriptor = MTLComputePipelineDescriptor::new();
        descriptor.setComputeFunction(Some(&function));
        // Else the compiler may take more registers than so many threads have.
        descriptor.setMaxTotalThreadsPerThreadgroup(launch.threads as usize);
        let pipeline = self.device.newComputePipelineStateWithDescriptor_options_reflection_error(
            &descriptor,
            MTLPipelineOption::None,
            None,
        );
        let pipeline = pipeline.map_err(|e| failed("compile kernel", e.localizedDescription()))?;
        let threads = pipeline.maxTotalThreadsPerThreadgroup();
        if threads < launch.threads as usize || pipeline.threadExecutionWidth() != 32 {
            let message = format!("{}: {threads} threads a threadgroup at most", launch.kernel);
            return Err(failed("run kernel", message));
        }
        pipelines.insert(launch.kernel.to_owned(), pipeline.clone());
        Ok(pipeline)
    }
}

impl Backend for Metal {
    fn name(&self) -> String {
        self.device.name().to_string()
    }

    fn allocate(&self, bytes: usize) -> Result<Handle> {
        autoreleasepool(|_| {
            let options = MTLResourceOptions::StorageModePrivate;
            let buffer = self.device.newBufferWithLength_options(bytes, options);
            let none = || failed("allocate memory", format!("no {bytes} bytes"));
            Ok(Handle(Retained::into_raw(buffer.ok_or_else(none)?) as u64))
        })
    }

    fn adopt(&self, bytes: &Bytes) -> Result<Option<(Handle, usize)>> {
        autoreleasepool(|_| {
            let Pages { start, len, offset } = Pages::around(bytes.as_slice(), PAGE);
            let Some(start) = NonNull::new(start as *mut c_void) else { return Ok(None) };
            if len > self.device.maxBufferLength() {
                return Ok(None);
            }
            let options = MTLResourceOptions::StorageModeShared;
            // SAFETY: these are whole pages of a file's map, which the buffer's owner keeps as long as
            // the buffer; kernels only read them.
            let buffer = unsafe {
                let device = &self.device;
                device
                    .newBufferWithBytesNoCopy_length_options_deallocator(start, len, options, None)
            };
            Ok(buffer.map(|buffer| (Handle(Retained::into_raw(buffer) as u64), offset)))
        })
    }

    fn free(&self, handle: Handle) {
        // SAFETY: it came from `into_raw` and is given back once. Command buffers hold on to what
        // their work needs.
        drop(unsafe { Retained::from_raw(handle.0 as *mut ProtocolObject<dyn MTLBuffer>) });
    }

    fn upload(&self, to: Handle, offset: usize, bytes: &[u8]) -> Result<()> {
        autoreleasepool(|_| {
            let staging = self.shared(bytes.len())?;
            // SAFETY: the staging buffer has room for them, and nobody else has it yet.
            unsafe {
                let to = staging.contents().as_ptr().cast::<u8>();
                to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            }
            let mut open = lock(&self.open);
            self.copy(&mut open, (&staging, 0), (self.buffer(to), offset), bytes.len())?;
            open.staged += bytes.len();
            if open.staged >= STAGED { open.wait() } else { Ok(()) }
        })
    }

    fn download(&self, from: Handle, offset: usize, out: &mut [u8]) -> Result<()> {
        autoreleasepool(|_| {
            let staging = self.shared(out.len())?;
            let mut open = lock(&self.open);
            self.copy(&mut open, (self.buffer(from), offset), (&staging, 0), out.len())?;
            open.wait()?;
            // SAFETY: the copy is done.
            unsafe {
                let from = staging.contents().as_ptr().cast::<u8>();
                from.copy_to_nonoverlapping(out.as_mut_ptr(), out.len());
            }
            Ok(())
        })
    }

    fn launch(&self, launch: &Launch<'_>) -> Result<()> {
        autoreleasepool(|_| {
            let pipeline = self.pipeline(launch)?;
            let mut open = lock(&self.open);
            let encoder = open.encoder(&self.queue)?;
            let uses = launch.operands.iter().map(|o| (o.buffer().handle().0, o.is_written()));
            if open.hazards.before(uses) {
                encoder.memoryBarrierWithScope(MTLBarrierScope::Buffers);
            }
            encoder.setComputePipelineState(&pipeline);
            for (i, operand) in launch.operands.iter().enumerate() {
                let buffer = self.buffer(operand.buffer().handle());
                // SAFETY: the offset is inside the buffer.
                unsafe { encoder.setBuffer_offset_atIndex(Some(buffer), operand.offset(), i) };
            }
            let params = NonNull::from(launch.params).cast::<c_void>();
            // SAFETY: the bytes are copied before this returns.
            unsafe {
                encoder.setBytes_length_atIndex(params, launch.params.len(), launch.operands.len());
            }
            let [x, y, z] = launch.grid.map(|n| n as usize);
            encoder.dispatchThreadgroups_threadsPerThreadgroup(
                MTLSize { width: x, height: y, depth: z },
                MTLSize { width: launch.threads as usize, height: 1, depth: 1 },
            );
            open.send_if_full();
            Ok(())
        })
    }

    fn wait(&self) -> Result<()> {
        autoreleasepool(|_| lock(&self.open).wait())
    }

    fn memory(&self) -> Result<Memory> {
        // Staging memory would count.
        self.wait()?;
        let total = self.device.recommendedMaxWorkingSetSize();
        let used = self.device.currentAllocatedSize() as u64;
        Ok(Memory { free: total.saturating_sub(used), total })
    }
}

impl fmt::Debug for Metal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metal").field("name", &self.name()).finish_non_exhaustive()
    }
}
