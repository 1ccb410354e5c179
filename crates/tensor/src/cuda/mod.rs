//! NVIDIA GPUs.
//!
//! The kernels are the PTX that `cargo xtask kernels --write` makes of the MSL sources; the driver
//! compiles it for the GPU at hand when a family is first used, and keeps the result. Products of many
//! rows are cuBLAS's. The driver and cuBLAS are opened at run time: a build needs no CUDA toolkit, and
//! the program starts where there is no driver.

mod library;
mod overlap;
mod replay;
mod sender;

use crate::{
    Result, TensorError,
    gpu::{Backend, Gpu, Handle, Launch, MatmulOperands, Memory},
};
use cudarc::driver::{result as cu, sys};
use library::Blas;
use replay::Replay;
use sender::{Aside, Graph, Sender};
use std::{
    collections::HashMap,
    ffi::CString,
    fmt,
    sync::{Mutex, MutexGuard, PoisonError},
};
use taper_kernels::Source;

/// One GPU, and the stream on which everything runs in order.
struct Cuda {
    context: sys::CUcontext,
    stream: sys::CUstream,
    device: sys::CUdevice,
    name: String,
    /// The first number of its compute capability.
    capability: i32,
    modules: Mutex<HashMap<&'static str, sys::CUmodule>>,
    functions: Mutex<HashMap<String, sys::CUfunction>>,
    blas: Option<Blas>,
    /// Launches that were not sent yet.
    replay: Mutex<Replay<Graph>>,
    sender: Sender,
}

// SAFETY: the driver's handles may be used from any thread that has made the context current, which
// `enter` does.
unsafe impl Send for Cuda {}
// SAFETY: the driver orders concurrent calls on these handles, and every call makes the context
// current with `enter`.
unsafe impl Sync for Cuda {}

fn failed<E: fmt::Debug>(what: &'static str) -> impl Fn(E) -> TensorError {
    move |e| TensorError::Gpu { what, message: format!("{e:?}") }
}

impl Gpu {
    /// The NVIDIA GPU of this index.
    ///
    /// # Errors
    /// There is no driver or no such GPU.
    pub fn cuda(index: i32) -> Result<Self> {
        // SAFETY: it only looks for the library.
        if !unsafe { sys::is_culib_present() } {
            let message = "the NVIDIA driver (libcuda) is not installed".into();
            return Err(TensorError::Gpu { what: "find a GPU", message });
        }
        cu::init().map_err(failed("start CUDA"))?;
        let device = cu::device::get(index).map_err(failed("find a GPU"))?;
        let name = cu::device::get_name(device).map_err(failed("name the GPU"))?;
        // SAFETY: the device exists; the context lives until `drop`.
        let context = unsafe { cu::primary_ctx::retain(device) }.map_err(failed("open the GPU"))?;
        // SAFETY: the context was just retained.
        unsafe { cu::ctx::set_current(context) }.map_err(failed("open the GPU"))?;
        let stream = cu::stream::create(cu::stream::StreamKind::NonBlocking);
        let stream = stream.map_err(failed("open a stream"))?;
        let blas = Blas::open(stream)?;
        let capability = overlap::capability(device)?;
        let overlaps = overlap::is_there(capability);
        let aside = Aside::open().map_err(failed("open a stream"))?;
        Ok(Self::new(Box::new(Cuda {
            context,
            stream,
            device,
            name,
            capability,
            modules: Mutex::default(),
            functions: Mutex::default(),
            blas,
            replay: Mutex::default(),
            sender: Sender { stream, overlaps, aside },
        })))
    }
}

impl Cuda {
    /// Makes the context this thread's.
    fn enter(&self) -> Result<()> {
        // SAFETY: the context lives as long as `self`.
        unsafe { cu::ctx::set_current(self.context) }.map_err(failed("use the GPU"))
    }

    fn module(&self, family: &'static str) -> Result<sys::CUmodule> {
        let mut modules = self.modules.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&module) = modules.get(family) {
            return Ok(module);
        }
        let unknown = || TensorError::Gpu { what: "find kernels", message: family.to_owned() };
        let source = Source::find(family).ok_or_else(unknown)?;
        let ptx = source.ptx().map_err(failed("unpack kernels"))?;
        let ptx = match self.sender.overlaps {
            true => overlap::enable(&ptx, self.capability),
            false => ptx,
        };
        let ptx = CString::new(ptx).map_err(failed("read PTX"))?;
        // SAFETY: PTX text that ends with a zero.
        let module = unsafe { cu::module::load_data(ptx.as_ptr().cast()) };
        let module = module.map_err(failed("compile kernels"))?;
        modules.insert(family, module);
        Ok(module)
    }

    fn function(&self, launch: &Launch<'_>) -> Result<sys::CUfunction> {
        let mut functions = self.functions.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&function) = functions.get(launch.kernel) {
            return Ok(function);
        }
        let name = CString::new(launch.kernel).map_err(failed("find kernel"))?;
        let module = self.module(launch.family)?;
        // SAFETY: the module stays loaded as long as `self`.
        let function = unsafe { cu::module::get_function(module, name) };
        let function = function.map_err(failed("find kernel"))?;
        functions.insert(launch.kernel.to_owned(), function);
        Ok(function)
    }

    /// Launches that were collected; who holds it has the stream to itself.
    fn replay(&self) -> MutexGuard<'_, Replay<Graph>> {
        self.replay.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends the launches that were collected: what follows must come after them, and must not become
    /// part of a graph that another thread makes.
    fn flush(&self) -> Result<MutexGuard<'_, Replay<Graph>>> {
        let mut replay = self.replay();
        replay.flush(&self.sender).map_err(failed("run kernels"))?;
        Ok(replay)
    }
}

