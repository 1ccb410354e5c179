//! Kernels: text or a metallib, libraries, and pipelines.

use super::{Object, failed, lock};
use crate::{Result, gpu::Launch};
use objc2::{rc::autoreleasepool, runtime::ProtocolObject};
use objc2_foundation::{NSString, NSURL};
use objc2_metal::{
    MTLCompileOptions, MTLComputePipelineDescriptor, MTLComputePipelineState, MTLDevice,
    MTLLanguageVersion, MTLLibrary, MTLPipelineOption,
};
use std::{
    collections::HashMap,
    path::Path,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
};
use taper_kernels::{SOURCES, Source};

/// Families that are compiled side by side when a device is opened.
const COMPILERS: usize = 4;

/// The threads that compile ahead. They are waited for, so that none compiles while the program ends.
pub(super) struct Ahead {
    next: Arc<AtomicUsize>,
    threads: Vec<JoinHandle<()>>,
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.next.store(usize::MAX / 2, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // What it would have compiled is compiled when it is used.
            let _ = thread.join();
        }
    }
}

/// The kernels of a device. The MSL of each family is compiled into a library, or comes compiled from a
/// metallib; a kernel's pipeline is made when it is first launched.
pub(super) struct Kernels {
    device: Object<dyn MTLDevice>,
    /// All kernels, where they were compiled ahead of time.
    compiled: Option<Object<dyn MTLLibrary>>,
    libraries: Vec<(&'static Source, OnceLock<Library>)>,
    pipelines: Mutex<HashMap<String, Object<dyn MTLComputePipelineState>>>,
}

// SAFETY: devices, libraries and pipelines may be used from any thread.
unsafe impl Send for Kernels {}
// SAFETY: devices, libraries and pipelines may be used from any thread.
unsafe impl Sync for Kernels {}

/// A family, or the compiler's word on it.
type Library = std::result::Result<Object<dyn MTLLibrary>, String>;

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

impl Kernels {
    /// The kernels of a metallib, or all families.
    pub(super) fn new(
        device: &Object<dyn MTLDevice>,
        metallib: Option<&Path>,
    ) -> Result<Arc<Self>> {
        let sources = SOURCES.iter().filter(|source| source.is_for_metal());
        Ok(Arc::new(Self {
            compiled: metallib.map(|file| compiled(device, file)).transpose()?,
            device: device.clone(),
            libraries: sources.map(|&source| (source, OnceLock::new())).collect(),
            pipelines: Mutex::default(),
        }))
    }

    /// Begins to compile all families, where there is no metallib.
    pub(super) fn compile_ahead(self: &Arc<Self>) -> Ahead {
        let next = Arc::new(AtomicUsize::new(0));
        let mut threads = Vec::new();
        for _ in 0..if self.compiled.is_none() { COMPILERS } else { 0 } {
            let (kernels, next) = (Arc::clone(self), Arc::clone(&next));
            let work = move || {
                while let Some((source, library)) =
                    kernels.libraries.get(next.fetch_add(1, Ordering::Relaxed))
                {
                    library.get_or_init(|| kernels.compile(source));
                }
            };
            // Without a thread a family is compiled when it is first used.
            threads.extend(thread::Builder::new().name("taper-metal".into()).spawn(work));
        }
        Ahead { next, threads }
    }

    fn compile(&self, source: &Source) -> Library {
        autoreleasepool(|_| {
            let options = MTLCompileOptions::new();
            options.setLanguageVersion(MTLLanguageVersion::Version3_1);
            // Kernels compare with infinities and rely on the order of additions.
            #[expect(deprecated, reason = "the newer setting needs macOS 15")]
            options.setFastMathEnabled(false);
            let text = NSString::from_str(&source.metal());
            let library = self.device.newLibraryWithSource_options_error(&text, Some(&options));
            library.map_err(|e| e.localizedDescription().to_string())
        })
    }

    fn library(&self, family: &'static str) -> Result<Object<dyn MTLLibrary>> {
        if let Some(compiled) = &self.compiled {
            return Ok(compiled.clone());
        }
        let found = self.libraries.iter().find(|(source, _)| source.name == family);
        let (source, library) = found.ok_or_else(|| failed("find kernels", family))?;
        let library = library.get_or_init(|| self.compile(source));
        library.clone().map_err(|message| failed("compile kernels", message))
    }

    pub(super) fn pipeline(
        &self,
        launch: &Launch<'_>,
    ) -> Result<Object<dyn MTLComputePipelineState>> {
        if let Some(pipeline) = lock(&self.pipelines).get(launch.kernel) {
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
        lock(&self.pipelines).insert(launch.kernel.to_owned(), pipeline.clone());
        Ok(pipeline)
    }
}
