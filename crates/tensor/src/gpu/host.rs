//! The host runner as a GPU: kernels compiled for this machine, one fiber a GPU thread.

use super::{Backend, Gpu, Handle, Launch, Memory};
use crate::{Bytes, Result, TensorError};
use libloading::{Library, Symbol};
use std::{
    collections::HashMap,
    ffi::{CStr, c_char, c_void},
    path::Path,
    sync::{Mutex, PoisonError},
};

/// How the host runner runs kernels.
#[derive(Debug, Clone, Copy, Default)]
pub struct HostOptions {
    /// Runs threads and threadgroups in a random order of this seed; 0 runs them in one fixed order.
    pub seed: u64,
    /// Fails when a kernel changes a buffer that its launch marks as an input.
    pub check_inputs: bool,
}

/// Marks the handles of memory that is not the runner's: all addresses are even.
const ADOPTED: u64 = 1;

fn address(handle: Handle) -> usize {
    (handle.0 & !ADOPTED) as usize
}

/// The library that `cargo xtask kernels` builds.
#[derive(Debug)]
pub(crate) struct Runner {
    library: Library,
    /// It has one set of fibers.
    running: Mutex<()>,
}

/// The library as a GPU.
#[derive(Debug)]
struct Host {
    runner: Runner,
    options: HostOptions,
    /// Length of each buffer.
    lengths: Mutex<HashMap<u64, usize>>,
}

type Allocate = unsafe extern "C" fn(usize) -> *mut c_void;
type Free = unsafe extern "C" fn(*mut c_void);
type Run = unsafe extern "C" fn(
    *mut c_void,
    *const *mut c_void,
    u32,
    *const u32,
    u32,
    u64,
) -> *const c_char;

impl Gpu {
    /// Opens a library of kernels for the host.
    ///
    /// # Errors
    /// It cannot be loaded.
    pub fn host(library: &Path, options: HostOptions) -> Result<Self> {
        let runner = Runner::open(library)?;
        Ok(Self::new(Box::new(Host { runner, options, lengths: Mutex::default() })))
    }
}

fn failed<E: std::fmt::Display>(what: &'static str) -> impl Fn(E) -> TensorError {
    move |e| TensorError::Gpu { what, message: e.to_string() }
}

impl Runner {
    pub(crate) fn open(library: &Path) -> Result<Self> {
        // SAFETY: the library is ours and runs nothing when it is loaded.
        let library = unsafe { Library::new(library) }.map_err(failed("load kernels"))?;
        Ok(Self { library, running: Mutex::default() })
    }

    fn symbol<T>(&self, name: &str) -> Result<Symbol<'_, T>> {
        // SAFETY: each caller asks for the type that the runner declares.
        unsafe { self.library.get(name.as_bytes()) }.map_err(failed("find kernel"))
    }

    /// Memory whose ends are watched.
    fn allocate(&self, bytes: usize) -> Result<u64> {
        let allocate = self.symbol::<Allocate>("taper_alloc")?;
        // SAFETY: any size is allowed.
        match unsafe { allocate(bytes) } as u64 {
            0 => Err(failed("allocate")(format!("no {bytes} bytes"))),
            at => Ok(at),
        }
    }

    fn free(&self, at: u64) {
        if let Ok(free) = self.symbol::<Free>("taper_free") {
            // SAFETY: it came from `taper_alloc` and is given back once.
            unsafe { free(at as *mut c_void) };
        }
    }

    /// Runs a kernel on buffers from these addresses on. The error says what went wrong inside.
    pub(crate) fn run(
        &self,
        kernel: &str,
        (grid, threads): ([u32; 3], u32),
        buffers: &[*mut u8],
        params: &[u8],
        seed: u64,
    ) -> std::result::Result<(), String> {
        let _running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let text = |e: TensorError| e.to_string();
        let address = self.symbol::<*mut c_void>(kernel).map_err(text)?;
        let run = self.symbol::<Run>("taper_launch").map_err(text)?;
        // A copy of its own, so that reading past its end is detected.
        let copy = self.allocate(params.len()).map_err(text)?;
        // SAFETY: it has room for them.
        unsafe { (copy as *mut u8).copy_from_nonoverlapping(params.as_ptr(), params.len()) };
        let mut buffers: Vec<_> = buffers.iter().map(|at| at.cast::<c_void>()).collect();
        buffers.push(copy as *mut c_void);
        // SAFETY: the kernel takes these buffers; the runner reports what goes wrong inside.
        let wrong = unsafe {
            run(
                address.try_as_raw_ptr().unwrap_or(std::ptr::null_mut()),
                buffers.as_ptr(),
                buffers.len() as u32,
                grid.as_ptr(),
                threads,
                seed,
            )
        };
        self.free(copy);
        if wrong.is_null() {
            return Ok(());
        }
        // SAFETY: a message that stays until the next launch.
        Err(unsafe { CStr::from_ptr(wrong) }.to_string_lossy().into_owned())
    }
}