impl Backend for Cuda {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn allocate(&self, bytes: usize) -> Result<Handle> {
        self.enter()?;
        // SAFETY: any size above zero is allowed.
        let at = unsafe { cu::malloc_sync(bytes) }.map_err(failed("allocate memory"))?;
        Ok(Handle(at))
    }

    fn free(&self, handle: Handle) {
        if self.enter().is_ok() && self.flush().is_ok() {
            // SAFETY: it came from `allocate` and is freed once; the driver waits for what reads it.
            let _ = unsafe { cu::free_sync(handle.0) };
        }
    }

    fn upload(&self, to: Handle, offset: usize, bytes: &[u8]) -> Result<()> {
        self.enter()?;
        let _sent = self.flush()?;
        // SAFETY: `Buffer` checks the range. From pageable memory the driver copies the bytes away
        // before it returns.
        let copied = unsafe { cu::memcpy_htod_async(to.0 + offset as u64, bytes, self.stream) };
        copied.map_err(failed("copy to the GPU"))
    }

    fn download(&self, from: Handle, offset: usize, out: &mut [u8]) -> Result<()> {
        self.enter()?;
        let sent = self.flush()?;
        // SAFETY: `Buffer` checks the range, and the wait below ends the copy.
        let copied = unsafe { cu::memcpy_dtoh_async(out, from.0 + offset as u64, self.stream) };
        copied.map_err(failed("copy from the GPU"))?;
        drop(sent);
        self.wait()
    }

    fn launch(&self, launch: &Launch<'_>, _: u64) -> Result<()> {
        self.enter()?;
        let function = self.function(launch)?;
        let sent = self.replay().push(&self.sender, function, launch, &[]);
        sent.map_err(failed("run kernel"))
    }

    fn launch_aside(&self, launch: &Launch<'_>, guarded: &[Handle]) -> Result<()> {
        self.enter()?;
        let function = self.function(launch)?;
        let guarded: Vec<_> = guarded.iter().map(|handle| handle.0).collect();
        let sent = self.replay().push(&self.sender, function, launch, &guarded);
        sent.map_err(failed("run kernel"))
    }

    fn wait(&self) -> Result<()> {
        self.enter()?;
        self.replay().settle(&self.sender).map_err(failed("run kernels"))?;
        // SAFETY: the stream lives as long as `self`.
        unsafe { cu::stream::synchronize(self.stream) }.map_err(failed("wait for the GPU"))
    }

    fn memory(&self) -> Result<Memory> {
        self.enter()?;
        let (free, total) = cu::mem_get_info().map_err(failed("ask for memory"))?;
        Ok(Memory { free: free as u64, total: total as u64 })
    }

    fn peak_bandwidth(&self) -> Result<Option<u64>> {
        use sys::CUdevice_attribute as Attribute;
        let ask = |attribute| {
            // SAFETY: the device exists.
            unsafe { cu::device::get_attribute(self.device, attribute) }
                .map_err(failed("ask the GPU"))
        };
        // In kHz and bits; both edges of the clock carry data.
        let clock = ask(Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE)?;
        let width = ask(Attribute::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH)?;
        let bytes = 2 * 1000 * clock.unsigned_abs() as u64 * (width.unsigned_abs() as u64 / 8);
        Ok(Some(bytes).filter(|&bytes| bytes > 0))
    }

    fn has_fast_tiles(&self) -> bool {
        true
    }

    fn has_wide_tiles(&self) -> bool {
        self.capability == overlap::HOPPER
    }

    fn has_matmul(&self) -> bool {
        self.blas.is_some()
    }

    fn matmul(&self, operands: MatmulOperands<'_>) -> Result<()> {
        self.enter()?;
        let _sent = self.flush()?;
        match &self.blas {
            Some(blas) => blas.matmul(&operands),
            None => Err(TensorError::Device { op: "matmul", device: self.name() }),
        }
    }
}

impl fmt::Debug for Cuda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cuda").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        self.blas = None;
        let modules = self.modules.get_mut().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the context is released only below.
        if unsafe { cu::ctx::set_current(self.context) }.is_err() {
            return;
        }
        *self.replay.get_mut().unwrap_or_else(PoisonError::into_inner) = Replay::default();
        for (_, module) in modules.drain() {
            // SAFETY: nothing of it runs any more once the stream is done.
            let _ = unsafe { cu::stream::synchronize(self.stream).and(cu::module::unload(module)) };
        }
        // SAFETY: opened in `cuda` and not used after this.
        let _ = unsafe {
            self.sender.aside.close();
            cu::stream::destroy(self.stream).and(cu::primary_ctx::release(self.device))
        };
    }
}
