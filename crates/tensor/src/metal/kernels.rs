//! Kernels: text or a metallib, libraries, and pipelines.

use super::{Object, failed, lock};
use crate::{Result, gpu::Launch};
use objc2::runtime::ProtocolObject;
use objc2_foundation::{NSString, NSURL};
use objc2_metal::{
    MTLCompileOptions, MTLComputePipelineDescriptor, MTLComputePipelineState, MTLDevice,
    MTLLanguageVersion, MTLLibrary, MTLPipelineOption,
};
use std::{collections::HashMap, path::Path, sync::Mutex};

/// The kernels of a device. The MSL of a family is compiled when it is first used, into a library and
/// pipelines of our own, or comes compiled from a metallib.
pub(super) struct Kernels {
    device: Object<dyn MTLDevice>,
    /// All kernels, where they were compiled ahead of time.
    compiled: Option<Object<dyn MTLLibrary>>,
    libraries: Mutex<HashMap<&'static str, Object<dyn MTLLibrary>>>,
    pipelines: Mutex<HashMap<String, Object<dyn MTLComputePipelineState>>>,
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

impl Kernels {
    pub(super) fn new(device: &Object<dyn MTLDevice>, metallib: Option<&Path>) -> Result<Self> {
        Ok(Self {
            compiled: metallib.map(|file| compiled(device, file)).transpose()?,
            device: device.clone(),
            libraries: Mutex::default(),
            pipelines: Mutex::default(),
        })
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

    pub(super) fn pipeline(
        &self,
        launch: &Launch<'_>,
    ) -> Result<Object<dyn MTLComputePipelineState>> {
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
