//! Launches that start while the one before them ends (programmatic dependent launch, from compute
//! capability 9.0 on).

use super::failed;
use crate::Result;
use cudarc::driver::{
    result::{DriverError, device},
    sys,
};
use std::ffi::c_void;

/// The PTX of the kernels is of version 7.0 for sm_80, where these instructions are comments.
const OPEN: &str = "/*sm_90 ";
const CLOSE: &str = "*/";
/// Compute capability 9.
pub(super) const HOPPER: i32 = 9;

/// The first number of a GPU's compute capability.
pub(super) fn capability(of: sys::CUdevice) -> Result<i32> {
    let major = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR;
    // SAFETY: the device exists.
    let major = unsafe { device::get_attribute(of, major) };
    major.map_err(failed("ask the GPU"))
}

/// Whether launches overlap on GPUs of this capability.
pub(super) fn is_there(capability: i32) -> bool {
    capability >= HOPPER
}

/// PTX with its commented-out instructions enabled, for a GPU that has them. Instructions of
/// `sm_90a` are enabled for [`HOPPER`] alone.
pub(super) fn enable(ptx: &str, capability: i32) -> String {
    let (version, target) = if capability == HOPPER { ("8.0", "sm_90a") } else { ("7.8", "sm_90") };
    let ptx = ptx.replacen(".version 7.0", &format!(".version {version}"), 1);
    ptx.replacen("sm_80", target, 1).replace(OPEN, "").replace(CLOSE, "")
}

/// Runs a kernel; with `overlaps` it may start before what was launched before is done, and waits for
/// that itself.
///
/// # Safety
/// The arguments are the kernel's, and its PTX went through [`enable`] if it overlaps.
pub(super) unsafe fn launch(
    function: sys::CUfunction,
    ([x, y, z], threads): ([u32; 3], u32),
    stream: sys::CUstream,
    arguments: &mut [*mut c_void],
    overlaps: bool,
) -> std::result::Result<(), DriverError> {
    if !overlaps {
        // SAFETY: as the caller says.
        return unsafe {
            cudarc::driver::result::launch_kernel(
                function,
                (x, y, z),
                (threads, 1, 1),
                0,
                stream,
                arguments,
            )
        };
    }
    let mut attribute = sys::CUlaunchAttribute {
        id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
        pad: [0; 4],
        value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
    };
    let config = sys::CUlaunchConfig {
        gridDimX: x,
        gridDimY: y,
        gridDimZ: z,
        blockDimX: threads,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: 0,
        hStream: stream,
        attrs: &raw mut attribute,
        numAttrs: 1,
    };
    // SAFETY: as the caller says; the driver copies all of it before it returns.
    unsafe {
        sys::cuLaunchKernelEx(
            &raw const config,
            function,
            arguments.as_mut_ptr(),
            std::ptr::null_mut(),
        )
    }
    .result()
}

#[cfg(test)]
mod tests {
    use super::*;
    use taper_kernels::SOURCES;

    #[test]
    fn every_kernel_waits_for_the_launch_before_it() {
        for family in SOURCES {
            let text = family.ptx().unwrap();
            let ptx = enable(&text, HOPPER);
            assert!(ptx.contains(".version 8.0\n.target sm_90a\n"), "{}", family.name);
            let later = enable(&text, HOPPER + 1);
            assert!(later.contains(".version 7.8\n.target sm_90\n"), "{}", family.name);
            assert!(!ptx.contains("/*"), "{}", family.name);
            let mut kernels = ptx.split(".visible .entry ").skip(1);
            assert!(kernels.all(|k| k.contains("griddepcontrol.wait;")), "{}", family.name);
        }
    }
}