impl Host {
    fn length(&self, handle: Handle) -> usize {
        let lengths = self.lengths.lock().unwrap_or_else(PoisonError::into_inner);
        lengths.get(&handle.0).copied().unwrap_or(0)
    }

    /// A sum of a buffer's bytes that changes with each of them.
    fn digest(&self, handle: Handle) -> u64 {
        // SAFETY: the buffer lives as long as the launch that names it.
        let bytes = unsafe {
            std::slice::from_raw_parts(address(handle) as *const u8, self.length(handle))
        };
        bytes
            .iter()
            .fold(0xcbf2_9ce4_8422_2325, |h, &b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3))
    }
}

impl Backend for Host {
    fn name(&self) -> String {
        "host runner".into()
    }

    fn allocate(&self, bytes: usize) -> Result<Handle> {
        let at = self.runner.allocate(bytes)?;
        self.lengths.lock().unwrap_or_else(PoisonError::into_inner).insert(at, bytes);
        Ok(Handle(at))
    }

    fn adopt(&self, bytes: &Bytes) -> Result<Option<(Handle, usize)>> {
        let handle = bytes.as_slice().as_ptr() as u64 | ADOPTED;
        self.lengths.lock().unwrap_or_else(PoisonError::into_inner).insert(handle, bytes.len());
        Ok(Some((Handle(handle), 0)))
    }

    fn free(&self, handle: Handle) {
        if handle.0 & ADOPTED != 0 {
            return;
        }
        self.lengths.lock().unwrap_or_else(PoisonError::into_inner).remove(&handle.0);
        self.runner.free(handle.0);
    }

    fn upload(&self, to: Handle, offset: usize, bytes: &[u8]) -> Result<()> {
        // SAFETY: `Buffer` checks that the bytes fit.
        unsafe {
            (address(to) as *mut u8)
                .add(offset)
                .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        }
        Ok(())
    }

    fn download(&self, from: Handle, offset: usize, out: &mut [u8]) -> Result<()> {
        // SAFETY: `Buffer` checks that the bytes are there.
        unsafe {
            (address(from) as *const u8)
                .add(offset)
                .copy_to_nonoverlapping(out.as_mut_ptr(), out.len());
        }
        Ok(())
    }

    fn launch(&self, launch: &Launch<'_>, _: u64) -> Result<()> {
        let inputs = launch.operands.iter().filter(|o| !o.is_written());
        let inputs = inputs.map(|o| o.buffer().handle());
        let written = |h: &Handle| {
            launch.operands.iter().any(|o| o.is_written() && o.buffer().handle() == *h)
        };
        let inputs: Vec<_> = inputs.filter(|h| self.options.check_inputs && !written(h)).collect();
        let before: Vec<_> = inputs.iter().map(|&h| self.digest(h)).collect();
        let at = |o: &super::Operand<'_>| (address(o.buffer().handle()) + o.offset()) as *mut u8;
        let buffers: Vec<_> = launch.operands.iter().map(at).collect();
        let threads = (launch.grid, launch.threads);
        let seed = self.options.seed;
        let run = self.runner.run(launch.kernel, threads, &buffers, launch.params, seed);
        let changed = inputs.iter().zip(before).position(|(&h, digest)| self.digest(h) != digest);
        let changed = changed.map_or(Ok(()), |i| Err(format!("it changes its input {i}")));
        run.and(changed).map_err(|text| TensorError::Gpu {
            what: "run kernel",
            message: format!("{}: {text}", launch.kernel),
        })
    }

    fn wait(&self) -> Result<()> {
        Ok(())
    }

    fn may_pool(&self) -> bool {
        false
    }

    /// So that they are checked.
    fn has_fast_tiles(&self) -> bool {
        true
    }

    fn has_wide_tiles(&self) -> bool {
        true
    }

    fn memory(&self) -> Result<Memory> {
        Ok(Memory { free: 1 << 32, total: 1 << 32 })
    }
}
